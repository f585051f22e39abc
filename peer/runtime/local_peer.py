"""What a protocol is given, made of the model, the trainer and the network."""

import asyncio
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor
from itertools import count
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from peer.learning.data.drift import stage_of
from peer.learning.data.samples import Samples
from peer.learning.data.shard import Shard, class_mix
from peer.learning.data.standard import Standard
from peer.learning.model.layout import Entry
from peer.learning.randomness import derive
from peer.learning.tasks import Task
from peer.learning.training.settings import Training
from peer.learning.training.trainer import Phase, Trainer
from peer.network.network import Network
from peer.protocols.peer import Resources
from peer.protocols.state import State
from peer.runtime.communicating import Communicating
from peer.runtime.journal import Journal
from peer.runtime.lifecycle import State as Activity
from peer.runtime.notes import noted
from peer.runtime.setup import Setup, load_shard
from peer.spec.resources import NOTED, as_noted
from peer.tasks import in_thread
from peer.telemetry.events import DataDrifted, DataHeld, Note, Report

T = TypeVar("T")
GIB = 1 << 30


class LocalPeer(Communicating):
    """The runtime's side of `peer.protocols.base.Peer`."""

    def __init__(
        self,
        setup: Setup,
        network: Network,
        executor: Executor,
        report: Report,
        enter: Callable[[Activity], None],
    ) -> None:
        super().__init__(setup, network, report, enter)
        spec = setup.spec
        self.rounds, self.seed, self.setup, self._since = spec.rounds, spec.seed, setup, 1
        self.trainer = Trainer(setup.model, setup.shard.train, spec.seed, self.id, spec.training)
        self.standard: Standard | None = None
        self._hold(setup.shard)
        self.executor = executor
        self.journal = Journal(setup.out / "journal")
        self._given = setup.given
        self.state = State()
        self.loss: float | None = None
        self.noted: dict[str, Note] = {}
        self.trained_this_round = False

    def begin(self, round: int) -> None:
        """What is written once is numbered from the start, too."""
        super().begin(round)
        self.noted, self.trained_this_round = {}, False
        self._onces, self._steps = count(), list[int]()
        self._measured: Resources | None = None

    async def follow_drift(self, round: int) -> None:
        """Hold the data of that round, and tell of them where they are others than those before."""
        if await self.hold_data_of(round):
            self.report(DataDrifted(round=round, samples=self.samples))
            self.report(self.data_held(round))

    async def hold_data_of(self, round: int) -> bool:
        """Whether they are others: loaded when their first round begins, as only one shard is kept."""
        since = stage_of(round, self.setup.spec.data.stages).since
        if since == self._since:
            return False
        load, setup = asyncio.get_running_loop().run_in_executor, self.setup
        shard = await load(self.executor, load_shard, setup.config, setup.spec, round, setup.common)
        self._hold(shard.standardised(self.standard) if self.standard else shard)
        self._since = since
        return True

    def standardise(self, standard: Standard) -> None:
        """Bring its samples, which are as they lie on disk, to these means and deviations: once in a life."""
        self.standard = self.trained.standard = standard
        self._hold(self.setup.shard.standardised(standard))

    def take_trainer(self, how: Training) -> Trainer:
        """A new one, which has kept nothing, in place of its own."""
        shard = self.setup.shard
        self.trainer = Trainer(self.trained, shard.train, self.seed, self.id, how)
        return self.trainer

    def _hold(self, shard: Shard) -> None:
        if self.setup.shard is not shard:
            self.setup.shard.close()
        self.setup.shard = shard
        self.trainer.use(shard.train, shard.held_back)
        # What a peer tells of its data is what it trains on, right or wrong.
        told = class_mix(shard.train, shard.classes) if shard.task.has_classes else shard.proportions
        self.proportions = torch.from_numpy(told)
        self.validation = shard.validation.to(self.trained.device) if shard.validation else None

    def data_held(self, round: int) -> DataHeld:
        """What it trains on from that round on."""
        shares = self.proportions.tolist() if self.task.has_classes else []
        names = self.setup.shard.names.classes
        named = names if len(names) == len(shares) else map(str, range(len(shares)))
        return DataHeld(round=round, samples=self.samples, classes=dict(zip(named, shares, strict=True)))

    @property
    def samples(self) -> int:  # type: ignore[override]
        return len(self.trainer.samples)

    @property
    def data(self) -> Samples:  # type: ignore[override]
        return self.trainer.samples

    @property
    def task(self) -> Task:  # type: ignore[override]
        return self.trained.task

    @property
    def layout(self) -> tuple[Entry, ...]:  # type: ignore[override]
        return self.trained.layout

    async def train(self, *phases: Phase) -> float:
        self.calls.train(self, phases)
        self.enter("training")
        self.trained_this_round = True
        began = time.perf_counter()
        losses = [await self._phase(phase) for phase in phases]
        self.seconds.train += time.perf_counter() - began
        self.loss = losses[-1]
        return losses[-1]

    async def _phase(self, phase: Phase) -> float:
        how = self.setup.spec.training
        if how.same_bits:
            loss = await self.compute(self.trainer.train, phase, self.round)
        else:
            loss = await self._timed(phase)
        if how.budget or how.patience:
            self._steps.append(self.trainer.steps)
            self.note(local_steps=self._steps)
        return loss

    async def _timed(self, phase: Phase) -> float:
        """A phase by the clock. How many steps it came to is on disk before anything that rests on them leaves, so a
        replay takes as many (rule R1)."""
        number = next(self._onces)
        known = await asyncio.to_thread(self.journal.recall, self.round, number)
        loss = await self.compute(self.trainer.train, phase, self.round, None if known is None else int(known))
        if known is None:
            await in_thread(self.journal.write, self.round, number, torch.tensor(self.trainer.steps))
        return loss

    async def accuracy(self) -> float:
        began = time.perf_counter()
        result = await self.compute(self.trainer.accuracy)
        self.seconds.train += time.perf_counter() - began
        return result

    def logits(self, vector: Tensor, x: Tensor, training: bool = False) -> Tensor:
        return self.trainer.logits(vector, x, training, self.round)

    def batches(self, size: int, epochs: int = 1) -> Iterator[Tensor]:
        return self.trainer.batches(size, self.round, epochs)

    async def compute(self, function: Callable[..., T], *arguments: Any) -> T:
        self.calls.compute(self, function)
        return await asyncio.get_running_loop().run_in_executor(self.executor, function, *arguments)

    def forget(self, optimiser: str) -> None:
        self.trainer.drop(optimiser)

    async def once(self, make: Callable[[], Tensor]) -> Tensor:
        number = next(self._onces)
        value = await asyncio.to_thread(self.journal.recall, self.round, number)
        if value is None:
            made = self.calls.once(self, await self.compute(make))
            value = await in_thread(self.journal.write, self.round, number, made)
        return value.to(self.trained.device)

    async def resources(self) -> Resources:
        if self._measured is None:
            values = (await self.once(self._measure)).tolist()
            rates = dict(zip(self.members, values[2:], strict=True))
            self._measured = Resources(values[0], values[1], rates)
            self.note(**{NOTED: values})
        return self._measured

    def _measure(self) -> Tensor:
        if self._given is not None:
            return torch.tensor(as_noted(self._given(self.round)), dtype=torch.float64)
        now = self.network.resources()
        rates = [now.bytes_per_second.get(peer, 0.0) for peer in self.members]
        return torch.tensor([now.free_cpus, now.free_memory_bytes / GIB, *rates], dtype=torch.float64)

    def shared_generator(self, purpose: str) -> np.random.Generator:
        view = self.network.identity.view
        return np.random.default_rng(derive(self.seed, f"view {view}", self.round, purpose))

    def note(self, **values: float | Sequence[float]) -> None:
        self.noted |= noted(self.calls.protocol, values, self.round)
