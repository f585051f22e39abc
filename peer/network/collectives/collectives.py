"""The ways of communicating, each once: exchange, weighted mean, gather, token. One object serves one round.

Every peer makes the same calls in the same order, so the number of a call within the round names its messages.
Reductions run in ring order, never in order of arrival: every run ends in the same bits.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from torch import Tensor, empty

from peer.network.collectives.all_reduce import AllReduce
from peer.network.collectives.pending import Pending
from peer.network.collectives.relay import Relay
from peer.network.collectives.rounding import Rounding
from peer.network.network import Network
from peer.network.wire.call import Call

TOKEN = 1 << 31
"""Steps from here on are tokens: passing and receiving one are calls of their own."""


@dataclass(frozen=True)
class Neighbourhood:
    """Where a peer is: the ring's order, and its edges on the graph."""

    ring: tuple[str, ...]
    receivers: tuple[str, ...]
    senders: tuple[str, ...]

    def beside(self, peer: str) -> tuple[str, str]:
        """The left and the right neighbour."""
        position = self.ring.index(peer)
        return self.ring[position - 1], self.ring[(position + 1) % len(self.ring)]


class Arrived(NamedTuple):
    """What one sender sent: a vector on the CPU, and its scalars in the order of the call."""

    vector: Tensor
    scalars: tuple[float, ...]


class Outgoing(NamedTuple):
    """What an exchange sends: a vector to each of some receivers, by id, and the same scalars beside each."""

    vectors: Mapping[str, Tensor]
    scalars: Mapping[str, float]


class Expected(NamedTuple):
    """What an exchange is to receive."""

    length: int | None
    """Bytes of every sender's vector; None if each may send one of its own length."""
    required: Collection[str]
    """Who must send one."""
    allowed: Collection[str]
    """Who may; everybody else's is refused."""


class Collectives:
    """All messages of one peer in one round."""

    def __init__(self, network: Network, round: int) -> None:
        self._network, self._round = network, round
        self._calls = self._passed = self._taken = 0

    def _call(self, collective: str, name: str, scalars: Collection[str] = ()) -> Call:
        self._calls += 1
        return Call(self._round, self._calls << 16, collective, name, tuple(scalars))

    def exchange(
        self, around: Neighbourhood, name: str, outgoing: Outgoing, expected: Expected
    ) -> Pending[dict[str, Arrived]]:
        """Send at once; what is returned waits for the others, and gives what each sent, in the senders' order.

        A receiver for whom there is no vector gets an empty message under the same key, so that nobody waits for what
        will not come. Who sent an empty one is left out.
        """
        call = self._call("exchange", name, outgoing.scalars)
        self._network.audit.told(self._round, name, len(outgoing.scalars) if outgoing.vectors else 0)
        for to, vector in _grouped(around.receivers, outgoing.vectors):
            scalars = [*outgoing.scalars.values()] if vector is not None else []
            values = empty(0) if vector is None else vector
            self._network.writer(to, call, values.nbytes, scalars).write_all(values)
        for sender in around.senders:
            if sender not in expected.allowed:
                self._network.silence(sender, call)
        return Pending(lambda: self._arrivals(around.senders, call, expected))

    async def _arrivals(self, senders: Collection[str], call: Call, expected: Expected) -> dict[str, Arrived]:
        arrived = {}
        for sender in senders:
            message = await self._network.message(sender, call)
            silent = message.empty and sender not in expected.required
            length, scalars = (0, 0) if silent else (expected.length, len(call.scalars))
            self._network.expect(message, sender, call, length, scalars)
            values, numbers = self._network.inbox(sender).consume(message)
            if not silent:
                arrived[sender] = Arrived(values, numbers)
        return arrived

    async def weighted_mean(
        self, around: Neighbourhood, name: str, vector: Tensor, weight: float, rounding: Rounding | None = None
    ) -> None:
        """Σ w_k·v_k / Σ w_k in place."""
        call = self._call("weighted_mean", name, ("weight",))
        await AllReduce(self._network, around.ring, call, rounding).run(vector, weight)

    async def all_gather(
        self, around: Neighbourhood, name: str, vector: Tensor, scalars: Mapping[str, float], length: int | None
    ) -> dict[str, Arrived]:
        """Everybody's vector and scalars by id, each relayed N−1 times; `length` as in `Expected`."""
        relay = Relay(self._network, around.ring, self._call("all_gather", name, scalars))
        self._network.audit.told(self._round, name, len(scalars))
        return {id: Arrived(*found) for id, found in (await relay.run(vector, [*scalars.values()], length)).items()}

    async def gather(self, around: Neighbourhood, name: str, record: tuple[float, ...]) -> dict[str, tuple[float, ...]]:
        """Everybody's float64 record by id, all of one length: each goes round the ring, relayed N−1 times."""
        relay = Relay(self._network, around.ring, self._call("gather", name))
        self._network.audit.told(self._round, name, len(record))
        return {id: scalars for id, (_, scalars) in (await relay.run(empty(0), [*record], 0)).items()}

    async def pass_token(self, around: Neighbourhood, name: str, vector: Tensor, numbers: Sequence[float] = ()) -> None:
        """Send to the right neighbour."""
        _, right = around.beside(self._network.identity.id)
        call = Call(self._round, TOKEN + self._passed, "token", name)
        self._passed += 1
        self._network.audit.told(self._round, name, len(numbers))
        await self._network.writer([right], call, vector.nbytes, numbers).write_gradually(vector)

    async def receive_token(self, around: Neighbourhood, name: str, length: int | None, numbers: int = 0) -> Arrived:
        """What the left neighbour passed: so many bytes of that vector, or, if None, as many as it likes."""
        left, _ = around.beside(self._network.identity.id)
        call = Call(self._round, TOKEN + self._taken, "token", name)
        self._taken += 1
        message = await self._network.message(left, call)
        self._network.expect(message, left, call, length, numbers)
        return Arrived(*self._network.inbox(left).consume(message))


def _grouped(receivers: Collection[str], vectors: Mapping[str, Tensor]) -> list[tuple[list[str], Tensor | None]]:
    """Receivers that get the same tensor together: it is encoded once for all of them."""
    groups: dict[int, tuple[list[str], Tensor | None]] = {}
    for receiver in receivers:
        vector = vectors.get(receiver)
        groups.setdefault(id(vector), ([], vector))[0].append(receiver)
    return [*groups.values()]
