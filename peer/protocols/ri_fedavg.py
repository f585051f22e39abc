"""RI-FedAvg without a server: FedAvg with a proximal term as strong as each peer's loss is rough.

How rough: how unlike the loss looks along random directions, the Roughness Index, Eqs. 5-9 of the paper.
"""

from collections.abc import Callable, Iterable, Iterator
from typing import Annotated, ClassVar, Literal

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from peer.protocols.base import Peer
from peer.protocols.blocks.global_model import GlobalModel
from peer.protocols.blocks.training import WholeModelSGD, corrected, proximal
from peer.protocols.blocks.vectors import trainable_only


def roughness(
    loss: Callable[[Tensor], float], start: Tensor, directions: Iterable[Tensor], length: float, intervals: int
) -> float:
    """I = std/mean over the directions d of T(f) with f(s) = loss(start + s·d) for s in [−length, length].

    `start` (p,) float64; each direction (p,) float64 is brought to length 1. In float32, rounding alone gives an I of
    about .1 where the loss is monotone and I is 0.
    """
    variations = []
    for direction in directions:
        unit = direction / direction.norm()
        steps = torch.linspace(-length, length, intervals + 1, dtype=torch.float64).tolist()
        variations.append(normalised_variation([loss(start + s * unit) for s in steps], length))
    found = torch.tensor(variations, dtype=torch.float64)
    return float(found.std(correction=0) / found.mean())


def normalised_variation(values: list[float], length: float) -> float:
    """T = TV/(2·length·A), A the greatest difference between two values: 1/(2·length) if they never turn back.

    So it is, too, where the function is constant, of which the paper gives 0/0.
    """
    f = torch.tensor(values, dtype=torch.float64)
    variation, amplitude = float(f.diff().abs().sum()), float(f.max() - f.min())
    return (variation / amplitude if amplitude else 1.0) / (2 * length)


LOSS_BATCH = 1024
"""Samples that pass through the model at a time."""


class RIFedAvg(WholeModelSGD, GlobalModel):
    """Each drawn peer trains on f_k(w) + λ·min(I_k, clip)·‖w − w_t‖²; then w_t ← Σ n_k·w_k / Σ n_k over those drawn.

    I_k, the Roughness Index of f_k at w_t, is taken once a round on all local samples, in float64 and along the
    same directions at all peers.
    """

    name: Literal["ri-fedavg"] = "ri-fedavg"
    lam: Annotated[float, Field(ge=0, le=1_000)] = 0.1
    """Strength of the proximal term."""
    length: Annotated[float, Field(gt=0, le=1_000)] = 0.01
    """l: distance to both sides."""
    directions: Annotated[int, Field(ge=2, le=10_000)] = 10
    """M: how many random directions."""
    intervals: Annotated[int, Field(ge=2, le=10_000)] = 19
    """m: intervals per direction."""
    clip: Annotated[float, Field(gt=0, le=1_000)] = 10.0
    """Maximum I_k, which never exceeds √(M − 1)."""

    paper: ClassVar[str] = "RI-FedAvg, Algorithm 1"

    async def round(self, peer: Peer) -> None:
        drawn = peer.id in self.drawn(peer)
        if drawn:
            await self._train(peer, peer.model.clone(), peer.shared_generator("directions"))
        await peer.weighted_mean("model", weight=peer.samples if drawn else 0)

    async def _train(self, peer: Peer, start: Tensor, generator: np.random.Generator) -> None:
        index: list[float] = []

        def pull(parameters: Tensor, gradient: Tensor) -> None:
            # Before the first step. A dry run takes none, and so is spared M·(m + 1) passes over the samples.
            if not index:
                index.append(self._roughness(peer, start, generator))
            proximal(start, 2 * self.lam * min(index[0], self.clip))(parameters, gradient)

        await peer.train(*corrected(self.local(), pull))
        if index:
            peer.note(roughness=index[0])

    @torch.no_grad()
    def _roughness(self, peer: Peer, start: Tensor, generator: np.random.Generator) -> float:
        """I_k at w_t."""

        def loss(vector: Tensor) -> float:
            passed = ((peer.logits(vector, exact(x)), exact(y), len(at)) for x, y, at in peer.data.in_order(LOSS_BATCH))
            sums = [peer.task.loss(outputs, y) * count for outputs, y, count in passed]
            return float(torch.stack(sums).sum()) / peer.samples

        directions = self._drawn_directions(peer, generator)
        return roughness(loss, start.double(), directions, self.length, self.intervals)

    def _drawn_directions(self, peer: Peer, generator: np.random.Generator) -> Iterator[Tensor]:
        """(p,) float64 each, 0 where there is nothing to train."""
        for _ in range(self.directions):
            normal = torch.from_numpy(generator.standard_normal(peer.model.numel()))
            yield trainable_only(normal.to(peer.model.device), peer.layout)


def exact(values: Tensor) -> Tensor:
    """Values in float64, unless they are numbers of classes or tokens."""
    return values.double() if values.is_floating_point() else values
