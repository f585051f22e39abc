"""What a protocol is given, made of the model, the trainer and the network."""

import asyncio
import hashlib
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Executor
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from peer.errors import FailedError
from peer.learning.model.model import PARTS, Model
from peer.learning.randomness import derive
from peer.learning.training.trainer import Phase, Trainer
from peer.network.collectives.collectives import Collectives, Neighbourhood
from peer.network.network import Network
from peer.network.wire.manifest import NotDeclaredError
from peer.protocols.base import Peer, Received
from peer.runtime.lifecycle import State
from peer.telemetry.events import Report, RingOrdered
from peer.telemetry.trace import Trace
from peer.topology.graphs import Graph, receivers, senders

T = TypeVar("T")


@dataclass
class Seconds:
    """Where a peer's time goes."""

    train: float = 0.0
    communicate: float = 0.0
    evaluate: float = 0.0


@dataclass
class Ring:
    """The ring's order and what it cost before and after ordering."""

    order: tuple[str, ...]
    cost_before: float | None = None
    cost_after: float | None = None


@dataclass
class LocalPeer(Peer):
    """The runtime's side of `peer.protocols.base.Peer`."""

    id: str
    members: tuple[str, ...]
    rounds: int
    seed: int
    graph: Graph
    proportions: Tensor
    trained: Model
    trainer: Trainer
    network: Network
    executor: Executor
    enter: Callable[[State], None]
    """Says in which state of its life the peer now is."""
    report: Report
    ring_order: Ring
    round: int = 0
    state: dict[str, Tensor] = field(default_factory=dict)
    seconds: Seconds = field(default_factory=Seconds)
    trace: Trace | None = None
    loss: float | None = None
    noted: dict[str, float] = field(default_factory=dict)
    trained_this_round: bool = False

    def begin(self, round: int) -> None:
        """A new round: its messages are numbered from the start."""
        self.round, self.noted, self.trained_this_round = round, {}, False
        self.network.begin(round)
        self._collectives = Collectives(self.network, round)
        around = self._neighbourhood()
        self.network.audit.authorise(round, around.receivers, around.senders)

    @property
    def ring(self) -> tuple[str, ...]:  # type: ignore[override]
        return self.ring_order.order

    @property
    def samples(self) -> int:  # type: ignore[override]
        return len(self.trainer.samples)

    @property
    def model(self) -> Tensor:  # type: ignore[override]
        return self.trained.vector

    @property
    def extractor(self) -> Tensor:  # type: ignore[override]
        return self.trained.extractor

    @property
    def head(self) -> Tensor:  # type: ignore[override]
        return self.trained.head

    async def train(self, *phases: Phase) -> float:
        self.enter("training")
        self.trained_this_round = True
        began = time.perf_counter()
        losses = [await self._in_thread(self.trainer.train, phase, self.round) for phase in phases]
        self.seconds.train += time.perf_counter() - began
        self.loss = losses[-1]
        return losses[-1]

    async def accuracy(self) -> float:
        began = time.perf_counter()
        result = await self._in_thread(self.trainer.accuracy)
        self.seconds.train += time.perf_counter() - began
        return result

    async def compute(self, function: Callable[..., T], *arguments: Any) -> T:
        return await self._in_thread(function, *arguments)

    def forget(self, optimiser: str) -> None:
        self.trainer.drop(optimiser)

    async def exchange(self, share: str, **scalars: float) -> dict[str, Received]:
        vector = self._outgoing(share)
        if self.trace:
            self.trace.passes(vector)
            self.trace.facts |= scalars
        numbers, length = tuple(scalars.values()), self._length(share)
        with self._communicating():
            received = await self._collectives.exchange(self._neighbourhood(), share, vector, numbers, length)
        return {
            sender: Received(values.to(self.trained.device), dict(zip(scalars, theirs, strict=True)))
            for sender, (values, theirs) in received.items()
        }

    async def weighted_mean(self, share: str, weight: float) -> None:
        vector = self._outgoing(share)
        with self._communicating():
            await self._collectives.weighted_mean(self._neighbourhood(), share, vector, weight)
            self._live(share).copy_(vector)

    async def gather(self, record: str, values: Tensor) -> dict[str, Tensor]:
        manifest = self.network.manifest
        size = manifest.payloads[manifest.number(record, self.round)].doubles
        if values.numel() != size:
            raise NotDeclaredError(f"{values.numel()} numbers go into `{record}`, declared are {size}")
        with self._communicating():
            records = await self._collectives.gather(self._neighbourhood(), record, values.double().tolist())
        return {peer: torch.tensor(records[peer], dtype=torch.float64) for peer in self.members}

    async def pass_token(self, share: str) -> None:
        with self._communicating():
            await self._collectives.pass_token(self._neighbourhood(), share, self._outgoing(share))

    async def receive_token(self, share: str) -> Tensor:
        with self._communicating():
            token = await self._collectives.receive_token(self._neighbourhood(), share, self._length(share))
        return token.to(self.trained.device)

    async def reorder(self, order: tuple[str, ...], cost_before: float, cost_after: float) -> None:
        # Last bits differ between kinds of CPU: a ring that only some believe in must not come into use.
        digest = int.from_bytes(hashlib.sha256(" ".join(order).encode()).digest()[:6], "little")
        digests = await self.gather("order", torch.tensor([digest], dtype=torch.float64))
        others = [peer for peer, theirs in digests.items() if float(theirs) != digest]
        if others:
            raise FailedError(f"{self.id} computed another ring order than {', '.join(others)}; use one kind of CPU")
        self.ring_order = Ring(order, cost_before, cost_after)
        around = self._neighbourhood()
        self.network.use(self.round, around.receivers, around.senders)
        self.report(RingOrdered(order=order, cost_before=cost_before, cost_after=cost_after))

    def shared_generator(self, purpose: str) -> np.random.Generator:
        view = self.network.identity.view
        return np.random.default_rng(derive(self.seed, f"view {view}", self.round, purpose))

    def note(self, **values: float) -> None:
        self.noted |= values

    def _neighbourhood(self) -> Neighbourhood:
        ring = self.ring_order.order
        return Neighbourhood(ring, receivers(self.graph, ring, self.id), senders(self.graph, ring, self.id))

    def _live(self, share: str) -> Tensor:
        views = {"extractor": self.extractor, "head": self.head, "model": self.model}
        return views[share] if share in views else self.state[share]

    def _length(self, share: str) -> int | None:
        """Of the vector in every peer; None for one of the protocol's own, which each may make as long as it likes."""
        return self._live(share).numel() if share in PARTS else None

    def _outgoing(self, share: str) -> Tensor:
        """The vector as it leaves: float32 on the CPU, and finite, or nothing leaves."""
        vector = self._live(share)
        if self.trace:
            self.trace.communicates(vector)
        if not bool(torch.isfinite(vector.sum())):
            raise FailedError(f"{self.id}: its {share} is not finite in round {self.round}; lower the learning rate")
        return vector.detach().cpu()

    @contextmanager
    def _communicating(self) -> Iterator[None]:
        """The time that the block takes counts as communication."""
        self.enter("communicating")
        began = time.perf_counter()
        yield
        self.seconds.communicate += time.perf_counter() - began

    async def _in_thread(self, function: Callable[..., T], *arguments: Any) -> T:
        return await asyncio.get_running_loop().run_in_executor(self.executor, function, *arguments)
