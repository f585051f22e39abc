"""The accepting end of gRPC, in three parts.

- `GrpcServer`: a server of gRPC's that callers can neither end nor make fill the log, whatever they call and
  however they go.
- `ServerContext` and `ServerPipe`: who may come in, what those may take who are not known, and a stream from its
  first message to its end.
- `UnaryHandlers`: what anybody may ask, the peer's state, its health and its services. Small questions, and seconds
  for each. gRPC would read a question to its end before a handler of its own sees it, however long it is and
  however slowly it comes. So every method is served as a stream here, from which nothing is read before there is a
  place for it.
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
from peer.network.transport.addresses import Endpoint
from peer.network.transport.base import DisconnectedError, ListenConfig, Pipe, StatusHandler
from peer.network.transport.unknown_callers import ConnectionLimiter, ReadSlots, RingAddresses
from peer.network.wire.messages import SERVICE, DecodeError, Message, StatusRequest
from peer.process import open_files
from peer.telemetry.events import Report
from peer.telemetry.telemetry import OwnFaults

Handler = Callable[[Any, Any], Awaitable[None]]


class GrpcServer(_server.Server):
    """Serves methods that are streams of bytes; `stray` is told where each call to any other method comes from.

    gRPC's own server reads the name of such a method as UTF-8, and shuts down for good when it is none. This one reads
    no name: it knows its methods beforehand.
    """

    def __init__(self, options: Sequence[tuple[str, Any]], stray: Callable[[str], object]) -> None:
        self._loop, self._faults, self._stray = asyncio.get_running_loop(), OwnFaults("a call"), stray
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
                self._faults.report(error)
                context.set_code(grpc.StatusCode.INTERNAL)
                context.set_details("this peer made a mistake; its log says which")

        return guarded

    async def _turn_away(self, _requests: Any, context: Any) -> None:
        self._stray(context.peer())
        await context.abort(grpc.StatusCode.UNIMPLEMENTED, "there is no such method")


class _Calls(cygrpc.AioServer):  # type: ignore[misc]
    """Of known methods as ever; the rest goes to one handler, without a look at its name."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, options: Sequence[tuple[str, Any]], rest: Handler, faults: OwnFaults
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
            self._faults.report(error)
        super()._serving_task_crash_handler(task)


SubjectReader = Callable[..., str]
"""Whose the certificate is that a caller has shown; nobody's, "", without one. None where there are no certificates."""

CallOrigin = tuple[Endpoint, str | None]
"""From where a call comes, and by whose certificate, as in `Pipe.identity`."""


class ServerContext:
    """What a peer's servers have in common: who may come in, and what those may take who are not known."""

    def __init__(
        self, place: ListenConfig, holder: SubjectReader | None, strangers: UnknownCallerLimits, report: Report
    ) -> None:
        self.holder, self.strangers = holder, strangers.beside(place.neighbours)
        self.connections = connection_limit(place.neighbours, self.strangers)
        spare = self.connections - strangers.of_one_member * place.neighbours
        # For strangers, for other members, and for who comes between two looks.
        few = min(self.strangers.connections, max(2, spare // 3))
        self.doorkeeper = ConnectionLimiter(replace(self.strangers, connections=few), report)
        # Of probes gRPC takes twice as many as there are to be: who comes in between two looks.
        half = strangers.of_one_origin // 2
        self.at_probes = ConnectionLimiter(replace(strangers, connections=2 * half, of_one_origin=half), report)
        self.reading = ReadSlots(self.strangers)
        self._ring = RingAddresses(place.ring, strangers)

    def meet(
        self, context: "grpc.aio.ServicerContext[bytes, bytes]", doorkeeper: ConnectionLimiter
    ) -> CallOrigin | None:
        """One more call has come; None when its connection has already gone."""
        if not (where := doorkeeper.called(context.peer())):
            return None
        if not self.holder:
            return where, None
        # The certificate itself: gRPC's own list of its names cuts each at a NUL.
        member = self.holder(*(context.auth_context() or {}).get("x509_pem_cert", ()))
        if member:
            doorkeeper.belongs(where, member)
        return where, member

    async def knows(self, host: str) -> bool:
        """Whether a caller from there may know of this federation."""
        return self.holder is not None or await self._ring.holds(host)


def connection_limit(neighbours: int, strangers: UnknownCallerLimits) -> int:
    """Incoming connections at once: as many as descriptors are left beside the peer's files and its own connections."""
    needed = strangers.of_one_member * neighbours
    left = open_files() - strangers.own_files - needed // 2
    return min(needed + 3 * strangers.connections, max(left, needed // 2 + 2))


class ServerPipe(Pipe):
    """The accepting end, alive as long as its handler runs."""

    def __init__(
        self, context: "grpc.aio.ServicerContext[bytes, bytes]", met: CallOrigin, entrance: ServerContext
    ) -> None:
        self._context, self._entrance = context, entrance
        self.caller, self.identity = met
        self.handler = asyncio.current_task()
        self.aborted = False
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
            async with self._entrance.reading.place(self.caller[0]):
                data = await self._context.read()
        except TimeoutError:
            raise DisconnectedError("others came while it said nothing") from None
        self._spoken = True
        if isinstance(data, bytes) and len(data) > self._entrance.strangers.hello:
            raise DisconnectedError("its first message is no Hello")
        return data

    async def finish(self) -> None:
        """The handler's return ends the stream."""

    def abort(self) -> None:
        self.aborted = True
        if self.handler:
            self.handler.cancel()

    def welcome(self, member: str, neighbour: bool = True) -> None:
        super().welcome(member)
        self._entrance.doorkeeper.belongs(self.caller, member)
        if neighbour:
            self._stays.enter_context(self._entrance.doorkeeper.carrying(self.caller))

    def in_use(self) -> None:
        self._stays.enter_context(self._entrance.doorkeeper.carrying(self.caller, in_use=True))

    async def is_known(self) -> bool:
        return await self._entrance.knows(self.caller[0])

    def ended(self) -> None:
        """Its handler is about to return."""
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
    """The handlers of all methods that are no streams between peers."""

    def __init__(self, strangers: UnknownCallerLimits, doorkeeper: ConnectionLimiter, entrance: ServerContext) -> None:
        self._strangers, self._doorkeeper, self._entrance = strangers, doorkeeper, entrance

    def health(self, server: GrpcServer) -> None:
        """Told to everybody: that somebody listens is no secret."""
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
        """The question is empty, and need not be read."""

        async def tell(_requests: AsyncIterator[Any]) -> AsyncIterator[bytes]:
            yield await status(b"")

        return self._serve(tell, StatusRequest, public=False)

    def _serve(self, answer: AnswerFunction, question: type[Message], public: bool = True) -> Handler:
        async def serve(_requests: Any, context: Any) -> None:
            if not (met := self._entrance.meet(context, self._doorkeeper)):
                return
            (host, _), _ = met
            try:
                async with asyncio.timeout(self._strangers.answer):
                    if not (public or await self._entrance.knows(host)):
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
            async with self._entrance.reading.place(host):
                data = await context.read()
            if not isinstance(data, bytes):
                return
            if len(data) > self._strangers.request:
                raise DecodeError
            yield kind.FromString(data)


def _end_call(context: Any, code: grpc.StatusCode, why: str) -> None:
    """To abort would raise, and leave a cycle of frames behind for each call of a flood."""
    context.set_code(code)
    context.set_details(why)


async def _health_check(requests: AsyncIterator[HealthCheckRequest]) -> AsyncIterator[HealthCheckResponse]:
    async for asked in requests:
        if asked.service not in ("", SERVICE):
            raise LookupError(f"there is no service of this name; ask for {SERVICE}")
        yield HealthCheckResponse(status=HealthCheckResponse.SERVING)
        return


async def _health_watch(requests: AsyncIterator[HealthCheckRequest]) -> AsyncIterator[HealthCheckResponse]:
    """Nothing changes while the peer lives, and its end ends the call; so does the time that each call has."""
    async for asked in requests:
        serving = asked.service in ("", SERVICE)
        yield HealthCheckResponse(
            status=HealthCheckResponse.SERVING if serving else HealthCheckResponse.SERVICE_UNKNOWN
        )
        await asyncio.get_running_loop().create_future()
