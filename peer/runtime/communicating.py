"""The communicating half of what a protocol is given: from the names in its calls to the collectives."""

import hashlib
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor

from peer.errors import FailedError, InputError
from peer.learning.model.model import PARTS
from peer.learning.transfer import Fetched, Transfers
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
from peer.runtime.manifest import handed_over, on_entry
from peer.runtime.member_rows import MemberRows, first_rows
from peer.runtime.sendable import Of, To
from peer.runtime.sending import Sending
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
        self._transfers, self._sending = Transfers(setup.model.device), Sending()
        self.departures = Departures(self.id, self.misbehaviour, self.encoding, self._transfers)
        self.ring_order, self.seconds, self.round = Ring(self.members), Seconds(), 0
        self._rows = MemberRows(protocol, spec.ids)

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
            leaving = self.departures.fetch_each(asked.share, asked.vectors)
            expected = self._expected(asked, to, of)
            sent = self._sending.when_here(leaving.values(), lambda: self._send(asked, leaving, expected))
        self._exchanges.append(Pending(lambda: self._received(asked.share, sent, tuple(asked.numbers))))
        return self._exchanges[-1]

    def _send(
        self, asked: Exchange, leaving: Mapping[str, Fetched], expected: Expected
    ) -> Awaitable[dict[str, Arrived]]:
        encoded = self.departures.each_encoded(asked.share, leaving, asked.each_its_own)
        outgoing = Outgoing(encoded, asked.numbers)
        return self._collectives.exchange(asked.around, asked.share.vector, outgoing, expected)

    def _expected(self, asked: Exchange, to: To, of: Of) -> Expected:
        length, everyone = self._bytes(asked.share), asked.around.senders
        if of is not None:
            return Expected(length, of, of)
        return Expected(length, everyone if to is None else (), everyone)

    async def _received(
        self, share: Share, sent: Awaitable[Awaitable[dict[str, Arrived]]], names: Sequence[str]
    ) -> dict[str, Received]:
        with self._communicating():
            arrived = await (await sent)
        return {
            sender: Received(self._decoded(share, one.vector), dict(zip(names, one.scalars, strict=True)))
            for sender, one in arrived.items()
        }

    def _decoded(self, share: Share, arrived: Tensor) -> Tensor:
        return self.encoding.decode(share, arrived, lambda: self._live(share), self._transfers.placed)

    async def weighted_mean(self, share: str, weight: float) -> None:
        declared, live = self.calls.weighted_mean(self, share, weight)
        leaving = self.departures.fetch(declared, live)
        with self._communicating():
            vector = await self._sending.when_here([leaving], lambda: self.departures.plain(declared, leaving))
            rounding = self.encoding.rounding(declared, vector)
            await self._collectives.weighted_mean(self._neighbourhood(), share, vector, float(weight), rounding)
            self._transfers.put(vector, live)

    async def all_gather(self, share: str, /, **scalars: float) -> dict[str, Received]:
        declared, live, numbers = self.calls.all_gather(self, share, scalars)
        leaving = self.departures.fetch(declared, live)
        sent = self._sending.when_here([leaving], lambda: self._send_to_all(declared, leaving, numbers))
        received = await self._received(declared, sent, tuple(numbers))
        return {member: received[member] for member in self.members}

    def _send_to_all(
        self, share: Share, leaving: Fetched, numbers: Mapping[str, float]
    ) -> Awaitable[dict[str, Arrived]]:
        vector, length = self.departures.encoded("all_gather", share, leaving), self._bytes(share)
        return self._collectives.all_gather(self._neighbourhood(), share.vector, vector, numbers, length)

    async def gather(self, record: str, values: Tensor) -> dict[str, Tensor]:
        numbers = self.calls.gather(self, record, values)
        records = await self._gathered(record, tuple(numbers))
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
        told = await self._gathered(record, (number,))
        return [told[peer][0] for peer in self.members]

    async def mean(self, name: str, vector: Tensor, weight: float) -> None:
        """The weighted mean over all members, in place: of a vector of the runtime's own, on the CPU."""
        with self._communicating():
            await self._collectives.weighted_mean(self._neighbourhood(), name, vector, weight)

    async def _gathered(self, record: str, numbers: tuple[float, ...]) -> dict[str, tuple[float, ...]]:
        with self._communicating():
            sent = self._sending.when_here((), lambda: self._collectives.gather(self._neighbourhood(), record, numbers))
            return await (await sent)

    async def pass_token(self, share: str) -> None:
        declared, live = self.calls.pass_token(self, share)
        leaving = self.departures.fetch(declared, live)
        with self._communicating():
            vector = await self._sending.when_here(
                [leaving], lambda: self.departures.encoded("token", declared, leaving)
            )
            await self._collectives.pass_token(self._neighbourhood(), share, vector)

    async def receive_token(self, share: str) -> Tensor:
        declared = self.calls.receive_token(self, share)
        length = self._bytes(declared)
        with self._communicating():
            token = await self._collectives.receive_token(self._neighbourhood(), share, length)
        return self._decoded(declared, token.vector)

    def begin_view(self) -> None:
        """In place of the ring, and of what is kept of each member, of an earlier view take those of this one."""
        before = [id for id in self._rows.everybody if id in self.ring_order.order]
        self._rows.follow(self.state, before, self.members)
        self.ring_order = Ring(self.members)

    async def take_in(self, entrants: Mapping[str, int]) -> None:
        """Those who enter get what all others have alike, or pass on, each from its left neighbour.

        entrants: by id, the round after which their private state stands; -1: they have none.
        """
        protocol = self._protocol
        if entrants.get(self.id) == -1:
            first_rows(protocol, self.state, len(self.members))
            protocol.begin_late(self)
        for name in handed_over(protocol) if entrants else ():
            rows = name in protocol.by_peer
            if self.id in entrants:
                self._replace(name, await self.take_over(on_entry(name), len(self._rows.everybody) if rows else 0))
            if self.right in entrants:
                numbers = self._rows.numbers(self.state, name, self.members) if rows else ()
                await self.hand_over(on_entry(name), torch.empty(0) if rows else self._held(name), numbers)

    async def take_over(self, name: str, numbers: int = 0) -> Arrived:
        """What the left neighbour hands over to this peer, which enters; on the CPU."""
        with self._communicating():
            return await self._collectives.receive_token(self._neighbourhood(), name, None, numbers)

    async def hand_over(self, name: str, vector: Tensor, numbers: Sequence[float] = ()) -> None:
        """To the right neighbour, which enters."""
        leaving = self._transfers.fetch(vector)
        with self._communicating():
            fetched = await self._sending.when_here([leaving], lambda: leaving.vector)
            await self._collectives.pass_token(self._neighbourhood(), name, fetched, numbers)

    def _held(self, name: str) -> Tensor:
        held: Tensor = getattr(self, name) if name in PARTS else self.state[name]
        return held

    def _replace(self, name: str, by: Arrived) -> None:
        if name in self._protocol.by_peer:
            self._rows.take_over(self.state, name, by.scalars, self.members)
        elif name in PARTS:
            getattr(self, name).copy_(self._transfers.placed(by.vector))
        else:
            self.state[name] = self._transfers.placed(by.vector)

    async def reorder(self, order: tuple[str, ...], cost_before: float, cost_after: float) -> None:
        # Last bits differ between kinds of CPU: a ring that only some believe in must not come into use.
        await self.agree("order", torch.tensor([self.members.index(peer) for peer in order]))
        self.ring_order = Ring(order, cost_before, cost_after)
        around = self._neighbourhood()
        self.network.audit.reordered(self.round, order)
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
