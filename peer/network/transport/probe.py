"""Whether somebody listens at an address: a bare connection, shut at once. It tells sooner than gRPC, and why not."""

import asyncio
import errno
import socket

from peer.network.transport.addresses import Endpoint, split
from peer.network.transport.base import FORBIDDEN, NO_ROUTE, REFUSED, TIMED_OUT, DisconnectedError

REASONS = {
    errno.ECONNREFUSED: REFUSED,
    errno.EHOSTUNREACH: NO_ROUTE,
    errno.ENETUNREACH: NO_ROUTE,
    errno.EACCES: FORBIDDEN,
    errno.EPERM: FORBIDDEN,
    errno.ETIMEDOUT: TIMED_OUT,
}


class Probe:
    """Remembers what names stood for: a lookup may take many seconds while there is no network."""

    def __init__(self) -> None:
        self._found: dict[str, list[Endpoint]] = {}
        self._lookups: dict[str, asyncio.Task[None]] = {}

    async def reach(self, address: str) -> None:
        """DisconnectedError unless somebody takes a connection there. It waits for as long as the system does."""
        for place in await self._places(address):
            try:
                connection, _ = await asyncio.get_running_loop().create_connection(asyncio.Protocol, *place)
            except OSError as error:
                why = REASONS.get(error.errno or 0) or (error.strerror or str(error)).lower()
                continue
            connection.abort()
            return
        raise DisconnectedError(why)

    async def _places(self, address: str) -> list[Endpoint]:
        """What is known by now; a lookup for a name goes on beside it."""
        if address not in self._lookups:
            task = self._lookups[address] = asyncio.create_task(self._look_up(address))
            task.add_done_callback(lambda _: self._lookups.pop(address))
        if address not in self._found:
            await asyncio.wait((self._lookups[address],))
        if address not in self._found:
            raise DisconnectedError("unknown host")
        return self._found[address]

    async def _look_up(self, address: str) -> None:
        try:
            found = await asyncio.get_running_loop().getaddrinfo(*split(address), type=socket.SOCK_STREAM)
        except (OSError, UnicodeError):
            return
        self._found[address] = [(str(place[0]), int(place[1])) for *_, place in found]
