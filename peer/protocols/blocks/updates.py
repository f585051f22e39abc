"""Updates for all peers, and their worth: what local training changed at each peer goes round the ring to all.

From it all peers calculate the same reputations: float64 (N,), a number for each peer in the order of the spec, the
same bits at all of them."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

import torch
from torch import Tensor

from peer.errors import WrongMessageError
from peer.learning.model.layout import TensorSlot
from peer.protocols.base import Init, Peer
from peer.protocols.blocks.global_model import common_start
from peer.protocols.blocks.training import Epochs, Fraction, KeepMomentum, PlainSGD, Rate
from peer.protocols.blocks.vectors import cosine, largest_of_each, trainable_by, trainable_places
from peer.protocols.declarations import Share
from peer.topology import Graph

MAX_SAMPLES = 2**53
"""Samples: with a negative number, or one that makes the sum infinite, one peer's word would be all that counts."""


@dataclass(frozen=True)
class PeerUpdates:
    """All peers' updates, in the order of the spec; every sum is taken in it, so that all get the same bits."""

    vectors: tuple[Tensor, ...]
    """Float32 (p,), laid out as the model."""
    samples: Tensor
    """n_i, float64 (N,)."""
    layout: tuple[TensorSlot, ...]
    """The model's layout."""

    @cached_property
    def learnt(self) -> Tensor:
        """The places of an update at which something is learnt, bool (p,); the others are BatchNorm's statistics."""
        return trainable_places(self.vectors[0], self.layout)

    def total(self, weights: Tensor) -> Tensor:
        """Σ_i weights_i·Δ_i of what is learnt, float64 (p,), zero elsewhere."""
        return torch.where(self.learnt, self._sum(weights), 0.0)

    def mean(self, weights: Tensor) -> tuple[Tensor, Tensor]:
        """Σ_i weights_i·Δ_i of what is learnt, and of the rest: each float32 (p,), and zero where the other lies."""
        total = self._sum(weights).float()
        return torch.where(self.learnt, total, 0.0), torch.where(self.learnt, 0.0, total)

    def cosines(self, total: Tensor) -> Tensor:
        """cos(Δ_i, total) over what is learnt, float64 (N,); 0 where one of the two is zero."""
        return torch.tensor([cosine(one, total, self.layout) for one in self.vectors], dtype=torch.float64)

    def _sum(self, weights: Tensor) -> Tensor:
        total = torch.zeros_like(self.vectors[0], dtype=torch.float64)
        for update, weight in zip(self.vectors, weights.tolist(), strict=True):
            total.add_(update, alpha=weight)
        return total


class Updates(PlainSGD):
    """Local training whose update every peer sends to all others."""

    lr: Rate = 0.1
    """Learning rate of SGD."""
    momentum: Fraction = 0.0
    """Momentum of SGD."""
    keep_momentum: KeepMomentum = False
    epochs: Epochs = 3
    """E: local epochs a round."""

    graph: ClassVar[Graph] = "directed ring"

    def shares(self, rounds: int) -> tuple[Share, ...]:
        updates = Share("update", scalars=1, rounds=range(1, rounds + 1), like="model", update=True)
        return (updates, Share("model", rounds=range(1)))

    async def start(self, peer: Peer, init: Init) -> None:
        await common_start(peer, init)

    async def change(self, peer: Peer) -> Tensor:
        """Train, restore the model, and return what the training changed, float32 (p,)."""
        before = peer.model.clone()
        await peer.train(*self.local())
        change = peer.model - before
        peer.model.copy_(before)
        return change

    async def gather_updates(self, peer: Peer, update: Tensor, rule: Callable[[Tensor], Tensor]) -> PeerUpdates:
        """Return all updates, the learnt part of each replaced by `rule` of it on arrival.

        So one that is longer than it may be weighs no more for it.
        """
        peer.state["update"] = update.clone()
        received = await peer.all_gather("update", samples=peer.samples)
        del peer.state["update"]  # as long as the model, and of no use in a checkpoint
        numbers = {id: received[id].scalars["samples"] for id in peer.members}
        if wrong := {id: f"{n:g} from {id}" for id, n in numbers.items() if not 0 <= n <= MAX_SAMPLES}:
            raise WrongMessageError(
                f"impossible number of samples in round {peer.round}: {', '.join(wrong.values())}; compare the code "
                "there with this peer's",
                *wrong,
            )
        samples = torch.tensor([*numbers.values()], dtype=torch.float64)
        vectors = [received[id].vector for id in peer.members]
        ruled = await peer.compute(lambda: tuple(trainable_by(rule, vector, peer.layout) for vector in vectors))
        return PeerUpdates(ruled, samples, peer.layout)

    async def reward(self, peer: Peer, updates: PeerUpdates, total: Tensor, share: float, among: Tensor) -> Tensor:
        """Return the largest ⌈share·size⌉ entries of each tensor of `total`, and the statistics' mean over `among`."""
        found = await peer.compute(largest_of_each, peer.layout, total.float(), share)
        _, statistics = await peer.compute(updates.mean, portions(updates.samples, among))
        return torch.where(updates.learnt, found, statistics)


def portions(values: Tensor, among: Tensor) -> Tensor:
    """Parts of a whole for the peers of `among` (bool), 0 for the others; even parts if their values are all 0."""
    found = torch.where(among, values, 0.0)
    total = found.sum()
    return found / total if total > 0 else among.double() / among.sum()


def not_dropped(remaining: Tensor) -> Tensor:
    """The peers that were not dropped, bool (N,); all where those have left the run since."""
    return remaining if bool(remaining.any()) else torch.ones_like(remaining)


def reputations(
    updates: PeerUpdates, before: Tensor, among: Tensor, alpha: float, floor: float
) -> tuple[Tensor, Tensor]:
    """(u, r): u = Σ r_i·Δ_i, by samples while no peer has a reputation; r_i ← α·r_i + (1−α)·cos(Δ_i, u), made parts.

    u is float64 (p,). A reputation counts at least `floor` before it is made a part.
    """
    total = updates.total(portions(before if before.any() else updates.samples, among))
    found = alpha * before + (1 - alpha) * updates.cosines(total)
    return total, portions(found.clamp(min=floor), among)


def reputable(reputation: Tensor, among: Tensor, threshold: float) -> Tensor:
    """The peers that stay, bool (N,): those of `among` with at least `threshold` of an even part."""
    return among & (reputation >= threshold / int(among.sum()))
