"""Local training in phases: some epochs of one part of the model, the rest frozen."""

import math
import threading
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import nullcontext

import torch
from torch import Tensor, nn

from peer.errors import DivergedError, InputError
from peer.learning.data.samples import InMemory, Samples
from peer.learning.model.model import Model, Part
from peer.learning.randomness import derive, global_stream, torch_generator
from peer.learning.training.batches import check_batches, cut, normalises
from peer.learning.training.evaluation import BATCH, measure
from peer.learning.training.optimiser import SGD, Adam, Optimiser, Optimisers
from peer.learning.training.phase import GradientHook, Phase
from peer.learning.training.step import Steps

__all__ = ["SGD", "Adam", "GradientHook", "Optimiser", "Phase", "Stopped", "Trainer"]


class Stopped(Exception):
    """Training was told to stop; the model is somewhere inside a phase and no longer of use."""


class Trainer:
    """Trains a model on a shard that lies as two tensors on the model's device, or is read batch by batch.

    Batches are slices of one permutation an epoch, drawn from (seed, peer, round, number of the phase in its
    round), as is what random transforms draw; the last, smaller batch is kept. BatchNorm cannot learn from one
    sample: a last batch of one joins the batch before it. With `clip_gradient` a longer gradient of the trained part
    is scaled down to that norm.
    """

    def __init__(
        self, model: Model, samples: Samples, seed: int, peer: str, clip_gradient: float | None = None
    ) -> None:
        self.model = model
        self._seed, self._peer, self._clip = seed, peer, clip_gradient
        self.use(samples)
        self._optimisers = Optimisers(model)
        self._stopped = threading.Event()
        self._round, self._numbers = -1, Counter[str]()

    def use(self, samples: Samples) -> None:
        """Train on these from now on; kept optimisers go on."""
        if len(samples) == 0:
            raise InputError(f"{self._peer} has no training samples; give it some or leave it out")
        self.samples = samples.to(self.model.device)

    def train(self, phase: Phase, round: int) -> float:
        """Run a phase (blocking); its mean loss over all batches, each before its step.

        Raises Stopped after `stop()`, DivergedError if the model or the phase's own loss is not finite. A part without
        trainable parameters, or no epochs: nothing changes, and the loss is that of the model as it is.
        """
        number = self._number(round, "phase")
        seed = derive(self._seed, self._peer, round, f"layers {number}")
        draws = self.model.draws or phase.loss is not None
        with global_stream(seed, self.model.device) if draws else nullcontext():
            if phase.epochs > 0 and self.model.trainable(phase.part):
                loss = self._epochs(phase, self._order(round, number), self._draws(round, number))
            else:
                loss = self._loss_as_it_is(phase)
        self._check_finite(phase, round, loss)
        return loss

    def batches(self, size: int, round: int, epochs: int = 1) -> Iterator[Tensor]:
        """Positions in `samples`, int64 (n,) on the model's device, batch by batch, for a loop of one's own.

        They are those of a phase of the whole model in this place: the call counts as a phase of its round. Raises
        Stopped after `stop()`.
        """
        if size < 1:
            raise ValueError(f"a batch holds at least one sample, not {size}")
        order = self._batches("model", size, epochs, self._order(round, self._number(round, "phase")))
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
        """Forget the optimiser kept under that name."""
        self._optimisers.drop(keep)

    def state(self) -> dict[str, Tensor]:
        """Copies of the kept optimisers' state, flat, on the CPU, for a checkpoint beside the model."""
        return self._optimisers.state()

    def load_state(self, state: Mapping[str, Tensor]) -> None:
        """Go on from what `state()` gave: with the model as it was then, to the same bits."""
        self._optimisers.load_state(state)

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

    def _epochs(self, phase: Phase, generator: torch.Generator, seed: int) -> float:
        model = self.model
        check_batches(model, (phase,), len(self.samples), self._peer)
        model.learn(phase.part)
        optimiser = self._optimisers.get(phase.part, phase.optimiser, phase.keep)
        steps = Steps(model, phase, optimiser, self._clip)
        forward, samples = self._forward(phase.part)
        total = torch.zeros((), dtype=torch.float64, device=model.device)
        order = self._batches(phase.part, phase.batch_size, phase.epochs, generator)
        for batch in samples.drawn(order, seed):
            total.add_(steps.take(batch, forward), alpha=len(batch.positions))
        model.rebind()
        return float(total) / (phase.epochs * len(self.samples))

    def _loss_as_it_is(self, phase: Phase) -> float:
        if phase.loss is None:
            return measure(self.model, self.samples).loss
        self.model.train(False)
        total = 0.0
        with torch.no_grad():
            for batch in self.samples.in_order(BATCH):
                outputs = self.model.forward(batch.inputs)
                total += float(phase.mean_loss(self.model.task, outputs, batch)) * len(batch.positions)
        return total / len(self.samples)

    def _check_finite(self, phase: Phase, round: int, loss: float) -> None:
        way_out = f"lower the learning rate, now {phase.optimiser.lr}"
        if phase.loss is not None and not math.isfinite(loss):
            raise DivergedError(f"{self._peer}: the phase's own loss is {loss} in round {round}; mend it, or {way_out}")
        # A sum is not finite if any element is not, and costs an eightieth of looking at each.
        if not bool(torch.isfinite(self.model.vector[self.model.part(phase.part)].sum())):
            raise DivergedError(
                f"{self._peer}: training diverged in round {round} (the {phase.part} is not finite); {way_out}"
            )

    def _forward(self, part: Part) -> tuple[nn.Module, Samples]:
        """What to train, on what: a frozen extractor's features of samples in memory stay the same, computed once."""
        split = self.model.module
        if part != "head" or not isinstance(self.samples, InMemory):
            return split, self.samples
        features: list[Tensor] = []
        with torch.no_grad():
            for batch in self.samples.in_order(BATCH):
                self._check_stop()
                features.append(split.extractor(batch.inputs))
        return split.head, InMemory(torch.cat(features), self.samples.y)

    def _batches(self, part: Part, size: int, epochs: int, generator: torch.Generator) -> Iterator[Tensor]:
        pairs = normalises(self.model, part)
        for _ in range(epochs):
            order = torch.randperm(len(self.samples), generator=generator).to(self.samples.device)
            for batch in cut(order, size, pairs=pairs):
                self._check_stop()
                yield batch

    def _check_stop(self) -> None:
        if self._stopped.is_set():
            raise Stopped
