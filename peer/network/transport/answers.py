"""What anybody may ask: the peer's state, its health and its services. Small questions, and seconds for each.

gRPC would read a question to its end before a handler of its own sees it, however long it is and however slowly it
comes. So every method is served as a stream here, from which nothing is read before there is a place for it.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import grpc
from grpc_health.v1.health_pb2 import DESCRIPTOR as HEALTH_FILE
from grpc_health.v1.health_pb2 import HealthCheckRequest, HealthCheckResponse
from grpc_reflection.v1alpha import reflection
from grpc_reflection.v1alpha.reflection_pb2 import ServerReflectionRequest

from peer.network.limits import Strangers
from peer.network.transport.base import StatusHandler
from peer.network.transport.doorkeeper import Doorkeeper
from peer.network.transport.entrance import Entrance
from peer.network.transport.server import Handler, Server
from peer.network.wire.messages import SERVICE, DecodeError, Message, StatusRequest

HEALTH = HEALTH_FILE.services_by_name["Health"].full_name
Answer = Callable[[AsyncIterator[Any]], AsyncIterator[Message | bytes]]


class Answers:
    """The handlers of all methods that are no streams between peers."""

    def __init__(self, strangers: Strangers, doorkeeper: Doorkeeper, entrance: Entrance) -> None:
        self._strangers, self._doorkeeper, self._entrance = strangers, doorkeeper, entrance

    def health(self, server: Server) -> None:
        """Told to everybody: that somebody listens is no secret."""
        methods = {"Check": _check, "Watch": _watch}
        server.serve(HEALTH, {name: self._serve(one, HealthCheckRequest) for name, one in methods.items()})

    def reflection(self, server: Server) -> None:
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

    def _serve(self, answer: Answer, question: type[Message], public: bool = True) -> Handler:
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
                _end(context, grpc.StatusCode.PERMISSION_DENIED, str(error))
            except TimeoutError:
                _end(context, grpc.StatusCode.DEADLINE_EXCEEDED, "this took too long")
            except LookupError as error:
                _end(context, grpc.StatusCode.NOT_FOUND, str(error))
            except DecodeError:
                _end(context, grpc.StatusCode.INVALID_ARGUMENT, "this is no question to this method")

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


def _end(context: Any, code: grpc.StatusCode, why: str) -> None:
    """To abort would raise, and leave a cycle of frames behind for each call of a flood."""
    context.set_code(code)
    context.set_details(why)


async def _check(requests: AsyncIterator[HealthCheckRequest]) -> AsyncIterator[HealthCheckResponse]:
    async for asked in requests:
        if asked.service not in ("", SERVICE):
            raise LookupError(f"there is no service of this name; ask for {SERVICE}")
        yield HealthCheckResponse(status=HealthCheckResponse.SERVING)
        return


async def _watch(requests: AsyncIterator[HealthCheckRequest]) -> AsyncIterator[HealthCheckResponse]:
    """Nothing changes while the peer lives, and its end ends the call; so does the time that each call has."""
    async for asked in requests:
        serving = asked.service in ("", SERVICE)
        yield HealthCheckResponse(
            status=HealthCheckResponse.SERVING if serving else HealthCheckResponse.SERVICE_UNKNOWN
        )
        await asyncio.get_running_loop().create_future()
