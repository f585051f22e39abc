"""A federation that goes on for as long as a test needs it, on little CPU: short rounds, with a pause in each."""

import time
from pathlib import Path
from typing import Literal

from real_peers import Build, SmallFederation

from peer.protocols.base import Peer
from peer.protocols.fibfl import FibFL

PAUSE = 0.1
"""Seconds."""


class Paced(FibFL):
    name: Literal["paced:Paced"] = "paced:Paced"  # type: ignore[assignment]

    async def round(self, peer: Peer) -> None:
        await peer.compute(time.sleep, PAUSE)
        await super().round(peer)


def endless(federation: Build) -> SmallFederation:
    """Three peers with 5,000 rounds before them."""
    protocol = {"name": "paced:Paced", "head_epochs": 1, "extractor_epochs": 1}
    return federation(protocol, rounds=5000, code=str(Path(__file__).parent))
