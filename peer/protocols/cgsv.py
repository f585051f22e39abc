"""CGSV: updates rewarded by their cosine to the whole. Xu et al. (2021), "Gradient-Driven Rewards", Algorithm 1."""

from collections.abc import Mapping
from typing import Annotated, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor

from peer.protocols.base import Peer, Protocol
from peer.protocols.blocks.training import Fraction, Rate
from peer.protocols.blocks.updates import Updates, reputations
from peer.protocols.blocks.vectors import keep_variances


class CGSV(Updates, Protocol):
    """u = Σ r_i·Δ_i of updates scaled to norm Γ; r_i ← α·r_i + (1−α)·cos(Δ_i, u); i gets the more of u the higher r_i.

    A peer's own training counts only through u: its model goes back to the start of the round and takes the
    largest ⌈q_i·size⌉ entries of each tensor in u, q_i = tanh(β·r_i) / max_j tanh(β·r_j). Each peer holds all
    updates and masks its own reward, so the mask is on its honour.
    """

    name: Literal["cgsv"] = "cgsv"
    gamma: Rate = 0.5
    """Γ: norm of scaled updates (.5 for MNIST, .15 for CIFAR-10)."""
    alpha: Fraction = 0.95
    """Weight of earlier reputation."""
    beta: Annotated[float, Field(gt=0)] = 1.0
    """β, altruism: larger makes rewards more alike."""
    floor: Annotated[float, Field(gt=0, le=1)] = 1e-3
    """Minimum reputation before normalisation."""

    paper: ClassVar[str] = "Xu et al. 2021, Algorithm 1 (baseline of CYCle)"
    replicated: ClassVar[tuple[str, ...]] = ("reputation",)
    by_peer: ClassVar[Mapping[str, float]] = {"reputation": 0.0}

    async def round(self, peer: Peer) -> None:
        me, everyone = peer.members.index(peer.id), torch.ones(len(peer.members), dtype=torch.bool)
        updates = await self.gather_updates(peer, await self.change(peer), self.scaled)
        before = peer.state["reputation"].cpu()
        total, reputation = await peer.compute(reputations, updates, before, everyone, self.alpha, self.floor)
        rewards = self.rewards(reputation)
        reward = await self.reward(peer, updates, total, float(rewards[me]), everyone)
        keep_variances(peer.layout, peer.model.add_(reward))
        peer.state["reputation"] = reputation
        peer.note(reputation=reputation.tolist(), reward=rewards.tolist())

    def scaled(self, update: Tensor) -> Tensor:
        """Γ·Δ/‖Δ‖; zero stays zero."""
        norm = float(update.double().norm())
        return update * (self.gamma / norm) if norm > 0 else update

    def rewards(self, reputation: Tensor) -> Tensor:
        """q_i in 0..1, 1 for the highest reputation."""
        found = torch.tanh(self.beta * reputation)
        return found / found.max()
