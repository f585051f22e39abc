"""The accepting end of gRPC, in three parts.

- `GrpcServer`: a gRPC server that callers can neither end nor make fill the log, whatever they call and however they
  leave.
- `ServerContext` and `ServerPipe`: which callers are let in, what unidentified ones may use, and a stream from its
  first message to its end.
- `UnaryHandlers`: the peer's state, its health and its services, for small requests with a few seconds for each. gRPC
  would read a whole request before its own handlers see it, however long it is and however slowly it comes. So every
  method is served as a stream here, from which nothing is read before there is a slot for it.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from typing import Any

import grpc
import grpc.aio
from grpc._cython import cygrpc
from grpc.aio import _server
from grpc_health.v1.health_pb2 import DESCRIPTOR as HEALTH_FILE
from grpc_health.v1.health_pb2 import HealthCheckRequest, HealthCheckResponse
from grpc_reflection.v1alpha import reflection
from grpc_reflection.v1alpha.reflection_pb2 import ServerReflectionRequest

from peer.network.limits import UnknownCallerLimits
from peer.network.transport import DisconnectedError, ListenConfig, Pipe, StatusHandler
from peer.network.transport.addresses import Endpoint
from peer.network.transport.unknown_callers import ConnectionLimiter, ReadSlots, RingAddresses
from peer.network.wire.messages import SERVICE, DecodeError, Message, StatusRequest
from peer.process import open_files
from peer.telemetry.events import Report
from peer.telemetry.telemetry import OwnFaults

Handler = Callable[[Any, Any], Awaitable[None]]


class GrpcServer(_server.Server):
    """Serves methods that are streams of bytes; `stray` gets the origin of each call to any other method.

    gRPC's own server decodes the name of such a method as UTF-8, and shuts down for good if that fails. This one reads
    no names, as it knows its methods beforehand.
    """

    def __init__(self, options: Sequence[tuple[str, Any]], stray: Callable[[str], object]) -> None:
        self._loop, self._faults, self._stray = asyncio.get_running_loop(), OwnFaults("a call"), stray
        self._server = _Calls(self._loop, options, self._guarded(self._turn_away), self._faults)

    def serve(self, service: str, methods: Mapping[str, Handler]) -> None:
        """Register methods of a service; before the server starts."""
        served: dict[str, grpc.RpcMethodHandler[bytes, bytes]]
        served = {name: grpc.stream_stream_rpc_method_handler(self._guarded(one)) for name, one in methods.items()}
        self.add_registered_method_handlers(service, served)

    def _guarded(self, handler: Handler) -> Handler:
        """Wrap a handler so that a fault of this peer is logged once. gRPC would send its text to the caller, and log a
        traceback for each caller that has left by then."""

        async def guarded(requests: Any, context: Any) -> None:
            try:
                await handler(requests, context)
            except grpc.aio.BaseError:
                raise  # the caller has left, or the server has stopped: gRPC logs nothing about it
            except Exception as error:  # noqa: BLE001 (reported below)
                self._faults.report(error)
                context.set_code(grpc.StatusCode.INTERNAL)
                context.set_details("internal error in this peer; see its log")

        return guarded

    async def _turn_away(self, _requests: Any, context: Any) -> None:
        self._stray(context.peer())
        await context.abort(grpc.StatusCode.UNIMPLEMENTED, "there is no such method")


class _Calls(cygrpc.AioServer):  # type: ignore[misc]
    """Serves calls of known methods, and all others, whatever their names, by one handler.

    gRPC's own loop over calls makes Python objects of all headers of each, and its bound on headers holds only for
    callers that have acknowledged it: a few others could hold up the event loop for seconds. This one reads none.
    """

    def __init__(
        self, loop: asyncio.AbstractEventLoop, options: Sequence[tuple[str, Any]], rest: Handler, faults: OwnFaults
    ) -> None:
        super().__init__(loop, None, (), (), tuple(options), None)
        self._loop_here, self._rest, self._faults = loop, rest, faults
        self._handlers: dict[bytes, grpc.RpcMethodHandler[bytes, bytes]] = {}
        self._served: set[asyncio.Task[None]] = set()

    def add_registered_method_handlers(self, method_handlers: "dict[str, grpc.RpcMethodHandler[bytes, bytes]]") -> None:
        super().add_registered_method_handlers(method_handlers)
        self._handlers |= {name.encode(): handler for name, handler in method_handlers.items()}

    def _make_request_call_future(self, method: bytes | None) -> "asyncio.Future[Any]":
        """The future of the next call of a method, for which the server waits; None: of any unknown method."""
        return self._loop_here.create_task(self._hand_on(method))

    async def _hand_on(self, method: bytes | None) -> None:
        """Give each call a task, which ends when its handler does or its caller leaves; until cancelled."""
        loop = self._loop_here
        while True:
            if method is None:
                call = await self._request_call()
                serving = self._turn_away(cygrpc._ServicerContext(call, None, None, loop))
            else:
                call = await self._request_registered_call(method)
                handling = cygrpc._handle_stream_stream_rpc(self._handlers[method], call, loop)
                serving = cygrpc._schedule_rpc_coro(handling, call, loop, method.decode())
            task = loop.create_task(serving)
            self._served.add(task)
            task.add_done_callback(self._served.discard)

    async def _turn_away(self, context: Any) -> None:
        with suppress(grpc.aio.BaseError):  # aborting raises one
            await self._rest(None, context)

    def _serving_task_crash_handler(self, task: "asyncio.Task[None]") -> None:
        """Report an error after which gRPC shuts the server down; gRPC's words are not logged (`telemetry/logs.py`)."""
        if not task.cancelled() and (error := task.exception()):
            self._faults.report(error)
        super()._serving_task_crash_handler(task)


SubjectReader = Callable[..., str]
"""Reads the name in the certificate that a caller has shown; "" without one."""

CallOrigin = tuple[Endpoint, str | None]
"""Where a call comes from, and the name in its certificate, as in `Pipe.identity`."""


class ServerContext:
    """What a peer's servers share: which callers are let in, and what unidentified ones may use."""

    def __init__(
        self, place: ListenConfig, subject: SubjectReader | None, strangers: UnknownCallerLimits, report: Report
    ) -> None:
        self.subject, self.strangers = subject, strangers.beside(place.neighbours)
        self.probe_connections = 2 * strangers.of_one_origin
        self.connections = connection_limit(place.neighbours, self.strangers)
        spare = self.connections - strangers.of_one_member * place.neighbours
        # A third each for unknown callers, for other members, and for those that come between two scans.
        few = min(self.strangers.connections, max(2, spare // 3))
        self.limiter = ConnectionLimiter(replace(self.strangers, connections=few), report)
        # gRPC takes twice as many probes as there should be, for those that come between two scans.
        half = strangers.of_one_origin // 2
        self.probe_limiter = ConnectionLimiter(replace(strangers, connections=2 * half, of_one_origin=half), report)
        self.reading = ReadSlots(self.strangers)
        self._ring = RingAddresses(place.ring, strangers)

    def meet(self, context: "grpc.aio.ServicerContext[bytes, bytes]", limiter: ConnectionLimiter) -> CallOrigin | None:
        """Take note of a call; return its origin, or None if its connection has already gone."""
        if not (where := limiter.on_stream(context.peer())):
            return None
        if not self.subject:
            return where, None
        # Read the certificate itself, as gRPC's own list of its names cuts each at a NUL.
        member = self.subject(*(context.auth_context() or {}).get("x509_pem_cert", ()))
        if member:
            limiter.set_owner(where, member)
        return where, member

    async def knows(self, host: str) -> bool:
        """Return whether a caller from that host may know about this federation."""
        return self.subject is not None or await self._ring.holds(host)


def connection_limit(neighbours: int, strangers: UnknownCallerLimits) -> int:
    """How many incoming connections leave enough descriptors for the peer's files and its own connections."""
    needed = strangers.of_one_member * neighbours
    left = open_files() - strangers.own_files - needed // 2
    return min(needed + 3 * strangers.connections, max(left, needed // 2 + 2))


class ServerPipe(Pipe):
    """The accepting end of a stream, open as long as its handler runs."""

    def __init__(
        self, context: "grpc.aio.ServicerContext[bytes, bytes]", met: CallOrigin, server: ServerContext
    ) -> None:
        self._context, self._server = context, server
        self.caller, self.identity = met
        self.handler = asyncio.current_task()
        self.origin = context.peer()
        self._spoken = False
        self._stays = ExitStack()

    async def send(self, data: bytes) -> None:
        with self._disconnections():
            await self._context.write(data)

    async def receive(self) -> bytes:
        with self._disconnections():
            data = await (self._context.read() if self._spoken else self._first())
        if not isinstance(data, bytes):
            raise DisconnectedError("closed by the other end")
        return data

    async def _first(self) -> Any:
        try:
            async with self._server.reading.slot(self.caller[0]):
                data = await self._context.read()
        except TimeoutError:
            raise DisconnectedError("it sent nothing, and made room for other callers") from None
        self._spoken = True
        if isinstance(data, bytes) and len(data) > self._server.strangers.hello:
            raise DisconnectedError("its first message is not a Hello")
        return data

    async def finish(self) -> None:
        """Do nothing, as the handler's return ends the stream."""

    def abort(self) -> None:
        if self.handler:
            self.handler.cancel()

    def identify(self, member: str, neighbour: bool = True) -> None:
        super().identify(member)
        self._server.limiter.set_owner(self.caller, member)
        if neighbour:
            self._stays.enter_context(self._server.limiter.exempt(self.caller))

    def in_use(self) -> None:
        self._stays.enter_context(self._server.limiter.exempt(self.caller, in_use=True))

    async def is_known(self) -> bool:
        return await self._server.knows(self.caller[0])

    def ended(self) -> None:
        """Release what the stream holds, as its handler is about to return."""
        self._stays.close()

    @contextmanager
    def _disconnections(self) -> Iterator[None]:
        try:
            yield
        except (grpc.aio.AioRpcError, grpc.aio.BaseError, asyncio.InvalidStateError):
            raise DisconnectedError("connection closed") from None


HEALTH = HEALTH_FILE.services_by_name["Health"].full_name
AnswerFunction = Callable[[AsyncIterator[Any]], AsyncIterator[Message | bytes]]


class UnaryHandlers:
    """The handlers of all methods other than the streams between peers."""

    def __init__(self, limiter: ConnectionLimiter, context: ServerContext) -> None:
        self._limiter, self._context = limiter, context

    def health(self, server: GrpcServer) -> None:
        """Serve health checks to every caller, as it is no secret that a peer listens."""
        methods = {"Check": _health_check, "Watch": _health_watch}
        server.serve(HEALTH, {name: self._serve(one, HealthCheckRequest) for name, one in methods.items()})

    def reflection(self, server: GrpcServer) -> None:
        answers: Any = reflection.aio.ReflectionServicer((SERVICE, HEALTH, reflection.SERVICE_NAME))

        def tell(requests: AsyncIterator[Any]) -> AsyncIterator[Message]:
            told: AsyncIterator[Message] = answers.ServerReflectionInfo(requests, None)
            return told

        handler = self._serve(tell, ServerReflectionRequest, public=False)
        server.serve(reflection.SERVICE_NAME, {"ServerReflectionInfo": handler})

    def status(self, status: StatusHandler) -> Handler:
        """The handler of Status; its request is empty and is not read."""

        async def tell(_requests: AsyncIterator[Any]) -> AsyncIterator[bytes]:
            yield await status(b"")

        return self._serve(tell, StatusRequest, public=False)

    def _serve(self, answer: AnswerFunction, question: type[Message], public: bool = True) -> Handler:
        async def serve(_requests: Any, context: Any) -> None:
            if not (met := self._context.meet(context, self._limiter)):
                return
            (host, _), _ = met
            try:
                async with asyncio.timeout(self._context.strangers.answer):
                    if not (public or await self._context.knows(host)):
                        raise PermissionError("this is told to callers at the addresses of the ring only")
                    async for reply in answer(self._questions(context, host, question)):
                        await context.write(reply if isinstance(reply, bytes) else reply.SerializeToString())
            except PermissionError as error:
                _end_call(context, grpc.StatusCode.PERMISSION_DENIED, str(error))
            except TimeoutError:
                _end_call(context, grpc.StatusCode.DEADLINE_EXCEEDED, "this took too long")
            except LookupError as error:
                _end_call(context, grpc.StatusCode.NOT_FOUND, str(error))
            except DecodeError:
                _end_call(context, grpc.StatusCode.INVALID_ARGUMENT, "this is no question to this method")

        return serve

    async def _questions(self, context: Any, host: str, kind: type[Message]) -> AsyncIterator[Message]:
        while True:
            async with self._context.reading.slot(host):
                data = await context.read()
            if not isinstance(data, bytes):
                return
            if len(data) > self._context.strangers.request:
                raise DecodeError
            yield kind.FromString(data)


def _end_call(context: Any, code: grpc.StatusCode, why: str) -> None:
    """End a call without `abort`, which would raise, and leave a cycle of frames behind for each call of a flood."""
    context.set_code(code)
    context.set_details(why)


async def _health_check(requests: AsyncIterator[HealthCheckRequest]) -> AsyncIterator[HealthCheckResponse]:
    async for asked in requests:
        if asked.service not in ("", SERVICE):
            raise LookupError(f"there is no service of this name; ask for {SERVICE}")
        yield HealthCheckResponse(status=HealthCheckResponse.SERVING)
        return


async def _health_watch(requests: AsyncIterator[HealthCheckRequest]) -> AsyncIterator[HealthCheckResponse]:
    """Say once that the peer serves; its end, or the time limit of calls, ends the call."""
    async for asked in requests:
        serving = asked.service in ("", SERVICE)
        yield HealthCheckResponse(
            status=HealthCheckResponse.SERVING if serving else HealthCheckResponse.SERVICE_UNKNOWN
        )
        await asyncio.get_running_loop().create_future()
