"""What a protocol is given, made of the model, the trainer and the network."""

import asyncio
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import asdict
from itertools import count
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from peer.errors import FailedError, InputError
from peer.learning.data.drift import stage_of
from peer.learning.data.samples import Samples
from peer.learning.data.shard import Shard, mix
from peer.learning.model.layout import Entry
from peer.learning.randomness import derive
from peer.learning.training.trainer import Phase, Trainer
from peer.network.network import Network
from peer.plugins import in_words
from peer.protocols.peer import Resources
from peer.protocols.state import State
from peer.runtime.communicating import Communicating, Ring, Seconds
from peer.runtime.journal import Journal, tensor_digest
from peer.runtime.lifecycle import State as Activity
from peer.runtime.notes import noted
from peer.runtime.setup import Setup, load_shard
from peer.spec.resources import NOTED, as_noted
from peer.telemetry.events import DataDrifted, Note, Report
from peer.telemetry.trace import copy

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
        self.trainer = Trainer(setup.model, setup.shard.train, spec.seed, self.id, spec.clip_gradient)
        self._hold(setup.shard)
        self.executor = executor
        self.journal = Journal(setup.out / "journal")
        self._given = setup.given
        self.state = State()
        self._protocol, self._unchanging = spec.protocol, dict[str, str]()
        self.loss: float | None = None
        self.noted: dict[str, Note] = {}
        self.trained_this_round = False

    def begin(self, round: int) -> None:
        """What is written once is numbered from the start, too."""
        super().begin(round)
        self.noted, self.trained_this_round = {}, False
        self._onces = count()
        self._measured: Resources | None = None

    async def follow_drift(self, round: int) -> None:
        """Hold the data of that round, which are loaded when their first round begins: only one shard is kept."""
        since = stage_of(round, self.setup.spec.data.stages).since
        if since == self._since:
            return
        load = asyncio.get_running_loop().run_in_executor
        self._hold(await load(self.executor, load_shard, self.setup.config, self.setup.spec, round))
        self._since = since
        self.report(DataDrifted(round=round, samples=self.samples))

    def _hold(self, shard: Shard) -> None:
        self.setup.shard = shard
        self.trainer.use(shard.train)
        # What a peer tells of its data is what it trains on, right or wrong.
        self.proportions = torch.from_numpy(mix(shard.train.y, shard.classes))
        self.validation = shard.validation.to(self.trained.device) if shard.validation else None

    def state_dict(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Everything to go on from: tensors on the CPU, copied as the next round changes them, and plain JSON."""
        tensors = {"model": copy(self.model)}
        tensors |= {f"counter/{name}": copy(counter) for name, counter in self.trained.counters.items()}
        tensors |= {f"optimiser/{name}": tensor for name, tensor in self.trainer.state().items()}
        changing = {name: tensor for name, tensor in self.state.items() if not self._protocol.keeps(name)}
        tensors |= {f"protocol/{name}": copy(tensor) for name, tensor in changing.items()}
        tensors |= {f"wire/{name}": copy(tensor) for name, tensor in self.encoding.state.items()}
        tensors |= {f"behaviour/{name}": tensor for name, tensor in self.misbehaviour.state_dict().items()}
        return tensors, {"ring": asdict(self.ring_order), "seconds": asdict(self.seconds), "loss": self.loss}

    async def unchanging(self) -> tuple[dict[str, str], dict[str, Tensor]]:
        """What the protocol keeps unchanged: checksums by name, and, by checksum, copies of what is new.

        InputError when it was changed or is gone: what is on disk already would be something else.
        """
        kept = {f"protocol/{name}": tensor for name, tensor in self.state.items() if self._protocol.keeps(name)}
        if not kept and not self._unchanging:
            return {}, {}
        before, self._unchanging = self._unchanging, await asyncio.to_thread(_digests, kept)
        for name, digest in before.items():
            if self._unchanging.get(name) != digest:
                raise InputError(
                    f"`{self._protocol.name}` declares peer.state[{name.removeprefix('protocol/')!r}] as unchanging "
                    f"and changed it in round {self.round}; leave it as it is or take it out of `unchanging`"
                )
        new = {digest: copy(kept[name]) for name, digest in self._unchanging.items() if name not in before}
        return dict(self._unchanging), new

    def load_state_dict(
        self, round: int, tensors: Mapping[str, Tensor], facts: Mapping[str, Any], unchanging: Mapping[str, str]
    ) -> None:
        """Go on after `round` from what `state_dict` gave then; FailedError when it gave something else.

        `tensors` are with those that `unchanging`, by their checksums, says are on disk already.
        """
        try:
            self._restore(tensors, facts)
        except (KeyError, TypeError, ValueError, RuntimeError) as error:
            raise FailedError(
                f"the checkpoint of round {round} is not of this model and protocol ({in_words(error)}); put a copy of "
                "this peer's files in its place, or begin the federation again (`dfl-launch run --fresh`)"
            ) from error
        self.round, self._unchanging = round, dict(unchanging)

    def _restore(self, tensors: Mapping[str, Tensor], facts: Mapping[str, Any]) -> None:
        self.model.copy_(tensors["model"])
        for name, counter in self.trained.counters.items():
            counter.copy_(tensors[f"counter/{name}"])
        self.trainer.load_state(_under("optimiser/", tensors))
        kept = _under("protocol/", tensors)
        self.state = State({name: tensor.to(self.trained.device) for name, tensor in kept.items()})
        self.encoding.state = _under("wire/", tensors)
        self.misbehaviour.load_state_dict(_under("behaviour/", tensors))
        self.ring_order = Ring(**{**facts["ring"], "order": tuple(facts["ring"]["order"])})
        self.seconds = Seconds(**facts["seconds"])
        self.loss = facts["loss"]

    @property
    def samples(self) -> int:  # type: ignore[override]
        return len(self.trainer.samples)

    @property
    def data(self) -> Samples:  # type: ignore[override]
        return self.trainer.samples

    @property
    def layout(self) -> tuple[Entry, ...]:  # type: ignore[override]
        return self.trained.layout

    async def train(self, *phases: Phase) -> float:
        self.enter("training")
        self.trained_this_round = True
        began = time.perf_counter()
        losses = [await self.compute(self.trainer.train, phase, self.round) for phase in phases]
        self.seconds.train += time.perf_counter() - began
        self.loss = losses[-1]
        return losses[-1]

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
            value = await asyncio.to_thread(self.journal.write, self.round, number, made)
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


def _digests(tensors: Mapping[str, Tensor]) -> dict[str, str]:
    return {name: tensor_digest(tensor.detach().cpu().contiguous()) for name, tensor in tensors.items()}


def _under(prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}
