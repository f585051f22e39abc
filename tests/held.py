"""Federations whose peers are held in a round until the test lets them go on."""

from pathlib import Path
from typing import Any, Literal

from real_peers import until

from peer.protocols.base import Peer
from peer.protocols.fibfl import FibFL
from peer.runtime.rounds.local_peer import LocalPeer

HELD_ROUND = 5
HOUR = 3600.0


class Held(FibFL):
    """Ends its fifth round when the file `gate` is there, whenever that round is played. A dry run is not held."""

    name: Literal["held:Held"] = "held:Held"  # type: ignore[assignment]
    gate: str

    async def round(self, peer: Peer) -> None:
        await super().round(peer)
        if peer.round == HELD_ROUND and isinstance(peer, LocalPeer):
            await peer.compute(until, Path(self.gate).exists, HOUR, "the test lets it go on")


def held(gate: Path) -> dict[str, Any]:
    """Keys of a spec: short rounds, of which the fifth ends when that file is there."""
    protocol = {"name": "held:Held", "gate": str(gate), "head_epochs": 1, "extractor_epochs": 1}
    return {"protocol": protocol, "rounds": HELD_ROUND + 3, "patience": HOUR, "code": str(Path(__file__).parent)}
