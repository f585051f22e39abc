"""Local training that several protocols share, and the kinds of hyperparameters that it takes.

Methods that correct each gradient do so in order that peers do not drift apart.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor

from peer.learning.training.evaluation import EVALUATION_BATCH
from peer.learning.training.optimiser import SGD, Adam
from peer.learning.training.phase import GradientHook, Phase
from peer.protocols.base import Peer
from peer.settings import Settings

Epochs = Annotated[int, Field(ge=0, le=100_000)]
Rate = Annotated[float, Field(gt=0, le=1_000)]
Fraction = Annotated[float, Field(ge=0, le=1)]
BatchSize = Annotated[int, Field(ge=1, description="Samples in a batch; the last, smaller one is kept.")]
KeepMomentum = Annotated[bool, Field(description="Whether momentum persists from round to round.")]


class TwoPhase(Settings):
    """FIRMA's local training: the head with the extractor frozen, then the extractor with the head frozen."""

    lr: Rate = 0.01
    """Learning rate of both Adam optimisers."""
    head_epochs: Epochs = 1
    """E_h: local epochs of the head."""
    extractor_epochs: Epochs = 20
    """E_e: local epochs of the extractor."""
    batch_size: BatchSize = 64

    def local(self) -> tuple[Phase, ...]:
        return (
            Phase("head", self.head_epochs, Adam(self.lr), self.batch_size, keep="head"),
            Phase("extractor", self.extractor_epochs, Adam(self.lr), self.batch_size, keep="extractor"),
        )


class WholeModelSGD(Settings):
    """Stochastic gradient descent on the whole model; no momentum outlives a round."""

    lr: Rate = 0.01
    """Learning rate of SGD."""
    momentum: Fraction = 0.0
    """Momentum of SGD, reset each round."""
    epochs: Epochs = 5
    """E: local epochs a round."""
    batch_size: BatchSize = 128

    def local(self) -> tuple[Phase, ...]:
        return (Phase("model", self.epochs, SGD(self.lr, self.momentum), self.batch_size),)


class PlainSGD(WholeModelSGD):
    """Stochastic gradient descent on the whole model; the momentum lives on from round to round if it is to."""

    momentum: Fraction = 0.9
    """Momentum of SGD."""
    keep_momentum: KeepMomentum = True
    batch_size: BatchSize = 64

    def local(self) -> tuple[Phase, ...]:
        keep = "model" if self.keep_momentum else None
        return tuple(replace(phase, keep=keep) for phase in super().local())


def corrected(phases: Iterable[Phase], correction: GradientHook) -> tuple[Phase, ...]:
    """These phases, in which each gradient is corrected."""
    return tuple(replace(phase, gradient_hook=correction) for phase in phases)


def proximal(start: Tensor, strength: float) -> GradientHook:
    """The gradient of (strength/2)·‖w − start‖², which pulls towards `start`."""

    def pull(parameters: Tensor, gradient: Tensor) -> None:
        gradient.add_(parameters - start[: parameters.numel()], alpha=strength)

    return pull


def mean_gradients(peer: Peer, count: int, losses: Callable[[Tensor, Tensor, Tensor], Sequence[Tensor]]) -> Tensor:
    """The gradients, at the peer's model, of `count` mean losses over all local samples; float32 (count, p).

    `losses` gets a batch's outputs, targets and positions in `peer.data`. In evaluation mode: without dropout and with
    BatchNorm's running statistics each is a function of w and the data alone, however many samples are taken at a time.
    It is 0 at what is not trainable. Long: call it inside `compute`.
    """
    vector = peer.model.detach().clone().requires_grad_()
    gradients = torch.zeros(count, vector.numel(), device=vector.device)
    for inputs, targets, positions in peer.data.in_order(EVALUATION_BATCH):
        found = losses(peer.logits(vector, inputs), targets, positions)
        for gradient, loss in zip(gradients, found, strict=True):
            (one,) = torch.autograd.grad(loss, vector, retain_graph=count > 1)
            gradient.add_(one, alpha=len(positions) / len(peer.data))
    return gradients
