"""host:port, as a peer listens there or is reached there."""

import ipaddress
import socket
from urllib.parse import unquote

LOOPBACK = ("localhost", "127.0.0.1", "::1")


def split(address: str) -> tuple[str, int]:
    """`[::1]:7700` as ("::1", 7700)."""
    host, _, port = address.rpartition(":")
    return host.strip("[]"), int(port)


def is_loopback(address: str) -> bool:
    """Whether `host:port` stays on this machine."""
    host, _ = split(address)
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def names_of(address: str) -> frozenset[str]:
    """By which names a browser on this machine may call what listens at `host:port`, and at loopback only; empty: any.

    A web site can give a name of its own the address 127.0.0.1, and so read what it finds there.
    """
    return frozenset({*LOOPBACK, split(address)[0].lower()}) if is_loopback(address) else frozenset()


def why_taken(address: str) -> str | None:
    """Why nobody can listen at `host:port` on this machine now, in a few words; None if one can."""
    try:
        family, kind, protocol, _, place = socket.getaddrinfo(*split(address), type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind, protocol) as probe:
            # A port whose last connections are still closing is free, for a server also sets this.
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(place)
    except (OSError, UnicodeError) as error:  # UnicodeError: what cannot be a host name at all
        return (getattr(error, "strerror", None) or str(error)).lower()
    return None


Endpoint = tuple[str, int]
"""Host, as numbers, and port of one end of a connection."""


def endpoint(host: str, port: int) -> Endpoint:
    """Written in one way only: `::ffff:10.0.0.1` is 10.0.0.1, and no interface is named."""
    try:
        number = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return host, port
    return str(getattr(number, "ipv4_mapped", None) or number), port


def caller(peer: str) -> Endpoint | None:
    """Where a call comes from, as gRPC has it: `ipv4:10.0.0.1:40312` or `ipv6:%5B::1%5D:40312`.

    None when its connection has gone: then gRPC has nothing, or `unknown`.
    """
    address = unquote(peer.partition(":")[2])
    return endpoint(*split(address)) if address else None


def origin(host: str) -> str:
    """Whom connections from there are counted to: whoever has one IPv6 address has 2^64."""
    try:
        number = ipaddress.ip_address(host)
    except ValueError:
        return host
    return host if number.version == 4 else str(ipaddress.ip_network((number, 64), strict=False))
