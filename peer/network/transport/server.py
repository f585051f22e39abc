"""A server of gRPC's that callers can neither end nor make fill the log, whatever they call and however they go."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

import grpc
import grpc.aio
from grpc._cython import cygrpc
from grpc.aio import _server

from peer.telemetry.nuisances import Faults

Handler = Callable[[Any, Any], Awaitable[None]]


class Server(_server.Server):
    """Serves methods that are streams of bytes; `stray` is told where each call to any other method comes from.

    gRPC's own server reads the name of such a method as UTF-8, and shuts down for good when it is none. This one reads
    no name: it knows its methods beforehand.
    """

    def __init__(self, options: Sequence[tuple[str, Any]], stray: Callable[[str], object]) -> None:
        self._loop, self._faults, self._stray = asyncio.get_running_loop(), Faults("a call"), stray
        self._server = _Calls(self._loop, options, self._guarded(self._turn_away), self._faults)

    def serve(self, service: str, methods: Mapping[str, Handler]) -> None:
        """Before it is started."""
        served: dict[str, grpc.RpcMethodHandler[bytes, bytes]]
        served = {name: grpc.stream_stream_rpc_method_handler(self._guarded(one)) for name, one in methods.items()}
        self.add_registered_method_handlers(service, served)

    def _guarded(self, handler: Handler) -> Handler:
        """A fault of the peer's own is told once. gRPC would tell the caller its words, and write a traceback for each
        caller that has gone before it hears them."""

        async def guarded(requests: Any, context: Any) -> None:
            try:
                await handler(requests, context)
            except grpc.aio.BaseError:
                raise  # the caller has gone, or the server has stopped: gRPC says nothing of it
            except Exception as error:  # noqa: BLE001 (told below)
                self._faults.tell(error)
                context.set_code(grpc.StatusCode.INTERNAL)
                context.set_details("this peer made a mistake; its log says which")

        return guarded

    async def _turn_away(self, _requests: Any, context: Any) -> None:
        self._stray(context.peer())
        await context.abort(grpc.StatusCode.UNIMPLEMENTED, "there is no such method")


class _Calls(cygrpc.AioServer):  # type: ignore[misc]
    """Of known methods as ever; the rest goes to one handler, without a look at its name."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, options: Sequence[tuple[str, Any]], rest: Handler, faults: Faults
    ) -> None:
        super().__init__(loop, None, (), (), tuple(options), None)
        self._loop_here, self._rest, self._faults = loop, rest, faults
        self._turned_away: set[asyncio.Task[None]] = set()

    def _make_request_call_future(self, method: bytes | None) -> "asyncio.Future[Any]":
        """What the server waits for: the next call of a method, or, without one, of any that is not known."""
        if method is None:
            return self._loop_here.create_task(self._hand_on())
        future: asyncio.Future[Any] = super()._make_request_call_future(method)
        return future

    async def _hand_on(self) -> None:
        """For ever; each to a task of its own, which ends when its caller reads, or goes."""
        while True:
            call = await self._request_call()
            task = self._loop_here.create_task(self._one(cygrpc._ServicerContext(call, None, None, self._loop_here)))
            self._turned_away.add(task)
            task.add_done_callback(self._turned_away.discard)

    async def _one(self, context: Any) -> None:
        with suppress(grpc.aio.BaseError):  # to abort raises one
            await self._rest(None, context)

    def _serving_task_crash_handler(self, task: "asyncio.Task[None]") -> None:
        """gRPC shuts the server down then; what it says of it is not logged (`telemetry/logs.py`)."""
        if not task.cancelled() and (error := task.exception()):
            self._faults.tell(error)
        super()._serving_task_crash_handler(task)
