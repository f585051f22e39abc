"""The transport between peers of one process: the same links and frames, with bytes passed through queues."""

import asyncio
from collections import deque

from peer.errors import InputError
from peer.network.transport import (
    REFUSED,
    SERVICES,
    DisconnectedError,
    DurabilityBoard,
    Pipe,
    Service,
    StatusHandler,
    StreamHandler,
    Transport,
)
from peer.tasks import News, background

DEPTH = 8
"""How many messages may be under way in one direction before the sender waits."""


class OneWay:
    """A bounded one-way queue of messages, which either end can close."""

    def __init__(self) -> None:
        self._messages: deque[bytes] = deque()
        self._changed = News()
        self._finished = False
        self.broken = False

    async def put(self, data: bytes) -> None:
        await self._changed.until(lambda: len(self._messages) < DEPTH or self.broken)
        if self.broken or self._finished:
            raise DisconnectedError("closed")
        self._messages.append(data)
        self._changed.set()

    async def take(self) -> bytes:
        await self._changed.until(lambda: self._messages or self._finished or self.broken)
        if self.broken or not self._messages:
            raise DisconnectedError("closed by the other end")
        self._changed.set()
        return self._messages.popleft()

    async def finish(self) -> None:
        self.hang_up()
        await self._changed.until(lambda: not self._messages or self.broken)

    def hang_up(self) -> None:
        self._finished = True
        self._changed.set()

    def break_off(self) -> None:
        self.broken = True
        self._changed.set()


class MemoryPipe(Pipe):
    """One end of a stream, with a queue in each direction."""

    def __init__(self, outgoing: OneWay, incoming: OneWay, origin: str) -> None:
        self._outgoing, self._incoming, self.origin = outgoing, incoming, origin

    async def send(self, data: bytes) -> None:
        await self._outgoing.put(data)

    async def receive(self) -> bytes:
        return await self._incoming.take()

    async def finish(self) -> None:
        await self._outgoing.finish()

    def abort(self) -> None:
        self._outgoing.break_off()
        self._incoming.break_off()

    def hang_up(self) -> None:
        """Close this end; what was sent can still be read, as from a socket whose process has ended."""
        self._outgoing.hang_up()
        self._incoming.break_off()

    @property
    def broken(self) -> bool:
        return self._outgoing.broken


class MemoryNetwork:
    """The addresses at which peers of this process listen, and the board that they share, if any."""

    def __init__(self, board: DurabilityBoard | None = None) -> None:
        self.board = board
        self.listening: dict[str, MemoryTransport] = {}

    def transport(self, address: str | None, _status: StatusHandler | None = None) -> "MemoryTransport":
        return MemoryTransport(self, address)


class MemoryTransport(Transport):
    """One peer's access to a MemoryNetwork."""

    def __init__(self, network: MemoryNetwork, address: str | None) -> None:
        self._network, self._address, self.board = network, address, network.board
        self._accept: StreamHandler | None = None
        self._streams: asyncio.TaskGroup | None = None
        """The tasks of incoming streams, while it runs."""
        self._pipes: list[tuple[Service | None, MemoryPipe]] = []
        """The open pipes; those that this peer has dialled, each with the service."""

    async def listen(self, accept: StreamHandler) -> None:
        if self._address in self._network.listening:
            raise InputError(f"the address {self._address} is in use; give this peer another one")
        self._accept = accept
        if self._address:
            self._network.listening[self._address] = self

    async def run(self) -> None:
        async with background() as streams:
            self._streams = streams
            try:
                await asyncio.get_running_loop().create_future()
            finally:
                self._streams = None

    async def dial(self, address: str, service: Service) -> Pipe:
        other = self._network.listening.get(address)
        if other is None or other._accept is None or other._streams is None:
            raise DisconnectedError(REFUSED)
        there, back = OneWay(), OneWay()
        near = MemoryPipe(there, back, address)
        far = MemoryPipe(back, there, self._address or "")
        for transport, kind, pipe in ((self, service, near), (other, None, far)):
            transport._pipes = [(one, open) for one, open in transport._pipes if not open.broken] + [(kind, pipe)]
        other._streams.create_task(_serve(other._accept, service, far))
        return near

    async def reach(self, address: str) -> None:
        if address not in self._network.listening:
            raise DisconnectedError(REFUSED)

    async def renew(self, address: str, *services: Service) -> None:
        for service, pipe in self._pipes:
            if pipe.origin == address and service in (services or SERVICES):
                pipe.abort()

    async def close(self) -> None:
        if self._address:
            self._network.listening.pop(self._address, None)
        for _, pipe in self._pipes:
            pipe.hang_up()


async def _serve(accept: StreamHandler, service: Service, pipe: MemoryPipe) -> None:
    """Serve a stream and end it with its handler, as a gRPC server does."""
    try:
        await accept(service, pipe)
    finally:
        await pipe.finish()
