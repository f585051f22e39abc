"""Local training that several protocols share, and the kinds of hyperparameters that it takes.

Methods that correct each gradient do so in order that peers do not drift apart.
"""

from dataclasses import replace
from typing import Annotated

from pydantic import Field

from peer.learning.training.optimiser import SGD, Adam
from peer.learning.training.phase import GradientHook, Phase
from peer.protocols.base import Peer
from peer.settings import Settings

Epochs = Annotated[int, Field(ge=0, le=100_000)]
Rate = Annotated[float, Field(gt=0, le=1_000)]
Fraction = Annotated[float, Field(ge=0, le=1)]
BatchSize = Annotated[int, Field(ge=1, description="Samples in a batch; the last, smaller one is kept.")]
KeepMomentum = Annotated[
    bool,
    Field(
        description="Whether the momentum gathered in one round lives on in the next; if not, each round's begins at 0."
    ),
]


class TwoPhase(Settings):
    """FIRMA's local training: the head with the extractor frozen, then the extractor with the head frozen."""

    lr: Rate = 0.01
    """Learning rate of both Adam optimisers, which live through all rounds (FIRMA, Section 6)."""
    head_epochs: Epochs = 1
    """E_h: local epochs of the head (the paper's algorithm boxes say steps and mean epochs)."""
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
    """Momentum of SGD; each round's begins at 0."""
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


class CorrectedSGD(WholeModelSGD):
    """Stochastic gradient descent on the whole model whose gradients a protocol corrects."""

    async def train(self, peer: Peer, correction: GradientHook) -> None:
        """`local()` with a correction of each gradient."""
        await peer.train(*(replace(phase, gradient_hook=correction) for phase in self.local()))
