"""The dialling end of streams, and why it ended in words."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import grpc
import grpc.aio

from peer.network.limits import Limits
from peer.network.transport.base import NO_ROUTE, REFUSED, TIMED_OUT, UNTRUSTED, DisconnectedError, GivenUpError, Pipe
from peer.network.wire.foreign import plain

REASONS = {
    "Connection refused": REFUSED,
    "No route to host": NO_ROUTE,
    "Network is unreachable": NO_ROUTE,
    "Timeout": TIMED_OUT,
    "tcp handshaker": TIMED_OUT,
    "timed out": TIMED_OUT,
    "FD shutdown": TIMED_OUT,
    "DNS": "unknown host",
    "Domain name": "unknown host",
    "Name or service not known": "unknown host",
    "HTTP/2": "what listens there is no dfl-peer",
    "Connection reset": "connection reset",
    "Socket closed": "connection closed",
    "Internal error from Core": "connection lost",
    "Cancelling all calls": "connection closed",
}
SHUT_AT_ONCE = "what listens there is no dfl-peer, or one with certificates, and there are none here"
SHUT_OUT = "it does not take this peer's certificate, or is no dfl-peer"
TLS_REASONS = {
    "Hostname Verification": "its certificate is made out to another peer",
    "WRONG_VERSION_NUMBER": "it has no certificates, and this peer has",
    "CERTIFICATE_VERIFY_FAILED": UNTRUSTED,
    "SSL": "TLS handshake failed",
    "handshak": "TLS handshake failed",
}
ABOUT_CERTIFICATES = {SHUT_OUT, *TLS_REASONS.values()} - {TLS_REASONS["WRONG_VERSION_NUMBER"]}
"""Reasons that the two ends' certificates may explain."""
if TYPE_CHECKING:
    from peer.network.transport.tls import Security

    Call = grpc.aio.StreamStreamCall[bytes, bytes]


class ClientPipe(Pipe):
    """The dialling end."""

    def __init__(self, call: "Call", origin: str, security: "Security | None", stands: Callable[[], bool]) -> None:
        self._call, self.origin, self._security = call, origin, security
        self._stands = stands
        """Whether this peer has not given up the connection."""

    async def send(self, data: bytes) -> None:
        async with self._disconnections():
            await self._call.write(data)

    async def receive(self) -> bytes:
        async with self._disconnections():
            data = await self._call.read()
        if not isinstance(data, bytes):
            raise DisconnectedError("closed by the other end")
        return data

    async def finish(self) -> None:
        async with self._disconnections():
            await self._call.done_writing()
            await self._call.code()

    def abort(self) -> None:
        self._call.cancel()

    @asynccontextmanager
    async def _disconnections(self) -> AsyncIterator[None]:
        try:
            yield
        except grpc.aio.AioRpcError as error:
            if not self._stands():
                raise _unless_cancelled(GivenUpError("the connection was made anew")) from None
            why = reason(error.details() or error.code().name, self._security is not None)
            if self._security and why in ABOUT_CERTIFICATES:
                why = await self._security.compared(why, self.origin)
            raise _unless_cancelled(DisconnectedError(why)) from None
        except asyncio.InvalidStateError:
            raise _unless_cancelled(DisconnectedError("connection closed")) from None
        except asyncio.CancelledError:  # of the task that waits for the call, or the call was aborted
            raise _unless_cancelled(GivenUpError("closed")) from None


def _unless_cancelled(error: DisconnectedError) -> DisconnectedError | asyncio.CancelledError:
    """What to raise where a call has ended; a task that is to end must not take it for a break and call again.

    While gRPC prepares a call, whoever reads waits for a task of gRPC's, which takes a cancellation for itself. If the
    connection breaks in that moment, all that comes out of `read` is the break.
    """
    task = asyncio.current_task()
    return asyncio.CancelledError() if task and task.cancelling() else error


def reason(details: str, secure: bool) -> str:
    """gRPC's account of a failure in a few words that a person can act on; of TLS only where there is any."""
    if "failed to connect" in details and "Socket closed" in details:
        return SHUT_OUT if secure else SHUT_AT_ONCE
    for sign, words in (REASONS | TLS_REASONS if secure else REASONS).items():
        if sign in details:
            return words
    return plain(details, Limits().characters)  # the other end's server chooses them
