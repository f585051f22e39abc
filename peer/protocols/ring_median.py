"""Ring median: FibFL's ring with a median in place of the blend, which one lying neighbour cannot pull away."""

from typing import ClassVar, Literal

from peer.protocols.base import Peer, Protocol
from peer.protocols.blocks.training import TwoPhase
from peer.protocols.blocks.vectors import trimmed_mean
from peer.protocols.declarations import Share


class RingMedian(TwoPhase, Protocol):
    """θ ← the coordinate-wise median of θ, θ_L and θ_R after two-phase local training; η never leaves the peer.

    Whatever one neighbour sends, each value stays between one's own and the other neighbour's.
    """

    name: Literal["ring-median"] = "ring-median"

    paper: ClassVar[str] = "Yin et al. 2018, Definition 1, on FIRMA's ring"
    min_peers: ClassVar[int] = 3

    def shares(self, rounds: int) -> tuple[Share, ...]:
        return (Share("extractor"),)

    async def round(self, peer: Peer) -> None:
        await peer.train(*self.local())
        received = await peer.exchange("extractor")
        trimmed_mean(peer.extractor, [received[peer.left].vector, received[peer.right].vector], trim=1)
