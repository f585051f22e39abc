"""host:port, as a peer listens there or is reached there."""

import ipaddress
import socket


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
