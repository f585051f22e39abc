"""What a protocol would send, counted by letting it run on nothing.

The protocol's own rounds run against a `Peer` that trains nothing, hears its own vectors from every neighbour
and counts the bytes of what it would send, so no protocol has to say its traffic twice.
"""

from collections.abc import Callable, Coroutine, Mapping, Sequence
from functools import wraps
from inspect import CORO_CREATED, getcoroutinestate
from typing import Any, TypeVar, cast

import numpy as np
import torch
from torch import Tensor

from peer.errors import InputError
from peer.learning.model.model import PARTS
from peer.learning.training.trainer import Phase
from peer.protocols.base import Init, Peer, Protocol, Received
from peer.topology.graphs import receivers

T = TypeVar("T")
Method = TypeVar("Method", bound=Callable[..., Coroutine[Any, Any, Any]])
FLOAT32, FLOAT64 = 4, 8
KNOWN = ("proportions", "order")
"""Records of which a dry run knows what the others tell; in all others it sees its own numbers from everybody."""
STAND_IN = 2
"""Length of the stand-in of each part: only the true sizes are counted."""


def noted(method: Method) -> Method:
    """A call is noted when it is made, not when it is awaited: one that never is would do nothing, without a word."""

    @wraps(method)
    def call(dry_run: "DryRun", *arguments: Any, **keywords: Any) -> Coroutine[Any, Any, Any]:
        work = method(dry_run, *arguments, **keywords)
        dry_run.made.append((method.__name__, work))
        return work

    return cast(Method, call)


class DryRun(Peer):
    """One peer that only counts.

    sizes: float32 values of each vector ("extractor", "head", "model"); proportions: everyone's q_i,
    float64 (classes,), by id. `sent` is what it has sent so far, in bytes of tensors and records; `calls` are the
    (round, collective, vector or record) in which all peers take part, so everybody's are the same.
    """

    def __init__(
        self,
        id: str,
        protocol: Protocol,
        rounds: int,
        sizes: Mapping[str, int],
        proportions: Mapping[str, Tensor],
        samples: int,
        seed: int,
    ):
        self.id, self.members, self.ring = id, tuple(proportions), tuple(proportions)
        self.round, self.rounds, self.samples = 0, rounds, samples
        self.proportions = proportions[id]
        self.model = torch.zeros(2 * STAND_IN)
        self.extractor, self.head = self.model[:STAND_IN], self.model[STAND_IN:]
        self.state: dict[str, Tensor] = {}
        self.sent = 0
        self.calls: list[tuple[int, str, str]] = []
        self.made: list[tuple[str, Coroutine[Any, Any, Any]]] = []
        self._protocol, self._sizes, self._everyone, self._seed = protocol, sizes, proportions, seed

    async def set_up(self, init: Init) -> int:
        """Bytes sent before round 1."""
        await self._protocol.start(self, init)
        return self.sent

    async def count(self, round: int) -> int:
        """Bytes sent in a round; rounds are counted in ascending order, some may be left out."""
        before, self.round = self.sent, round
        await self._protocol.round(self)
        return self.sent - before

    def never_awaited(self) -> list[str]:
        """The methods that were called without `await`."""
        forgotten = [(name, work) for name, work in self.made if getcoroutinestate(work) == CORO_CREATED]
        for _, work in forgotten:
            work.close()
        return [name for name, _ in forgotten]

    def _vector(self, share: str) -> Tensor:
        return {"extractor": self.extractor, "head": self.head, "model": self.model}.get(share, self.model)

    def _leaves(self, share: str, scalars: int = 0) -> None:
        """InputError unless the protocol declares that this leaves a peer in this round, and there is such a vector."""
        declared = [s for s in self._protocol.shares(self.rounds) if s.vector == share]
        name = f"`{self._protocol.name}` sends `{share}` in round {self.round}"
        if not any(s.rounds is None or self.round in s.rounds for s in declared):
            raise InputError(f"{name}, and does not declare that; add it to `shares`")
        if scalars > max(s.scalars for s in declared):
            raise InputError(f"{name} with {scalars} scalars, and declares fewer; say so in `shares`")
        if share not in (*PARTS, *self.state):
            raise InputError(f"{name}, which is neither {', '.join(PARTS)} nor kept in `peer.state`")

    def _tells(self, record: str, numbers: int) -> None:
        """InputError unless the protocol declares a record of that name and length."""
        name = f"`{self._protocol.name}` gathers `{record}` in round {self.round}"
        declared = {one.name: one.size for one in self._protocol.records}
        if record not in declared:
            raise InputError(f"{name}, and does not declare that; add it to `records`")
        size = len(self.proportions) if declared[record] == "classes" else declared[record]
        if numbers != size:
            raise InputError(f"{name} with {numbers} numbers, and declares {size}; say so in `records`")

    def _bytes(self, share: str) -> int:
        return FLOAT32 * self._sizes.get(share, self._sizes["model"])

    @noted
    async def train(self, *phases: Phase) -> float:
        return 0.0

    @noted
    async def accuracy(self) -> float:
        return 1.0

    @noted
    async def compute(self, function: Callable[..., T], *arguments: Any) -> T:
        return function(*arguments)

    def forget(self, optimiser: str) -> None:
        pass

    @noted
    async def exchange(self, share: str, **scalars: float) -> dict[str, Received]:
        self._leaves(share, len(scalars))
        self.calls.append((self.round, "exchange", share))
        neighbours = receivers(self._protocol.graph, self.ring, self.id)
        self.sent += len(neighbours) * (self._bytes(share) + FLOAT64 * len(scalars))
        return {id: Received(self._vector(share).clone(), scalars) for id in neighbours}

    @noted
    async def weighted_mean(self, share: str, weight: float) -> None:
        self._leaves(share)
        self.calls.append((self.round, "weighted_mean", share))
        peers = len(self.members)
        self.sent += 2 * (peers - 1) * self._bytes(share) // peers

    @noted
    async def gather(self, record: str, values: Tensor) -> dict[str, Tensor]:
        self._tells(record, values.numel())
        self.calls.append((self.round, "gather", record))
        self.sent += FLOAT64 * values.numel() * (len(self.members) - 1)
        known = self._everyone if record == "proportions" else {}
        return {id: known.get(id, values) for id in self.members}

    @noted
    async def pass_token(self, share: str) -> None:
        self._leaves(share)
        self.sent += self._bytes(share)

    @noted
    async def receive_token(self, share: str) -> Tensor:
        return self._vector(share).clone()

    @noted
    async def reorder(self, order: Sequence[str], cost_before: float, cost_after: float) -> None:
        await self.gather("order", torch.zeros(1))  # what a peer makes sure of
        self.ring = tuple(order)

    def shared_generator(self, purpose: str) -> np.random.Generator:
        return np.random.default_rng([self._seed, self.round, len(purpose)])

    def note(self, **values: float) -> None:
        pass
