"""The communicating half of what a protocol is given: from the names in its calls to the collectives."""

import hashlib
import time
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from peer.errors import FailedError, InputError
from peer.learning.device import fetched
from peer.learning.model.model import PARTS
from peer.network.collectives.collectives import Arrived, Collectives, Expected, Neighbourhood, Outgoing
from peer.network.collectives.pending import Pending
from peer.network.network import Network
from peer.protocols.base import Peer, Received
from peer.protocols.declarations import Share
from peer.runtime.behaviour import Misbehaviour
from peer.runtime.calls import Calls, Exchange
from peer.runtime.departures import Departures
from peer.runtime.encodings import encoding
from peer.runtime.lifecycle import State as Activity
from peer.runtime.manifest import held_by_all, on_entry
from peer.runtime.sendable import Of, To
from peer.runtime.setup import Setup
from peer.telemetry.events import Report, RingOrdered

UNDECIDED = -1
"""What a peer tells that only relays the others' decisions."""


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


class Communicating(Peer):
    """Checks each call against the declarations, and runs it on this round's collectives."""

    def __init__(self, setup: Setup, network: Network, report: Report, enter: Callable[[Activity], None]) -> None:
        spec, protocol = setup.spec, setup.spec.protocol
        self.id, self.members, self.graph = setup.config.id, setup.view.members, protocol.graph
        self.trained, self.network, self.report, self._protocol = setup.model, network, report, protocol
        self.enter = enter
        """Says in which state of its life the peer now is."""
        initial = setup.model.vector if spec.init == "shared" else None
        self.encoding = encoding(spec.wire, setup.model.sizes, initial)
        self.calls = Calls.of(protocol, spec.rounds, setup.model, self.encoding)
        self.misbehaviour = Misbehaviour(spec.behaviour.get(self.id), setup.model, spec.seed, self.id)
        self.departures = Departures(self.id, self.misbehaviour, self.encoding)
        self.ring_order, self.seconds, self.round = Ring(self.members), Seconds(), 0

    def begin(self, round: int) -> None:
        """A new round: its messages are numbered from the start."""
        self.round = round
        self._exchanges = list[Pending[dict[str, Received]]]()
        self.departures.begin(round)
        self.network.begin(round)
        self._collectives = Collectives(self.network, round)
        around = self._neighbourhood()
        self.network.audit.authorise(round, around.receivers, around.senders)

    def end(self) -> None:
        """The round is over; InputError if the protocol did not wait for what it asked for."""
        if not all(exchange.awaited for exchange in self._exchanges):
            raise InputError(
                f"`{self.calls.protocol}` calls `exchange` in round {self.round} and does not wait for it; write "
                "`await` before the call, or await what it returned"
            )

    @property
    def ring(self) -> tuple[str, ...]:  # type: ignore[override]
        return self.ring_order.order

    @property
    def model(self) -> Tensor:  # type: ignore[override]
        return self.trained.vector

    @property
    def extractor(self) -> Tensor:  # type: ignore[override]
        return self.trained.extractor

    @property
    def head(self) -> Tensor:  # type: ignore[override]
        return self.trained.head

    def exchange(self, share: str, /, to: To = None, of: Of = None, **scalars: float) -> Pending[dict[str, Received]]:
        pending = sum(not one.awaited for one in self._exchanges)
        asked = self.calls.exchange(self, share, to, of, scalars, pending=pending)
        self.departures.exchanges(share, lambda: self._live(asked.share), asked.numbers)
        with self._communicating():
            leaving = self.departures.each_encoded(asked.share, asked.vectors, asked.each_its_own)
            arriving = self._collectives.exchange(
                asked.around, share, Outgoing(leaving, asked.numbers), self._expected(asked, to, of)
            )
        self._exchanges.append(Pending(lambda: self._received(asked.share, arriving, tuple(asked.numbers))))
        return self._exchanges[-1]

    def _expected(self, asked: Exchange, to: To, of: Of) -> Expected:
        length, everyone = self._bytes(asked.share), asked.around.senders
        if of is not None:
            return Expected(length, of, of)
        return Expected(length, everyone if to is None else (), everyone)

    async def _received(
        self, share: Share, arriving: Coroutine[Any, Any, dict[str, Arrived]], names: Sequence[str]
    ) -> dict[str, Received]:
        with self._communicating():
            arrived = await arriving
        return {
            sender: Received(self._decoded(share, one.vector), dict(zip(names, one.scalars, strict=True)))
            for sender, one in arrived.items()
        }

    def _decoded(self, share: Share, arrived: Tensor) -> Tensor:
        return self.encoding.decode(share, arrived, lambda: self._live(share)).to(self.trained.device)

    async def weighted_mean(self, share: str, weight: float) -> None:
        declared, live = self.calls.weighted_mean(self, share, weight)
        vector = self.departures.plain(declared, live)
        rounding = self.encoding.rounding(declared, vector)
        with self._communicating():
            await self._collectives.weighted_mean(self._neighbourhood(), share, vector, float(weight), rounding)
            live.copy_(vector)

    async def all_gather(self, share: str, /, **scalars: float) -> dict[str, Received]:
        declared, live, numbers = self.calls.all_gather(self, share, scalars)
        vector = self.departures.encoded("all_gather", declared, live)
        arriving = self._collectives.all_gather(self._neighbourhood(), share, vector, numbers, self._bytes(declared))
        received = await self._received(declared, arriving, tuple(numbers))
        return {member: received[member] for member in self.members}

    async def gather(self, record: str, values: Tensor) -> dict[str, Tensor]:
        numbers = self.calls.gather(self, record, values)
        with self._communicating():
            records = await self._collectives.gather(self._neighbourhood(), record, tuple(numbers))
        return {peer: torch.tensor(records[peer], dtype=torch.float64) for peer in self.members}

    async def agree(self, record: str, decision: Tensor | None) -> None:
        told = await self.gather(record, torch.tensor([digest(decision)], dtype=torch.float64))
        theirs = {peer: float(value) for peer, value in told.items() if float(value) != UNDECIDED}
        others = [peer for peer, value in theirs.items() if decision is not None and value != digest(decision)]
        if others:
            raise FailedError(
                f"{self.id} decided otherwise than {', '.join(others)} about `{record}` in round {self.round}; a "
                "decision may rest only on what is equal at all peers, and its last bits need one kind of CPU"
            )

    async def tell(self, record: str, number: float) -> list[float]:
        """Everybody's number, in the order of the spec: of a record of the runtime's own, which no protocol names."""
        with self._communicating():
            told = await self._collectives.gather(self._neighbourhood(), record, (number,))
        return [told[peer][0] for peer in self.members]

    async def pass_token(self, share: str) -> None:
        declared, live = self.calls.pass_token(self, share)
        vector = self.departures.encoded("token", declared, live)
        with self._communicating():
            await self._collectives.pass_token(self._neighbourhood(), share, vector)

    async def receive_token(self, share: str) -> Tensor:
        declared = self.calls.receive_token(self, share)
        length = self._bytes(declared)
        with self._communicating():
            token = await self._collectives.receive_token(self._neighbourhood(), share, length)
        return self._decoded(declared, token)

    async def take_in(self, entrants: Mapping[str, int]) -> None:
        """Those who enter get what all others have alike, each from its left neighbour.

        entrants: by id, the round after which their private state stands; -1: they have none.
        """
        protocol = self._protocol
        if entrants.get(self.id) == -1:
            protocol.begin_late(self)
        for name in held_by_all(protocol) if entrants else ():
            if self.id in entrants:
                with self._communicating():
                    got = await self._collectives.receive_token(self._neighbourhood(), on_entry(name), None)
                self._take_over(name, got.to(self.trained.device))
            if self.right in entrants:
                held = self.state[name] if name in self.state else getattr(self, name)
                with self._communicating():
                    await self._collectives.pass_token(self._neighbourhood(), on_entry(name), fetched(held))

    def _take_over(self, name: str, vector: Tensor) -> None:
        if name in PARTS:
            getattr(self, name).copy_(vector)
        else:
            self.state[name] = vector

    async def reorder(self, order: tuple[str, ...], cost_before: float, cost_after: float) -> None:
        # Last bits differ between kinds of CPU: a ring that only some believe in must not come into use.
        await self.agree("order", torch.tensor([self.members.index(peer) for peer in order]))
        self.ring_order = Ring(order, cost_before, cost_after)
        around = self._neighbourhood()
        self.network.use(self.round, around.receivers, around.senders)
        self.report(RingOrdered(order=order, cost_before=cost_before, cost_after=cost_after))

    def _neighbourhood(self) -> Neighbourhood:
        return self.calls.neighbourhood(self)

    def _live(self, share: Share) -> Tensor:
        return self.calls.sendable.vector(share, self)

    def _bytes(self, share: Share) -> int | None:
        """Of the vector, as it travels, at every peer; None where each may send one of its own length."""
        length = self.calls.sendable.length(share)
        return None if length is None else self.encoding.length(share, length)

    @contextmanager
    def _communicating(self) -> Iterator[None]:
        """The time that the block takes counts as communication."""
        self.enter("communicating")
        began = time.perf_counter()
        yield
        self.seconds.communicate += time.perf_counter() - began


def digest(decision: Tensor | None) -> int:
    """A number for a decision that a float64 holds exactly, or the one that stands for none."""
    if decision is None:
        return UNDECIDED
    content = repr((str(decision.dtype), decision.cpu().tolist())).encode()
    return int.from_bytes(hashlib.sha256(content).digest()[:6], "little")
