"""An operator's requests to peers: for their status (the Status RPC), and that a member leave or be expelled.

Status and watch, the dashboard and the check before a start ask for the status; `dfl-launch leave` and `expel` send the
others to one member, with that member's own certificate.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self, TypeAlias

import grpc
import grpc.aio

from peer.network.limits import Limits
from peer.network.streams.handshake import Identity, RefusedError
from peer.network.transport import UNKNOWN_HOST as UNKNOWN_HOST
from peer.network.transport import DisconnectedError, ListenConfig, no_status
from peer.network.transport.addresses import check_tcp
from peer.network.transport.grpc import CERTIFICATE_REASONS, CLIENT_OPTIONS, GrpcTransport, describe_grpc_error
from peer.network.transport.grpc import CLOSED_AT_ONCE as CLOSED_AT_ONCE
from peer.network.transport.tls import CertificateBundle, CertificatePaths, TlsCredentials
from peer.network.view_rpc import ViewRpc
from peer.network.wire.frames import BadFrameError
from peer.network.wire.messages import SERVICE, Resources, StatusReply, UntrustedDecoder
from peer.telemetry.events import LARGEST_FIGURE, LAST_MOMENT, MAX_STATE_CHARACTERS, Awaited, Shortage
from peer.views.statements import InvalidError, Reply, Request

STATUS_METHOD = f"/{SERVICE}/Status"
ANSWER_TIMEOUT_S = 5.0
"""Seconds for an answer, the connection included."""
MAX_CONCURRENT_QUESTIONS = 64
"""How many peers are asked at a time."""
BYTES_PER_MEMBER = 8192
"""Bytes that an answer may have for each member of the federation: name, address, reason and resources."""
MAX_ID_CHARACTERS = 64
MAX_WAIT_S = 1e9
"""The longest wait that is believed, in seconds."""


@dataclass(frozen=True)
class LinkStatus:
    """A peer's report on one neighbour. durable: the neighbour's durable round; -1: none. release: that which the
    neighbour runs; empty before a handshake."""

    id: str
    address: str
    state: str
    reason: str
    durable: int
    release: str = ""


@dataclass(frozen=True)
class PeerStatus:
    """A peer's report on itself: its state and round, the task's headline figure, accuracy in 0..1 if the task has
    classes, bytes of all rounds, links and resources."""

    id: str
    state: str
    round: int
    rounds: int
    accuracy: float | None
    bytes_sent: int
    bytes_received: int
    neighbours: tuple[LinkStatus, ...]
    resources: dict[str, Any]
    figure: float | None = None
    view: int = 0
    """The number of the view that it is in; `first` is that view's first round."""
    first: int = 0
    outside: tuple[str, ...] = ()
    """Peers of the spec that are not in that view."""
    shortage: Shortage | None = None
    """How many members a decision on the next view waits for; `awaited` says which."""
    awaited: tuple[Awaited, ...] = ()
    certificate_expires: float | None = None
    """Until when its certificates are valid, in Unix seconds; None without certificates."""
    release: str = ""
    """The version of dfl and the beginning of its code's SHA-256; empty if it does not say."""
    durable: int | None = None
    """Its last round on its own disk; -1: none; None if it does not say."""

    @classmethod
    def from_reply(cls, reply: StatusReply) -> Self:
        known = reply.HasField("accuracy") and reply.accuracy <= 1 + 1e-6
        return cls(
            reply.id,
            reply.state[:MAX_STATE_CHARACTERS],
            reply.round,
            reply.rounds,
            reply.accuracy if known else None,
            reply.bytes_sent,
            reply.bytes_received,
            tuple(
                LinkStatus(one.id, one.address, one.state[:MAX_STATE_CHARACTERS], one.reason, one.durable, one.release)
                for one in reply.neighbours
            ),
            _resources_as_json(reply.resources),
            reply.figure if reply.HasField("figure") and abs(reply.figure) <= LARGEST_FIGURE else None,
            reply.view,
            reply.first,
            tuple(reply.outside),
            _shortage(reply.shortage) if reply.HasField("shortage") else None,
            tuple(Awaited(one.id, one.address or None, one.reason) for one in reply.shortage.awaited),
            reply.certificate_expires if 0 < reply.certificate_expires <= LAST_MOMENT else None,
            reply.release,
            reply.durable if reply.HasField("durable") else None,
        )


if TYPE_CHECKING:
    Question = grpc.aio.UnaryUnaryMultiCallable[bytes, bytes]
StatusAnswer = PeerStatus | str
"""A peer's status, or why it does not answer."""


class StatusClient:
    """Asks the members of one federation, each over a connection that stays open.

    members: address by id, None for a peer without one. bundle: certificates of any member, None if there are none.
    """

    def __init__(
        self,
        federation: str,
        members: Mapping[str, str | None],
        bundle: CertificateBundle | None,
        timeout_s: float = ANSWER_TIMEOUT_S,
    ):
        self._federation, self._members, self._bundle, self._timeout_s = federation, members, bundle, timeout_s
        self._decoder = UntrustedDecoder(Limits(), len(members))
        self._channels: dict[str, grpc.aio.Channel] = {}
        self._places = asyncio.Semaphore(MAX_CONCURRENT_QUESTIONS)

    @property
    def secure(self) -> bool:
        """Whether the client uses certificates."""
        return self._bundle is not None

    async def ask_all(self, ids: Iterable[str] | None = None) -> dict[str, StatusAnswer]:
        """Return the answers of all peers, or of these, by id."""
        ids = [*(self._members if ids is None else ids)]
        answers = await asyncio.gather(*map(self._answer, ids))
        return dict(zip(ids, answers, strict=True))

    async def ask(self, id: str) -> PeerStatus:
        """Return a peer's status; DisconnectedError, with the reason, if there is no answer or not from this peer."""
        if (address := self._members[id]) is None:
            raise DisconnectedError("it only dials out, so it cannot be asked")
        if id not in self._channels:
            self._channels[id] = self._channel(id, address)
        try:
            question: Question = self._channels[id].unary_unary(STATUS_METHOD)
            return self._read(id, await question(b"", timeout=self._timeout_s))
        except grpc.aio.AioRpcError as error:
            await self._hang_up(id)  # the next question dials anew, instead of waiting for gRPC's next attempt
            why = self._why(error)
            if self._bundle and why in CERTIFICATE_REASONS:
                why = await self._bundle.compared(why, address, id)
            raise DisconnectedError(why) from None
        except BadFrameError as error:
            raise DisconnectedError(str(error)) from None

    async def look(self, id: str) -> tuple[str, bool | None]:
        """Return in words whether that peer can be reached, and whether that is right; None: it cannot be told."""
        if (address := self._members[id]) is None:
            return "it dials out, so it is the one that calls", True
        met = await check_tcp(address)
        if not met.accepted:
            return f"{address}: {met.said}", met.right
        try:
            status = await self.ask(id)
        except DisconnectedError as error:
            return f"{address}: {met.said}; whether it is {id} cannot be told ({error})", None
        return f"{address}: it runs, {status.state} in round {status.round}", True

    async def aclose(self) -> None:
        for id in [*self._channels]:
            await self._hang_up(id)

    async def _answer(self, id: str) -> StatusAnswer:
        async with self._places:
            try:
                return await self.ask(id)
            except DisconnectedError as error:
                return str(error)

    def _channel(self, id: str, address: str) -> grpc.aio.Channel:
        largest = ("grpc.max_receive_message_length", Limits().control + BYTES_PER_MEMBER * len(self._members))
        options = [*(option for option in CLIENT_OPTIONS if option[0] != largest[0]), largest]
        if self._bundle:
            options.append(("grpc.ssl_target_name_override", id))
            return grpc.aio.secure_channel(address, self._bundle.channel, options=options)
        return grpc.aio.insecure_channel(address, options=options)

    async def _hang_up(self, id: str) -> None:
        if channel := self._channels.pop(id, None):
            await channel.close()

    def _read(self, id: str, data: object) -> PeerStatus:
        if not isinstance(data, bytes):  # a call may end well and without an answer
            raise DisconnectedError("its answer is empty")
        reply = self._decoder.status(data)
        if reply.id != id:
            raise DisconnectedError(f"the peer at this address is `{reply.id}`")
        if reply.federation != self._federation:
            raise DisconnectedError(f"it belongs to another federation, `{reply.federation}`")
        return PeerStatus.from_reply(reply)

    def _why(self, error: grpc.aio.AioRpcError) -> str:
        match error.code():
            case grpc.StatusCode.DEADLINE_EXCEEDED:
                return f"no answer within {self._timeout_s:g} s"
            case grpc.StatusCode.RESOURCE_EXHAUSTED:
                return "its answer is longer than any that a peer gives"
            case grpc.StatusCode.UNIMPLEMENTED:
                return "the service at this address is not a peer"
        return describe_grpc_error(error.details() or error.code().name, self._bundle is not None)


def _shortage(said: StatusReply.Shortage) -> Shortage:
    seconds = said.seconds if 0 <= said.seconds <= MAX_WAIT_S else 0.0
    return Shortage(said.here, said.members, said.needed, said.tie_breaker[:MAX_ID_CHARACTERS], seconds)


def _resources_as_json(resources: Resources) -> dict[str, Any]:
    """The resources by their names in the .proto file."""
    values = {field.name: getattr(resources, field.name) for field in resources.DESCRIPTOR.fields}
    return values | {"bytes_per_second": dict(resources.bytes_per_second)}


Ask: TypeAlias = Callable[[Request], Awaitable[Reply]]


class UnansweredError(Exception):
    """Raised when the member has not answered; the text says why."""


@asynccontextmanager
async def connect(
    id: str,
    addresses: Mapping[str, str | None],
    agreement: Mapping[str, Any],
    digests: Mapping[str, str],
    certificates: CertificatePaths | None,
) -> AsyncIterator[Ask]:
    """A function that asks that member, during the block; UnansweredError if there is no answer.

    addresses: those of all members. agreement: what all members agree on, as plain JSON. digests: one for each key.
    """
    known = {member: at for member, at in addresses.items() if at}
    names = {at: member for member, at in known.items()}
    security = TlsCredentials(certificates, names, lambda _event: None) if certificates else None
    transport = GrpcTransport(ListenConfig(listen=None), no_status, security)
    questions = ViewRpc(Identity(id, digests, manifest="", settings=agreement), known)

    async def ask(request: Request) -> Reply:
        try:
            return await questions.ask(transport, id, request)
        except (DisconnectedError, RefusedError, InvalidError) as error:
            raise UnansweredError(str(error)) from None

    try:
        yield ask
    finally:
        await transport.close()
