"""Asking peers what they do, by the Status RPC: for whoever is none of them."""

import asyncio
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

import grpc
import grpc.aio

from peer.network.limits import Limits
from peer.network.transport.base import DisconnectedError
from peer.network.transport.dialled import ABOUT_CERTIFICATES, reason
from peer.network.transport.dialled import SHUT_AT_ONCE as SHUT_AT_ONCE
from peer.network.transport.grpc import CLIENT
from peer.network.transport.tls import Chain
from peer.network.wire.foreign import Foreign
from peer.network.wire.frames import BadFrameError
from peer.network.wire.messages import SERVICE, Resources, StatusReply
from peer.telemetry.events import LARGEST_FIGURE, Awaited, Shortage

METHOD = f"/{SERVICE}/Status"
PATIENCE = 5.0
"""Seconds for an answer, the connection included."""
AT_ONCE = 64
"""Peers that are asked at the same time."""
MEMBER = 8192
"""Bytes that an answer may have for each member of the federation: its name, address, reason and resources."""
LONGEST_STATE = 32
"""Characters of a state that are kept."""
LONGEST_ID = 64
LONGEST_WAIT = 1e9
"""Seconds that can be believed."""


@dataclass(frozen=True)
class Link:
    """What a peer says of one neighbour. durable: rounds up to this one the neighbour has on its own disk; -1: none."""

    id: str
    address: str
    state: str
    reason: str
    durable: int


@dataclass(frozen=True)
class PeerStatus:
    """What a peer says of itself: its state and round, the task's headline figure, accuracy in 0..1 where the task has
    classes, bytes of all rounds, links and resources."""

    id: str
    state: str
    round: int
    rounds: int
    accuracy: float | None
    bytes_sent: int
    bytes_received: int
    neighbours: tuple[Link, ...]
    resources: dict[str, Any]
    figure: float | None = None
    view: int = 0
    """The number of the view in which it lives; `first` is that view's first round."""
    first: int = 0
    outside: tuple[str, ...] = ()
    """Members of the spec that are not in that view."""
    shortage: Shortage | None = None
    """Where a decision on the next view waits for members; `awaited`: for whom."""
    awaited: tuple[Awaited, ...] = ()

    @classmethod
    def of(cls, reply: StatusReply) -> Self:
        known = reply.HasField("accuracy") and reply.accuracy <= 1 + 1e-6
        return cls(
            reply.id,
            reply.state[:LONGEST_STATE],
            reply.round,
            reply.rounds,
            reply.accuracy if known else None,
            reply.bytes_sent,
            reply.bytes_received,
            tuple(
                Link(one.id, one.address, one.state[:LONGEST_STATE], one.reason, one.durable)
                for one in reply.neighbours
            ),
            _plain(reply.resources),
            reply.figure if reply.HasField("figure") and abs(reply.figure) <= LARGEST_FIGURE else None,
            reply.view,
            reply.first,
            tuple(reply.outside),
            _shortage(reply.shortage) if reply.HasField("shortage") else None,
            tuple(Awaited(one.id, one.address or None, one.reason) for one in reply.shortage.awaited),
        )


if TYPE_CHECKING:
    Question = grpc.aio.UnaryUnaryMultiCallable[bytes, bytes]
Answer = PeerStatus | str
"""What a peer says, or why it does not answer."""


class StatusClient:
    """Asks the members of one federation, each over a connection that stays open.

    members: address by id, None of those that nobody can dial. chain: certificates of any member, None where there
    are none.
    """

    def __init__(
        self, federation: str, members: Mapping[str, str | None], chain: Chain | None, patience: float = PATIENCE
    ):
        self._federation, self._members, self._chain, self._patience = federation, members, chain, patience
        self._foreign = Foreign(Limits(), len(members))
        self._channels: dict[str, grpc.aio.Channel] = {}
        self._places = asyncio.Semaphore(AT_ONCE)

    @property
    def secure(self) -> bool:
        """Whether it asks with certificates."""
        return self._chain is not None

    async def ask_all(self, ids: Iterable[str] | None = None) -> dict[str, Answer]:
        """Everybody's answer, or that of these, by id."""
        ids = [*(self._members if ids is None else ids)]
        answers = await asyncio.gather(*map(self._answer, ids))
        return dict(zip(ids, answers, strict=True))

    async def ask(self, id: str) -> PeerStatus:
        """DisconnectedError says in a few words why there is no answer, or none of this peer."""
        if (address := self._members[id]) is None:
            raise DisconnectedError("it only dials out, so nobody can ask it")
        if id not in self._channels:
            self._channels[id] = self._channel(id, address)
        try:
            question: Question = self._channels[id].unary_unary(METHOD)
            return self._read(id, await question(b"", timeout=self._patience))
        except grpc.aio.AioRpcError as error:
            await self._hang_up(id)  # the next question finds its own way, without waiting for this one's next attempt
            why = self._why(error)
            if self._chain and why in ABOUT_CERTIFICATES:
                why = await self._chain.compared(why, address, id)
            raise DisconnectedError(why) from None
        except BadFrameError as error:
            raise DisconnectedError(str(error)) from None

    async def aclose(self) -> None:
        for id in [*self._channels]:
            await self._hang_up(id)

    async def _answer(self, id: str) -> Answer:
        async with self._places:
            try:
                return await self.ask(id)
            except DisconnectedError as error:
                return str(error)

    def _channel(self, id: str, address: str) -> grpc.aio.Channel:
        largest = ("grpc.max_receive_message_length", Limits().control + MEMBER * len(self._members))
        options = [*(option for option in CLIENT if option[0] != largest[0]), largest]
        if self._chain:
            options.append(("grpc.ssl_target_name_override", id))
            return grpc.aio.secure_channel(address, self._chain.channel, options=options)
        return grpc.aio.insecure_channel(address, options=options)

    async def _hang_up(self, id: str) -> None:
        if channel := self._channels.pop(id, None):
            await channel.close()

    def _read(self, id: str, data: object) -> PeerStatus:
        if not isinstance(data, bytes):  # a call may end well and without an answer
            raise DisconnectedError("it answers nothing")
        reply = self._foreign.status(data)
        if reply.id != id:
            raise DisconnectedError(f"another peer answers there, `{reply.id}`")
        if reply.federation != self._federation:
            raise DisconnectedError(f"it belongs to another federation, `{reply.federation}`")
        return PeerStatus.of(reply)

    def _why(self, error: grpc.aio.AioRpcError) -> str:
        match error.code():
            case grpc.StatusCode.DEADLINE_EXCEEDED:
                return f"no answer within {self._patience:g} s"
            case grpc.StatusCode.RESOURCE_EXHAUSTED:
                return "its answer is longer than any that a peer gives"
            case grpc.StatusCode.UNIMPLEMENTED:
                return "what answers there is no peer"
        return reason(error.details() or error.code().name, self._chain is not None)


def _shortage(said: StatusReply.Shortage) -> Shortage:
    seconds = said.seconds if 0 <= said.seconds <= LONGEST_WAIT else 0.0
    return Shortage(said.here, said.members, said.needed, said.tie_breaker[:LONGEST_ID], seconds)


def _plain(resources: Resources) -> dict[str, Any]:
    """As JSON has it, by the names of the protocol's file."""
    names = [field.name for field in resources.DESCRIPTOR.fields if field.name != "bytes_per_second"]
    rates = dict(resources.bytes_per_second)
    return {name: getattr(resources, name) for name in names} | {"bytes_per_second": rates}
