"""What unidentified callers may use, so that many from one origin do not keep out a few from another.

gRPC can count connections, but not by caller: `ConnectionLimiter` scans this process's own sockets and closes excess
ones. gRPC buffers each message until it is whole: `ReadSlots` lets only a few from unidentified callers be read at a
time. In both, a new one is let in and the oldest of the origin with the most has to go (`PerOriginQuota`): a caller
that soon identifies itself gets through, however many are silent. Without certificates, `RingAddresses` tells whether a
call comes from an address of the ring.
"""

import asyncio
import os
import resource
import socket
import sys
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Hashable, Iterable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from typing import Generic, TypeVar

from peer.network.limits import UnknownCallerLimits
from peer.network.transport.addresses import UNRESOLVED, Endpoint, caller, endpoint, origin, resolve, split
from peer.tasks import News, within
from peer.telemetry.events import CallerRefused, Report
from peer.telemetry.telemetry import ThrottledRefusals

T = TypeVar("T", bound=Hashable)


class PerOriginQuota(Generic[T]):
    """Holds at most `most` items in all and `of_one_origin` from one origin.

    A new one is always let in, and the oldest of the origin with the most makes room for it.
    """

    def __init__(self, most: int, of_one_origin: int) -> None:
        self._most, self._of_one_origin = most, of_one_origin
        self._by_origin: defaultdict[str, dict[T, None]] = defaultdict(dict)
        self._origins: dict[T, str] = {}

    def __contains__(self, one: T) -> bool:
        return one in self._origins

    def __len__(self) -> int:
        return len(self._origins)

    def __iter__(self) -> Iterator[T]:
        return iter(self._origins)

    def add(self, one: T, origin: str) -> T | None:
        """Let an item in; return the one that has to make room for it, which is forgotten here."""
        self._origins[one] = origin
        self._by_origin[origin][one] = None
        crowded = origin
        if len(self._by_origin[origin]) <= self._of_one_origin:
            if len(self._origins) <= self._most:
                return None
            crowded = max(self._by_origin, key=lambda other: len(self._by_origin[other]))
        oldest = next(iter(self._by_origin[crowded]))
        self.remove(oldest)
        return oldest

    def remove(self, one: T) -> None:
        """Forget an item that has gone or is now identified; does nothing if it is not here."""
        if (origin := self._origins.pop(one, None)) is not None:
            del self._by_origin[origin][one]
            if not self._by_origin[origin]:
                del self._by_origin[origin]


class ReadSlots:
    """Limits how many first messages are read at a time, over all connections."""

    def __init__(self, strangers: UnknownCallerLimits) -> None:
        self._reading: PerOriginQuota[asyncio.Timeout] = PerOriginQuota(
            strangers.messages, strangers.messages_of_one_origin
        )

    @asynccontextmanager
    async def slot(self, host: str) -> AsyncIterator[None]:
        """Hold a slot for the block; TimeoutError in it when another caller needs the slot."""
        async with asyncio.timeout(None) as slot:
            if other := self._reading.add(slot, origin(host)):
                other.reschedule(asyncio.get_running_loop().time())
            try:
                yield
            finally:
                self._reading.remove(slot)


class RingAddresses:
    """The ring's hosts, looked up on demand; results are remembered for a while, whether found or not."""

    def __init__(self, ring: Iterable[str], strangers: UnknownCallerLimits) -> None:
        self._hosts, self._strangers = {split(address)[0] for address in ring}, strangers
        self._known: frozenset[str] = frozenset()
        self._lookup: asyncio.Task[None] | None = None
        self._stale = -1.0

    async def holds(self, host: str) -> bool:
        """Return whether a host is in the ring. One lookup serves all; if it takes too long, the last one counts."""
        clock = asyncio.get_running_loop().time
        if self._lookup is None and clock() > self._stale:
            self._lookup = asyncio.create_task(self._look_up())
        if self._lookup:
            await asyncio.wait((self._lookup,), timeout=self._strangers.answer / 2)
        return host in self._known

    async def _look_up(self) -> None:
        found = await asyncio.gather(*map(_addresses, self._hosts))
        self._known, self._lookup = frozenset().union(*found), None
        self._stale = asyncio.get_running_loop().time() + self._strangers.resolve


async def _addresses(host: str) -> frozenset[str]:
    with suppress(*UNRESOLVED):
        return frozenset(endpoint(*place)[0] for place in await resolve(host))
    return frozenset()


GIVEN_UP_CALLS = 100
"""Calls without a connection before they are reported, as a neighbour that dies may leave some."""
BYTES_RECEIVED_OFFSET = 128
"""The offset of the 8-byte count in Linux's tcp_info."""


class ConnectionLimiter:
    """Closes excess connections: of unidentified callers, of one member, of members that are not neighbours.

    So there is room for a neighbour whatever all others do.
    """

    def __init__(self, strangers: UnknownCallerLimits, report: Report) -> None:
        self._strangers, self._report = strangers, report
        self._unknown: PerOriginQuota[Endpoint] = PerOriginQuota(strangers.connections, strangers.of_one_origin)
        self._members: PerOriginQuota[Endpoint] = PerOriginQuota(strangers.connections, strangers.of_one_member)
        """Connections of members that carry no neighbour's stream."""
        self._owners: dict[Endpoint, str] = {}
        """The member at the other end of a connection, once it has identified itself; the oldest first."""
        self._ports: set[int] = set()
        self._neighbours: Counter[Endpoint] = Counter()
        """The number of neighbours' streams on each connection."""
        self._in_use: Counter[Endpoint] = Counter()
        """The number of active streams among them."""
        self._calls: Counter[Endpoint] = Counter()
        self._came = News()
        self._told: set[str] = set()
        """Reported members with too many connections, each with the reason."""
        self._nuisances = ThrottledRefusals(report)

    def watch_port(self, port: int) -> None:
        """Scan connections to this port of the process from now on."""
        self._ports.add(port)

    def on_stream(self, peer: str) -> Endpoint | None:
        """Count a new stream; return its origin, from gRPC's name of the peer, or None if the connection has gone."""
        self._came.set()
        one = caller(peer)
        if one:
            self._calls[one] += 1
        else:
            self._nuisances.add("calls that are given up before they can be answered", first=GIVEN_UP_CALLS)
        return one

    def set_owner(self, caller: Endpoint, member: str) -> None:
        """Note that the connection is that member's."""
        self._owners[caller] = member
        self._unknown.remove(caller)
        self._came.set()

    @contextmanager
    def exempt(self, caller: Endpoint, in_use: bool = False) -> Iterator[None]:
        """Count the connection, during the block, as carrying a neighbour's stream, or an active one (in_use)."""
        streams = self._in_use if in_use else self._neighbours
        streams[caller] += 1
        try:
            yield
        finally:
            streams[caller] -= 1
            if not streams[caller]:
                del streams[caller]

    async def watch(self) -> None:
        """Scan at intervals until cancelled; return at once without a port to watch."""
        while self._ports:
            await asyncio.sleep(self._strangers.look)
            if not self._unknown:
                await within(self._strangers.look_around, self._came.next())
            self.scan()

    def scan(self) -> None:
        """Take note of connections that have come and gone, and close excess ones."""
        connected = dict(self._connections())
        self._owners = {one: member for one, member in self._owners.items() if one in connected}
        for quota in (self._unknown, self._members):
            for gone in [one for one in quota if one not in connected]:
                quota.remove(gone)
        for one in self._too_many_of_one():
            self._close(connected, one, "too many connections of one member")
        for one in [*connected]:
            member = self._owners.get(one)
            quota, whose = (self._members, member) if member else (self._unknown, origin(one[0]))
            if one in self._neighbours:
                quota.remove(one)
            elif one not in connected:
                continue
            elif one not in quota and (other := quota.add(one, whose)):
                strangers = "too many connections of callers that are not known"
                guests = "too many connections of members that are not neighbours"
                self._close(connected, other, guests if member else strangers)
            elif self._calls[one] > self._strangers.calls:
                self._close(connected, one, "too many calls on one connection")
            elif not member and bytes_received(connected[one]) > self._strangers.received:
                self._close(connected, one, "too many bytes from an unidentified caller")
        self._calls.clear()

    def _too_many_of_one(self) -> Iterator[Endpoint]:
        """Yield the excess connections of each member: the oldest without an active stream, from the host with the most
        of these. So, without certificates, no other host and no silent caller can push out the member itself."""
        held = defaultdict[str, list[Endpoint]](list)
        for one, member in self._owners.items():
            held[member].append(one)
        for callers in held.values():
            spare = Counter(host for host, port in callers if (host, port) not in self._in_use)
            callers.sort(key=lambda one: (one in self._in_use, -spare[one[0]]))
            yield from callers[: max(0, len(callers) - self._strangers.of_one_member)]

    def _connections(self) -> Iterator[tuple[Endpoint, int]]:
        """Yield the origin and the descriptor of each incoming connection."""
        for descriptor in _descriptors():
            try:
                with borrowed_socket(descriptor) as one:
                    here, there = one.getsockname(), one.getpeername()
            except OSError:  # no socket, one that listens, or closed by now
                continue
            if isinstance(here, tuple) and here[1] in self._ports:
                yield endpoint(*there[:2]), descriptor

    def _close(self, connected: dict[Endpoint, int], one: Endpoint, why: str) -> None:
        self._unknown.remove(one)
        self._members.remove(one)
        try:
            with borrowed_socket(connected.pop(one)) as connection:
                if endpoint(*connection.getpeername()[:2]) == one:  # it may be closed by now, and its descriptor reused
                    connection.shutdown(socket.SHUT_RDWR)
        except OSError:
            return
        at, member = f"{one[0]}:{one[1]}", self._owners.get(one)
        if member is None:
            self._nuisances.add(why, at)
        elif f"{member} {why}" not in self._told:
            self._told.add(f"{member} {why}")
            self._report(CallerRefused(caller=member, origin=at, kind="connections", reason=why))


def _descriptors() -> Iterable[int]:
    try:
        return map(int, os.listdir("/dev/fd"))
    except OSError:  # listing them takes one more descriptor
        return range(resource.getrlimit(resource.RLIMIT_NOFILE)[0])


def bytes_received(descriptor: int) -> int:
    """The bytes received on a connection since it was made; 0 if the system does not tell."""
    if sys.platform != "linux":
        return 0
    try:
        with borrowed_socket(descriptor) as one:
            facts = one.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, BYTES_RECEIVED_OFFSET + 8)
    except OSError:
        return 0
    return int.from_bytes(facts[BYTES_RECEIVED_OFFSET:], sys.byteorder)


@contextmanager
def borrowed_socket(descriptor: int) -> Iterator[socket.socket]:
    """A descriptor of other code as a socket, which stays open after the block; OSError if it is not a socket."""
    # Not asking for the family saves half of the time; IPv4 addresses fit into those of IPv6.
    one = socket.socket(socket.AF_INET6, socket.SOCK_STREAM, 0, fileno=descriptor)
    try:
        yield one
    finally:
        one.detach()
