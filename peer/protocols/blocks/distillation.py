"""Private decentralised learning: every peer has its own model and learns from what others predict on its data."""

from collections.abc import Mapping
from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor
from torch.nn import functional

from peer.learning.tasks import Task
from peer.learning.training.optimiser import SGD
from peer.learning.training.phase import Loss, Phase
from peer.protocols.base import Peer
from peer.protocols.blocks.training import BatchSize, Epochs, Fraction, Rate, mean_gradients
from peer.protocols.blocks.vectors import cosine
from peer.settings import Settings

Predictions = Mapping[str, Tensor]
"""z_k: what each other peer's model answers to all of this peer's samples, float32 (n, classes), by id."""
WARMED_UP = "warm"
"""The name in `peer.state` of the mark that the warm-up is over."""
NOISE_SHARE = 1e-5
"""Share of CE's gradient that is too little for a direction."""


class Distillation(Settings):
    """Local training whose loss is CE + λ0 Σ_k r_k DL_k, after some epochs of cross entropy alone."""

    lam: Annotated[float, Field(ge=0, le=1e6)] = 50.0
    """λ0: weight of the distillation loss beside cross entropy."""
    temperature: Annotated[float, Field(gt=0, le=1_000)] = 5.0
    """T of the softmax in the distillation loss."""
    lr: Rate = 0.1
    """Learning rate of SGD."""
    lr_step: Annotated[int, Field(ge=1, le=100_000)] = 25
    """Epochs, warm-up included, between decays of the rate."""
    lr_decay: Annotated[float, Field(gt=0, le=1)] = 0.1
    """Factor of each decay."""
    momentum: Fraction = 0.9
    """Momentum of SGD."""
    batch_size: BatchSize = 128
    warmup_epochs: Epochs = 25
    """Initial local epochs without distillation."""
    epochs: Annotated[int, Field(ge=1, le=100_000)] = 1
    """Local epochs a round."""

    def why_training_is_fixed(self) -> str:
        return "peers learn from each other's predictions, by a loss of its own"

    def local(self) -> tuple[Phase, ...]:
        return self._phases(self.warmup_epochs, self.epochs)

    def training(self, round: int) -> tuple[Phase, ...]:
        return (*(self.warm_up() if round == 1 else ()), *self._collaborating(round))

    def warm_up(self) -> tuple[Phase, ...]:
        """The epochs before round 1's exchange."""
        return self._phases(0, self.warmup_epochs)

    async def warm_up_once(self, peer: Peer) -> None:
        """Train the warm-up epochs at a peer that has not trained yet: in round 1, or when it is admitted later."""
        if self.warmup_epochs and WARMED_UP not in peer.state:
            await peer.train(*self.warm_up())
            peer.state[WARMED_UP] = torch.tensor(True)

    def distilling(self, peer: Peer, weights: Mapping[str, float], predictions: Predictions) -> tuple[Phase, ...]:
        """This round's epochs, in which the peer learns from those that answered, each with its weight r_k."""
        return self._collaborating(peer.round, self._loss(peer.task, weights, predictions))

    def misalignment(self, peer: Peer, predictions: Predictions) -> dict[str, float]:
        """s_k = (1 − cos(∇CE, ∇DL_k))/2 at this peer's model, on all its samples, in evaluation mode.

        Where a gradient is 0 the cosine counts as 0. Long: call it inside `compute`.
        """

        def losses(logits: Tensor, labels: Tensor, at: Tensor) -> list[Tensor]:
            pairwise = [distillation_loss(logits, z[at], self.temperature) for z in predictions.values()]
            return [peer.task.loss(logits, labels), *pairwise]

        ce, *pairwise = mean_gradients(peer, 1 + len(predictions), losses).double()
        # Of a teacher that is one's equal DL has no gradient, and what float32 leaves of it points anywhere.
        noise = NOISE_SHARE * float(ce.norm())
        alike = [cosine(ce, dl, peer.layout) if float(dl.norm()) > noise else 0.0 for dl in pairwise]
        return {k: (1 - one) / 2 for k, one in zip(predictions, alike, strict=True)}

    def _loss(self, task: Task, weights: Mapping[str, float], predictions: Predictions) -> Loss:
        def loss(logits: Tensor, labels: Tensor, positions: Tensor) -> Tensor:
            total = task.loss(logits, labels)
            for k, z in predictions.items():
                pairwise = distillation_loss(logits, z[positions], self.temperature)
                total = total + self.lam * weights[k] * pairwise
            return total

        return loss

    def _collaborating(self, round: int, loss: Loss | None = None) -> tuple[Phase, ...]:
        return self._phases(self.warmup_epochs + (round - 1) * self.epochs, self.epochs, loss)

    def _phases(self, first: int, count: int, loss: Loss | None = None) -> tuple[Phase, ...]:
        """`count` epochs from the `first` on, counted from 0: a phase for each learning rate."""
        borders = range(first - first % self.lr_step, first + count, self.lr_step)
        return tuple(
            Phase(
                "model",
                min(begin + self.lr_step, first + count) - max(begin, first),
                SGD(self.lr * self.lr_decay ** (begin // self.lr_step), self.momentum),
                self.batch_size,
                keep="model",
                loss=loss,
            )
            for begin in borders
        )


def distillation_loss(logits: Tensor, teacher: Tensor, temperature: float) -> Tensor:
    """DL = mean over the batch of Σ_c p log p − Σ_c p·z/T with p = softmax(logits/T); both (n, classes), gives ().

    It is KL(p ‖ softmax(z/T)) but for what does not depend on `logits`, and linear in z (CaPriDe).
    """
    log_p = functional.log_softmax(logits / temperature, 1)
    return (log_p.exp() * (log_p - teacher / temperature)).sum(1).mean()
