"""Learning at one peer: a model, a trainer, and this peer's data in the present round. Nothing is sent here."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor
from typing import Any, TypeVar

import torch
from torch import Tensor

from peer.errors import FailedError
from peer.learning.data.drift import stage_of
from peer.learning.data.samples import Standardisation
from peer.learning.data.shard import Shard, class_mix
from peer.learning.device import copies
from peer.learning.randomness import derive, draw_from, sample_streams
from peer.learning.training.phase import Phase, Training
from peer.learning.training.trainer import Trainer
from peer.runtime.checkpoints import under
from peer.runtime.data_and_model import load_shard
from peer.runtime.lifecycle import Lifecycle
from peer.runtime.rounds.calls import plain_notes
from peer.runtime.rounds.round import Round
from peer.runtime.setup import Setup
from peer.telemetry.events import DataDrifted, DataSummary

T = TypeVar("T")


class Learner:
    """The model, trainer and data of one peer."""

    def __init__(self, setup: Setup, executor: Executor, lifecycle: Lifecycle) -> None:
        self._setup, self._executor, self._lifecycle = setup, executor, lifecycle
        self._how, self._since = setup.spec.training, 1
        self.model = setup.model
        self.standard: Standardisation | None = None
        """What missing values, means and deviations are in use; None if the samples stay as on disk."""
        self.loss: float | None = None
        """The loss of the last training; None before the first."""
        self._take(setup.shard)
        self.trainer = self.new_trainer(self._how)
        self.trainer.set_data(self.shard.train, self.shard.held_back)

    @property
    def shard(self) -> Shard:
        return self._setup.shard

    @property
    def samples(self) -> int:
        return len(self.trainer.samples)

    def new_trainer(self, how: Training) -> Trainer:
        """A trainer without state."""
        return Trainer(self.model, self.shard.train, self._setup.spec.seed, self._setup.config.id, how)

    async def compute(self, function: Callable[..., T], *arguments: Any) -> T:
        """Run a function in the worker thread."""
        return await asyncio.get_running_loop().run_in_executor(self._executor, function, *arguments)

    async def compute_drawing(self, round: Round, function: Callable[..., T], *arguments: Any) -> T:
        """Run a protocol's function there, which may draw from the process's generators."""
        seed = derive(self._setup.spec.seed, self._setup.config.id, round.number, "compute", next(round.calculations))

        def seeded() -> T:
            with sample_streams():
                draw_from(seed)
                return function(*arguments)

        return await self.compute(seeded)

    async def train(self, phases: Sequence[Phase], round: Round) -> float:
        """Train the phases in turn; return the mean loss of the last one."""
        self._lifecycle.become("training")
        round.trained = True
        with self._lifecycle.timed("train"):
            losses = [await self._phase(phase, round) for phase in phases]
        self.loss = losses[-1]
        return losses[-1]

    async def accuracy(self) -> float:
        with self._lifecycle.timed("train"):
            return await self.compute(self.trainer.accuracy)

    async def _phase(self, phase: Phase, round: Round) -> float:
        if self._how.is_reproducible:
            loss = await self.compute(self.trainer.train, phase, round.number)
        else:
            loss = await self._timed_phase(phase, round)
        if self._how.budget or self._how.patience or self._how.loop:
            round.steps.append(self.trainer.steps)
            round.notes |= {"local_steps": [float(steps) for steps in round.steps]}
        if self._how.loop:
            for name, figure in self.trainer.figures.items():
                round.figures.setdefault(name, []).append(figure)
            round.notes |= plain_notes(self._how.loop.name, round.figures, round.number)
        return loss

    async def _timed_phase(self, phase: Phase, round: Round) -> float:
        """Train a phase that is limited by time. The number of steps is on disk before anything that depends on them
        leaves, so that a replay takes as many (rule R1)."""
        number, known = await round.recall()
        loss = await self.compute(self.trainer.train, phase, round.number, None if known is None else int(known))
        if known is None:
            await round.keep(number, torch.tensor(self.trainer.steps))
        return loss

    def since(self, round: int) -> int:
        """The first round with the same data as that round."""
        return stage_of(round, self._setup.spec.data.stages).since

    async def load_data_for(self, round: int) -> bool:
        """Load the data of that round; return whether they differ from the present ones. Only one shard is kept."""
        since = self.since(round)
        if since == self._since:
            return False
        setup = self._setup
        shard = await self.compute(load_shard, setup.config, setup.spec, round, setup.common)
        self._use(shard.standardised(self.standard) if self.standard else shard)
        self._since = since
        return True

    async def apply_drift(self, round: int) -> None:
        """Load the data of that round, and report them if they differ from the present ones."""
        if await self.load_data_for(round):
            self._lifecycle.report(DataDrifted(round=round, samples=self.samples))
            self._lifecycle.report(self.data_summary(round))

    def standardise(self, standard: Standardisation) -> None:
        """Impute and standardise the samples, until now as on disk: once in each view."""
        self.standard = self.model.standard = standard
        self._use(self.shard.standardised(standard))

    def _use(self, shard: Shard) -> None:
        self.shard.close()
        self._take(shard)
        self.trainer.set_data(self.shard.train, self.shard.held_back)

    def _take(self, shard: Shard) -> None:
        """Hold these data in place of others, on the model's device."""
        # A peer states the labels that it trains on, right or wrong.
        mix = class_mix(shard.train, shard.classes) if shard.task.has_classes else shard.proportions
        self.proportions = torch.from_numpy(mix)
        self._setup.shard = shard.to(self.model.device)

    def data_summary(self, round: int) -> DataSummary:
        """The event that says what this peer trains on from that round on."""
        shares = self.proportions.tolist() if self.shard.task.has_classes else []
        named = (self.model.class_names if shares else ()) or map(str, range(len(shares)))
        return DataSummary(round=round, samples=self.samples, classes=dict(zip(named, shares, strict=True)))

    def state_dict(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """What must survive a crash: copies of tensors on the CPU, and plain JSON."""
        counters = {f"counter/{name}": counter for name, counter in self.model.counters.items()}
        tensors = copies({"model": self.model.vector, **counters})
        tensors |= {f"optimiser/{name}": tensor for name, tensor in self.trainer.state().items()}
        if self.standard:
            tensors["standard"] = self.standard.vector
        return tensors, {"loss": self.loss, "frozen": self.model.frozen_sha256}

    def load_state_dict(self, tensors: Mapping[str, Tensor], facts: Mapping[str, Any]) -> None:
        self.model.vector.copy_(tensors["model"])
        for name, counter in self.model.counters.items():
            counter.copy_(tensors[f"counter/{name}"])
        self.trainer.load_state(under("optimiser/", tensors))
        if "standard" in tensors:
            self.standardise(Standardisation.from_vector(tensors["standard"], self.shard.names))
        self.loss = facts["loss"]

    def check_frozen(self, round: int, before: str) -> None:
        """Raise FailedError if the frozen weights differ from those of `round`: they are in no checkpoint."""
        if (now := self.model.frozen_sha256) != before:
            raise FailedError(
                f"the frozen weights are others than in round {round} (sha256:{now or 'none'}, and then "
                f"sha256:{before or 'none'}); give the model the weights that it had, or begin the federation again "
                "(`dfl-launch run --fresh`)"
            )
