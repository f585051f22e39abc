"""RFFL: updates rewarded by their cosine to the whole, and free riders excluded. Xu and Lyu (2021), Algorithm 1."""

from collections.abc import Mapping
from typing import Annotated, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor

from peer.protocols.base import Peer, Protocol
from peer.protocols.blocks.training import Fraction, Rate
from peer.protocols.blocks.updates import Updates, not_dropped, portions, reputable, reputations
from peer.protocols.blocks.vectors import keep_variances, trainable_by
from peer.protocols.declarations import Record


class RFFL(Updates, Protocol):
    """u = Σ r_i·Δ_i of updates clipped to norm Γ; r_i ← α·r_i + (1−α)·cos(Δ_i, u); i keeps Δ_i and gets of u besides.

    It gets the largest ⌈q_i·size⌉ entries of each tensor, q_i = r_i / max_j r_j. After ten rounds, a peer that
    falls below a third of an even part is dropped, for good: it trains on alone, and relays. Each peer holds all
    updates and masks its own reward, so the mask is on its honour.
    """

    name: Literal["rffl"] = "rffl"
    gamma: Rate = 0.5
    """Γ: norm above which updates are clipped (.5 for MNIST, .15 for CIFAR-10)."""
    alpha: Fraction = 0.95
    """Weight of earlier reputation."""
    threshold: Fraction = 1 / 3
    """Peers with a smaller share than this fraction of an even one are dropped."""
    after: Annotated[int, Field(ge=0)] = 10
    """Rounds before anyone is dropped."""

    paper: ClassVar[str] = "Xu and Lyu 2021, Algorithm 1 (baseline of CYCle)"
    records: ClassVar[tuple[Record, ...]] = (Record("remaining"),)
    replicated: ClassVar[tuple[str, ...]] = ("reputation", "remaining")
    by_peer: ClassVar[Mapping[str, float | bool]] = {"reputation": 0.0, "remaining": True}

    async def round(self, peer: Peer) -> None:
        me, remaining = peer.members.index(peer.id), not_dropped(peer.state["remaining"].cpu())
        update = trainable_by(self.clipped, await self.change(peer), peer.layout)
        updates = await self.gather_updates(peer, update if remaining[me] else torch.zeros_like(update), self.clipped)
        before = peer.state["reputation"].cpu()
        total, reputation = await peer.compute(reputations, updates, before, remaining, self.alpha, 0.0)
        if peer.round > self.after:
            still = reputable(reputation, remaining, self.threshold)
            await peer.agree("remaining", still if remaining[me] else None)
            remaining, reputation = still, portions(reputation, still)
        rewards = reputation / reputation.max()
        if remaining[me]:
            reward = await self.reward(peer, updates, total, float(rewards[me]), remaining)
            update = torch.where(updates.learnt, update + reward, reward)
        keep_variances(peer.layout, peer.model.add_(update))
        peer.state["reputation"], peer.state["remaining"] = reputation, remaining
        peer.note(reputation=reputation.tolist(), reward=rewards.tolist())

    def clipped(self, update: Tensor) -> Tensor:
        """Δ, or Γ·Δ/‖Δ‖ where it is longer than Γ."""
        norm = float(update.double().norm())
        return update * (self.gamma / norm) if norm > self.gamma else update
