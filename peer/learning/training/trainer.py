"""Local training in phases: some epochs of one part of the model, the rest frozen."""

import threading
from collections.abc import Callable, Iterable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from typing import get_args

import torch
from torch import Tensor, nn
from torch.nn import functional

from peer.errors import FailedError, InputError
from peer.learning.data.samples import Samples
from peer.learning.model.model import Model, Part
from peer.learning.randomness import derive, global_stream, torch_generator
from peer.learning.training.evaluation import BATCH, measure
from peer.learning.training.optimiser import SGD, Adam, Optimiser, Optimisers

__all__ = ["SGD", "Adam", "GradientHook", "Optimiser", "Phase", "Stopped", "Trainer"]

GradientHook = Callable[[Tensor, Tensor], None]


class Stopped(Exception):
    """Training was told to stop; the model is somewhere inside a phase and no longer of use."""


@dataclass(frozen=True)
class Phase:
    """`epochs` passes over the shard that train `part` and leave the rest as it is."""

    part: Part
    epochs: int
    optimiser: Optimiser
    batch_size: int = 64
    keep: str | None = None
    """The name under which the optimiser's state survives the phase; None: a new optimiser each time."""
    gradient_hook: GradientHook | None = None
    """Called before each step with the part's slices of the model's `vector` and `gradient`. It may add a
    correction, such as a proximal term, to the gradient in place; where buffers lie that has no effect."""

    def __post_init__(self) -> None:
        if self.part not in get_args(Part):
            raise ValueError(f"a phase trains {', '.join(get_args(Part))}, and not {self.part!r}")


class Trainer:
    """Trains a model on a shard that lies as two tensors on the model's device.

    Batches are slices of one permutation an epoch, drawn from (seed, peer, round, number of the phase in its
    round); the last, smaller batch is kept. BatchNorm cannot learn from one sample: a last batch of one joins
    the batch before it.
    """

    def __init__(self, model: Model, samples: Samples, seed: int, peer: str) -> None:
        if len(samples) == 0:
            raise InputError(f"{peer} has no training samples; give it some or leave it out")
        self.model = model
        self.samples = samples.to(model.device)
        self._seed, self._peer = seed, peer
        self._optimisers = Optimisers(model)
        self._stopped = threading.Event()
        self._round, self._phases = -1, 0

    def train(self, phase: Phase, round: int) -> float:
        """Run a phase (blocking); the mean loss (nats) over all its batches, each before its step.

        Raises Stopped after `stop()`, FailedError if the model is not finite afterwards. A part without
        trainable parameters, or no epochs: nothing changes, and the loss is that of the model as it is.
        """
        number = self._number(round)
        if phase.epochs == 0 or not self.model.trainable(phase.part):
            return measure(self.model, self.samples).loss
        check_batches(self.model, (phase,), len(self.samples), self._peer)
        self.model.learn(phase.part)
        seed = derive(self._seed, self._peer, round, f"layers {number}")
        with global_stream(seed, self.model.device) if self.model.draws else nullcontext():
            loss = self._epochs(phase, torch_generator(self._seed, self._peer, round, f"order {number}"))
        self.model.rebind()
        # A sum is not finite if any element is not, and costs an eightieth of looking at each.
        if not bool(torch.isfinite(self.model.vector[self.model.part(phase.part)].sum())):
            raise FailedError(
                f"{self._peer}: training diverged in round {round} (the {phase.part} is not finite); "
                f"lower the learning rate, now {phase.optimiser.lr}"
            )
        return loss

    def accuracy(self) -> float:
        """The accuracy on the shard, 0..1, in evaluation mode."""
        return measure(self.model, self.samples).accuracy

    def stop(self) -> None:
        """Make the running and every later `train` raise Stopped at its next batch; from any thread."""
        self._stopped.set()

    def drop(self, keep: str) -> None:
        """Forget the optimiser kept under that name."""
        self._optimisers.drop(keep)

    def state(self) -> dict[str, Tensor]:
        """Copies of the kept optimisers' state, flat, on the CPU, for a checkpoint beside the model."""
        return self._optimisers.state()

    def load_state(self, state: Mapping[str, Tensor]) -> None:
        """Go on from what `state()` gave: with the model as it was then, to the same bits."""
        self._optimisers.load_state(state)

    def _number(self, round: int) -> int:
        self._phases = self._phases + 1 if round == self._round else 0
        self._round = round
        return self._phases

    def _epochs(self, phase: Phase, generator: torch.Generator) -> float:
        model, whole = self.model, self.model.part(phase.part)
        parameters, gradient = model.vector[whole], model.gradient[whole]
        optimiser = self._optimisers.get(phase.part, phase.optimiser, phase.keep)
        forward, inputs = self._forward(phase.part)
        labels, total = self.samples.y, torch.zeros((), dtype=torch.float64, device=model.device)
        for _ in range(phase.epochs):
            for batch in self._batches(phase, generator):
                self._check_stop()
                gradient.zero_()
                x, y = inputs.index_select(0, batch), labels.index_select(0, batch)
                loss = functional.cross_entropy(forward(x), y)
                torch.autograd.backward(loss)
                if phase.gradient_hook is not None:
                    phase.gradient_hook(parameters, gradient)
                optimiser.step()
                total.add_(loss.detach(), alpha=len(batch))
        return float(total) / (phase.epochs * len(self.samples))

    def _forward(self, part: Part) -> tuple[nn.Module, Tensor]:
        """What to train, on what: a frozen extractor's features stay the same and are computed once."""
        split = self.model.module
        if part != "head":
            return split, self.samples.x
        features: list[Tensor] = []
        with torch.no_grad():
            for x in torch.split(self.samples.x, BATCH):
                self._check_stop()
                features.append(split.extractor(x))
        return split.head, torch.cat(features)

    def _batches(self, phase: Phase, generator: torch.Generator) -> list[Tensor]:
        order = torch.randperm(len(self.samples), generator=generator).to(self.model.device)
        batches = list(torch.split(order, phase.batch_size))
        if len(batches) > 1 and len(batches[-1]) == 1 and _normalises(self.model, phase.part):
            batches[-2:] = [order[-(phase.batch_size + 1) :]]
        return batches

    def _check_stop(self) -> None:
        if self._stopped.is_set():
            raise Stopped


def check_batches(model: Model, phases: Iterable[Phase], samples: int, peer: str) -> None:
    """InputError if BatchNorm would have to learn from one sample at a time in any of the phases."""
    for phase in phases:
        learns = phase.epochs > 0 and model.trainable(phase.part) and _normalises(model, phase.part)
        if learns and min(phase.batch_size, samples) == 1:
            held = "has one sample" if samples == 1 else "has a batch_size of 1"
            raise InputError(
                f"{peer} {held} and model {model.name} has BatchNorm, which cannot learn from one sample at a time; "
                "give the peer more samples, a batch_size of at least 2, or another model"
            )


def _normalises(model: Model, part: Part) -> bool:
    found = (module for half in model.modules(part) for module in half.modules())
    return any(isinstance(module, nn.modules.batchnorm._BatchNorm) for module in found)
