"""Addresses, host:port: how they are written, whether this machine can listen there, and whether something answers.

The latter takes a bare TCP connection, closed at once, which shows sooner than gRPC whether something answers, and why
not: every half second for a silent neighbour (`TcpProbe`), and once, in words, before a start (`check_tcp`).
"""

import asyncio
import errno
import ipaddress
import os
import socket
from contextlib import suppress
from dataclasses import dataclass
from urllib.parse import unquote

from peer.network.transport import FORBIDDEN, NO_ROUTE, REFUSED, TIMED_OUT, UNKNOWN_HOST, DisconnectedError

LOOPBACK = ("localhost", "127.0.0.1", "::1")


def split(address: str) -> tuple[str, int]:
    """Split an address: `[::1]:7700` into ("::1", 7700)."""
    host, _, port = address.rpartition(":")
    return host.strip("[]"), int(port)


def is_loopback(address: str) -> bool:
    """Return whether connections to `host:port` stay on this machine."""
    host, _ = split(address)
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def names_of(address: str) -> frozenset[str]:
    """The names by which a browser may call a server at `host:port`, if that is loopback; otherwise empty: any name.

    A web site could let a name of its own point to 127.0.0.1, and so read what a server there says.
    """
    return frozenset({*LOOPBACK, split(address)[0].lower()}) if is_loopback(address) else frozenset()


def why_taken(address: str) -> str | None:
    """Say in a few words why no process can listen at `host:port` on this machine now; None if one can."""
    try:
        family, kind, protocol, _, place = socket.getaddrinfo(*split(address), type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind, protocol) as probe:
            # A port whose last connections are still closing is free, as servers set this option, too.
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(place)
    except (OSError, UnicodeError) as error:  # UnicodeError: what cannot be a host name at all
        return (getattr(error, "strerror", None) or str(error)).lower()
    return None


Endpoint = tuple[str, int]
"""The numeric host and the port of one end of a connection."""


def endpoint(host: str, port: int) -> Endpoint:
    """An endpoint in its one spelling: `::ffff:10.0.0.1` becomes 10.0.0.1, and no interface is named."""
    try:
        number = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return host, port
    return str(getattr(number, "ipv4_mapped", None) or number), port


def caller(peer: str) -> Endpoint | None:
    """Where a call comes from, read from gRPC's `ipv4:10.0.0.1:40312` or `ipv6:%5B::1%5D:40312`.

    None if its connection has gone: then gRPC says nothing, or `unknown`.
    """
    address = unquote(peer.partition(":")[2])
    return endpoint(*split(address)) if address else None


def origin(host: str) -> str:
    """The origin to which connections of a host count: for IPv6 its /64 network, as a host there has 2^64 addresses."""
    try:
        number = ipaddress.ip_address(host)
    except ValueError:
        return host
    return host if number.version == 4 else str(ipaddress.ip_network((number, 64), strict=False))


OS_REASONS = {
    errno.ECONNREFUSED: REFUSED,
    errno.EHOSTUNREACH: NO_ROUTE,
    errno.ENETUNREACH: NO_ROUTE,
    errno.EACCES: FORBIDDEN,
    errno.EPERM: FORBIDDEN,
    errno.ETIMEDOUT: TIMED_OUT,
}
UNRESOLVED = (OSError, UnicodeError)
"""The errors for a name that is unknown, or that cannot be a name."""


async def resolve(host: str, port: int = 0) -> list[Endpoint]:
    """Look up the addresses of a host, with that port; raises one of UNRESOLVED."""
    found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return [(str(place[0]), int(place[1])) for *_, place in found]


async def _connect(place: Endpoint) -> None:
    connection, _ = await asyncio.get_running_loop().create_connection(asyncio.Protocol, *place)
    connection.abort()


class TcpProbe:
    """Probes addresses. It remembers what names resolve to, as a lookup may take many seconds without a network."""

    def __init__(self) -> None:
        self._found: dict[str, list[Endpoint]] = {}
        self._lookups: dict[str, asyncio.Task[None]] = {}

    async def reach(self, address: str) -> None:
        """Raise DisconnectedError unless a connection is accepted there; this waits for as long as the system does."""
        for place in await self._places(address):
            try:
                return await _connect(place)
            except OSError as error:
                why = OS_REASONS.get(error.errno or 0) or (error.strerror or str(error)).lower()
        raise DisconnectedError(why)

    async def _places(self, address: str) -> list[Endpoint]:
        """The endpoints of an address as known by now, while a new lookup goes on in the background."""
        if address not in self._lookups:
            task = self._lookups[address] = asyncio.create_task(self._look_up(address))
            task.add_done_callback(lambda _: self._lookups.pop(address))
        if address not in self._found:
            await asyncio.wait((self._lookups[address],))
        if address not in self._found:
            raise DisconnectedError(UNKNOWN_HOST)
        return self._found[address]

    async def _look_up(self, address: str) -> None:
        with suppress(*UNRESOLVED):
            self._found[address] = await resolve(*split(address))


TCP_CHECK_TIMEOUT_S = 3.0
"""Seconds for a lookup, and for an answer of a host."""


@dataclass(frozen=True)
class TcpCheck:
    """The result of a check. It is right even if nothing listens yet, as the host answered."""

    right: bool
    said: str
    accepted: bool = False
    """Whether something listens there, whatever it is."""


async def check_tcp(address: str, seconds: float = TCP_CHECK_TIMEOUT_S) -> TcpCheck:
    """Look up `host:port` and try to connect to its addresses; return the first good result, or else the last."""
    host, port = split(address)
    try:
        async with asyncio.timeout(seconds):
            found = await resolve(host, port)
    except TimeoutError:
        return TcpCheck(False, f"the name {host} was not resolved within {seconds:g} s; check this machine's DNS")
    except UNRESOLVED as error:
        why = getattr(error, "strerror", None) or error
        return TcpCheck(
            False, f"the name {host} is not known here ({why}); correct it in the ring, or give an IP address"
        )
    met = [await _check_endpoint(place, seconds) for place in found]
    return next((one for one in met if one.right), met[-1])


async def _check_endpoint(place: Endpoint, seconds: float) -> TcpCheck:
    try:
        async with asyncio.timeout(seconds):
            await _connect(place)
    except ConnectionRefusedError:
        return TcpCheck(True, "reached; nobody listens there yet, which is right before that peer's start")
    except TimeoutError:
        return TcpCheck(
            False,
            f"no answer within {seconds:g} s: is the machine up, and do firewalls let this one reach its port "
            f"{place[1]}?",
        )
    except OSError as error:
        why = (os.strerror(error.errno) if error.errno else str(error)).lower()
        return TcpCheck(False, f"{why}; check the address and this machine's routes")
    return TcpCheck(True, "something accepts connections there", accepted=True)
