"""Local training in phases: some epochs of one part of the model, the rest frozen.

Which samples make a batch, and what BatchNorm asks of it; when a phase is over, after its epochs, by a budget in
their place, or early; and the trainer that goes through the phases and gives the same bits again after a restart.
"""

import math
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing, nullcontext
from functools import cached_property
from itertools import count, islice
from typing import Any

import torch
from torch import Tensor, nn

from peer.errors import DivergedError, InputError, OwnLossError
from peer.learning.data.samples import Batch, InMemory, Samples
from peer.learning.device import copies
from peer.learning.model.layout import PARTS, ModelPart
from peer.learning.model.model import Model
from peer.learning.named_tensors import NamedTensors
from peer.learning.randomness import (
    Generator,
    derive,
    draw_from,
    generators_in,
    global_stream,
    sample_streams,
    torch_generator,
)
from peer.learning.training.evaluation import EVALUATION_BATCH, measure
from peer.learning.training.optimiser import KeptOptimisers
from peer.learning.training.phase import PROTOCOL_DEFAULTS, Phase, Training
from peer.learning.training.scheduler import Schedule, Schedules, key_of
from peer.learning.training.step import MixedPrecision, NotFinite, Steps, TrainingStep, largest_magnitude
from peer.learning.training.training_loop import PhaseSamples, TrainingLoop, place_of
from peer.plugins import reference


def cut_batches(order: Tensor, size: int, *, pairs: bool) -> list[Tensor]:
    """Positions (n,), as views, in batches of `size`, the last one as large as is left.

    With `pairs` a last batch of one joins the one before it.
    """
    batches = list(torch.split(order, size))
    if pairs and len(batches) > 1 and len(batches[-1]) == 1:
        batches[-2:] = [order[-(size + 1) :]]
    return batches


def has_batch_norm(model: Model, part: ModelPart) -> bool:
    """Whether a layer of the part is a BatchNorm that learns, which it cannot from one sample at a time."""
    return any(isinstance(layer, nn.modules.batchnorm._BatchNorm) for layer in model.layers(part))


def batches_per_step(model: Model, phase: Phase, samples: int, how: Training) -> list[int]:
    """How many batches each step of an epoch takes."""
    order = torch.arange(samples)
    batches = len(cut_batches(order, phase.batch_size, pairs=has_batch_norm(model, phase.part)))
    return [min(how.accumulate, batches - first) for first in range(0, batches, how.accumulate)]


def check_batches(model: Model, phases: Iterable[Phase], samples: int, peer: str) -> None:
    """Raise InputError if BatchNorm would have to learn from one sample at a time in any phase."""
    for phase in phases:
        learns = phase.epochs > 0 and model.trainable(phase.part) and has_batch_norm(model, phase.part)
        if learns and min(phase.batch_size, samples) == 1:
            held = "has one sample" if samples == 1 else "has a batch_size of 1"
            raise InputError(
                f"{peer} {held} and model {model.name} has BatchNorm, which cannot learn from one sample at a time; "
                "give the peer more samples, a batch_size of at least 2, or another model"
            )


class StoppingCriterion:
    """When one phase is over: after its epochs, by a budget in their place, or early."""

    def __init__(self, phase: Phase, how: Training, steps: int | None = None) -> None:
        """steps: how many steps a budget in seconds allowed before, for a replay."""
        self._epochs, self._patience = phase.epochs, how.patience
        self._most = how.budget.steps if how.budget and steps is None else steps
        seconds = how.budget.seconds if how.budget and steps is None else None
        self._end = None if seconds is None else time.monotonic() + seconds
        self._budget = how.budget is not None
        self.epochs, self.steps = 0, 0  # done so far, counted by the trainer
        self._best, self._since = float("inf"), 0

    @property
    def ahead(self) -> Iterable[int]:
        """The epochs whose batches may be read ahead, before it is known whether they are needed."""
        return count() if self._budget else range(self._epochs)

    def should_stop(self) -> bool:
        if not self._budget:
            return self.epochs >= self._epochs or (self._patience is not None and self._since >= self._patience)
        if self._most is not None:
            return self.steps >= self._most
        return self._end is not None and self.steps > 0 and time.monotonic() >= self._end

    def on_validation_loss(self, loss: float) -> None:
        """Take the loss of the samples held back after an epoch, which decides on early stopping."""
        self._since = 0 if loss < self._best else self._since + 1
        self._best = min(self._best, loss)


ORDINARY_SIZE = 80.0
"""Outputs and weights up to this size do not indicate divergence: even the exponential of such a number is a finite
float32."""


class TrainingStopped(Exception):
    """Raised inside a phase after `Trainer.stop`; the model is in an intermediate state and no longer of use."""


def _balanced(labels: Tensor, generator: torch.Generator) -> Tensor:
    """As many positions as labels int64 (n,), drawn with replacement, each class with the same probability."""
    upto = (1 / torch.bincount(labels).double())[labels].cumsum(0)
    points = torch.rand(len(labels), generator=generator, dtype=torch.float64) * upto[-1]
    return torch.searchsorted(upto, points, right=True).clamp_(max=len(labels) - 1)


class Trainer:
    """Trains a model on a shard that lies as two tensors on the model's device, or is read batch by batch.

    Whatever is random is drawn from a stream of (seed, peer, round, purpose, number of such a use in the round), so
    that a resumed peer, which begins its round anew, draws the same. Batches are slices of one permutation per epoch;
    the last, smaller batch is kept. BatchNorm cannot learn from one sample: a last batch of one joins the one before.
    """

    def __init__(self, model: Model, samples: Samples, seed: int, peer: str, how: Training = PROTOCOL_DEFAULTS) -> None:
        self.model, self.how = model, how
        self._seed, self._peer = seed, peer
        self.set_data(samples)
        self._optimisers, self._schedules = KeptOptimisers(model), Schedules()
        self._precision = MixedPrecision(how.precision, model.device)
        self._kept = NamedTensors()
        self._stopped = threading.Event()
        self._round, self._numbers = -1, Counter[str]()
        self.steps = 0
        """Steps of the optimiser in the last phase."""
        self.figures: Mapping[str, float] = {}
        """What a loop of the user's own returned beside its loss in the last phase, by name."""

    def set_data(self, samples: Samples, held_back: Samples | None = None) -> None:
        """Train on `samples` from now on, and stop early by those held back; kept optimisers go on."""
        if len(samples) == 0:
            raise InputError(f"{self._peer} has no training samples; give it some or leave it out")
        self.samples = samples.to(self.model.device)
        self._held_back = held_back and held_back.to(self.model.device)

    def train(self, phase: Phase, round: int, steps: int | None = None) -> float:
        """Run a phase (blocking); its mean loss over all batches, each before its step.

        steps: how many a budget in seconds allowed before, for a replay. Raises TrainingStopped after `stop()`,
        DivergedError if the model or the phase's own loss is not finite, OwnLossError if a user's loss made it so.
        Without trainable parameters or epochs nothing changes, and the loss is that of the model as it is.
        """
        phase, number, self.steps, self.figures = self.how.applied(phase), self._number(round, "phase"), 0, {}
        first, began = None, largest_magnitude(self.model.vector)
        draws = self.model.draws or phase.loss is not None or phase.step is not None or self.how.loop is not None
        layers = self._stream(round, f"layers {number}")
        with global_stream(layers, self.model.device) if draws else nullcontext():
            if phase.epochs > 0 and self.model.trainable(phase.part):
                if self.how.loop:
                    loss = self._loop(phase, round, number, layers)
                else:
                    taken = self._epochs(phase, StoppingCriterion(phase, self.how, steps), round, number)
                    loss, first = taken.loss, taken.watch.first if taken.watch else None
                self.model.forget_gradient(phase.part)
            else:
                loss = self._loss_as_it_is(phase)
        self._check_finite(phase, round, loss, first, began)
        return loss

    def batches(self, size: int, round: int, epochs: int = 1) -> Iterator[Tensor]:
        """Positions in `samples`, int64 (n,) on the model's device, batch by batch, for a custom loop.

        They are those of a phase of the whole model in this place: the call counts as a phase of its round. Raises
        TrainingStopped after `stop()`.
        """
        if size < 1:
            raise ValueError(f"a batch holds at least one sample, not {size}")
        order = self._order(range(epochs), size, "model", round, self._number(round, "phase"))
        return (positions.to(self.model.device) for positions in order)

    def logits(self, vector: Tensor, x: Tensor, training: bool, round: int) -> Tensor:
        """`Model.logits`; in training each call in a round has a random stream of its own.

        Raises TrainingStopped after `stop()`.
        """
        self.check_stop()
        if not training:
            return self.model.logits(vector, x)
        seed = self._stream(round, f"logits {self._number(round, 'logits')}")
        return self.model.logits(vector, x, training=True, seed=seed)

    def accuracy(self) -> float:
        """The task's score on the shard, 0..1, in evaluation mode: the accuracy, for classification."""
        return measure(self.model, self.samples).score

    def stop(self) -> None:
        """Make the running and every later `train` raise TrainingStopped at its next batch; from any thread."""
        self._stopped.set()

    def drop(self, keep: str) -> None:
        """Forget the optimiser kept under that name, and its schedules."""
        self._optimisers.drop(keep)
        self._schedules.drop(keep)
        for key in [key for key in self._kept if any(key.startswith(place_of(part, keep)) for part in PARTS)]:
            del self._kept[key]

    def state(self) -> dict[str, Tensor]:
        """Copies of what outlives a phase, flat, on the CPU, for a checkpoint beside the model: the kept optimisers'
        state by their names; behind a dot, schedules, the loss's scale and what a training step keeps."""
        lasting = self._schedules.state() | self._precision.state()
        lasting |= {f"step/{name}": tensor for name, tensor in copies(self._kept).items()}
        return self._optimisers.state() | {f".{name}": tensor for name, tensor in lasting.items()}

    def load_state(self, state: Mapping[str, Tensor]) -> None:
        """Go on from what `state()` gave: with the model as it was then, to the same bits."""
        lasting = {key[1:]: tensor for key, tensor in state.items() if key.startswith(".")}
        self._optimisers.load_state({key: tensor for key, tensor in state.items() if not key.startswith(".")})
        self._schedules.load_state(lasting)
        self._precision.load_state(lasting)
        self._kept.clear()
        for key, tensor in lasting.items():
            if key.startswith("step/"):
                self._kept[key.removeprefix("step/")] = tensor.to(self.model.device, copy=True)

    def _number(self, round: int, of: str) -> int:
        """The next number of that kind, from 0 in each round, as a resumed peer begins its round anew."""
        if round != self._round:
            self._round, self._numbers = round, Counter()
        self._numbers[of] += 1
        return self._numbers[of] - 1

    def _stream(self, round: int, purpose: str) -> int:
        return derive(self._seed, self._peer, round, purpose)

    def _epochs(self, phase: Phase, stopping: StoppingCriterion, round: int, number: int) -> Steps:
        model = self.model
        check_batches(model, (phase,), len(self.samples), self._peer)
        optimiser = self._optimisers.get(phase.part, phase.optimiser, phase.keep)
        schedule = self._schedule(phase, round, optimiser)
        steps = Steps(TrainingStep(model, phase, self._precision, self._kept), optimiser, self.how)
        forward, samples = self._forward(phase)
        order = self._order(stopping.ahead, phase.batch_size, phase.part, round, number)
        per_step = batches_per_step(model, phase, len(samples), self.how)
        model.learn(phase.part)
        with closing(samples.drawn(order, self._stream(round, f"samples {number}"))) as batches:
            while not stopping.should_stop():
                begun = steps.so_far()
                for many in per_step:
                    if stopping.should_stop():
                        break
                    loss = steps.step(islice(batches, many), forward)
                    stopping.steps += 1
                    if schedule:
                        schedule.on_progress("step", loss, optimiser)
                else:
                    stopping.epochs += 1
                    if self.how.patience and self._held_back is not None and not stopping.should_stop():
                        model.rebind()
                        stopping.on_validation_loss(measure(model, self._held_back).loss)
                        model.learn(phase.part)
                    if schedule:
                        schedule.on_progress("epoch", steps.since(begun), optimiser)
        model.rebind()
        self.steps = stopping.steps
        if schedule:
            schedule.on_phase_end(steps.loss)
        return steps

    def _loop(self, phase: Phase, round: int, number: int, seed: int) -> float:
        """Let the user's loop train; its mean loss, or that of the trained model if it gave none."""
        if phase.loss is not None or phase.step is not None:
            raise InputError(
                "`training.loop` cannot train a phase that has a loss or a step of the protocol's own; leave out `loop`"
            )
        drawn = PhaseSamples(self.samples, self._epoch_by_epoch(phase, round, number), round, seed)
        loop = TrainingLoop(self.model, phase, drawn, self._kept, self.check_stop)
        with sample_streams():
            draw_from(seed, self._held)
            returned = loop.run(self._own_loop)
        self.steps, self.figures = loop.steps, returned.figures
        return self._loss_as_it_is(phase) if returned.loss is None else returned.loss

    def _epoch_by_epoch(self, phase: Phase, round: int, number: int) -> Callable[[int], Iterator[Batch]]:
        """What gives the batches of the next epoch, of so many samples each; without end."""
        generator, epochs = torch_generator(self._seed, self._peer, round, f"order {number}"), count()

        def of_next(size: int) -> Iterator[Batch]:
            epoch = next(epochs)
            purpose = f"samples {number}" + (f" in epoch {epoch}" if epoch else "")
            order = self._order_of_epoch(generator, size, phase.part)
            return self.samples.drawn(order, self._stream(round, purpose))

        return of_next

    @cached_property
    def _own_loop(self) -> Callable[..., Any]:
        assert self.how.loop is not None
        return self.how.loop.function()

    @cached_property
    def _held(self) -> list[Generator]:
        """The generators from which the user's loop may draw."""
        return generators_in(self._own_loop)

    def _schedule(self, phase: Phase, round: int, optimiser: torch.optim.Optimizer) -> Schedule | None:
        if phase.scheduler is None:
            return None
        key = key_of(phase.keep, phase.part, phase.optimiser, phase.scheduler)
        schedule = self._schedules.get(key, phase.scheduler, optimiser)
        schedule.begin(round, optimiser)
        return schedule

    def _loss_as_it_is(self, phase: Phase) -> float:
        """The mean loss without training: in evaluation mode, in float32."""
        if phase.loss is None:
            return measure(self.model, self.samples).loss
        self.model.train(False)
        total = torch.zeros((), dtype=torch.float64, device=self.model.device)
        with torch.no_grad():
            for batch in self.samples.in_order(EVALUATION_BATCH):
                outputs = self.model.forward(batch.inputs)
                total.add_(phase.mean_loss(self.model.task, outputs, batch), alpha=len(batch.positions))
        return float(total) / len(self.samples)

    def _check_finite(self, phase: Phase, round: int, loss: float, first: NotFinite | None, began: Tensor) -> None:
        """Raise DivergedError or OwnLossError, naming what is not finite. `began`: the model's largest value before."""
        # A sum is not finite if any element is not, and costs an eightieth of looking at each.
        model_is = bool(torch.isfinite(self.model.vector[self.model.part(phase.part)].sum()))
        own = phase.loss is not None or self.how.loop is not None or phase.own_loss(self.model.task) is not None
        if model_is and (not own or math.isfinite(loss)):
            return
        lr = phase.optimiser.lr
        hint = "lower the learning rate" + (f", now {lr}" if lr is not None else "")
        what = f"training diverged in round {round} (the {phase.part} is not finite); {hint}"
        if self.how.loop:
            did = f"returned a loss of {loss}" if model_is else f"left the {phase.part} not finite"
            what = f"`{reference(self._own_loop)}` {did} in round {round}; correct it, or {hint}"
        elif model_is:
            what = f"the phase's own loss is {loss} in round {round}; mend it, or {hint}"
        if first and math.isfinite(first.largest) and (name := phase.own_loss(self.model.task)):
            its, of = f"the gradient of the loss of `{name}` is not finite", "weights" if phase.step else "outputs"
            if not math.isfinite(first.loss):
                its = f"the loss of `{name}` is {first.loss:g}"
            what = f"{its} in round {round}, though the model's {of} are finite, {first.largest:.3g} at most"
            if first.largest <= ORDINARY_SIZE:
                raise OwnLossError(f"{self._peer}: {what}; correct that loss")
            what = f"{what}; {hint}, or correct that loss"
        if not math.isfinite(began):
            what = (
                f"the model was not finite when training began in round {round}, though training had left it finite; "
                "see what the protocol made of it"
            )
        raise DivergedError(f"{self._peer}: {what}", by_others=not began <= ORDINARY_SIZE)

    def _forward(self, phase: Phase) -> tuple[nn.Module, Samples]:
        """What to train, on which inputs: the features of samples in memory from a frozen extractor are computed
        once."""
        halves = self.model.halves
        if phase.part != "head" or phase.step is not None or halves is None or not isinstance(self.samples, InMemory):
            return self.model.module, self.samples
        extractor, head = halves
        self.model.learn(phase.part)
        features: list[Tensor] = []
        with torch.no_grad(), self._precision.forward():
            for batch in self.samples.in_order(EVALUATION_BATCH):
                self.check_stop()
                features.append(extractor(batch.inputs).float())
        return head, InMemory(torch.cat(features), self.samples.y)

    def _order(self, epochs: Iterable[int], size: int, part: ModelPart, round: int, number: int) -> Iterator[Tensor]:
        """Positions of each epoch's batches in turn, on the samples' device, until training is told to stop."""
        generator = torch_generator(self._seed, self._peer, round, f"order {number}")
        for _ in epochs:
            for batch in self._order_of_epoch(generator, size, part):
                self.check_stop()
                yield batch

    def _order_of_epoch(self, generator: torch.Generator, size: int, part: ModelPart) -> list[Tensor]:
        order = torch.randperm(len(self.samples), generator=generator)
        if self.how.sampler == "balanced":
            order = _balanced(self.samples.labels.cpu(), generator)
        return cut_batches(order.to(self.samples.device), size, pairs=has_batch_norm(self.model, part))

    def check_stop(self) -> None:
        """Raise TrainingStopped after `stop()`."""
        if self._stopped.is_set():
            raise TrainingStopped
