"""The dialling end of streams, and why it ended in words."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import grpc
import grpc.aio

from peer.network.limits import Limits
from peer.network.transport.base import DisconnectedError, Pipe
from peer.network.wire.foreign import plain

REASONS = {
    "Connection refused": "connection refused",
    "No route to host": "no route",
    "Network is unreachable": "no route",
    "Timeout": "timed out",
    "tcp handshaker": "timed out",
    "timed out": "timed out",
    "FD shutdown": "timed out",
    "DNS": "unknown host",
    "Domain name": "unknown host",
    "Name or service not known": "unknown host",
    "Connection reset": "connection reset",
    "Socket closed": "connection closed",
    "Internal error from Core": "connection lost",
    "Cancelling all calls": "connection closed",
}
TLS_REASONS = {
    "CERTIFICATE_VERIFY_FAILED": "its certificate is not from the federation's CA, has expired or names another peer",
    "SSL": "TLS handshake failed",
    "handshak": "TLS handshake failed",
}
if TYPE_CHECKING:
    Call = grpc.aio.StreamStreamCall[bytes, bytes]


class ClientPipe(Pipe):
    """The dialling end."""

    def __init__(self, call: "Call", origin: str, secure: bool) -> None:
        self._call, self.origin, self._secure = call, origin, secure

    async def send(self, data: bytes) -> None:
        with self._disconnections():
            await self._call.write(data)

    async def receive(self) -> bytes:
        with self._disconnections():
            data = await self._call.read()
        if not isinstance(data, bytes):
            raise DisconnectedError("closed by the other end")
        return data

    async def finish(self) -> None:
        with self._disconnections():
            await self._call.done_writing()
            await self._call.code()

    def abort(self) -> None:
        self._call.cancel()

    @contextmanager
    def _disconnections(self) -> Iterator[None]:
        try:
            yield
        except grpc.aio.AioRpcError as error:
            raise _unless_cancelled(reason(error.details() or error.code().name, self._secure)) from None
        except asyncio.InvalidStateError:
            raise _unless_cancelled("connection closed") from None
        except asyncio.CancelledError:  # of the task that waits for the call, or the call was aborted
            raise _unless_cancelled("closed") from None


def _unless_cancelled(why: str) -> DisconnectedError | asyncio.CancelledError:
    """What to raise where a call has ended; a task that is to end must not take it for a break and call again.

    While gRPC prepares a call, whoever reads waits for a task of gRPC's, which takes a cancellation for itself. If the
    connection breaks in that moment, all that comes out of `read` is the break.
    """
    task = asyncio.current_task()
    return asyncio.CancelledError() if task and task.cancelling() else DisconnectedError(why)


def reason(details: str, secure: bool) -> str:
    """gRPC's account of a failure in a few words that a person can act on; of TLS only where there is any."""
    for sign, words in (REASONS | TLS_REASONS if secure else REASONS).items():
        if sign in details:
            return words
    return plain(details, Limits().characters)  # the other end's server chooses them
