"""Local training in phases: some epochs of one part of the model, the rest frozen."""

import math
import threading
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing, nullcontext
from itertools import chain, islice

import torch
from torch import Tensor, nn

from peer.errors import DivergedError, InputError, OwnLossError
from peer.learning.data.samples import Batch, InMemory, Samples
from peer.learning.model.model import Model
from peer.learning.randomness import derive, global_stream, torch_generator
from peer.learning.training.batches import check_batches, cut, normalises
from peer.learning.training.evaluation import BATCH, measure
from peer.learning.training.optimiser import SGD, Adam, Optimiser
from peer.learning.training.optimisers import Optimisers
from peer.learning.training.own_step import StepState, TrainingStep
from peer.learning.training.phase import GradientHook, Phase
from peer.learning.training.precision import MixedPrecision
from peer.learning.training.scheduler import Schedule, Scheduler, Schedules, key_of
from peer.learning.training.settings import AS_IT_IS, Training
from peer.learning.training.step import NotFinite, Steps, largest
from peer.learning.training.stopping import StoppingCriterion
from peer.learning.transfer import copies

__all__ = ["SGD", "Adam", "GradientHook", "Optimiser", "Phase", "Scheduler", "Stopped", "Trainer"]


ORDINARY = 80.0
"""Outputs and weights of up to this size are no sign of divergence: even the exponential of such a number is a finite
float32."""


class Stopped(Exception):
    """Training was told to stop; the model is somewhere inside a phase and no longer of use."""


class Trainer:
    """Trains a model on a shard that lies as two tensors on the model's device, or is read batch by batch.

    Batches are slices of one permutation an epoch, drawn from (seed, peer, round, number of the phase in its
    round), as is what random transforms draw; the last, smaller batch is kept. BatchNorm cannot learn from one
    sample: a last batch of one joins the batch before it.
    """

    def __init__(self, model: Model, samples: Samples, seed: int, peer: str, how: Training = AS_IT_IS) -> None:
        self.model, self.how = model, how
        self._seed, self._peer = seed, peer
        self.use(samples)
        self._optimisers, self._schedules = Optimisers(model), Schedules()
        self._precision = MixedPrecision(how.precision, model.device)
        self._kept = StepState()
        self._stopped = threading.Event()
        self._round, self._numbers = -1, Counter[str]()
        self.steps = 0
        """Of the optimiser, in the last phase."""

    def use(self, samples: Samples, held_back: Samples | None = None) -> None:
        """Train on these from now on, and stop early by those that are held back; kept optimisers go on."""
        if len(samples) == 0:
            raise InputError(f"{self._peer} has no training samples; give it some or leave it out")
        self.samples = samples.to(self.model.device)
        self._held_back = held_back and held_back.to(self.model.device)

    def train(self, phase: Phase, round: int, steps: int | None = None) -> float:
        """Run a phase (blocking); its mean loss over all batches, each before its step.

        `steps`: as many as a budget in seconds came to before. Raises Stopped after `stop()`, DivergedError if the
        model or the phase's own loss is not finite, OwnLossError if a loss of the user's made it so. A part without
        trainable parameters, or no epochs: nothing changes, and the loss is that of the model as it is.
        """
        phase, number, self.steps = self.how.applied(phase), self._number(round, "phase"), 0
        first, began = None, largest(self.model.vector)
        seed = derive(self._seed, self._peer, round, f"layers {number}")
        draws = self.model.draws or phase.loss is not None or phase.step is not None
        with global_stream(seed, self.model.device) if draws else nullcontext():
            if phase.epochs > 0 and self.model.trainable(phase.part):
                taken = self._epochs(phase, StoppingCriterion(phase, self.how, steps), round, number)
                loss, first = taken.loss, taken.watch.first if taken.watch else None
            else:
                loss = self._loss_as_it_is(phase)
        self._check_finite(phase, round, loss, first, began)
        return loss

    def batches(self, size: int, round: int, epochs: int = 1) -> Iterator[Tensor]:
        """Positions in `samples`, int64 (n,) on the model's device, batch by batch, for a loop of one's own.

        They are those of a phase of the whole model in this place: the call counts as a phase of its round. Raises
        Stopped after `stop()`.
        """
        if size < 1:
            raise ValueError(f"a batch holds at least one sample, not {size}")
        order = self._batches(size, epochs, self._order(round, self._number(round, "phase")))
        return (positions.to(self.model.device) for positions in order)

    def logits(self, vector: Tensor, x: Tensor, training: bool, round: int) -> Tensor:
        """`Model.logits`; in training its random numbers are those of (seed, peer, round, number of such a call in it).

        Raises Stopped after `stop()`.
        """
        self._check_stop()
        if not training:
            return self.model.logits(vector, x)
        seed = derive(self._seed, self._peer, round, f"logits {self._number(round, 'logits')}")
        return self.model.logits(vector, x, training=True, seed=seed)

    def accuracy(self) -> float:
        """The task's score on the shard, 0..1, in evaluation mode: the accuracy, for classification."""
        return measure(self.model, self.samples).score

    def stop(self) -> None:
        """Make the running and every later `train` raise Stopped at its next batch; from any thread."""
        self._stopped.set()

    def drop(self, keep: str) -> None:
        """Forget the optimiser kept under that name, and its schedules."""
        self._optimisers.drop(keep)
        self._schedules.drop(keep)

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
        """From 0 in each round, since a resumed peer begins its round anew."""
        if round != self._round:
            self._round, self._numbers = round, Counter()
        self._numbers[of] += 1
        return self._numbers[of] - 1

    def _order(self, round: int, phase: int) -> torch.Generator:
        return torch_generator(self._seed, self._peer, round, f"order {phase}")

    def _draws(self, round: int, phase: int) -> int:
        """The seed of what the transforms of a phase draw."""
        return derive(self._seed, self._peer, round, f"samples {phase}")

    def _epochs(self, phase: Phase, stopping: StoppingCriterion, round: int, number: int) -> Steps:
        model = self.model
        check_batches(model, (phase,), len(self.samples), self._peer)
        optimiser = self._optimisers.get(phase.part, phase.optimiser, phase.keep)
        schedule = self._schedule(phase, round, optimiser)
        steps = Steps(TrainingStep(model, phase, self._precision, self._kept), optimiser, self.how)
        forward, samples = self._forward(phase)
        generator = self._order(round, number)
        order = chain.from_iterable(self._epoch(phase, generator) for _ in stopping.ahead)
        with closing(samples.drawn(self._until_stopped(order), self._draws(round, number))) as batches:
            while not stopping.is_over():
                model.learn(phase.part)
                begun = steps.so_far()
                for many in self._together(phase):
                    if stopping.is_over():
                        break
                    loss = steps.take(islice(batches, many), forward)
                    stopping.stepped()
                    if schedule:
                        schedule.happened("step", loss, optimiser)
                else:
                    stopping.passed()
                    stopping.judged(None if stopping.is_over() else self._held_back_loss())
                    if schedule:
                        schedule.happened("epoch", steps.since(begun), optimiser)
        model.rebind()
        self.steps = stopping.steps
        if schedule:
            schedule.ended(steps.loss)
        return steps

    def _schedule(self, phase: Phase, round: int, optimiser: torch.optim.Optimizer) -> Schedule | None:
        if phase.scheduler is None:
            return None
        key = key_of(phase.keep, phase.part, phase.optimiser, phase.scheduler)
        schedule = self._schedules.get(key, phase.scheduler, optimiser)
        schedule.begin(round, optimiser)
        return schedule

    def _held_back_loss(self) -> float | None:
        """By which a phase stops early; None where it does not."""
        if self.how.patience is None or self._held_back is None:
            return None
        self.model.rebind()
        return measure(self.model, self._held_back).loss

    def _loss_as_it_is(self, phase: Phase) -> float:
        if phase.loss is None:
            return measure(self.model, self.samples).loss
        return self._mean_loss(phase, self.samples.in_order(BATCH))

    def _mean_loss(self, phase: Phase, batches: Iterable[Batch]) -> float:
        """In evaluation mode, in float32, as the model is."""
        self.model.train(False)
        total, seen = torch.zeros((), dtype=torch.float64, device=self.model.device), 0
        with torch.no_grad():
            for batch in batches:
                outputs = self.model.forward(batch.inputs)
                total.add_(phase.mean_loss(self.model.task, outputs, batch), alpha=len(batch.positions))
                seen += len(batch.positions)
        return float(total) / seen

    def _check_finite(self, phase: Phase, round: int, loss: float, first: NotFinite | None, began: Tensor) -> None:
        """`began`: the size of the model's largest value before the phase."""
        # A sum is not finite if any element is not, and costs an eightieth of looking at each.
        model_is = bool(torch.isfinite(self.model.vector[self.model.part(phase.part)].sum()))
        if model_is and (phase.loss is None or math.isfinite(loss)):
            return
        lr = phase.optimiser.lr
        way_out = "lower the learning rate" + (f", now {lr}" if lr is not None else "")
        what = f"training diverged in round {round} (the {phase.part} is not finite); {way_out}"
        if model_is:
            what = f"the phase's own loss is {loss} in round {round}; mend it, or {way_out}"
        if first and math.isfinite(first.largest) and (name := phase.own_loss(self.model.task)):
            its, of = f"the gradient of the loss of `{name}` is not finite", "weights" if phase.step else "outputs"
            if not math.isfinite(first.loss):
                its = f"the loss of `{name}` is {first.loss:g}"
            what = f"{its} in round {round}, though the model's {of} are finite, {first.largest:.3g} at most"
            if first.largest <= ORDINARY:
                raise OwnLossError(f"{self._peer}: {what}; correct that loss")
            what = f"{what}; {way_out}, or correct that loss"
        raise DivergedError(f"{self._peer}: {what}", by_others=not began <= ORDINARY)

    def _forward(self, phase: Phase) -> tuple[nn.Module, Samples]:
        """What to train, on what: a frozen extractor's features of samples in memory stay the same, computed once."""
        halves = self.model.halves
        if phase.part != "head" or phase.step is not None or halves is None or not isinstance(self.samples, InMemory):
            return self.model.module, self.samples
        extractor, head = halves
        self.model.learn(phase.part)
        features: list[Tensor] = []
        with torch.no_grad(), self._precision.forward():
            for batch in self.samples.in_order(BATCH):
                self._check_stop()
                features.append(extractor(batch.inputs).float())
        return head, InMemory(torch.cat(features), self.samples.y)

    def _epoch(self, phase: Phase, generator: torch.Generator) -> list[Tensor]:
        """Positions of an epoch's batches, on the samples' device."""
        order = torch.randperm(len(self.samples), generator=generator).to(self.samples.device)
        return self._cut(phase, order)

    def _cut(self, phase: Phase, order: Tensor) -> list[Tensor]:
        return cut(order, phase.batch_size, pairs=normalises(self.model, phase.part))

    def _together(self, phase: Phase) -> list[int]:
        """How many batches each step of an epoch takes."""
        batches, most = len(self._cut(phase, torch.arange(len(self.samples)))), self.how.accumulate
        return [min(most, batches - first) for first in range(0, batches, most)]

    def _batches(self, size: int, epochs: int, generator: torch.Generator) -> Iterator[Tensor]:
        pairs = normalises(self.model, "model")
        for _ in range(epochs):
            order = torch.randperm(len(self.samples), generator=generator).to(self.samples.device)
            yield from self._until_stopped(cut(order, size, pairs=pairs))

    def _until_stopped(self, batches: Iterable[Tensor]) -> Iterator[Tensor]:
        for batch in batches:
            self._check_stop()
            yield batch

    def _check_stop(self) -> None:
        if self._stopped.is_set():
            raise Stopped
