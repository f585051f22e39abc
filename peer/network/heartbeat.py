"""Signs of life between neighbours, with what they tell each other besides tensors: durable rounds and resources.

Suspicion is only shown and counted; it never changes the run.
"""

import asyncio
from base64 import b64encode
from collections import Counter
from contextlib import suppress
from functools import partial
from math import inf

from peer.network.link_news import LinkNews
from peer.network.membership.durability import ImpossibleError
from peer.network.membership.edges import LinkState, Neighbour
from peer.network.node import Callbacks, Node
from peer.network.streams.conversation import FAREWELL, Accepted, Beats, Conversation, Dialled
from peer.network.streams.handshake import RefusedError
from peer.network.streams.refusals import Sayings
from peer.network.streams.retries import Retries
from peer.network.streams.succession import Succession
from peer.network.streams.traffic import Counted
from peer.network.transport import BreachError, DisconnectedError, GivenUpError
from peer.network.vigil import Vigil
from peer.network.wire.frames import BadFrameError
from peer.network.wire.messages import Beat, Reply, Welcome
from peer.tasks import background
from peer.telemetry.events import Refused


class Heartbeats:
    """Beats towards all neighbours and listens to theirs."""

    def __init__(self, node: Node, callbacks: Callbacks) -> None:
        self._node, self._callbacks = node, callbacks
        self._edges, self._timeouts = node.edges, node.timeouts
        self._clock = asyncio.get_running_loop().time
        self._accepted = Succession(node.limits, node.timeouts)
        self._news = LinkNews(node.limits, node.timeouts, callbacks.report)
        self._vigil = Vigil(node, self._now, self._news.catch_up)
        self._dialled: dict[str, Counted] = {}
        """Streams that this peer has opened, by neighbour."""
        self._leaving = asyncio.Event()
        self._told: set[str] = set()
        """To whom this peer has written its farewell."""
        self._doubted: set[str] = set()
        """Who has said what cannot be."""
        self._conversations = Counter[str]()
        """By neighbour: two for a moment, where both have dialled."""
        self._voices: dict[str, Counted] = {}
        """On which stream each neighbour last gave a sign of life."""
        self._began: dict[str, float] = {}
        """The last of them, by the loop's clock."""
        self._ended = asyncio.Event()
        """Set when one of them ends."""
        self.closing = False

    async def part(self) -> None:
        """Say farewell to all neighbours and wait for the end of all streams: who hears it ends them."""
        self._leaving.set()
        self._node.durability.stir()  # each conversation waits there for its next beat
        while self._conversations.total() or not all(map(self._parted, self._edges.neighbours.values())):
            await self._news_of_an_end()

    async def _news_of_an_end(self) -> None:
        """Wait until a stream has ended, or somebody may have gone on to a later view."""
        self._ended.clear()
        async with background() as group:
            news = [
                group.create_task(self._ended.wait()),
                group.create_task(self._node.durability.beyond(self._node.durability.version)),
            ]
            await asyncio.wait(news, return_when=asyncio.FIRST_COMPLETED)

    def _parted(self, neighbour: Neighbour) -> bool:
        """One of the two has taken its leave: from now on this peer does not dial."""
        if self._edges.neighbours.get(neighbour.id) is not neighbour:
            return True
        gone = neighbour.id in self._told or neighbour.gone_on or neighbour.state == "left"
        return self._leaving.is_set() and gone

    async def part_with(self, other: str) -> None:
        """Tell a former neighbour the last news, and wait until it has ended its streams: then it knows them."""
        self._node.durability.stir()  # each conversation waits there for its next beat
        with suppress(TimeoutError):
            async with asyncio.timeout(self._timeouts.leave):
                while self._conversations[other]:
                    self._ended.clear()
                    await self._ended.wait()

    async def watch(self) -> None:
        """Who is silent."""
        await self._vigil.run()

    async def run(self, neighbour: Neighbour) -> None:
        """Keep a heartbeat stream to a neighbour open, as far as that is for this peer to do."""
        retries, sayings = Retries(self._timeouts), Sayings(self._node.limits, self._timeouts)
        while await self._turn(neighbour):
            try:
                await self._dial(neighbour, retries)
                pause = self._timeouts.retry[-1]  # it has said farewell: should it come back, that is not now
            except GivenUpError:
                pause = retries.cut()
            except DisconnectedError as error:
                why = sayings.hear(str(error))
                if neighbour.id not in self._dialled:
                    neighbour.unreachable(why)
                self._broken(neighbour.id, why)
                pause = retries.cut()
            except RefusedError as error:
                self._broken(neighbour.id, sayings.hear(str(error)))
                pause = retries.refused(error)
            if not self._parted(neighbour):
                self._dialled.pop(neighbour.id, None)
                await asyncio.sleep(pause)

    async def _turn(self, neighbour: Neighbour) -> bool:
        """Wait until this peer is to dial: of two that can be dialled the one with the smaller id is the first.

        The other one does it when nothing comes: the way may be free in its direction only. False if it is to dial no
        more, as the two have parted.
        """
        while self._accepted.present(neighbour.id) or not self._first(neighbour.id):
            wait = neighbour.heard + self._timeouts.suspect + self._timeouts.probe - self._clock()
            if wait <= 0 or self._parted(neighbour):
                break
            with suppress(TimeoutError):
                async with asyncio.timeout(wait):
                    self._ended.clear()
                    await self._ended.wait()
        return not self._parted(neighbour)

    def _first(self, other: str) -> bool:
        return self._node.id < other or not self._edges.can_be_dialled(self._node.id)

    async def _dial(self, neighbour: Neighbour, retries: Retries) -> None:
        async with self._node.stream(neighbour, "Heartbeat") as (pipe, _):
            retries.welcomed()
            self._dialled[neighbour.id] = pipe
            await self._converse(neighbour.id, Dialled(pipe, self._node))

    async def accept(self, pipe: Counted) -> None:
        """The accepting end of such a stream, after its hello; beside one in use it counts from its first beat on."""
        caller, counts = pipe.peer, self._accepted.enter(pipe)
        welcome = Reply(welcome=Welcome(durable=self._node.durability.own))
        try:
            await pipe.tell(welcome.SerializeToString(), self._timeouts.read)
            if not counts:
                await self._succeed(pipe)
            await self._converse(caller, Accepted(pipe, self._node))
        except DisconnectedError as error:
            if self._accepted.present(caller) is pipe:
                self._broken(caller, str(error))
            if isinstance(error, BreachError):
                raise
        except asyncio.CancelledError:
            # So a handler learns that its caller is gone, or that this peer closes.
            if self._accepted.present(caller) is pipe and not self.closing:
                self._broken(caller, "connection closed")
            raise
        finally:
            self._accepted.leave(pipe)

    def end(self, caller: str) -> None:
        """It is no neighbour any more."""
        self._accepted.end(caller)

    async def _succeed(self, pipe: Counted) -> None:
        """A stream beside one in use: it takes that one's place when it says something."""
        beat = await pipe.receive()
        try:
            self._node.foreign.beat(beat)
        except BadFrameError as error:
            raise BreachError(str(error)) from None
        pipe.unread(beat)
        await self._accepted.succeed(pipe)

    async def _converse(self, other: str, beats: Beats) -> None:
        """One stream to its end."""
        heard = partial(self._heard, other, beats.pipe)
        conversation = Conversation(self._node, self._callbacks, beats, self._leaving, heard)
        self._conversations[other] += 1
        self._began[other] = self._clock()
        try:
            await conversation.run()
        finally:
            self._conversations[other] -= 1
            if conversation.farewell_said:
                self._told.add(other)
            self._ended.set()

    async def _heard(self, other: str, pipe: Counted, beat: Beat) -> None:
        dialled = self._dialled.get(other)
        if dialled and pipe is self._accepted.present(other) and not self._first(other):
            dialled.abort()  # one stream is enough: the first one's
        # It may have ceased to be a neighbour and become one again since the stream was opened.
        if neighbour := self._edges.neighbours.get(other):
            await self._spoken(neighbour, pipe)
            neighbour.alive, neighbour.heard, neighbour.doing = (
                True,
                self._clock(),
                f"{beat.state[:20]} in round {beat.round}",
            )
            neighbour.hear_complaint(beat.obstacle if beat.HasField("obstacle") else None, self._clock())
            if beat.HasField("resources"):
                neighbour.resources = beat.resources
            if beat.HasField("heard") and beat.heard > neighbour.has_heard:
                neighbour.has_heard = beat.heard
                self._node.durability.stir()  # a farewell may wait for it
        self._believe(other, beat)
        if beat.state == FAREWELL and self._node.durability.of(other) < self._last(other):
            self._now(other, "down", "it says farewell before it can have finished")
        elif beat.state == FAREWELL:
            self._now(other, "left", "finished")
        elif self._stuck(other, beat):
            self._now(other, "suspected", "it gives signs of life, but what is sent to it does not arrive")
        else:
            self._now(other, "up", "")

    def _stuck(self, other: str, beat: Beat) -> bool:
        taken = beat.taken if beat.HasField("taken") else None
        stuck = self._node.deliveries.stuck(other, taken, self._clock())
        if neighbour := self._edges.neighbours.get(other):
            neighbour.stuck = stuck
        return stuck

    async def _spoken(self, neighbour: Neighbour, pipe: Counted) -> None:
        """Signs of life that come again, on another stream: the one before was cut off without a word, and so may be
        the connection for tensors, if it is an old one."""
        if self._voices.get(neighbour.id) is not pipe:
            self._voices[neighbour.id] = pipe
            missed = self._clock() - neighbour.heard > 2 * self._timeouts.beat
            old = neighbour.stands is not None and neighbour.stands < neighbour.heard
            if missed and old and neighbour.address and neighbour.state != "joining":
                await self._node.transport.renew(neighbour.address, "Tensors")

    def _last(self, other: str) -> int:
        return self._edges.last(other, self._node.last_round)

    def _believe(self, teller: str, beat: Beat) -> None:
        """What it says of itself counts; of others it may hold this peer back; what cannot be is told once."""
        durability = self._node.durability
        try:
            durability.said(teller, beat.durable)
            if not self._node.identity.keyring.signs:
                durability.overheard(teller, beat.others)
            for one in beat.announced:
                signature, certificate = b64encode(one.signature).decode(), b64encode(one.certificate).decode()
                durability.proved(one.id, one.round, signature, certificate)
        except ImpossibleError as error:
            if teller not in self._doubted:
                self._doubted.add(teller)
                self._callbacks.report(Refused(caller=teller, reason=f"{error}; compare its code with this peer's"))

    def _broken(self, other: str, reason: str) -> None:
        """A stream has ended, or there is none; nothing is lost while another one stands."""
        if not self._conversations[other]:
            if neighbour := self._edges.neighbours.get(other):
                neighbour.alive = False
            self._now(other, "down", reason)

    def _now(self, other: str, state: LinkState, reason: str) -> None:
        neighbour = self._edges.neighbours.get(other)
        if neighbour is None or (state in ("down", "suspected") and self._leaving.is_set()):
            return
        if state == "up" and (trouble := neighbour.trouble(self._settled(other))):
            state, reason = "suspected", trouble
        if state == "down" and other not in self._edges.current():
            # The ring has another order now: it was the first to forget.
            state, reason = "left", "no neighbour any more"
        if state == "down" and neighbour.state in ("joining", "left"):
            neighbour.unreachable(reason)
        else:
            self._news.change(neighbour, state, reason)

    def _settled(self, other: str) -> float:
        """Since when something must have been wrong to be told: at first there may be other streams to be opened."""
        settled = self._clock() - self._timeouts.settle
        return settled if self._began.get(other, settled) < settled else -inf
