"""A peer on which a protocol's rounds can run with nothing behind it: the true model, no training, no clock."""

from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import wraps
from inspect import CORO_CREATED, getcoroutinestate
from typing import Any, TypeVar, cast

import numpy as np
import torch
from torch import Tensor

from peer.learning.data.samples import Samples
from peer.learning.model.layout import Entry
from peer.learning.model.model import Model
from peer.learning.randomness import derive, torch_generator
from peer.learning.tasks import Task
from peer.learning.training.trainer import Phase
from peer.network.collectives.pending import Pending
from peer.protocols.base import Peer, Protocol, Resources
from peer.protocols.state import State
from peer.runtime.calls import Calls
from peer.runtime.encodings import encoding
from peer.runtime.notes import noted
from peer.spec.wire import Float32, Wire

T = TypeVar("T")
Method = TypeVar("Method", bound=Callable[..., Coroutine[Any, Any, Any]])
SAMPLES = 32
"""Of a peer's samples, for protocols that look at them."""
NUDGE = 1e-3
"""How far a dry run's training moves each weight at most: differences of zero would make divisions by zero."""


@dataclass(frozen=True)
class Rehearsal:
    """What a dry run stands on: the model, some of a peer's samples, and the whole federation's proportions."""

    model: Model
    data: Samples
    proportions: Mapping[str, Tensor]
    """Everyone's q_i, float64 (classes,), by id in the ring's order."""
    rounds: int
    seed: int
    validation: Samples | None = None
    wire: Wire = field(default_factory=Float32)


def recorded(method: Method) -> Method:
    """A call counts when it is made, not when it is awaited: one that never is would do nothing, without a word."""

    @wraps(method)
    def call(peer: "Rehearsing", *arguments: Any, **keywords: Any) -> Coroutine[Any, Any, Any]:
        work = method(peer, *arguments, **keywords)
        peer.made.append((method.__name__, work))
        return work

    return cast(Method, call)


class Rehearsing(Peer):
    """The half of a dry run that does not communicate. `journalled` is what it has drawn by `once`, in bytes."""

    rehearsal = True

    def __init__(self, id: str, protocol: Protocol, rehearsal: Rehearsal) -> None:
        self.id, self.members, self.ring = id, tuple(rehearsal.proportions), tuple(rehearsal.proportions)
        self.round, self.rounds, self.samples = 0, rehearsal.rounds, len(rehearsal.data)
        self.proportions = rehearsal.proportions[id]
        self.data = rehearsal.data.first(SAMPLES).to(rehearsal.model.device)
        public = rehearsal.validation and rehearsal.validation.first(SAMPLES)
        self.validation = public.to(rehearsal.model.device) if public else None
        self.state = State()
        self.journalled = 0
        self.made: list[tuple[str, Coroutine[Any, Any, Any]]] = []
        self._protocol, self._rehearsal = protocol, rehearsal
        self._vector = rehearsal.model.vector.detach().clone()
        self._encoding = encoding(rehearsal.wire, rehearsal.model.sizes)
        self._calls = Calls.of(protocol, rehearsal.rounds, rehearsal.model, self._encoding)

    @property
    def model(self) -> Tensor:  # type: ignore[override]
        return self._vector

    @property
    def extractor(self) -> Tensor:  # type: ignore[override]
        return self._vector[self._rehearsal.model.part("extractor")]

    @property
    def head(self) -> Tensor:  # type: ignore[override]
        return self._vector[self._rehearsal.model.part("head")]

    @property
    def task(self) -> Task:  # type: ignore[override]
        return self._rehearsal.model.task

    @property
    def layout(self) -> tuple[Entry, ...]:  # type: ignore[override]
        return self._rehearsal.model.layout

    @recorded
    async def train(self, *phases: Phase) -> float:
        self._calls.train(self, phases)
        generator = torch_generator(self._rehearsal.seed, self.id, self.round, "rehearsal")
        for where in self._rehearsal.model.trainable("model"):
            part = self._vector[where]
            part.add_(torch.empty(part.shape).uniform_(-NUDGE, NUDGE, generator=generator).to(part.device))
        return 1.0

    @recorded
    async def accuracy(self) -> float:
        return 1.0

    def logits(self, vector: Tensor, x: Tensor, training: bool = False) -> Tensor:
        return self._rehearsal.model.logits(vector, x, training=training, seed=0)

    def batches(self, size: int, epochs: int = 1) -> Iterator[Tensor]:
        positions = torch.arange(len(self.data), device=self._vector.device)
        return (batch for _ in range(epochs) for batch in torch.split(positions, size))

    @recorded
    async def compute(self, function: Callable[..., T], *arguments: Any) -> T:
        self._calls.compute(self, function)
        return function(*arguments)

    def forget(self, optimiser: str) -> None:
        pass

    @recorded
    async def once(self, make: Callable[[], Tensor]) -> Tensor:
        self._calls.compute(self, make, "once")
        made = self._calls.once(self, make())
        self.journalled += made.nbytes
        return made

    @recorded
    async def resources(self) -> Resources:
        return Resources(1.0, 1.0, dict.fromkeys(self.members, 1e6))

    def shared_generator(self, purpose: str) -> np.random.Generator:
        return np.random.default_rng(derive(self._rehearsal.seed, self.round, purpose))

    def note(self, **values: float | Sequence[float]) -> None:
        noted(self._protocol.name, values, self.round)


def was_awaited(work: Coroutine[Any, Any, Any]) -> bool:
    if isinstance(work, Pending):
        return work.awaited
    return getcoroutinestate(work) != CORO_CREATED
