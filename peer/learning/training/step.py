"""One step of an optimiser: forward, loss, backward, what is done to the gradient, and the step itself."""

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from peer.learning.data.samples import Batch
from peer.learning.model.inputs import spread
from peer.learning.training.own_step import TrainingStep
from peer.learning.training.settings import Training

Forward = nn.Module | Callable[..., Tensor]


class NotFinite(NamedTuple):
    """The first batch of which the loss, or its gradient, was not finite."""

    loss: float
    largest: float
    """The size of the largest number that the loss was taken of; not finite if the model had diverged before."""


class LossWatch:
    """Remembers that batch on the model's device: nobody waits for it before the end."""

    def __init__(self, device: torch.device) -> None:
        self._first = torch.zeros(3, dtype=torch.float64, device=device)
        """Whether there was one, and what `NotFinite` says of it."""

    def look(self, loss: Tensor, gradient: Tensor | None, given: Any) -> None:
        """The loss of one batch, of what was `given`, and its gradient, unless that may be infinite."""
        finite = torch.isfinite(loss)
        if gradient is not None:
            finite = finite & torch.isfinite(gradient.sum())
        sizes = [largest(one) for one in tree_leaves(given) if isinstance(one, Tensor) and one.is_floating_point()]
        size = torch.stack([*sizes, torch.zeros_like(self._first[0])]).max()
        met = torch.stack([torch.ones_like(size), loss.double(), size])
        self._first = torch.where((self._first[0] == 0) & ~finite, met, self._first)

    @property
    def first(self) -> NotFinite | None:
        """None while all were finite."""
        found, loss, size = self._first.tolist()
        return NotFinite(loss, size) if found else None


def largest(values: Tensor) -> Tensor:
    """The size of the largest, float64 of shape (); 0 where there are none."""
    size: Tensor = torch.linalg.vector_norm(values.detach().float(), torch.inf if values.numel() else 2)
    return size.double()


class Steps:
    """The steps of one phase, each of one batch or more."""

    def __init__(self, one: TrainingStep, optimiser: torch.optim.Optimizer, how: Training) -> None:
        self._one, self._phase, self._precision = one, one.phase, one.precision
        self._task, self._gradient = one.model.task, one.gradient
        self._optimiser, self._how = optimiser, how
        self.total, self.seen = torch.zeros((), dtype=torch.float64, device=one.model.device), 0
        """The sum of the losses of all samples so far, each before its step, and how many they were."""
        self.watch = LossWatch(one.model.device) if self._phase.own_loss(self._task) else None
        """Of a loss that may itself be what is wrong."""

    @property
    def loss(self) -> float:
        """The mean over all batches so far."""
        return float(self.total) / self.seen

    def so_far(self) -> tuple[Tensor, int]:
        """What `since` counts from."""
        return self.total.clone(), self.seen

    def since(self, then: tuple[Tensor, int]) -> Tensor:
        """The mean over all batches since then, of shape ()."""
        return (self.total - then[0]) / (self.seen - then[1])

    def take(self, batches: Iterable[Batch], forward: Forward) -> Tensor:
        """Learn from some batches, at most `accumulate`; the last one's mean loss before the step, of shape ()."""
        self._gradient.zero_()
        before = self.seen
        for batch in batches:
            loss = self._backward(batch, forward)
            self.total.add_(loss, alpha=len(batch.positions))
            self.seen += len(batch.positions)
        self._weigh(self.seen - before)
        finite = self._precision.unscale(self._optimiser, self._gradient)
        self._clip()
        if self._phase.gradient_hook is not None and finite:
            self._phase.gradient_hook(self._one.parameters, self._gradient)
        self._precision.step(self._optimiser)
        return loss

    def _backward(self, batch: Batch, forward: Forward) -> Tensor:
        given: Any = self._one.parameters
        if self._phase.step is not None:
            loss = self._one.take(batch)
        else:
            with self._precision.forward():
                given = spread(forward, batch.inputs)
                loss = self._phase.mean_loss(self._task, given, batch)
            torch.autograd.backward(self._precision.scaled(self._share(loss, len(batch.positions))))
        if self.watch:
            self.watch.look(loss.detach(), None if self._precision.scaler else self._gradient, given)
        return loss.detach()

    def _share(self, loss: Tensor, samples: int) -> Tensor:
        """A batch's part of the mean over `accumulate` batches of the usual size."""
        size, batches = self._phase.batch_size, self._how.accumulate
        if batches == 1:
            return loss
        return (loss if samples == size else loss * (samples / size)) / batches

    def _weigh(self, samples: int) -> None:
        """The last step of an epoch may have fewer samples than the others."""
        usual = self._phase.batch_size * self._how.accumulate
        if self._how.accumulate > 1 and samples != usual:
            self._gradient.mul_(usual / samples)

    def _clip(self) -> None:
        # Before the hook: what it adds, such as control variates, is no sample's doing and must stay whole.
        if (most := self._how.clip_value) is not None:
            self._gradient.clamp_(-most, most)
        if (longest := self._how.clip_gradient) is not None:
            self._gradient.mul_((longest / torch.linalg.vector_norm(self._gradient)).clamp_(max=1.0))
