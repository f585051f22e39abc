"""What a transport is: it dials and listens, and its pipes carry whole messages of bytes in order.

Everything above is the same over gRPC and within one process. If all peers live in one process, a transport also has a
board from which they read the durable rounds: relayed reports round a ring of N peers take N² messages a round, as each
peer's news reaches every other peer.
"""

import asyncio
import os
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Literal, get_args

from peer.tasks import within

# Read once, when gRPC is imported. Its core would log, word for word, what a server says when it closes.
os.environ["GRPC_VERBOSITY"] = "NONE"
# A server keeps 20,000 sessions of TLS 1.2, 7 kB each, and gRPC has no setting to keep none, or to choose the version.
# This TLS 1.2 suite is for pre-shared secrets, which no peer has: so only TLS 1.3 is left, whose sessions are kept by
# the caller.
os.environ["GRPC_SSL_CIPHER_SUITES"] = "ECDHE-PSK-AES128-CBC-SHA"


class DurabilityBoard:
    """The durable rounds of all peers of this process, each posted by the peer itself."""

    def __init__(self) -> None:
        self.rounds: dict[str, int] = {}
        self._peers_at = Counter[int]()
        """How many peers are at each durable round."""
        self._news: dict[str, asyncio.Event] = {}
        """The next post of each peer that is waited for."""

    @property
    def least(self) -> int:
        """The smallest durable round of all that have posted one; looking at a thousand peers would take long."""
        return min(self._peers_at)

    def post(self, peer: str, round: int) -> None:
        self._peers_at[round] += 1
        if (before := self.rounds.get(peer)) is not None:
            self._peers_at[before] -= 1
            if not self._peers_at[before]:
                del self._peers_at[before]
        self.rounds[peer] = round
        if news := self._news.pop(peer, None):
            news.set()

    async def news(self, peer: str) -> None:
        """Wait until that peer posts something."""
        await self._news.setdefault(peer, asyncio.Event()).wait()


Service = Literal["Tensors", "Fetch", "Heartbeat", "Views"]
"""Kinds of streams. Fetch shares a connection with Tensors; its tensors come the other way. Views: short questions."""
SERVICES: tuple[Service, ...] = get_args(Service)

REFUSED = "connection refused"
"""The machine answers, but no process listens at that port."""
TIMED_OUT = "timed out"
UNKNOWN_HOST = "unknown host"
NO_ROUTE = "no route"
FORBIDDEN = "forbidden by a firewall"
UNTRUSTED = "its certificate is not from the federation's CA, has expired or names another peer"
"""What TLS says about a certificate, without saying which of these it is."""
OTHER_NAME = "its certificate is made out to another peer"


class DisconnectedError(Exception):
    """The other end is gone or was never reached; the text says why, such as `connection refused`."""


class LocallyClosedError(DisconnectedError):
    """This peer itself has ended the stream, to replace it."""


class BreachError(DisconnectedError):
    """This peer has ended the stream because of what the other end sent; the text says what."""


class Pipe(ABC):
    """An open stream of messages in both directions."""

    identity: str | None = None
    """The name in the other end's certificate, empty if it has none; None if the run has no certificates."""
    origin: str = ""
    """The address that the other end came from, for the log."""
    member: str = ""
    """The id of the other end, once it is identified."""

    @abstractmethod
    async def send(self, data: bytes) -> None:
        """Hand over one message, waiting while the other end is slow; DisconnectedError if it is gone."""

    async def tell(self, data: bytes, seconds: float) -> None:
        """Send a message that must be read within so many seconds; DisconnectedError otherwise, as the other end may be
        cut off in both directions."""
        if not await within(seconds, self.send(data)):
            raise DisconnectedError(f"it has not read for {seconds:g} s what it was told")

    @abstractmethod
    async def receive(self) -> bytes:
        """Return the next message; DisconnectedError at the end of the stream."""

    @abstractmethod
    async def finish(self) -> None:
        """End this direction and wait until the other end has read everything."""

    @abstractmethod
    def abort(self) -> None:
        """Drop the stream at once."""

    def identify(self, member: str, neighbour: bool = True) -> None:
        """Identify the other end as that member: it is no unknown caller any more, and a neighbour has its own room."""
        self.member = member

    def in_use(self) -> None:  # noqa: B027 (most pipes count nothing)
        """Mark this as the active one of its caller's streams."""

    async def is_known(self) -> bool:
        """Return whether the other end may know about this federation, by a certificate or an address of the ring."""
        return True


@dataclass(frozen=True)
class ListenConfig:
    """Where a peer listens, and who its neighbours and the other members are."""

    listen: str | None
    """The address to listen at; None for a peer that only dials out."""
    probes: str | None = None
    """Another address, only for health checks."""
    ring: tuple[str, ...] = ()
    """The addresses of all members."""
    neighbours: int = 0
    """How many neighbours the peer has at a time."""


StatusHandler = Callable[[bytes], Awaitable[bytes]]
"""Answers a Status request."""
StreamHandler = Callable[[Service, Pipe], Awaitable[None]]
"""Serves an incoming stream to its end."""


async def no_status(_request: bytes) -> bytes:
    """The answer of a process that does not listen, and so is never asked."""
    return b""


class Transport(ABC):
    """A way of carrying bytes between peers."""

    board: DurabilityBoard | None = None
    """The board of durable rounds that all reachable peers share; None if they have to tell each other."""

    @property
    def certificate_expires(self) -> float | None:
        """Until when this peer's certificates are valid, in Unix seconds; None if there are none."""
        return None

    async def watch_expiry(self) -> None:  # noqa: B027 (most have no certificates)
        """Report in time that this peer's certificates expire, until cancelled."""

    @abstractmethod
    async def listen(self, accept: StreamHandler) -> None:
        """Serve until `close`; `accept` takes every incoming stream. Raises InputError if the address is in use."""

    @abstractmethod
    async def run(self) -> None:
        """Do what is needed while it listens; cancelled before `close`."""

    @abstractmethod
    async def dial(self, address: str, service: Service) -> Pipe:
        """Open a stream; that the address is unreachable may show only at the first send or receive."""

    @abstractmethod
    async def reach(self, address: str) -> None:
        """Find out whether any process listens there; DisconnectedError, with the reason, if none does."""

    @abstractmethod
    async def renew(self, address: str, *services: Service) -> None:
        """Drop the connections of these services, or of all, to an address, so that the next dial makes new ones."""

    @abstractmethod
    async def close(self) -> None:
        """Stop serving and drop all streams."""
