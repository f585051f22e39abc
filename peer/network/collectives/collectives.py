"""The ways of communicating, each once: exchange, weighted mean, gather, token. One object serves one round.

Every peer makes the same calls in the same order, so the number of a call within the round names its messages.
Reductions run in ring order, never in order of arrival: every run ends in the same bits.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from peer.network.collectives.all_reduce import AllReduce
from peer.network.network import Network

TOKEN = 1 << 31
"""Steps from here on are tokens: passing and receiving one are calls of their own."""


@dataclass(frozen=True)
class Neighbourhood:
    """Where a peer sits: the ring's order, and its edges on the graph."""

    ring: tuple[str, ...]
    receivers: tuple[str, ...]
    senders: tuple[str, ...]

    def beside(self, peer: str) -> tuple[str, str]:
        """The left and the right neighbour."""
        position = self.ring.index(peer)
        return self.ring[position - 1], self.ring[(position + 1) % len(self.ring)]


class Collectives:
    """All messages of one peer in one round."""

    def __init__(self, network: Network, round: int) -> None:
        self._network, self._round = network, round
        self._calls = self._passed = self._taken = 0

    def _step(self) -> int:
        """The first step of a new call; a call has up to 65,536 steps."""
        self._calls += 1
        return self._calls << 16

    async def exchange(
        self, around: Neighbourhood, name: str, vector: Tensor, scalars: Sequence[float], length: int | None
    ) -> dict[str, tuple[Tensor, tuple[float, ...]]]:
        """Send to all receivers, return what every sender sent (float32, float64 scalars), in the order of `around`.

        `length` is that of every sender's vector; None if each may send one of its own.
        """
        step = self._step()
        writer = self._network.writer(around.receivers, self._round, step, name, vector.numel(), scalars)
        await writer.write_all(vector)
        received = {}
        for sender in around.senders:
            message = await self._network.message(sender, self._round, step, name, length, len(scalars))
            received[sender] = (self._network.inbox(sender).consume(message), message.scalars)
        return received

    async def weighted_mean(self, around: Neighbourhood, name: str, vector: Tensor, weight: float) -> None:
        """Σ w_k·v_k / Σ w_k in place."""
        await AllReduce(self._network, around.ring, self._round, self._step(), name).run(vector, weight)

    async def gather(self, around: Neighbourhood, name: str, record: Sequence[float]) -> dict[str, tuple[float, ...]]:
        """Everybody's float64 record by id, all of one length: each goes round the ring, relayed N−1 times."""
        step, (left, right) = self._step(), around.beside(self._network.identity.id)
        size, position = len(around.ring), around.ring.index(self._network.identity.id)
        records = {around.ring[position]: tuple(record)}
        for s in range(size - 1):
            passed, taken = around.ring[(position - s) % size], around.ring[(position - s - 1) % size]
            self._network.writer([right], self._round, step + s, name, 0, records[passed]).write(torch.empty(0))
            message = await self._network.message(left, self._round, step + s, name, 0, len(record))
            records[taken] = message.scalars
        return records

    async def pass_token(self, around: Neighbourhood, name: str, vector: Tensor) -> None:
        """Send to the right neighbour."""
        _, right = around.beside(self._network.identity.id)
        step = TOKEN + self._passed
        self._passed += 1
        await self._network.writer([right], self._round, step, name, vector.numel()).write_all(vector)

    async def receive_token(self, around: Neighbourhood, name: str, length: int | None) -> Tensor:
        """What the left neighbour passed: so many values of that vector, or, if None, as many as it likes."""
        left, _ = around.beside(self._network.identity.id)
        step = TOKEN + self._taken
        self._taken += 1
        message = await self._network.message(left, self._round, step, name, length)
        return self._network.inbox(left).consume(message)
