"""FibFL++: 2-opt ring order, K passes, calibrated retention, warm-up. FIRMA (arXiv:2605.22898), Algorithm 3."""

from math import ceil, cos, pi
from typing import Annotated, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from peer.learning.training.optimiser import Adam
from peer.learning.training.phase import Phase
from peer.protocols.base import Init, Peer, Protocol
from peer.protocols.blocks.training import Fraction, TwoPhase
from peer.protocols.declarations import Record, Share
from peer.protocols.fibfl_plus import gated_blend
from peer.topology import RingCost, ring_cost, similarity, two_opt


class FibFLPlusPlus(TwoPhase, Protocol):
    """FibFL+ on a ring ordered for diversity (Fix A), in K passes (Fix B) with annealed retention (Fix C).

    Where the paper is silent: passes are Jacobi, rounds are counted from 0 in Eq. 10, and the warm-up
    mean is a ring all-reduce of the extractor alone (`warmup_shares: model` is the paper's own).
    """

    name: Literal["fibfl++"] = "fibfl++"
    gamma_start: Annotated[float, Field(gt=0, le=1)] = 0.4
    """γ_start (Eq. 10)."""
    gamma_end: Annotated[float, Field(gt=0, le=1)] = 0.05
    """γ_end (Eq. 10)."""
    tau: Fraction = 0.35
    """The accuracy below which a neighbour does not count (Eq. 6)."""
    ring_cost: RingCost = "cosine"
    """Eq. 8's cosine, or the published figures' dot product."""
    reorder_every: Annotated[int, Field(ge=0)] = 0
    """Reorder the ring every so many rounds; 0: once."""
    warmup: Annotated[int, Field(ge=0)] | None = None
    """W: rounds of warm-up; default max(1, R // 6)."""
    warmup_shares: Literal["extractor", "model"] = "extractor"
    """Averaged in warm-up; the paper's is `model`."""

    paper: ClassVar[str] = "FIRMA, Algorithm 3"
    min_peers: ClassVar[int] = 3
    init: ClassVar[Init] = "independent"
    reorders: ClassVar[bool] = True
    records: ClassVar[tuple[Record, ...]] = (Record("proportions", "kinds"), Record("order"))

    def shares(self, rounds: int) -> tuple[Share, ...]:
        warm = self.warmup_rounds(rounds)
        if self.warmup_shares == "extractor" or not warm:
            return (Share("extractor", scalars=1),)
        return (
            Share("model", scalars=1, rounds=range(1, warm + 1)),
            Share("extractor", scalars=1, rounds=range(warm + 1, rounds + 1)),
        )

    def why_rounds_are_fixed(self) -> str | None:
        return "warm-up and γ_r (Eq. 10) depend on the number of rounds"

    def warmup_rounds(self, rounds: int) -> int:
        """W."""
        return max(1, rounds // 6) if self.warmup is None else min(self.warmup, rounds)

    def gamma(self, round: int, rounds: int) -> float:
        """γ_r of Eq. 10 for a round counted from 1."""
        warm = self.warmup_rounds(rounds)
        progress = (round - 1 - warm) / max(rounds - warm - 1, 1)
        return self.gamma_end + (self.gamma_start - self.gamma_end) * (1 + cos(pi * progress)) / 2

    async def start(self, peer: Peer, init: Init) -> None:
        await self.order_ring(peer)

    async def begin_view(self, peer: Peer) -> None:
        """A ring of other members is ordered anew."""
        await self.order_ring(peer)

    async def order_ring(self, peer: Peer) -> None:
        """Fix A: every peer runs the same 2-opt on all peers' mixes of classes, or of other targets."""
        gathered = await peer.gather("proportions", peer.proportions)
        similar = similarity(np.stack([_proportions(q.numpy()) for q in gathered.values()]), self.ring_cost)
        order = await peer.compute(two_opt, similar)  # seconds with a thousand peers
        before, after = ring_cost(similar, range(len(order))), ring_cost(similar, order)
        await peer.reorder(tuple(peer.members[i] for i in order), before, after)

    async def round(self, peer: Peer) -> None:
        if self.reorder_every and peer.round > 1 and (peer.round - 1) % self.reorder_every == 0:
            await self.order_ring(peer)
        if peer.round <= self.warmup_rounds(peer.rounds):
            await self.warm_up(peer)
        else:
            await self.gossip(peer)

    async def warm_up(self, peer: Peer) -> None:
        epochs = max(self.head_epochs, self.extractor_epochs)
        await peer.train(Phase("model", epochs, Adam(self.lr), self.batch_size, keep="warm-up"))
        await peer.weighted_mean(self.warmup_shares, weight=peer.samples)
        if peer.round == self.warmup_rounds(peer.rounds):
            peer.forget("warm-up")

    async def gossip(self, peer: Peer) -> None:
        await peer.train(*self.local())
        accuracy = await peer.accuracy()
        passes = ceil(len(peer.ring) / 2)
        gamma = self.gamma(peer.round, peer.rounds)
        peer.note(gamma=gamma)
        for _ in range(passes):
            received = await peer.exchange("extractor", accuracy=accuracy)
            gated_blend(peer, gamma ** (1 / passes), received, self.tau)


def _proportions(told: NDArray[np.float64]) -> NDArray[np.float64]:
    """What a peer told, as parts of a whole; for what cannot be that, an even mix: one lie must not stop the order."""
    whole = bool((told >= 0).all()) and abs(float(told.sum()) - 1) < 1e-6
    return told if whole else np.full_like(told, 1 / len(told))
