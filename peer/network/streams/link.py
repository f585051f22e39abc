"""The outgoing side of an edge: dial, shake hands, send what the other end lacks, and again after every break.

Nothing above a link knows that it broke.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping

from peer.network.membership.edges import Neighbour
from peer.network.node import Node
from peer.network.streams.handshake import RefusedError, introduce
from peer.network.streams.outbox import Outbox
from peer.network.streams.refusals import Sayings
from peer.network.streams.retries import Retries
from peer.network.transport import BreachError, DisconnectedError, GivenUpError, Pipe
from peer.network.wire.frames import BadFrameError
from peer.network.wire.messages import Refusal, Reply, Welcome
from peer.tasks import background


class Link:
    """The directed tensor stream to one neighbour."""

    def __init__(self, node: Node, neighbour: Neighbour, welcomed: Callable[[str, Welcome], None]) -> None:
        self._node, self.neighbour = node, neighbour
        self.outbox = Outbox()
        self.bytes_per_second = 0.0
        self._welcomed = welcomed
        self._retries, self._sayings = Retries(node.timeouts), Sayings(node.limits, node.timeouts)
        self._damaged = 0
        """How often in a row the neighbour has said that what was sent arrived damaged."""

    async def run(self) -> None:
        """Keep the stream open for ever; what the neighbour refuses is told, and sent again ever more seldom."""
        while True:
            try:
                async with self._node.stream(self.neighbour, "Tensors") as (pipe, welcome):
                    await self._stream(pipe, welcome)
            except GivenUpError:
                pause = self._retries.cut()
            except DisconnectedError as error:
                self.neighbour.unreachable(self._sayings.hear(str(error)))
                pause = self._retries.cut()
            except RefusedError as error:
                self._refused(error)
                pause = self._retries.refused(error)
            await asyncio.sleep(pause)

    async def answer(self, pipe: Pipe, enters: Callable[[], Awaitable[None]]) -> None:
        """Send on a stream that the neighbour has opened, to its end; what it refuses is told.

        It `enters`, in place of an older one, when the neighbour has said what it has.
        """
        node = self._node
        welcome = Welcome(durable=node.durability.own, round=node.round, life=node.identity.life)
        said = Reply(welcome=welcome).SerializeToString()
        try:
            theirs = await introduce(pipe, said, node.timeouts.answer, node.foreign)
            await enters()
            await self._stream(pipe, theirs)
        except RefusedError as error:
            self._refused(error)

    async def _stream(self, pipe: Pipe, welcome: Welcome) -> None:
        """One stream from its welcome to its break."""
        self._node.deliveries.opened(self.neighbour.id)
        self._welcomed(self.neighbour.id, welcome)
        self._retries.welcomed()
        first, has = welcome.round, self._there_already(welcome)
        del welcome  # a neighbour may have filled it with what is of no use
        self.neighbour.stands = asyncio.get_running_loop().time()
        try:
            async with background() as group:
                group.create_task(self._send(pipe, first, has))
                group.create_task(self._settle())
                await self._until_refused(pipe)
        finally:
            self.neighbour.stands = None

    async def _settle(self) -> None:
        """What a neighbour does not refuse for a while, it takes."""
        await asyncio.sleep(self._node.timeouts.settle)
        self._damaged = 0
        self.neighbour.takes_all()

    def _refused(self, error: RefusedError) -> None:
        """Only wrong code or a lie makes a neighbour say that a frame is not declared, or so often that one is damaged.

        Which of the two, and whose, is not known here: this peer's own check lets nothing out that it does not declare.
        """
        reason, why = error.reason, self._sayings.hear(str(error))
        self.neighbour.refused(why)
        self._damaged += reason == Refusal.DAMAGED
        if reason == Refusal.UNDECLARED or self._damaged >= self._node.limits.accidents:
            self._takes_nothing(f"it does not take what is sent to it: {why}; compare its code with this peer's")
        elif reason == Refusal.LOST:
            self.neighbour.ahead = True
            self._takes_nothing(why)

    def _takes_nothing(self, why: str) -> None:
        self.neighbour.takes_nothing(why, asyncio.get_running_loop().time())

    async def _until_refused(self, pipe: Pipe) -> None:
        """Wait on a welcomed stream for its end, or for RefusedError of what was sent; nothing else comes."""
        try:
            reply = self._node.foreign.reply(await pipe.receive())
        except BadFrameError as error:
            raise BreachError(str(error)) from None
        if not reply.HasField("refusal"):
            raise BreachError("what it answered is no refusal")
        raise RefusedError(reply.refusal)

    def _there_already(self, welcome: Welcome) -> dict[tuple[int, int], int]:
        """By round and step of the messages that are held here, the first frame that the neighbour has not got."""
        told = {(position.round, position.step): position.next for position in welcome.positions}
        return {key: told[key] for key in self.outbox.messages if key in told}

    async def _send(self, pipe: Pipe, first: int, has: Mapping[tuple[int, int], int]) -> None:
        """What is written from that round on, but for what the neighbour has."""
        number = self.outbox.start
        clock = asyncio.get_running_loop().time
        while True:
            number, frame = await self.outbox.frame(number)
            number += 1
            round, step = frame.key.round, frame.key.step
            if round < first or frame.number < has.get((round, step), 0):
                continue
            began = clock()
            await pipe.send(frame.data)
            self._node.deliveries.sent(self.neighbour.id)
            self._measure(len(frame.data), clock() - began)

    def _measure(self, count: int, seconds: float) -> None:
        """A running mean of the throughput, of full frames only: small ones measure the latency."""
        if count >= 1 << 16 and seconds > 0:
            rate = count / seconds
            self.bytes_per_second += (rate - self.bytes_per_second) * (0.1 if self.bytes_per_second else 1)
