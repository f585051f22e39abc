"""The collectives: exchange, weighted mean, all-gather, token. One object serves one round.

Every peer makes the same calls in the same order, so the number of a call within the round names its messages.
Reductions run in ring order, never in order of arrival: every run ends in the same bits.

**The weighted mean** (`AllReduce`) goes round the ring, reduce-scatter, then all-gather, frame by frame. The vector
is cut into N parts. In step s the peer at position i sends part i − s to the right and receives part i − s − 1 from
the left; a received frame is added to the own values (past step N − 2 it replaces them) and goes on in step s + 1 at
once. Part c is summed in ring order from position c, so all peers end with the same bits. Each sends 2(N−1)/N of the
vector. If values travel rounded, each peer rounds each value once: in N − 1 parts when it sends its sums, and in the
part that it completes when it sends the mean, which it then uses itself. `Rounding` keeps the error and adds it to
what is sent next.

**The all-gather** (`AllGather`) relays each vector or record N − 1 times round the ring, frame by frame.

A call that has sent and waits for its answers is a `Pending`: begun at the call, ended by `await`.
"""

from collections.abc import Callable, Collection, Coroutine, Generator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from inspect import CORO_CLOSED, getcoroutinestate
from typing import Any, Literal, NamedTuple, TypeVar

import torch
from torch import Tensor, empty, finfo, float32, isfinite

from peer.errors import FailedError, WrongMessageError
from peer.network.network import Network
from peer.network.streams.link import MessageWriter
from peer.network.wire.frames import Call, MessageShape, frame_count
from peer.network.wire.manifest import vector_bytes

T = TypeVar("T")
Collective = Literal["exchange", "weighted_mean", "all_gather", "token"]


class Pending(Coroutine[Any, Any, T]):
    """The awaitable half of a call. Until it is awaited it has no coroutine, so dropping it causes no warning."""

    def __init__(self, finish: Callable[[], Coroutine[Any, Any, T]]) -> None:
        self._finish = finish
        self._running: Coroutine[Any, Any, T] | None = None

    @property
    def awaited(self) -> bool:
        return self._running is not None

    @property
    def over(self) -> bool:
        return self._running is not None and getcoroutinestate(self._running) == CORO_CLOSED

    def _run(self) -> Coroutine[Any, Any, T]:
        if self._running is None:
            self._running = self._finish()
            del self._finish  # it may hold large vectors
        return self._running

    def __await__(self) -> Generator[Any, Any, T]:
        return self._run().__await__()

    def send(self, value: Any, /) -> Any:
        return self._run().send(value)

    def throw(self, *error: Any) -> Any:
        return self._run().throw(*error)

    def close(self) -> None:
        if self._running:
            self._running.close()


WHOLE_VECTOR = slice(None)


MOST_LEFT = 2**-6
"""The largest error that counts, of the largest value beside it: four times that of a rounding to bfloat16."""


@dataclass(frozen=True)
class Rounding:
    """Rounds one vector, part by part, and keeps the rounding errors, so that the sum of all that was sent is right.

    Seide et al. 2014, “1-bit stochastic gradient descent”; for means round a ring, each part of the sum is rounded by
    the peer that sends it, which keeps that error.
    """

    rest: Tensor
    """What receivers still lack, float32, laid out like the vector; changed in place."""
    dtype: torch.dtype = torch.bfloat16

    def bound(self, where: slice, most: float) -> None:
        """Keep errors at `where` of at most `most`, and none that are not finite."""
        self.rest[where].nan_to_num_(0.0, 0.0, 0.0).clamp_(-most, most)

    def round(self, values: Tensor, where: slice = WHOLE_VECTOR, divided_by: float = 1.0) -> Tensor:
        """Round `values` (float32, those of the vector at `where`) for sending.

        divided_by: what the values of a sum were divided by; the error is kept in units of the sum.
        """
        wanted = self.rest[where]
        wanted.div_(divided_by).add_(values)
        rounded = wanted.to(self.dtype)
        rounded.masked_fill_(wanted.sign() != values.sign(), 0)  # a variance must not turn negative, and 0 must stay 0
        wanted.sub_(rounded).mul_(divided_by)
        return rounded


@dataclass(frozen=True)
class RingCall:
    """A call whose messages go round the ring: this peer's place in the ring, and the keys of the messages."""

    network: Network
    ring: tuple[str, ...]
    call: Call

    @cached_property
    def position(self) -> int:
        return self.ring.index(self.network.identity.id)

    @property
    def left(self) -> str:
        return self.ring[self.position - 1]

    @property
    def right(self) -> str:
        return self.ring[(self.position + 1) % len(self.ring)]

    def frames(self, length: int) -> range:
        """The offsets of the frames of so many bytes."""
        frame = self.network.limits.frame
        return range(0, frame * frame_count(length, frame), frame)


@dataclass(frozen=True)
class AllReduce(RingCall):
    """One weighted mean."""

    rounding: Rounding | None = None
    """How values are rounded as they travel; None: they are not."""

    async def run(self, vector: Tensor, weight: float) -> None:
        """Replace `vector` (float32, CPU) by Σ w_k·v_k / Σ w_k. The sum of the weights travels as a float64 scalar."""
        own_part = f"this peer's `{self.call.name}` times its weight {weight:g}"
        self._check(vector.mul_(weight), own_part, "the weight")
        if len(self.ring) == 1:
            vector.div_(self._total(weight))
            return
        own = self._part(vector, self.position)
        await self._message(own, 0, weight).write_gradually(self._leaving(vector, own, own_part, "the weight"))
        for s in range(2 * (len(self.ring) - 1)):
            await self._relay(vector, s, weight)

    async def _relay(self, vector: Tensor, s: int, weight: float) -> None:
        """Receive the part of step s and pass it on in step s + 1, except after the last."""
        size, frame, call = len(self.ring), self.network.limits.frame, self.call.at(s)
        part = self._part(vector, self.position - s - 1)
        shape = MessageShape(self._width * (part.stop - part.start), 1, self._width * part.start)
        writer: MessageWriter | None = None
        for start in self.frames(self._width * (part.stop - part.start)):
            message = await self.network.message(self.left, call, shape, start + frame)
            total = self._checked_weight(message.scalars[0]) + (weight if s < size - 1 else 0.0)
            arrived = message.block(start, frame)
            first = part.start + start // self._width
            where = slice(first, first + len(arrived))
            if s < size - 1:
                leaving = self._add(vector, where, arrived, total if s == size - 2 else None)
            else:
                leaving = arrived
                vector[where].copy_(arrived)
            if s < 2 * size - 3:
                writer = writer or self._message(part, s + 1, total)
                writer.write(vector_bytes(leaving))
        self.network.inbox(self.left).consume(message)

    def _add(self, vector: Tensor, where: slice, arrived: Tensor, total: float | None) -> Tensor:
        """Add the others' sum to the values at `where`; divide it by `total` if complete. Return what to pass on."""
        values, left = vector[where].add_(arrived), self.left
        if total is not None:
            values.div_(self._total(total, f", and {left} says, or passes on, that the others' are not"))
        summed = f"the sum of all peers' `{self.call.name}`, once what {left} sent was added,"
        hint = f"the weights, or compare what {left} sends with what others do"
        self._check(values, summed, hint)
        leaving = self._leaving(vector, where, summed, hint, total or 1.0)
        if total and self.rounding:
            values.copy_(leaving)  # the same mean as all others get
        return leaving

    def _leaving(self, vector: Tensor, where: slice, what: str, hint: str, divided_by: float = 1.0) -> Tensor:
        """The values at `where`, rounded if they travel so."""
        values = vector[where]
        if self.rounding is None:
            return values
        # Errors are in units of earlier rounds' sums of weights, and a neighbour may have invented these. The bound is
        # a part of the present sum before its division, so it fits into float32, whatever the weights.
        largest = float(values.abs().max()) if len(values) else 0.0
        self.rounding.bound(where, MOST_LEFT * largest * divided_by)
        rounded = self.rounding.round(values, where, divided_by)
        self._check(rounded, f"{what.removesuffix(',')}, rounded as it travels,", hint)
        return rounded

    def _checked_weight(self, weight: float) -> float:
        """The left neighbour's sum of weights; WrongMessageError if it is negative or beyond float32."""
        if not 0 <= weight <= finfo(float32).max:
            raise WrongMessageError(
                f"{self.left} sent {weight:g} as the sum of the weights in the mean of `{self.call.name}` in round "
                f"{self.call.round}, and weights are from 0 up, in all at most {finfo(float32).max:.1g}; compare its "
                "code with this peer's",
                self.left,
            )
        return weight

    def _total(self, weight: float, by: str = "") -> float:
        """The sum of all weights; FailedError unless it is positive."""
        if not weight > 0:
            raise FailedError(
                f"the weights of all peers in the mean of `{self.call.name}` add up to {weight:g} in round "
                f"{self.call.round}; at least one peer must give a weight above 0{by}"
            )
        return weight

    def _check(self, values: Tensor, what: str, hint: str) -> None:
        """Raise FailedError if a weighted sum has overflowed, though all vectors are finite: it must not leave."""
        if not bool(isfinite(values.sum(dtype=float32))):
            raise FailedError(f"{what} is not finite in round {self.call.round}; lower the learning rate or {hint}")

    def _message(self, part: slice, s: int, weight: float) -> MessageWriter:
        length = self._width * (part.stop - part.start)
        return self.network.open_message([self.right], self.call.at(s), length, [weight], self._width * part.start)

    @property
    def _width(self) -> int:
        """Bytes per value on the wire."""
        return self.rounding.dtype.itemsize if self.rounding else float32.itemsize

    def _part(self, vector: Tensor, number: int) -> slice:
        """The part of that number, modulo N; the lengths of parts differ by at most one value."""
        size, number = len(self.ring), number % len(self.ring)
        return slice(vector.numel() * number // size, vector.numel() * (number + 1) // size)


class Arrived(NamedTuple):
    """What a sender has sent: a vector on the CPU, and its scalars in the order of the call."""

    vector: Tensor
    scalars: tuple[float, ...]


class AllGather(RingCall):
    """One all-gather."""

    async def run(self, vector: Tensor, scalars: Sequence[float], length: int | None) -> dict[str, Arrived]:
        """Return every peer's vector (on the CPU) and float64 scalars, by id. length: bytes, None if they may differ.

        In step s a peer sends to the right what it got from the left in step s − 1, and its own in step 0.
        """
        size, position = len(self.ring), self.position
        found = {self.ring[position]: Arrived(vector.clone(), tuple(scalars))}
        if size > 1:
            await self.network.open_message([self.right], self.call, vector.nbytes, scalars).write_gradually(vector)
        for s in range(size - 1):
            found[self.ring[position - s - 1]] = await self._take(s, len(scalars), length)
        return found

    async def _take(self, s: int, scalars: int, length: int | None) -> Arrived:
        """Receive what the left neighbour sends in step s, and pass it on while it arrives, except in the last step."""
        frame, call, shape = self.network.limits.frame, self.call.at(s), MessageShape(length, scalars)
        # What can be checked only as a whole is passed on as a whole; or the right neighbour would blame this peer.
        whole = bool(self.network.manifest.payload(call.name, call.round).blocks)
        message = await self.network.message(self.left, call, shape, None if whole else frame)
        if s < len(self.ring) - 2:
            length = message.heading.length
            writer = self.network.open_message([self.right], self.call.at(s + 1), length, message.scalars)
            for start in self.frames(length):
                await self.network.message(self.left, call, shape, start + frame)
                writer.write(vector_bytes(message.block(start, frame)))
        return Arrived(*await self.network.receive(self.left, call, shape))


FIRST_TOKEN_STEP = 1 << 31
"""Steps from here on are tokens, as passing and receiving one are separate calls."""


@dataclass(frozen=True)
class Neighbourhood:
    """A peer's place: the ring's order, and its edges in the graph."""

    ring: tuple[str, ...]
    receivers: tuple[str, ...]
    senders: tuple[str, ...]


class Outgoing(NamedTuple):
    """What an exchange sends: a vector for each of some receivers, by id, and the same scalars with each."""

    vectors: Mapping[str, Tensor]
    scalars: Mapping[str, float]


class Expected(NamedTuple):
    """What an exchange is to receive."""

    length: int | None
    """Bytes of every sender's vector; None if lengths may differ."""
    required: Collection[str]
    """Peers that must send a vector."""
    allowed: Collection[str]
    """Peers that may send one; it is refused from all others."""


class Collectives:
    """All messages of one peer in one round."""

    def __init__(self, network: Network, round: int) -> None:
        self._network, self._round = network, round
        self._calls = self._passed = self._taken = 0

    def _call(self, collective: str, name: str, scalars: Collection[str] = ()) -> Call:
        self._calls += 1
        # The first of the 65,536 steps of each call.
        return Call(self._round, self._calls << 16, collective, name, tuple(scalars))

    def exchange(
        self, around: Neighbourhood, name: str, outgoing: Outgoing, expected: Expected
    ) -> Pending[dict[str, Arrived]]:
        """Send at once; the returned object waits for the others and gives what each sent, in the senders' order.

        A receiver for which there is no vector gets an empty message under the same key, so that it does not wait for
        one in vain. Senders of an empty message are left out.
        """
        call = self._call("exchange", name, outgoing.scalars)
        self._network.audit.record_scalars(self._round, name, len(outgoing.scalars) if outgoing.vectors else 0)
        for to, vector in _by_vector(around.receivers, outgoing.vectors):
            scalars = [*outgoing.scalars.values()] if vector is not None else []
            values = empty(0) if vector is None else vector
            self._network.open_message(to, call, values.nbytes, scalars).write_all(values)
        for sender in around.senders:
            if sender not in expected.allowed:
                self._network.expect_empty(sender, call)
        return Pending(lambda: self._arrivals(around.senders, call, expected))

    async def _arrivals(self, senders: Collection[str], call: Call, expected: Expected) -> dict[str, Arrived]:
        arrived = {}
        for sender in senders:
            is_required = sender in expected.required
            shape = MessageShape(expected.length, len(call.scalars), may_be_empty=not is_required)
            message = await self._network.message(sender, call, shape)
            found = Arrived(*self._network.inbox(sender).consume(message))
            if is_required or not message.empty:
                arrived[sender] = found
        return arrived

    async def weighted_mean(
        self, around: Neighbourhood, name: str, vector: Tensor, weight: float, rounding: Rounding | None = None
    ) -> None:
        """Replace `vector` by Σ w_k·v_k / Σ w_k."""
        call = self._call("weighted_mean", name, ("weight",))
        await AllReduce(self._network, around.ring, call, rounding).run(vector, weight)

    async def all_gather(
        self, around: Neighbourhood, name: str, vector: Tensor, scalars: Mapping[str, float], length: int | None
    ) -> dict[str, Arrived]:
        """Return every peer's vector and scalars by id, each relayed N−1 times. length: as in `Expected`."""
        relay = AllGather(self._network, around.ring, self._call("all_gather", name, scalars))
        self._network.audit.record_scalars(self._round, name, len(scalars))
        return await relay.run(vector, [*scalars.values()], length)

    async def gather(self, around: Neighbourhood, name: str, record: tuple[float, ...]) -> dict[str, tuple[float, ...]]:
        """Return every peer's float64 record by id, all of one length; each goes round the ring, relayed N−1 times."""
        relay = AllGather(self._network, around.ring, self._call("gather", name))
        self._network.audit.record_scalars(self._round, name, len(record))
        return {id: found.scalars for id, found in (await relay.run(empty(0), [*record], 0)).items()}

    async def pass_token(self, around: Neighbourhood, name: str, vector: Tensor, numbers: Sequence[float] = ()) -> None:
        """Send a token to the right neighbour."""
        call = Call(self._round, FIRST_TOKEN_STEP + self._passed, "token", name)
        self._passed += 1
        self._network.audit.record_scalars(self._round, name, len(numbers))
        right = RingCall(self._network, around.ring, call).right
        await self._network.open_message([right], call, vector.nbytes, numbers).write_gradually(vector)

    async def receive_token(self, around: Neighbourhood, name: str, length: int | None, numbers: int = 0) -> Arrived:
        """Return the token of the left neighbour. length: bytes of its vector; None: any."""
        call = Call(self._round, FIRST_TOKEN_STEP + self._taken, "token", name)
        self._taken += 1
        left = RingCall(self._network, around.ring, call).left
        return Arrived(*await self._network.receive(left, call, MessageShape(length, numbers)))


def _by_vector(receivers: Collection[str], vectors: Mapping[str, Tensor]) -> list[tuple[list[str], Tensor | None]]:
    """Group receivers that get the same tensor object, so that its frames are made once for all of them."""
    groups: dict[int, tuple[list[str], Tensor | None]] = {}
    for receiver in receivers:
        vector = vectors.get(receiver)
        groups.setdefault(id(vector), ([], vector))[0].append(receiver)
    return [*groups.values()]
