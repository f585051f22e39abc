"""Whether an address on one host is reached from another: one listens there, one dials."""

from __future__ import annotations

import socket
import threading

from launcher.engines.ssh.remote.speech import Refused


def endpoint(address: str) -> tuple[str, int]:
    host, _, port = address.rpartition(":")
    return host.strip("[]"), int(port)


def listen(address: str, token: str) -> None:
    """Greets whoever connects at the address with the token, for as long as an order is awaited."""
    host, port = endpoint(address)
    try:
        server = listener(host, port)
    except OSError as error:
        raise Refused((error.strerror or str(error)).lower()) from None
    threading.Thread(target=greet, args=(server, token.encode()), daemon=True).start()


def listener(host: str, port: int) -> socket.socket:
    if host in ("0.0.0.0", "::") and socket.has_dualstack_ipv6():
        return socket.create_server(("::", port), family=socket.AF_INET6, dualstack_ipv6=True)
    family, _, _, _, place = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    return socket.create_server(place[:2], family=family)


def greet(server: socket.socket, token: bytes) -> None:
    while True:
        caller, _ = server.accept()
        with caller:
            caller.sendall(token)


def dial(address: str, token: str, seconds: float) -> str:
    """Why nobody with the token is reached at the address; empty if somebody is. Without a token anybody does."""
    try:
        with socket.create_connection(endpoint(address), timeout=seconds) as connection:
            if not token:
                return ""
            heard = b""
            while len(heard) < len(token) and (data := connection.recv(len(token) - len(heard))):
                heard += data
            return "" if heard == token.encode() else "somebody else answers there"
    except socket.gaierror:
        return "no such host name there"
    except socket.timeout:  # noqa: UP041 (an old Python knows no other)
        return "timed out"
    except OSError as error:
        return (error.strerror or str(error)).lower()
