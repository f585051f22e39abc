"""The communicating half of what a protocol is given: from the names in its calls to the collectives.

A vector's way out of a peer:

1. the call is checked against the declarations (`peer.runtime.calls`);
2. the vector is fetched to the CPU as the call finds it, or, where the spec says that this peer misbehaves, the one
   that it sends in its place (`SimulatedAdversary`: applied where vectors leave, so that no protocol knows of it;
   labels are flipped where data are loaded, in `peer.runtime.setup`); the trace keeps both;
3. when it is here, and the calls before have sent (`SendQueue`: at once, where nothing ever left the CPU), it is
   checked to be finite and encoded as `wire` says (`OutgoingVectors`, `peer.runtime.encodings`), each vector once
   however many get it;
4. and the round's collective sends it (`peer.network.collectives`).

When members change, whoever is taken in gets from its left neighbour what all others have alike, or pass on. What a
protocol keeps of each member has a row for each of them: a row goes and comes with the one whom it is about, and who
comes back finds what was thought of it (`PerMemberState`).
"""

import asyncio
import hashlib
import time
from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import Tensor

from peer.errors import DivergedError, FailedError, InputError
from peer.learning.device import HostCopy, Transfers
from peer.learning.model.layout import PARTS
from peer.learning.model.model import Model
from peer.learning.randomness import torch_generator
from peer.network.collectives import Arrived, Collectives, Expected, Neighbourhood, Outgoing, Pending
from peer.network.network import Network
from peer.protocols.base import Peer, Protocol, Received
from peer.protocols.declarations import Share
from peer.runtime.calls import CallChecker, CheckedExchange, Of, ProtocolState, To, first_rows, row_dtype
from peer.runtime.connection import admission_name, admission_names
from peer.runtime.encodings import Collective, Encoding, new_encoding
from peer.runtime.lifecycle import State as Activity
from peer.runtime.setup import Setup
from peer.spec.blocks import Behaviour, Noise, SignFlip, Stale
from peer.telemetry.events import Report, RingOrdered
from peer.telemetry.trace import Trace

T = TypeVar("T")


class SendQueue:
    """Each call sends when its vectors are here and the calls before it have sent: at once, where they never left."""

    def __init__(self) -> None:
        self._last: asyncio.Future[Any] | None = None

    def when_here(self, fetched: Collection[HostCopy], send: Callable[[], T]) -> asyncio.Future[T]:
        """What `send` gives. Where nothing is to be waited for, it is called, and raises, before this returns."""
        if self._last is None and all(one.copied is None for one in fetched):
            sent = asyncio.get_running_loop().create_future()
            sent.set_result(send())
            return sent
        task = asyncio.get_running_loop().create_task(_in_turn(self._last, fetched, send))
        task.add_done_callback(lambda done: done.cancelled() or done.exception())  # or it is told twice
        self._last = task
        return task


async def _in_turn(before: asyncio.Future[Any] | None, fetched: Collection[HostCopy], send: Callable[[], T]) -> T:
    if before:
        await before
    for one in fetched:
        await asyncio.to_thread(one.wait)
    return send()


class SimulatedAdversary:
    """Turns a vector into the one that is sent; without a behaviour, or of one of bytes, it is the same one.

    Of vectors that are laid out as a part of the model only what is trained changes: BatchNorm's statistics, of which a
    negative variance would end every neighbour, leave as they are.
    """

    def __init__(self, behaviour: Behaviour | None, model: Model, seed: int, peer: str) -> None:
        self._behaviour, self._model, self._seed, self._peer = behaviour, model, seed, peer
        self._round = self._count = 0
        self._start: Tensor | None = None
        self._first: dict[str, Tensor] = {}

    def begin(self, round: int) -> None:
        """A new round: the model as it is now is the one from which its change counts."""
        self._round, self._count = round, 0
        if isinstance(self._behaviour, SignFlip):
            self._start = self._model.vector.detach().clone()

    def state_dict(self) -> dict[str, Tensor]:
        """What must survive a crash; nobody changes these tensors any more."""
        return dict(self._first)

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        self._first = dict(state)

    def leaving(self, share: Share, vector: Tensor) -> Tensor:
        """What is sent in place of `vector` (float32 or bytes, of one dimension), which stays as it is."""
        if share.bytes:
            return vector
        match self._behaviour:
            case Noise(scale=scale):
                return self._noisy(share, vector, scale)
            case Stale():
                return self._stale(share, vector)
            case SignFlip():
                return self._flipped(share, vector)
        return vector

    def _noisy(self, share: Share, vector: Tensor, scale: float) -> Tensor:
        generator = torch_generator(self._seed, self._peer, self._round, f"noise {self._count}")
        self._count += 1
        noise = torch.randn(vector.shape, generator=generator).mul_(scale).to(vector.device)
        return self._trained(share, vector, vector + noise)

    def _stale(self, share: Share, vector: Tensor) -> Tensor:
        # Each receiver may get a vector of its own under one name, and each of another length.
        name = f"{share.vector}/{vector.numel()}"
        if name not in self._first:
            self._first[name] = vector.detach().to("cpu", copy=True)
        return self._first[name].to(vector.device, copy=True)

    def _flipped(self, share: Share, vector: Tensor) -> Tensor:
        if share.own:
            return self._trained(share, vector, -vector)
        assert self._start is not None
        assert share.part
        return self._trained(share, vector, 2 * self._start[self._model.part(share.part)] - vector)

    def _trained(self, share: Share, vector: Tensor, changed: Tensor) -> Tensor:
        """`changed` where the model is trained, `vector` elsewhere."""
        if share.part is None:
            return changed
        told, offset = vector.clone(), self._model.part(share.part).start
        for where in self._model.trainable(share.part):
            place = slice(where.start - offset, where.stop - offset)
            told[place] = changed[place]
        return told


Made = TypeVar("Made")


class OutgoingVectors:
    """What leaves one peer, each vector once however many get it; DivergedError where one is not finite.

    A vector is fetched as the call finds it, and looked at and encoded when it is here.
    """

    def __init__(self, peer: str, misbehaviour: SimulatedAdversary, encoding: Encoding, transfers: Transfers) -> None:
        self._peer, self._misbehaviour, self._encoding = peer, misbehaviour, encoding
        self._transfers = transfers
        self.round = 0
        self.trace: Trace | None = None

    def begin(self, round: int) -> None:
        self.round = round
        self._misbehaviour.begin(round)

    def exchanges(self, name: str, vector: Callable[[], Tensor], numbers: Mapping[str, float]) -> None:
        """An exchange is about to begin, of the vector that `vector` gives."""
        if self.trace and self.trace.shared == name:
            self.trace.passes(vector())
            self.trace.facts |= numbers

    def fetch(self, share: Share, vector: Tensor) -> HostCopy:
        """A vector on its way to the CPU."""
        if self.trace and self.trace.shared == share.vector:
            self.trace.communicates(vector)
        return self._transfers.fetch(self._as_sent(share, vector))

    def fetch_each(self, share: Share, vectors: Mapping[str, Tensor]) -> dict[str, HostCopy]:
        """The vectors of an exchange, by receiver."""
        return map_unique(vectors, lambda vector: self.fetch(share, vector))

    def plain(self, share: Share, fetched: HostCopy) -> Tensor:
        """A vector on the CPU, as it leaves before it is encoded."""
        sent = fetched.vector
        if sent.is_floating_point() and not bool(torch.isfinite(sent.sum())):
            raise DivergedError(
                f"{self._peer}: its {share.vector} is not finite in round {self.round}; lower the learning rate"
            )
        return sent

    def _as_sent(self, share: Share, vector: Tensor) -> Tensor:
        """Another vector if this peer misbehaves by the spec; a trace has both."""
        sent = self._misbehaviour.leaving(share, vector)
        if self.trace and self.trace.shared == share.vector and sent is not vector:
            self.trace.sends(sent)
        return sent

    def encoded(self, collective: Collective, share: Share, fetched: HostCopy) -> Tensor:
        """A vector as it travels."""
        return self._encode(collective, share, self.plain(share, fetched))

    def each_encoded(self, share: Share, fetched: Mapping[str, HostCopy], each_its_own: bool) -> dict[str, Tensor]:
        """Of an exchange the vectors as they travel, by receiver."""
        # All are looked at before one is encoded: what an encoding keeps must not hold what never left.
        plain = map_unique(fetched, lambda one: self.plain(share, one))
        return map_unique(plain, lambda vector: self._encode("exchange", share, vector, each_its_own))

    def _encode(self, collective: Collective, share: Share, vector: Tensor, each_its_own: bool = False) -> Tensor:
        try:
            return self._encoding.encode(collective, share, vector, each_its_own)
        except OverflowError as error:
            raise DivergedError(
                f"{self._peer}: its {share.vector} has values {error} in round {self.round}; lower the learning rate"
            ) from None


def map_unique(given: Mapping[str, T], make: Callable[[T], Made]) -> dict[str, Made]:
    """What is made of each, by receiver: of what several receivers get once, in the order of the first of them."""
    made = {at: make(one) for at, one in {id(one): one for one in given.values()}.items()}
    return {to: made[id(one)] for to, one in given.items()}


@dataclass(frozen=True)
class PerMemberState:
    """Of one run. The rows of those who are away are kept: who comes back finds what was thought of it."""

    protocol: Protocol
    everybody: tuple[str, ...]
    """Ids, as in the spec."""

    def follow(self, state: ProtocolState, before: Sequence[str], after: Sequence[str]) -> None:
        """Give `state` the rows of the members of a view in place of those of an earlier one."""
        for name in self.protocol.by_peer:
            if name in state:
                self._put(state, name, self._of_everybody(state, name, before), after)

    def numbers(self, state: ProtocolState, name: str, members: Sequence[str]) -> list[float]:
        """A row of one number for everybody, in the order of the spec."""
        rows = self._of_everybody(state, name, members)
        return [float(rows[id]) for id in self.everybody]

    def take_over(self, state: ProtocolState, name: str, numbers: Sequence[float], members: Sequence[str]) -> None:
        """What `numbers` of another member gave."""
        rows = torch.tensor(numbers, dtype=torch.float64).to(row_dtype(self.protocol.by_peer[name]))
        self._put(state, name, dict(zip(self.everybody, rows, strict=True)), members)

    def _of_everybody(self, state: ProtocolState, name: str, members: Sequence[str]) -> dict[str, Tensor]:
        present, first = state[name].cpu(), self.protocol.by_peer[name]
        # Who was never there has no row: then it is taken for one like the others.
        new = present.mean(0) if present.is_floating_point() else torch.full_like(present[0], first)
        known = dict.fromkeys(self.everybody, new) | dict(zip(members, present, strict=True))
        if (kept := state.get(_away(name))) is not None:
            known |= dict(zip((id for id in self.everybody if id not in members), kept.cpu(), strict=True))
        return known

    def _put(self, state: ProtocolState, name: str, rows: dict[str, Tensor], members: Sequence[str]) -> None:
        state[name] = torch.stack([rows[id] for id in members])
        state.pop(_away(name), None)
        if away := [rows[id] for id in self.everybody if id not in members]:
            state[_away(name)] = torch.stack(away)


def _away(name: str) -> str:
    """Where the rows of those who are no members are kept, in the order of the spec."""
    return f"{name} of who is away"


UNDECIDED = -1
"""What a peer tells that only relays the others' decisions."""


@dataclass
class PhaseTimes:
    """Where a peer's time goes."""

    train: float = 0.0
    communicate: float = 0.0
    evaluate: float = 0.0


@dataclass
class RingOrder:
    """The ring's order and what it cost before and after ordering."""

    order: tuple[str, ...]
    cost_before: float | None = None
    cost_after: float | None = None


class Communicator(Peer):
    """Checks each call against the declarations, and runs it on this round's collectives."""

    def __init__(self, setup: Setup, network: Network, report: Report, enter: Callable[[Activity], None]) -> None:
        spec, protocol = setup.spec, setup.spec.protocol
        self.id, self.members, self.graph = setup.config.id, setup.view.members, protocol.graph
        self.trained, self.network, self.report, self._protocol = setup.model, network, report, protocol
        self.enter = enter
        """Says in which state of its life the peer now is."""
        initial = setup.model.vector if spec.init == "shared" else None
        self.encoding = new_encoding(spec.wire, setup.model.sizes, initial)
        self.calls = CallChecker.of(protocol, spec.rounds, setup.model, self.encoding)
        self.misbehaviour = SimulatedAdversary(spec.behaviour.get(self.id), setup.model, spec.seed, self.id)
        self._transfers, self._sending = Transfers(setup.model.device), SendQueue()
        self.departures = OutgoingVectors(self.id, self.misbehaviour, self.encoding, self._transfers)
        self.ring_order, self.seconds, self.round = RingOrder(self.members), PhaseTimes(), 0
        self._rows = PerMemberState(protocol, spec.ids)

    def begin(self, round: int) -> None:
        """A new round: its messages are numbered from the start."""
        self.round = round
        self._exchanges = list[Pending[dict[str, Received]]]()
        self.departures.begin(round)
        self.network.begin_round(round)
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
        self, asked: CheckedExchange, leaving: Mapping[str, HostCopy], expected: Expected
    ) -> Awaitable[dict[str, Arrived]]:
        encoded = self.departures.each_encoded(asked.share, leaving, asked.each_its_own)
        outgoing = Outgoing(encoded, asked.numbers)
        return self._collectives.exchange(asked.around, asked.share.vector, outgoing, expected)

    def _expected(self, asked: CheckedExchange, to: To, of: Of) -> Expected:
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
        self, share: Share, leaving: HostCopy, numbers: Mapping[str, float]
    ) -> Awaitable[dict[str, Arrived]]:
        vector, length = self.departures.encoded("all_gather", share, leaving), self._bytes(share)
        return self._collectives.all_gather(self._neighbourhood(), share.vector, vector, numbers, length)

    async def gather(self, record: str, values: Tensor) -> dict[str, Tensor]:
        numbers = self.calls.gather(self, record, values)
        records = await self._gathered(record, tuple(numbers))
        return {peer: torch.tensor(records[peer], dtype=torch.float64) for peer in self.members}

    async def agree(self, record: str, decision: Tensor | None) -> None:
        told = await self.gather(record, torch.tensor([decision_digest(decision)], dtype=torch.float64))
        theirs = {peer: float(value) for peer, value in told.items() if float(value) != UNDECIDED}
        others = [peer for peer, value in theirs.items() if decision is not None and value != decision_digest(decision)]
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
        self.ring_order = RingOrder(self.members)

    async def take_in(self, entrants: Mapping[str, int]) -> None:
        """Those who enter get what all others have alike, or pass on, each from its left neighbour.

        entrants: by id, the round after which their private state stands; -1: they have none.
        """
        protocol = self._protocol
        if entrants.get(self.id) == -1:
            first_rows(protocol, self.state, len(self.members))
            protocol.begin_late(self)
        for name in admission_names(protocol) if entrants else ():
            rows = name in protocol.by_peer
            if self.id in entrants:
                self._replace(
                    name, await self.take_over(admission_name(name), len(self._rows.everybody) if rows else 0)
                )
            if self.right in entrants:
                numbers = self._rows.numbers(self.state, name, self.members) if rows else ()
                await self.hand_over(admission_name(name), torch.empty(0) if rows else self._held(name), numbers)

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
        self.ring_order = RingOrder(order, cost_before, cost_after)
        around = self._neighbourhood()
        self.network.audit.reordered(self.round, order)
        self.network.set_edges(self.round, around.receivers, around.senders)
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


def decision_digest(decision: Tensor | None) -> int:
    """A number for a decision that a float64 holds exactly, or the one that stands for none."""
    if decision is None:
        return UNDECIDED
    content = repr((str(decision.dtype), decision.cpu().tolist())).encode()
    return int.from_bytes(hashlib.sha256(content).digest()[:6], "little")
