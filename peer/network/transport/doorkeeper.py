"""Who is connected, and for whom there is no room: gRPC can count connections, but not whose they are."""

import asyncio
import os
import resource
import socket
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress

from peer.network.limits import Strangers
from peer.network.transport.addresses import Endpoint, caller, endpoint, origin
from peer.network.transport.crowd import Crowd
from peer.telemetry.events import Report
from peer.telemetry.nuisances import Nuisances

DESCRIPTORS = "/dev/fd"
GIVEN_UP = 100
"""Calls whose connections have gone, before that is told: a neighbour that dies may leave some."""
BYTES_RECEIVED = 128
"""Where in Linux's tcp_info it is told, in 8 bytes."""


class Doorkeeper:
    """Looks at this process's own sockets and shuts those of strangers that are too many; neighbours' never."""

    def __init__(self, strangers: Strangers, report: Report) -> None:
        self._strangers = strangers
        self._crowd: Crowd[Endpoint] = Crowd(strangers.connections, strangers.of_one_origin)
        self._ports: set[int] = set()
        self._neighbours: Counter[Endpoint] = Counter()
        """How many streams of neighbours each connection carries."""
        self._calls: Counter[Endpoint] = Counter()
        self._came = asyncio.Event()
        self._once_neighbours: set[Endpoint] = set()
        """Whose connection still stands: what it has brought was asked for."""
        self._nuisances = Nuisances(report)

    def guard(self, port: int) -> None:
        """Connections to this port of the process are looked after from now on."""
        self._ports.add(port)

    def called(self, peer: str) -> Endpoint | None:
        """One more stream was opened. From where, of what gRPC has as its peer; None when that connection has gone."""
        self._came.set()
        one = caller(peer)
        if one:
            self._calls[one] += 1
        else:
            self._nuisances.add("calls that are given up before they can be answered", first=GIVEN_UP)
        return one

    @contextmanager
    def carrying(self, one: Endpoint) -> Iterator[None]:
        """The connection carries a neighbour's stream for as long as the block."""
        self._neighbours[one] += 1
        self._crowd.leave(one)
        try:
            yield
        finally:
            self._once_neighbours.add(one)
            self._neighbours[one] -= 1
            self._neighbours += Counter()  # without those at 0

    async def watch(self) -> None:
        """Look again and again, for ever."""
        while True:
            await asyncio.sleep(self._strangers.look)
            # Who was known once and has nothing open, such as a member that asks about views, is in no hurry.
            if self._once_neighbours.issuperset(self._crowd):
                await self._somebody()
            self.look()

    async def _somebody(self) -> None:
        """Until a stream is opened, or a while is over."""
        self._came.clear()
        with suppress(TimeoutError):
            async with asyncio.timeout(self._strangers.look_around):
                await self._came.wait()

    def look(self) -> None:
        """Take note of who has come and gone, and show out who is too many."""
        connected = dict(self._connections())
        for gone in [one for one in self._crowd if one not in connected]:
            self._crowd.leave(gone)
        self._once_neighbours &= connected.keys()
        for one in connected:
            if one in self._neighbours:
                continue
            if one not in self._crowd and (other := self._crowd.enter(one, origin(one[0]))):
                self._show_out(connected[other], other, "too many connections of callers that are not known")
            elif self._calls[one] > self._strangers.calls:
                self._show_out(connected[one], one, "too many calls on one connection")
            elif one not in self._once_neighbours and received(connected[one]) > self._strangers.received:
                self._show_out(connected[one], one, "too many bytes from a caller that is not known")
        self._calls.clear()

    def _connections(self) -> Iterator[tuple[Endpoint, int]]:
        """Where each incoming connection comes from, and its descriptor."""
        for descriptor in _descriptors():
            try:
                with borrowed(descriptor) as one:
                    here, there = one.getsockname(), one.getpeername()
            except OSError:  # no socket, one that listens, or closed by now
                continue
            if isinstance(here, tuple) and here[1] in self._ports:
                yield endpoint(*there[:2]), descriptor

    def _show_out(self, descriptor: int, whom: Endpoint, why: str) -> None:
        try:
            with borrowed(descriptor) as one:
                if endpoint(*one.getpeername()[:2]) == whom:  # it may be closed by now, and its number another's
                    one.shutdown(socket.SHUT_RDWR)
        except OSError:
            return
        self._nuisances.add(why, f"{whom[0]}:{whom[1]}")


def _descriptors() -> Iterable[int]:
    try:
        return map(int, os.listdir(DESCRIPTORS))
    except OSError:  # to list them takes one more
        return range(resource.getrlimit(resource.RLIMIT_NOFILE)[0])


def received(descriptor: int) -> int:
    """How many bytes have come on a connection since it stands; 0 where the system does not tell."""
    if sys.platform != "linux":
        return 0
    try:
        with borrowed(descriptor) as one:
            facts = one.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, BYTES_RECEIVED + 8)
    except OSError:
        return 0
    return int.from_bytes(facts[BYTES_RECEIVED:], sys.byteorder)


@contextmanager
def borrowed(descriptor: int) -> Iterator[socket.socket]:
    """A descriptor of somebody else's as a socket; it stays open. OSError if it is none."""
    # Not asking which family saves half of the time; addresses of the older one fit into those of the newer.
    one = socket.socket(socket.AF_INET6, socket.SOCK_STREAM, 0, fileno=descriptor)
    try:
        yield one
    finally:
        one.detach()
