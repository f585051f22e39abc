"""Ports for the peers of a cell, where nobody hands them out."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from socket import AF_INET, SO_REUSEADDR, SOCK_DGRAM, SOCK_STREAM, SOL_SOCKET, socket

from peer.errors import FailedError

PORTS = 1 << 16


@contextmanager
def free_ports(first: int, each: int) -> Iterator[int]:
    """The first of `each` ports in a row, from `first` on, at which nobody of this machine listens and that no other
    cell has inside the block; FailedError where there are none."""
    with ExitStack() as held:
        yield _found(held, first, each)


def _found(held: ExitStack, first: int, each: int) -> int:
    for port in range(first, PORTS - each + 1, each):
        with suppress(OSError), ExitStack() as tried:
            for one in range(port, port + each):
                _take(tried, one)
            held.enter_context(tried.pop_all())
            return port
    raise FailedError(f"no {each} ports in a row are free from {first} on; give another --port")


def _take(held: ExitStack, port: int) -> None:
    """OSError where it is taken. Cells tell each other by UDP sockets, of which no peer has any."""
    held.enter_context(socket(AF_INET, SOCK_DGRAM)).bind(("127.0.0.1", port))
    with socket(AF_INET, SOCK_STREAM) as tried:
        tried.setsockopt(SOL_SOCKET, SO_REUSEADDR, 1)
        tried.bind(("127.0.0.1", port))
