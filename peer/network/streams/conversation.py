"""One heartbeat stream: the beats that this end sends, and those that it hears."""

import asyncio
from abc import ABC, abstractmethod
from base64 import b64decode
from collections.abc import Awaitable, Callable
from contextlib import suppress
from math import inf

from peer.network.membership.durability import NOTHING
from peer.network.node import Callbacks, Node
from peer.network.streams.traffic import Counted
from peer.network.transport import BreachError
from peer.network.wire.frames import BadFrameError
from peer.network.wire.messages import Beat, Reply
from peer.tasks import background
from peer.views.statements import Announcement, Signed

FAREWELL = "done"
"""The state in the last beat of a peer that has finished: its silence afterwards is no loss."""


class Beats(ABC):
    """Beats over a pipe, which carries them in one form to whom it was opened, and in another back."""

    def __init__(self, pipe: Counted, node: Node) -> None:
        self.pipe, self._foreign, self._seconds = pipe, node.foreign, node.timeouts.read

    @abstractmethod
    async def send(self, beat: Beat) -> None:
        """DisconnectedError when the other end is gone."""

    @abstractmethod
    async def receive(self) -> Beat:
        """DisconnectedError at the end of the stream; BadFrameError for bytes that are no beat."""


class Dialled(Beats):
    """Of a stream that this peer opened."""

    async def send(self, beat: Beat) -> None:
        await self.pipe.tell(beat.SerializeToString(), self._seconds)

    async def receive(self) -> Beat:
        reply = self._foreign.reply(await self.pipe.receive())
        if not reply.HasField("beat"):
            raise BadFrameError("what it answered is no Beat")
        return reply.beat


class Accepted(Beats):
    """Of a stream that the other peer opened."""

    async def send(self, beat: Beat) -> None:
        await self.pipe.tell(Reply(beat=beat).SerializeToString(), self._seconds)

    async def receive(self) -> Beat:
        return self._foreign.beat(await self.pipe.receive())


class Conversation:
    """A stream of signs of life, from its welcome to a farewell, or until the two are no neighbours any more."""

    def __init__(
        self,
        node: Node,
        callbacks: Callbacks,
        beats: Beats,
        leaving: asyncio.Event,
        heard: Callable[[Beat], Awaitable[None]],
    ) -> None:
        self._node, self._durability, self._timeouts = node, node.durability, node.timeouts
        self._callbacks = callbacks
        self._beats, self._leaving, self._heard = beats, leaving, heard
        self.farewell_said = False
        """That it arrived cannot be known of a stream that broke then."""

    async def run(self) -> None:
        """Until the other end says farewell; DisconnectedError once it has heard this end's last word, or is cut
        off."""
        async with background() as group:
            group.create_task(self._speak())
            # Who has read the last beat ends the stream. Were it ended here, a beat that comes from there would fail,
            # and gRPC then drops what has not been read: the last beats, for which that peer waits to its `patience`.
            await self._listen()

    async def _speak(self) -> None:
        """Beat after beat, the last of which is the farewell, or tells a former neighbour all that it lacks to forget
        the edge, too (rule R7)."""
        told: dict[str, int] = {}
        shown: dict[str, Signed[Announcement]] = {}
        clock = asyncio.get_running_loop().time
        advertised = -inf
        while True:
            version, listener = self._durability.version, self._beats.pipe.peer
            last = self._leaving.is_set() and self._is_up_to_date(listener)
            parted = listener not in self._node.edges.neighbours
            known = self._durability.known(listener)
            state, round = self._callbacks.state()
            beat = Beat(durable=self._durability.own, state=FAREWELL if last else state, round=round)
            if self._node.identity.keyring.signs:
                self._announce(beat, shown)
            else:
                beat.others.update({peer: at for peer, at in known.items() if told.get(peer) != at})
                told = known
            if (neighbour := self._node.edges.neighbours.get(listener)) and neighbour.cannot_be_reached:
                beat.obstacle.address, beat.obstacle.reason = neighbour.address or "", neighbour.obstacle
            if (taken := self._node.deliveries.taken(listener)) is not None:
                beat.taken = taken
            if clock() - advertised > self._timeouts.resources:
                advertised = clock()
                beat.resources.CopyFrom(self._callbacks.resources())
            if (heard := self._durability.of(listener)) > NOTHING:
                beat.heard = heard
            await self._beats.send(beat)
            self.farewell_said = last
            if last or parted:
                break
            await self._until_news(version)
        await self._beats.pipe.finish()

    def _announce(self, beat: Beat, shown: dict[str, Signed[Announcement]]) -> None:
        """What is not yet among `shown` on this stream of what members have signed, but the listener's own."""
        for peer, signed in self._durability.announcements().items():
            if peer != self._beats.pipe.peer and shown.get(peer) != signed:
                before = shown.get(peer)
                same = before is not None and before.certificate == signed.certificate
                beat.announced.add(
                    id=peer,
                    round=signed.statement.round,
                    signature=b64decode(signed.signature),
                    certificate=b"" if same else b64decode(signed.certificate),
                )
                shown[peer] = signed

    def _is_up_to_date(self, listener: str) -> bool:
        """Whether it knows all that this peer has on disk.

        A farewell may be lost with its stream; who had not heard of the last round before would wait to its `patience`.
        """
        neighbour = self._node.edges.neighbours.get(listener)
        return neighbour is None or neighbour.state == "left" or neighbour.has_heard >= self._durability.own

    async def _until_news(self, version: int) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(self._timeouts.beat):
                await self._durability.beyond(version)

    async def _listen(self) -> None:
        while True:
            try:
                beat = await self._beats.receive()
            except BadFrameError as error:
                raise BreachError(str(error)) from None
            await self._heard(beat)
            if beat.state == FAREWELL:
                return
