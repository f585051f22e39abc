"""The weighted mean of all peers' vectors round the ring: reduce-scatter, then all-gather, frame by frame.

The vector is cut into N parts. In step s the peer at position i sends part i − s to the right and receives part
i − s − 1 from the left; a received frame is added to (or, past step N − 2, taken over) and goes on in step s + 1 at
once. Part c is summed in ring order from position c, never in order of arrival, so all peers end with the same bits.
Each sends 2(N−1)/N of the vector.
"""

from dataclasses import dataclass

from torch import Tensor, isfinite

from peer.errors import FailedError
from peer.network.network import Network
from peer.network.streams.message_writer import MessageWriter
from peer.network.wire.frames import FLOATS_PER_FRAME, frame_count


@dataclass(frozen=True)
class AllReduce:
    """One weighted mean: where this peer sits, and under which keys the messages go."""

    network: Network
    ring: tuple[str, ...]
    round: int
    step: int
    name: str

    async def run(self, vector: Tensor, weight: float) -> None:
        """Σ w_k·v_k / Σ w_k in place; float32 on the CPU. The sum of the weights travels as a float64 scalar."""
        self._check(vector.mul_(weight))
        if len(self.ring) == 1:
            vector.div_(weight)
            return
        own = self._part(vector, self._position)
        await self._message(own, 0, vector, weight).write_all(vector[own])
        for s in range(2 * (len(self.ring) - 1)):
            await self._relay(vector, s, weight)

    async def _relay(self, vector: Tensor, s: int, weight: float) -> None:
        """Receive the part of step s and pass it on in step s + 1, except after the last."""
        size = len(self.ring)
        part = self._part(vector, self._position - s - 1)
        block, left = vector[part], self.ring[self._position - 1]
        writer: MessageWriter | None = None
        for index in range(frame_count(block.numel())):
            message = await self.network.message(
                left, self.round, self.step + s, self.name, block.numel(), 1, part.start, frames=index + 1
            )
            total = message.scalars[0] + (weight if s < size - 1 else 0.0)
            frame = block[FLOATS_PER_FRAME * index : FLOATS_PER_FRAME * (index + 1)]
            if s < size - 1:
                frame.add_(message.block(index))
            else:
                frame.copy_(message.block(index))
            if s == size - 2:
                frame.div_(total)
            self._check(frame)
            if s < 2 * size - 3:
                writer = writer or self._message(part, s + 1, vector, total)
                writer.write(frame)
        self.network.inbox(left).consume(message)

    def _check(self, values: Tensor) -> None:
        """Weighted sums can overflow where every vector is finite; nothing of that may leave."""
        if not bool(isfinite(values.sum())):
            raise FailedError(f"the sum of all peers' `{self.name}` is not finite; lower the learning rate")

    def _message(self, part: slice, s: int, vector: Tensor, weight: float) -> MessageWriter:
        right = self.ring[(self._position + 1) % len(self.ring)]
        length = part.stop - part.start
        return self.network.writer([right], self.round, self.step + s, self.name, length, [weight], part.start)

    @property
    def _position(self) -> int:
        return self.ring.index(self.network.identity.id)

    def _part(self, vector: Tensor, number: int) -> slice:
        """The part of that number, modulo N; parts differ by one value at most."""
        size, number = len(self.ring), number % len(self.ring)
        return slice(vector.numel() * number // size, vector.numel() * (number + 1) // size)
