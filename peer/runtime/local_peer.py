"""What a protocol is given, made of the model, the trainer and the network.

Below all protocols, and before anything else in round 0, a peer comes by the means and deviations of `standardize`
(`settle_standard`). The federation's are weighted means round the ring, of two vectors: sums over all training
samples, of which no peer tells its own. Who is taken in later, with nothing but its data, is given the result
(`admit_standard`).
"""

import asyncio
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import replace
from itertools import count
from typing import Any, Literal, TypeVar

import numpy as np
import torch
from torch import Tensor

from peer.learning.data.drift import stage_of
from peer.learning.data.samples import Samples, Standardisation, first_pass, second_pass, standardisation_of
from peer.learning.data.shard import Shard, class_mix
from peer.learning.model.layout import TensorSlot
from peer.learning.randomness import derive
from peer.learning.tasks import Task
from peer.learning.training.phase import Phase, Training
from peer.learning.training.trainer import Trainer
from peer.network.network import Network
from peer.network.wire.manifest import Manifest, PayloadSpec
from peer.protocols.base import Resources, State
from peer.runtime.calls import plain_notes
from peer.runtime.checkpoints import Journal
from peer.runtime.communicator import Communicator
from peer.runtime.connection import admission_name
from peer.runtime.lifecycle import State as Activity
from peer.runtime.setup import Setup, load_shard
from peer.spec.federation import MEANS, VARIANCES
from peer.spec.recordings import RESOURCES_NOTE, as_noted
from peer.tasks import in_thread
from peer.telemetry.events import DataDrifted, DataSummary, Note, Report
from peer.views.view import View

T = TypeVar("T")
GIB = 1 << 30


class LocalPeer(Communicator):
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
        self.standard: Standardisation | None = None
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

    def standardise(self, standard: Standardisation) -> None:
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
        self.trainer.set_data(shard.train, shard.held_back)
        # What a peer tells of its data is what it trains on, right or wrong.
        told = class_mix(shard.train, shard.classes) if shard.task.has_classes else shard.proportions
        self.proportions = torch.from_numpy(told)
        self.validation = shard.validation.to(self.trained.device) if shard.validation else None

    def data_held(self, round: int) -> DataSummary:
        """What it trains on from that round on."""
        shares = self.proportions.tolist() if self.task.has_classes else []
        names = self.setup.shard.names.classes
        named = names if len(names) == len(shares) else map(str, range(len(shares)))
        return DataSummary(round=round, samples=self.samples, classes=dict(zip(named, shares, strict=True)))

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
    def layout(self) -> tuple[TensorSlot, ...]:  # type: ignore[override]
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
        if how.is_reproducible:
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
            self.note(**{RESOURCES_NOTE: values})
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
        self.noted |= plain_notes(self.calls.protocol, values, self.round)


Whose = Literal["own", "federation"]
ENTRY = admission_name("column means and deviations")


def with_standard(declared: Manifest, columns: int, view: View) -> Manifest:
    """With what the federation's values are made of, and what those are given who are taken in: as it is."""
    vector = PayloadSpec(name=MEANS, size=2 * columns, doubles=1, first_round=0, last_round=0)
    more = [vector, replace(vector, name=VARIANCES)]
    if view.entrants:
        more.append(replace(vector, name=ENTRY, doubles=0, first_round=view.first, last_round=view.first))
    return Manifest((*declared.payloads, *more), declared.data)


async def settle_standard(peer: LocalPeer, whose: Whose) -> None:
    """In round 0, at every member."""
    together, samples = whose == "federation", peer.data
    first = await _in_executor(peer, first_pass, samples)
    if together:
        await peer.mean(MEANS, first, len(samples))
    second = await _in_executor(peer, second_pass, samples, first)
    if together:
        await peer.mean(VARIANCES, second, len(samples))
    peer.standardise(standardisation_of(first, second))


async def admit_standard(peer: LocalPeer, whose: Whose, entrants: Mapping[str, int]) -> None:
    """In the first round of a view; who brings private state brings these values, too."""
    new = [id for id, stands in entrants.items() if stands == -1]
    if whose == "own":
        if peer.id in new:
            await settle_standard(peer, whose)
        return
    if peer.id in new:
        peer.standardise(Standardisation.from_vector((await peer.take_over(ENTRY)).vector))
    if peer.right in new and peer.standard:
        await peer.hand_over(ENTRY, peer.standard.vector)


async def _in_executor(peer: LocalPeer, function: object, *arguments: object) -> Tensor:
    vector: Tensor = await asyncio.get_running_loop().run_in_executor(peer.executor, function, *arguments)  # type: ignore[arg-type]
    return vector
