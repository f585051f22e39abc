"""The outgoing side of an edge: dial, shake hands, send what the other end lacks, and again after every break.

Nothing above a link knows that it broke.
"""

import asyncio
from collections.abc import Callable

from peer.network.membership.edges import Neighbour
from peer.network.node import Node
from peer.network.streams.handshake import RefusedError, read_reply
from peer.network.streams.outbox import Outbox
from peer.network.transport import DisconnectedError, Pipe
from peer.network.wire.messages import Refusal, Welcome


class Link:
    """The directed tensor stream to one neighbour."""

    def __init__(self, node: Node, neighbour: Neighbour, welcomed: Callable[[str, int], None]) -> None:
        self._node, self.neighbour = node, neighbour
        self.outbox = Outbox()
        self.rejected: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        """Set when the neighbour says that what was sent is not declared: this peer stops, true or not."""
        self._up = False
        self.bytes_per_second = 0.0
        self._welcomed = welcomed

    async def run(self) -> None:
        """Keep the stream open for ever."""
        attempt = 0
        while True:
            try:
                await self._stream()
            except DisconnectedError as error:
                self.neighbour.unreachable(str(error))
            except RefusedError as error:
                self.neighbour.refused(str(error))
                if error.reason == Refusal.UNDECLARED and not self.rejected.done():
                    self.rejected.set_result(str(error))
            attempt = 0 if self._up else attempt + 1
            self._up = False
            await asyncio.sleep(self._node.timeouts.pause(attempt))

    async def _stream(self) -> None:
        """One stream from hello to break."""
        async with self._node.stream(self.neighbour, "Tensors") as (pipe, welcome):
            self._welcomed(self.neighbour.id, welcome.durable)
            self._up = True
            sending = asyncio.create_task(self._send(pipe, welcome))
            listening = asyncio.create_task(introduced(pipe))
            await first_of(sending, listening)

    async def _send(self, pipe: Pipe, welcome: Welcome) -> None:
        have = {(position.round, position.step): position.next for position in welcome.positions}
        number = self.outbox.start
        clock = asyncio.get_running_loop().time
        while True:
            number, frame = await self.outbox.frame(number)
            number += 1
            round, step = frame.key.round, frame.key.step
            if round < welcome.round or frame.number < have.get((round, step), 0):
                continue
            began = clock()
            await pipe.send(frame.data)
            self._measure(len(frame.data), clock() - began)

    def _measure(self, count: int, seconds: float) -> None:
        """A running mean of the throughput, of full frames only: small ones measure the latency."""
        if count >= 1 << 16 and seconds > 0:
            rate = count / seconds
            self.bytes_per_second += (rate - self.bytes_per_second) * (0.1 if self.bytes_per_second else 1)


async def introduced(pipe: Pipe) -> None:
    """Wait on a welcomed stream for its end, or for a refusal of what was sent: RefusedError."""
    while True:
        reply = read_reply(await pipe.receive())
        if reply.HasField("refusal"):
            raise RefusedError(reply.refusal)


async def first_of(*tasks: "asyncio.Task[None]") -> None:
    """Wait for the first task to end, end the others, raise what it raised."""
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in tasks:
            if task.done():
                task.result()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
