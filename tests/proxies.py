"""TCP proxies before all peers: they keep every byte that passes, and can cut, slow and forget connections."""

import asyncio
import re
import socket
import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

HELLO = re.compile(rb"\x12.([a-z0-9-]+)\x1a.([a-z0-9-]+)")
"""Fields 2 and 3 of a Hello, as they lie in the connection's first kilobytes: who speaks to whom."""
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, RESET, ROOM = 0, 1, 3, 8
"""Kinds of HTTP/2's frames that belong to a stream."""


@dataclass
class Connection:
    """The bytes of one TCP connection so far."""

    forth: bytearray = field(default_factory=bytearray)
    back: bytearray = field(default_factory=bytearray)
    forgotten: bool = False
    """Nothing passes any more, and neither end is told."""

    @property
    def spoken(self) -> bool:
        """Whether anything but HTTP/2's own frames has passed.

        Those are settings, pings, a farewell; and the beginning and the end of a call, where no message came between.
        """
        return _has_messages(self.forth.removeprefix(PREFACE)) or _has_messages(self.back)

    @property
    def edge(self) -> tuple[str, str] | None:
        """(who dialled, whom); None when no hello has passed."""
        found = HELLO.search(self.forth[:8192])
        return (found[1].decode(), found[2].decode()) if found else None

    @property
    def bytes(self) -> int:
        return len(self.forth) + len(self.back)


class Proxies:
    """`routes`: from the port that is dialled to the port at which a peer listens, all on loopback."""

    def __init__(self, routes: Mapping[int, int]) -> None:
        self.routes, self.connections = routes, list[Connection]()
        self.delay = 0.0
        """Seconds that bytes, and ends of connections, are on their way."""
        self._open: set[asyncio.Transport] = set()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="proxies", daemon=True)
        self._thread.start()
        asyncio.run_coroutine_threadsafe(self._listen(routes), self._loop).result(10)

    def cut(self) -> int:
        """Break every connection; how many there were."""
        return asyncio.run_coroutine_threadsafe(self._cut(), self._loop).result(10)

    def forget(self) -> int:
        """Act like a NAT that has lost its table: open connections go silent, and new ones work."""
        current = [connection for connection in self.connections if not connection.forgotten]
        for connection in current:
            connection.forgotten = True
        return len(current)

    def close(self) -> None:
        asyncio.run_coroutine_threadsafe(self._close(), self._loop).result(10)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        self._loop.close()

    async def _listen(self, routes: Mapping[int, int]) -> None:
        self._servers = [
            await self._loop.create_server(lambda to=to: Near(self, to), "127.0.0.1", dialled)
            for dialled, to in routes.items()
        ]

    async def _cut(self) -> int:
        count = len(self._open) // 2
        for transport in [*self._open]:
            transport.abort()
        return count

    async def _close(self) -> None:
        for server in self._servers:
            server.close()
        await self._cut()
        await asyncio.sleep(0.05)

    def opened(self, transport: asyncio.Transport) -> None:
        self._open.add(transport)

    def closed(self, transport: asyncio.Transport) -> None:
        self._open.discard(transport)


class End(asyncio.Protocol):
    """One end of a connection; what it receives is kept and handed to the other end."""

    transport: asyncio.Transport
    other: "End | None" = None

    def __init__(self, proxies: Proxies, connection: Connection, kept: bytearray) -> None:
        self.proxies, self.connection, self.kept = proxies, connection, kept

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        transport.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.proxies.opened(transport)

    def data_received(self, data: bytes) -> None:
        if self.connection.forgotten:
            return
        self.kept += data
        if self.other:
            self.later(self.other.transport.write, data)

    def connection_lost(self, error: Exception | None) -> None:
        self.proxies.closed(self.transport)
        if self.other and not self.connection.forgotten:
            self.later(self.other.transport.close)

    def later(self, act: Callable[..., None], *arguments: bytes) -> None:
        """After the delay, in order."""
        if self.proxies.delay:
            asyncio.get_running_loop().call_later(self.proxies.delay, act, *arguments)
        else:
            act(*arguments)

    def pause_writing(self) -> None:
        if self.other:
            self.other.transport.pause_reading()

    def resume_writing(self) -> None:
        if self.other and not self.other.transport.is_closing():
            self.other.transport.resume_reading()


class Near(End):
    """The end towards the peer that dials."""

    def __init__(self, proxies: Proxies, to: int) -> None:
        connection = Connection()
        super().__init__(proxies, connection, connection.forth)
        self.to = to

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self.transport.pause_reading()
        self.proxies.connections.append(self.connection)
        self.dialling = asyncio.get_running_loop().create_task(self._dial())

    async def _dial(self) -> None:
        far = End(self.proxies, self.connection, self.connection.back)
        far.other = self
        try:
            await asyncio.get_running_loop().create_connection(lambda: far, "127.0.0.1", self.to)
        except OSError:
            self.transport.abort()
            return
        self.other = far
        if self.transport.is_closing():
            far.transport.close()
        else:
            self.transport.resume_reading()


def _has_messages(frames: bytes) -> bool:
    """Whether a frame, a header of 9 bytes and its length as it says, brings bytes of a call; or is none at all."""
    at = 0
    while at + 9 <= len(frames):
        on_a_stream, empty = int.from_bytes(frames[at + 5 : at + 9]) & 0x7FFFFFFF, not any(frames[at : at + 3])
        if on_a_stream and frames[at + 3] not in (HEADERS, RESET, ROOM) and not (frames[at + 3] == DATA and empty):
            return True
        at += 9 + int.from_bytes(frames[at : at + 3])
    return at != len(frames)


def edges(connections: Iterable[Connection]) -> set[tuple[str, str] | None]:
    """Between whom the connections were that carried anything; None when it was nobody who had said hello."""
    return {connection.edge for connection in connections if connection.edge or connection.spoken}
