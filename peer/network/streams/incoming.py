"""Streams that others have opened: each is served by the handler of its service, and can end itself, never this peer.

BreachError is the caller's fault, and an unforeseen error is a flaw in this program that the caller has found: both are
counted and reported as the caller's. Only an error of this peer's own state, by `Surprises.explain`, ends the peer.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping

from peer.network.streams.handshake import Refusals, Surprises
from peer.network.transport import BreachError, DisconnectedError, Pipe, Service
from peer.telemetry.events import CallerRefused


class IncomingStreams:
    """Serves streams until one of them meets an error of this peer's own state."""

    def __init__(
        self, handlers: Mapping[Service, Callable[[Pipe], Awaitable[None]]], refusals: Refusals, surprises: Surprises
    ) -> None:
        """handlers: of the services that are open; streams of others end at once."""
        self._handlers, self._refusals, self._surprises = handlers, refusals, surprises
        self._failed: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def serve(self, service: Service, pipe: Pipe) -> None:
        """Serve one stream to its end, in a task of the transport's."""
        try:
            if handler := self._handlers.get(service):
                await handler(pipe)
        except BreachError as error:
            self._closed(service, pipe, str(error))
        except DisconnectedError:
            return
        except Exception as error:  # noqa: BLE001 (see above)
            try:
                self._closed(service, pipe, self._surprises.explain(error))
            except Exception as own:  # noqa: BLE001 (it is raised in `watch`)
                if not self._failed.done():
                    self._failed.set_exception(own)

    async def watch(self) -> None:
        """Wait for an error of this peer's own state, and raise it."""
        await self._failed

    def _closed(self, service: Service, pipe: Pipe, why: str) -> None:
        caller = pipe.member or pipe.identity or "a stranger"
        reason = f"its stream of {service} was closed: {why}"
        self._refusals.add(CallerRefused(caller=caller, origin=pipe.origin, kind="stream", reason=reason))
