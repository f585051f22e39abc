"""The accepting end of streams: who may come in, and what those may take who are not known."""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import Any

import grpc
import grpc.aio

from peer.network.limits import Strangers
from peer.network.transport.addresses import Endpoint
from peer.network.transport.base import DisconnectedError, Pipe, Place
from peer.network.transport.doorkeeper import Doorkeeper
from peer.network.transport.reading import Reading
from peer.network.transport.ring_addresses import RingAddresses
from peer.process import open_files
from peer.telemetry.events import Report

Holder = Callable[..., str]
"""Whose the certificate is that a caller has shown; nobody's, "", without one. None where there are no certificates."""

Met = tuple[Endpoint, str | None]
"""From where a call comes, and by whose certificate, as in `Pipe.identity`."""


class Entrance:
    """What a peer's servers have in common: who may come in, and what those may take who are not known."""

    def __init__(self, place: Place, holder: Holder | None, strangers: Strangers, report: Report) -> None:
        self.holder, self.strangers = holder, strangers.beside(place.neighbours)
        self.connections = room(place.neighbours, self.strangers)
        spare = self.connections - strangers.of_one_member * place.neighbours
        # For strangers, for other members, and for who comes between two looks.
        few = min(self.strangers.connections, max(2, spare // 3))
        self.doorkeeper = Doorkeeper(replace(self.strangers, connections=few), report)
        # Of probes gRPC takes twice as many as there are to be: who comes in between two looks.
        half = strangers.of_one_origin // 2
        self.at_probes = Doorkeeper(replace(strangers, connections=2 * half, of_one_origin=half), report)
        self.reading = Reading(self.strangers)
        self._ring = RingAddresses(place.ring, strangers)

    def meet(self, context: "grpc.aio.ServicerContext[bytes, bytes]", doorkeeper: Doorkeeper) -> Met | None:
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


def room(neighbours: int, strangers: Strangers) -> int:
    """Incoming connections at once: as many as descriptors are left beside the peer's files and its own connections."""
    needed = strangers.of_one_member * neighbours
    left = open_files() - strangers.own_files - needed // 2
    return min(needed + 3 * strangers.connections, max(left, needed // 2 + 2))


class ServerPipe(Pipe):
    """The accepting end, alive as long as its handler runs."""

    def __init__(self, context: "grpc.aio.ServicerContext[bytes, bytes]", met: Met, entrance: Entrance) -> None:
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
