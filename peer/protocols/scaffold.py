"""SCAFFOLD without a server: Karimireddy et al. (2020), controls that take the drift out of each local step."""

from typing import ClassVar, Literal

import torch
from torch import Tensor

from peer.learning.training.optimiser import SGD
from peer.learning.training.phase import Phase
from peer.protocols.base import Init, Peer
from peer.protocols.blocks.global_model import GlobalModel
from peer.protocols.blocks.training import BatchSize, Epochs, Rate, corrected
from peer.protocols.blocks.vectors import trainable_only
from peer.protocols.declarations import Share


class Scaffold(GlobalModel):
    """y ← y − η(g − c_i + c) from y = x, in S local steps; then c_i ← c_i − c + (x − y)/(Sη).

    x ← x + η_g·(the plain mean of the drawn y − x), and c is the mean of *all* peers' c_i.
    """

    name: Literal["scaffold"] = "scaffold"
    lr: Rate = 0.01
    """Learning rate of SGD."""
    eta_g: Rate = 1.0
    """η_g: step towards the mean of the trained models."""
    epochs: Epochs = 5
    """E: local epochs a round."""
    batch_size: BatchSize = 128

    paper: ClassVar[str] = "Karimireddy et al. 2020, Algorithm 1, Option II (RI-FedAvg's baseline)"
    exact: ClassVar[bool] = True  # c must stay the mean of all c_i
    replicated: ClassVar[tuple[str, ...]] = ("c",)

    def shares(self, rounds: int) -> tuple[Share, ...]:
        return (Share("model"), Share("c", like="model", rounds=range(1, rounds + 1)))

    def why_optimiser_is_fixed(self) -> str:
        return "its controls take (x − y)/(Sη) for the mean gradient, which is so of plain SGD alone"

    def local(self) -> tuple[Phase, ...]:
        return (Phase("model", self.epochs, SGD(self.lr), self.batch_size),)

    async def start(self, peer: Peer, init: Init) -> None:
        await super().start(peer, init)
        peer.state["c"], peer.state["c_i"] = torch.zeros_like(peer.model), torch.zeros_like(peer.model)

    def begin_late(self, peer: Peer) -> None:
        peer.state["c_i"] = torch.zeros_like(peer.model)

    async def round(self, peer: Peer) -> None:
        drawn, x = peer.id in self.drawn(peer), peer.model.clone()
        if drawn:
            await self._train(peer, x)
        await peer.weighted_mean("model", weight=1 if drawn else 0)
        # Buffers have no direction to go further in: they take the mean itself.
        peer.model += trainable_only((peer.model - x) * (self.eta_g - 1), peer.layout)
        peer.state["c"] = peer.state["c_i"].clone()
        await peer.weighted_mean("c", weight=1)

    async def _train(self, peer: Peer, x: Tensor) -> None:
        correction, steps = peer.state["c"] - peer.state["c_i"], 0

        def controlled(parameters: Tensor, gradient: Tensor) -> None:
            nonlocal steps
            gradient.add_(correction)
            steps += 1

        await peer.train(*corrected(self.local(), controlled))
        mean_gradient = trainable_only(x - peer.model, peer.layout) / (max(steps, 1) * self.lr)
        peer.state["c_i"] = mean_gradient - correction
