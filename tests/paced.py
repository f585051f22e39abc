"""Federations that go on for as long as a test needs them, on little CPU: of short rounds, with a pause in each, or
with one that is held."""

import time
from pathlib import Path
from typing import Any, Literal

from real_peers import Build, SmallFederation, until

from peer.protocols.base import Peer
from peer.protocols.fibfl import FibFL
from peer.runtime.local_peer import LocalPeer

PAUSE = 0.1
"""Seconds."""


class Paced(FibFL):
    name: Literal["paced:Paced"] = "paced:Paced"  # type: ignore[assignment]

    async def round(self, peer: Peer) -> None:
        await peer.compute(time.sleep, PAUSE)
        await super().round(peer)


HELD_ROUND = 5
HOUR = 3600.0


class Held(FibFL):
    """Ends its fifth round when the file `gate` is there, whenever that round is played. A dry run is not held."""

    name: Literal["paced:Held"] = "paced:Held"  # type: ignore[assignment]
    gate: str

    async def round(self, peer: Peer) -> None:
        await super().round(peer)
        if peer.round == HELD_ROUND and isinstance(peer, LocalPeer):
            await peer.compute(until, Path(self.gate).exists, HOUR, "the test lets it go on")


def held(gate: Path) -> dict[str, Any]:
    """Keys of a spec: short rounds, of which the fifth ends when that file is there."""
    protocol = {"name": "paced:Held", "gate": str(gate), "head_epochs": 1, "extractor_epochs": 1}
    return {"protocol": protocol, "rounds": HELD_ROUND + 3, "patience": HOUR, "code": str(Path(__file__).parent)}


def endless(federation: Build) -> SmallFederation:
    """Three peers with 5,000 rounds before them."""
    protocol = {"name": "paced:Paced", "head_epochs": 1, "extractor_epochs": 1}
    return federation(protocol, rounds=5000, code=str(Path(__file__).parent))
