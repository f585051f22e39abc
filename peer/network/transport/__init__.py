"""What a transport is: it dials, it listens, and what it gives back carries whole messages of bytes in order.

Everything above is the same over gRPC and within one process. Where all peers live in one process, a transport also
has a board on which they read what is on whose disk. Word of mouth round a ring of N peers is N² messages a round: of
each peer's news, one at each other peer.
"""

import asyncio
import os
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Literal, get_args

# Read once, when gRPC is imported. Its core would write into the log what a server says when it closes, word for word.
os.environ["GRPC_VERBOSITY"] = "NONE"
# A server keeps 20,000 sessions of TLS 1.2, 7 kB each, and gRPC has no setting to keep none, nor to choose the version.
# This suite of that version is for secrets shared beforehand, which no peer has: so TLS 1.3, whose sessions are kept by
# the caller, is what is left.
os.environ["GRPC_SSL_CIPHER_SUITES"] = "ECDHE-PSK-AES128-CBC-SHA"


class DurabilityBoard:
    """The durable round of each peer, as it posts it itself."""

    def __init__(self) -> None:
        self.rounds: dict[str, int] = {}
        self._news: dict[str, asyncio.Event] = {}
        """The next post of peers that are waited for."""

    def post(self, peer: str, round: int) -> None:
        self.rounds[peer] = round
        if news := self._news.pop(peer, None):
            news.set()

    async def news(self, peer: str) -> None:
        """Wait until that peer posts something."""
        await self._news.setdefault(peer, asyncio.Event()).wait()


Service = Literal["Tensors", "Fetch", "Heartbeat", "Views"]
"""Fetch has a connection in common with Tensors: its tensors come the other way. Views are short questions."""
SERVICES: tuple[Service, ...] = get_args(Service)

REFUSED = "connection refused"
"""By a machine that is there: no process listens at that port."""
TIMED_OUT = "timed out"
NO_ROUTE = "no route"
FORBIDDEN = "forbidden by a firewall"
UNTRUSTED = "its certificate is not from the federation's CA, has expired or names another peer"
"""What TLS says of a certificate, without a word of which it is."""


class DisconnectedError(Exception):
    """The other end is gone or was never reached; the text says why, such as `connection refused`."""


class LocallyClosedError(DisconnectedError):
    """This peer itself has ended the stream, for another one."""


class BreachError(DisconnectedError):
    """This peer has ended the stream for what the other end sent; the text says what."""


class Pipe(ABC):
    """An open stream of messages in both directions."""

    identity: str | None = None
    """The name in the other end's certificate, empty if it has none; None where there are no certificates."""
    origin: str = ""
    """From which address the other end came, for the log."""
    member: str = ""
    """The id of the other end, once it is identified."""

    @abstractmethod
    async def send(self, data: bytes) -> None:
        """Hand over one message, waiting while the other end is slow; DisconnectedError when it is gone."""

    async def tell(self, data: bytes, seconds: float) -> None:
        """Send a message to be read within so many seconds, or raise DisconnectedError: the other end may be cut
        off in both directions."""
        try:
            async with asyncio.timeout(seconds):
                await self.send(data)
        except TimeoutError:
            raise DisconnectedError(f"it has not read for {seconds:g} s what it was told") from None

    @abstractmethod
    async def receive(self) -> bytes:
        """The next message; DisconnectedError at the end of the stream."""

    @abstractmethod
    async def finish(self) -> None:
        """End this direction and wait until the other end has read everything."""

    @abstractmethod
    def abort(self) -> None:
        """Drop the stream at once."""

    def welcome(self, member: str, neighbour: bool = True) -> None:
        """The other end is that member: it is no unknown caller any more, and a neighbour has room of its own."""
        self.member = member

    def in_use(self) -> None:  # noqa: B027 (most pipes count nothing)
        """This is the active one of its caller's streams."""

    async def is_known(self) -> bool:
        """Whether the other end may know of this federation: it has a certificate, or is at an address of the ring."""
        return True


@dataclass(frozen=True)
class ListenConfig:
    """Where a peer listens, and among which others."""

    listen: str | None
    """None for a peer that only dials out."""
    probes: str | None = None
    """Another address, for health checks alone."""
    ring: tuple[str, ...] = ()
    """The addresses of all members."""
    neighbours: int = 0
    """How many it has at a time."""


StatusHandler = Callable[[bytes], Awaitable[bytes]]
"""Answers a Status request."""
StreamHandler = Callable[[Service, Pipe], Awaitable[None]]
"""Serves an incoming stream to its end."""


class Transport(ABC):
    """A way of carrying bytes between peers."""

    board: DurabilityBoard | None = None
    """Where all peers that it reaches read what is on whose disk; None where they have to tell each other."""

    @abstractmethod
    async def listen(self, accept: StreamHandler) -> None:
        """Serve until `close`; `accept` takes every incoming stream. Raises InputError if the address is in use."""

    @abstractmethod
    async def run(self) -> None:
        """What there is to do while it listens; cancelled before `close`."""

    @abstractmethod
    async def dial(self, address: str, service: Service) -> Pipe:
        """Open a stream; an unreachable address may show itself only at the first send or receive."""

    @abstractmethod
    async def reach(self, address: str) -> None:
        """Find out whether any process listens there; raises DisconnectedError with the reason if none does."""

    @abstractmethod
    async def renew(self, address: str, *services: Service) -> None:
        """Give up the connections of these services to an address, or all, so that the next dial makes new ones."""

    @abstractmethod
    async def close(self) -> None:
        """Stop serving and drop all streams."""
