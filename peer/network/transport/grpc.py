"""gRPC streams of raw bytes: the connections of one peer, the dialling end of its streams, and the reasons, in words,
why a stream ended.

Tensors and heartbeats have separate channels, so that a large frame never delays a sign of life. The accepting end is
in `server.py`.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

import grpc
import grpc.aio

from peer.errors import InputError
from peer.network.limits import Limits, UnknownCallerLimits
from peer.network.transport import (
    NO_ROUTE,
    OTHER_NAME,
    REFUSED,
    SERVICES,
    TIMED_OUT,
    UNKNOWN_HOST,
    UNTRUSTED,
    DisconnectedError,
    ListenConfig,
    LocallyClosedError,
    Pipe,
    Service,
    StatusHandler,
    StreamHandler,
    Transport,
)
from peer.network.transport.addresses import TcpProbe, why_taken
from peer.network.transport.server import GrpcServer, Handler, ServerContext, ServerPipe, UnaryHandlers
from peer.network.transport.unknown_callers import ConnectionLimiter
from peer.network.wire.frames import largest_frame
from peer.network.wire.messages import SERVICE, sanitise
from peer.tasks import background, shielded
from peer.telemetry.events import Report

if TYPE_CHECKING:
    from peer.network.transport.tls import TlsCredentials

    StreamCall = grpc.aio.StreamStreamCall[bytes, bytes]


GRPC_REASONS = {
    "Connection refused": REFUSED,
    "No route to host": NO_ROUTE,
    "Network is unreachable": NO_ROUTE,
    "Timeout": TIMED_OUT,
    "tcp handshaker": TIMED_OUT,
    "timed out": TIMED_OUT,
    "FD shutdown": TIMED_OUT,
    "DNS": UNKNOWN_HOST,
    "Domain name": UNKNOWN_HOST,
    "Name or service not known": UNKNOWN_HOST,
    "HTTP/2": "what listens there is no dfl-peer",
    "Connection reset": "connection reset",
    "Socket closed": "connection closed",
    "Internal error from Core": "connection lost",
    "Cancelling all calls": "connection closed",
}
CLOSED_AT_ONCE = "what listens there is no dfl-peer, or one with certificates, and there are none here"
CERTIFICATE_REJECTED = "it does not take this peer's certificate, or is no dfl-peer"
TLS_REASONS = {
    "Hostname Verification": OTHER_NAME,
    "WRONG_VERSION_NUMBER": "it has no certificates, and this peer has",
    "CERTIFICATE_VERIFY_FAILED": UNTRUSTED,
    "SSL": "TLS handshake failed",
    "handshak": "TLS handshake failed",
}
CERTIFICATE_REASONS = {CERTIFICATE_REJECTED, *TLS_REASONS.values()} - {TLS_REASONS["WRONG_VERSION_NUMBER"]}
"""The reasons that a look at both ends' certificates may explain."""


class ClientPipe(Pipe):
    """The dialling end of a stream."""

    def __init__(
        self, call: "StreamCall", origin: str, security: "TlsCredentials | None", stands: Callable[[], bool]
    ) -> None:
        self._call, self.origin, self._security = call, origin, security
        self._stands = stands
        """Returns whether this peer still uses the connection."""

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
                raise _unless_cancelled(LocallyClosedError("the connection was made anew")) from None
            why = describe_grpc_error(error.details() or error.code().name, self._security is not None)
            if self._security and why in CERTIFICATE_REASONS:
                why = await self._security.compared(why, self.origin)
            raise _unless_cancelled(DisconnectedError(why)) from None
        except asyncio.InvalidStateError:
            raise _unless_cancelled(DisconnectedError("connection closed")) from None
        except asyncio.CancelledError:  # of the task that waits for the call, or the call was aborted
            raise _unless_cancelled(LocallyClosedError("closed")) from None


def _unless_cancelled(error: DisconnectedError) -> DisconnectedError | asyncio.CancelledError:
    """The exception to raise when a call has ended: a cancelled task must not take that for a break and call again.

    While gRPC prepares a call, its reader waits for a task of gRPC's, which swallows a cancellation. If the connection
    breaks at that moment, `read` shows only the break.
    """
    task = asyncio.current_task()
    return asyncio.CancelledError() if task and task.cancelling() else error


def describe_grpc_error(details: str, secure: bool) -> str:
    """Put gRPC's account of a failure into a few words to act on; TLS is mentioned only if it is used."""
    if "failed to connect" in details and "Socket closed" in details:
        return CERTIFICATE_REJECTED if secure else CLOSED_AT_ONCE
    for sign, words in (GRPC_REASONS | TLS_REASONS if secure else GRPC_REASONS).items():
        if sign in details:
            return words
    return sanitise(details, Limits().characters)  # the other end's server chooses them


MAX_MESSAGE = largest_frame(Limits().frame) + 4096
UNCOMPRESSED = ("grpc.compression_enabled_algorithms_bitset", 1)
"""Compression is off: a compressed message, which could unfold from a few bytes to any size, ends its call unread."""
SERVER_OPTIONS = [
    UNCOMPRESSED,
    ("grpc.max_send_message_length", MAX_MESSAGE),
    ("grpc.so_reuseport", 0),  # else two servers could bind one port, and each would get half of the connections
    ("grpc.http2.min_ping_interval_without_data_ms", 5000),  # allow the clients' pings, set below
    ("grpc.http2.max_ping_strikes", 0),
]
GRPC_HANDLERS = ("_schedule_rpc_coro", "_handle_exceptions")
"""The names of the coroutines of gRPC's own tasks for incoming calls."""
CLIENT_OPTIONS = [
    UNCOMPRESSED,
    ("grpc.max_send_message_length", MAX_MESSAGE),
    ("grpc.max_receive_message_length", MAX_MESSAGE),
    ("grpc.max_metadata_size", 8192),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 500),
    ("grpc.min_reconnect_backoff_ms", 5000),  # in fact the time that one attempt to connect may take
    ("grpc.dns_min_time_between_resolutions_ms", 1000),  # else a host that comes back elsewhere is missed for 30 s
    ("grpc.keepalive_time_ms", 20_000),  # a NAT would forget a stream that is silent while its peer trains
    ("grpc.keepalive_timeout_ms", 60_000),  # at 1 Mbit/s a ping waits long behind frames
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.enable_http_proxy", 0),  # no proxy by http_proxy in the environment
    ("grpc.address_http_proxy_enabled_addresses", ""),  # nor by GRPC_ADDRESS_HTTP_PROXY
    ("grpc.use_local_subchannel_pool", 1),  # a connection of its own for tensors and for heartbeats
]


class GrpcTransport(Transport):
    """Listens at one address and dials all others; `status` answers the Status RPC."""

    def __init__(
        self,
        place: ListenConfig,
        status: StatusHandler,
        security: "TlsCredentials | None" = None,
        strangers: UnknownCallerLimits = UnknownCallerLimits(),
        report: Report = lambda _event: None,
    ) -> None:
        self._place, self._status, self._security = place, status, security
        self._context = ServerContext(place, security.subject if security else None, strangers, report)
        self._servers: dict[str, GrpcServer] = {}
        self._channels: dict[tuple[str, Service], grpc.aio.Channel] = {}
        self._accepted: WeakSet[ServerPipe] = WeakSet()
        self._accept: StreamHandler | None = None
        self._probe = TcpProbe()
        self._closed = False

    @property
    def certificate_expires(self) -> float | None:
        return self._security.bundle.expires.timestamp() if self._security else None

    async def watch_expiry(self) -> None:
        if self._security:
            await self._security.watch_expiry()

    async def listen(self, accept: StreamHandler) -> None:
        self._accept = accept
        if self._place.listen:
            await self._listen_for_peers(self._place.listen)
        if self._place.probes:
            await self._listen_for_probes(self._place.probes)

    async def run(self) -> None:
        """Close excess connections, and take up new certificates, until cancelled."""
        async with background() as group:
            group.create_task(self._context.probe_limiter.watch())
            watching = group.create_task(self._context.limiter.watch())
            # gRPC cannot cope with a server whose start or end is cancelled.
            await (self._security.watch(partial(shielded, self._serve_anew)) if self._security else watching)

    async def _listen_for_peers(self, address: str) -> None:
        assert self._accept
        limiter, answers = self._context.limiter, UnaryHandlers(self._context.limiter, self._context)
        server = self._server(limiter, MAX_MESSAGE, self._context.connections, self._context.strangers.streams)
        server.serve(SERVICE, {service: self._handler(self._accept, service) for service in SERVICES})
        server.serve(SERVICE, {"Status": answers.status(self._status)})
        answers.health(server)
        answers.reflection(server)
        limiter.watch_port(await self._serve(server, address, self._security))

    async def _listen_for_probes(self, address: str) -> None:
        limiter, context = self._context.probe_limiter, self._context
        server = self._server(limiter, context.strangers.request, context.probe_connections, streams=1)
        UnaryHandlers(limiter, context).health(server)
        limiter.watch_port(await self._serve(server, address, None))

    def _server(self, limiter: ConnectionLimiter, largest: int, connections: int, streams: int) -> GrpcServer:
        strangers = self._context.strangers
        bounds = {
            "grpc.max_receive_message_length": largest,
            "grpc.max_concurrent_streams": streams,
            "grpc.server.max_pending_requests": strangers.waiting,
            "grpc.server.max_pending_requests_hard_limit": 2 * strangers.waiting,
            "grpc.max_allowed_incoming_connections": connections,
            "grpc.max_metadata_size": strangers.headers,
            "grpc.absolute_max_metadata_size": strangers.headers,
            "grpc.server_handshake_timeout_ms": round(1000 * strangers.handshake),
            "grpc.max_connection_idle_ms": round(1000 * strangers.idle),
        }
        return GrpcServer([*SERVER_OPTIONS, *bounds.items()], limiter.on_stream)

    async def _serve(self, server: GrpcServer, address: str, security: "TlsCredentials | None") -> int:
        """Start a server at an address; return its port. InputError if that is not possible."""
        if why := why_taken(address):  # gRPC would log a line of its own without the reason
            raise InputError(f"cannot listen at {address}: {why}; stop what uses it or give this peer another `listen`")
        try:
            port = (
                server.add_secure_port(address, security.bundle.server)
                if security
                else server.add_insecure_port(address)
            )
        except RuntimeError:
            raise InputError(
                f"cannot listen at {address}: the address is in use or not this machine's; "
                "stop what uses it or give this peer another `listen`"
            ) from None
        await server.start()
        self._servers[address] = server
        return port

    def _handler(self, accept: StreamHandler, service: Service) -> Handler:
        async def handle(_requests: Any, context: Any) -> None:
            if not (met := self._context.meet(context, self._context.limiter)):
                return
            pipe = ServerPipe(context, met, self._context)
            self._accepted.add(pipe)
            try:
                await accept(service, pipe)
            except asyncio.CancelledError:
                # gRPC does not tell the client of a cancelled handler: it would wait on this stream for ever, while a
                # return ends the stream. gRPC would also log each cancellation that is raised.
                return
            finally:
                pipe.ended()

        return handle

    async def dial(self, address: str, service: Service) -> Pipe:
        if self._closed:
            raise LocallyClosedError("this peer is closing its connections")
        key = (address, _channel_of(service))
        if key not in self._channels:
            self._channels[key] = self._channel(address)
        channel = self._channels[key]
        call: StreamCall = channel.stream_stream(f"/{SERVICE}/{service}")()
        return ClientPipe(call, address, self._security, lambda: self._channels.get(key) is channel)

    def _channel(self, address: str) -> grpc.aio.Channel:
        if self._security:
            name = ("grpc.ssl_target_name_override", self._security.names[address])
            return grpc.aio.secure_channel(address, self._security.bundle.channel, options=[*CLIENT_OPTIONS, name])
        return grpc.aio.insecure_channel(address, options=CLIENT_OPTIONS)

    async def reach(self, address: str) -> None:
        await self._probe.reach(address)

    async def renew(self, address: str, *services: Service) -> None:
        for key in [(address, _channel_of(service)) for service in services or SERVICES]:
            if channel := self._channels.pop(key, None):
                await channel.close()

    async def _serve_anew(self) -> None:
        """Close everything and listen again, as the certificates are new; a repetition after a failure has nothing left
        to close.

        gRPC can replace the certificate of a running server, but frees the old one while handshakes still use it
        (grpc/grpc issue 36693), which crashes the peer.
        """
        for address in {address for address, _ in self._channels}:
            await self.renew(address)
        if not (self._accept and (place := self._place.listen)):
            return
        if server := self._servers.pop(place, None):
            for pipe in [*self._accepted]:
                pipe.abort()
            await server.stop(grace=None)
        await self._listen_for_peers(place)

    async def close(self) -> None:
        self._closed = True
        for channel in self._channels.values():
            await channel.close()
        for server in self._servers.values():
            await server.stop(grace=0.5)
        # gRPC logs a traceback if the loop ends before its handlers, including those that have only begun and have no
        # pipe yet.
        names = {task: getattr(task.get_coro(), "__qualname__", "") for task in asyncio.all_tasks()}
        if handlers := [task for task, name in names.items() if name in GRPC_HANDLERS]:
            await asyncio.wait(handlers, timeout=0.5)
        await asyncio.sleep(0)


def _channel_of(service: Service) -> Service:
    """The channel of a service: tensors of both directions share one, and all small messages another."""
    return "Tensors" if service in ("Tensors", "Fetch") else "Heartbeat"
