"""Signs of life between neighbours, with what they tell each other besides tensors: durable rounds and resources.

- `LinkReporter` reports changes of a neighbour's link: every change, or what it is by now where it changes too
  often.
- `FailureDetector` sees who is silent, and has connections made anew as soon as the way is free again.
- `HeartbeatStream` is one stream: the beats that this end sends, down to the farewell, and those that it hears.
- `Heartbeats` keeps one such stream with each neighbour, whichever of the two dials, and acts on what is heard.

Suspicion is only shown and counted; it never changes the run. What does is what is told: durable rounds, of which
`durability.py` says whose word counts for what; and the farewell of a peer that has finished (rule R8), whose
silence afterwards is no loss. A former neighbour is told all that it lacks to forget the edge, too, before the
stream ends (rule R7).
"""

import asyncio
from abc import ABC, abstractmethod
from base64 import b64decode, b64encode
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from math import inf

from peer.network.durability import NOTHING, ImpossibleError
from peer.network.limits import Limits, RateLimiter, Timeouts
from peer.network.neighbours import LinkState, Neighbour
from peer.network.streams.handshake import RefusedError, ThrottledReason
from peer.network.streams.state import NetworkCallbacks, NetworkState
from peer.network.streams.stream import Backoff, CountedPipe, StreamTakeover
from peer.network.transport import REFUSED, TIMED_OUT, BreachError, DisconnectedError, LocallyClosedError
from peer.network.wire.frames import BadFrameError
from peer.network.wire.messages import Beat, Reply, Welcome
from peer.tasks import background
from peer.telemetry.events import CallerRefused, LinkChanged, Report
from peer.views.statements import Announcement, Signed


@dataclass
class LinkReport:
    """Of one neighbour."""

    pace: RateLimiter
    changes: int = 0
    """Of its state, that have not been told."""
    reason: str = ""
    """The last one told."""
    other: str = ""
    """The reason now, where that is another one."""
    since: float = 0.0
    """When that came up, by the loop's clock."""


class LinkReporter:
    """Reports changes of state; those of one neighbour that come too quickly are counted.

    Another reason for the same state is told when it has lasted: of several in a row only the last is of use.
    """

    def __init__(self, limits: Limits, timeouts: Timeouts, report: Report) -> None:
        self._limits, self._timeouts, self._report = limits, timeouts, report
        self._clock = asyncio.get_running_loop().time
        self._told: dict[str, LinkReport] = {}

    def change(self, neighbour: Neighbour, state: LinkState, reason: str) -> None:
        told = self._of(neighbour)
        told.changes += state != neighbour.state
        neighbour.state, neighbour.reason = state, reason
        self.catch_up(neighbour)

    def catch_up(self, neighbour: Neighbour) -> None:
        """Tell what has not been told, unless it is too soon."""
        told = self._of(neighbour)
        if (told.changes or self._replaced(neighbour, told)) and told.pace.take():
            times = f"the link has changed {told.changes} times since this was last told"
            reason = "; ".join(filter(None, [neighbour.reason, *([times] if told.changes > 1 else [])]))
            told.changes, told.reason = 0, neighbour.reason
            self._report(LinkChanged(neighbour=neighbour.id, state=neighbour.state, reason=reason))

    def _replaced(self, neighbour: Neighbour, told: LinkReport) -> bool:
        """Whether the reason that was told has been stale for a while."""
        if neighbour.state not in ("suspected", "down") or neighbour.reason == told.reason:
            told.other = ""
            return False
        if told.other != neighbour.reason:
            told.other, told.since = neighbour.reason, self._clock()
        return self._clock() - told.since > self._timeouts.suspect

    def _of(self, neighbour: Neighbour) -> LinkReport:
        if neighbour.id not in self._told:
            self._told[neighbour.id] = LinkReport(RateLimiter(self._limits.news, self._timeouts.news))
        return self._told[neighbour.id]


SetState = Callable[[str, LinkState, str], None]
"""Takes note of a neighbour's state, and why it is in it."""


class FailureDetector:
    """Watches all neighbours.

    A connection that was cut off without a word (a NAT that forgot it, a cable) resends ever more seldom, and gRPC
    tries to connect ever more seldom: so the way is tried here, again and again, and what stands is given up once it
    is free.
    """

    def __init__(self, state: NetworkState, now: SetState, catch_up: Callable[[Neighbour], None]) -> None:
        self._state, self._now, self._catch_up = state, now, catch_up
        self._edges, self._timeouts = state.edges, state.timeouts
        self._clock = asyncio.get_running_loop().time
        self._tried: set[str] = set()
        """To whom the way is being tried."""

    def silent(self, neighbour: Neighbour) -> bool:
        """For longer than it takes to be suspected."""
        return self._clock() - neighbour.heard > self._timeouts.suspect

    async def run(self) -> None:
        """Look at all of them again and again, for ever."""
        looked = self._clock()
        async with background() as group:
            while True:
                await asyncio.sleep(self._timeouts.poll)
                late, looked = self._clock() - looked - self._timeouts.poll, self._clock()
                for neighbour in [*self._edges.neighbours.values()]:
                    self._catch_up(neighbour)
                    # What came while this process stood still has not been read yet.
                    if late >= self._timeouts.beat:
                        continue
                    if neighbour.state == "up" and self.silent(neighbour):
                        neighbour.alive = False
                        self._now(neighbour.id, "suspected", f"silent for {self._timeouts.suspect} s")
                    if self._away(neighbour) and neighbour.address and neighbour.id not in self._tried:
                        self._tried.add(neighbour.id)
                        group.create_task(self._try(neighbour, neighbour.address))

    def _away(self, neighbour: Neighbour) -> bool:
        """Nothing is heard of it, or nothing that this peer sends reaches it."""
        current = self._edges.neighbours.get(neighbour.id) is neighbour
        return current and neighbour.state != "left" and self._lost(neighbour)

    def _lost(self, neighbour: Neighbour) -> bool:
        return self.silent(neighbour) or neighbour.cannot_be_reached or neighbour.stuck

    async def _try(self, neighbour: Neighbour, address: str) -> None:
        """Until it gives signs of life: is the way free?"""
        away, renewed = False, self._clock()
        forgotten = neighbour.state == "suspected"
        while self._away(neighbour):
            if why := await self._obstacle(address):
                # A longer attempt than this one may have found out more than that nothing came.
                if why != TIMED_OUT or not neighbour.obstacle:
                    neighbour.unreachable(why)
                away = away or why != REFUSED  # who refuses is there: gRPC asks it often enough
            elif away or self._clock() - renewed > self._timeouts.renew:
                away, renewed = False, self._clock()
                await self._state.transport.renew(address)
            elif forgotten:
                # The way is free, and has been: the peer is slow, or what stood was forgotten on the way.
                await self._state.transport.renew(address, "Tensors" if neighbour.stuck else "Heartbeat")
            forgotten = False
            await asyncio.sleep(self._timeouts.probe / 2)
        self._tried.discard(neighbour.id)

    async def _obstacle(self, address: str) -> str:
        """Why nobody can be reached there; empty if somebody can."""
        try:
            async with asyncio.timeout(self._timeouts.probe):
                await self._state.transport.reach(address)
        except TimeoutError:
            return TIMED_OUT
        except DisconnectedError as error:
            return str(error)
        return ""


FAREWELL = "done"
"""The state in the last beat of a peer that has finished: its silence afterwards is no loss."""


class BeatCodec(ABC):
    """Beats over a pipe, which carries them in one form to whom it was opened, and in another back."""

    def __init__(self, pipe: CountedPipe, state: NetworkState) -> None:
        self.pipe, self._foreign, self._seconds = pipe, state.foreign, state.timeouts.read

    @abstractmethod
    async def send(self, beat: Beat) -> None:
        """DisconnectedError when the other end is gone."""

    @abstractmethod
    async def receive(self) -> Beat:
        """DisconnectedError at the end of the stream; BadFrameError for bytes that are no beat."""


class ClientBeats(BeatCodec):
    """Of a stream that this peer opened."""

    async def send(self, beat: Beat) -> None:
        await self.pipe.tell(beat.SerializeToString(), self._seconds)

    async def receive(self) -> Beat:
        reply = self._foreign.reply(await self.pipe.receive())
        if not reply.HasField("beat"):
            raise BadFrameError("what it answered is no Beat")
        return reply.beat


class ServerBeats(BeatCodec):
    """Of a stream that the other peer opened."""

    async def send(self, beat: Beat) -> None:
        await self.pipe.tell(Reply(beat=beat).SerializeToString(), self._seconds)

    async def receive(self) -> Beat:
        return self._foreign.beat(await self.pipe.receive())


class HeartbeatStream:
    """A stream of signs of life, from its welcome to a farewell, or until the two are no neighbours any more."""

    def __init__(
        self,
        state: NetworkState,
        callbacks: NetworkCallbacks,
        beats: BeatCodec,
        leaving: asyncio.Event,
        heard: Callable[[Beat], Awaitable[None]],
    ) -> None:
        self._state, self._durability, self._timeouts = state, state.durability, state.timeouts
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
            parted = listener not in self._state.edges.neighbours
            known = self._durability.known(listener)
            state, round = self._callbacks.state()
            beat = Beat(durable=self._durability.own, state=FAREWELL if last else state, round=round)
            if self._state.identity.keyring.signs:
                self._announce(beat, shown)
            else:
                beat.others.update({peer: at for peer, at in known.items() if told.get(peer) != at})
                told = known
            if (neighbour := self._state.edges.neighbours.get(listener)) and neighbour.cannot_be_reached:
                beat.obstacle.address, beat.obstacle.reason = neighbour.address or "", neighbour.obstacle
            if (taken := self._state.deliveries.taken(listener)) is not None:
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
        neighbour = self._state.edges.neighbours.get(listener)
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


class Heartbeats:
    """Beats towards all neighbours and listens to theirs."""

    def __init__(self, state: NetworkState, callbacks: NetworkCallbacks) -> None:
        self._state, self._callbacks = state, callbacks
        self._edges, self._timeouts = state.edges, state.timeouts
        self._clock = asyncio.get_running_loop().time
        self._accepted = StreamTakeover(state.limits, state.timeouts)
        self._news = LinkReporter(state.limits, state.timeouts, callbacks.report)
        self._vigil = FailureDetector(state, self._now, self._news.catch_up)
        self._dialled: dict[str, CountedPipe] = {}
        """Streams that this peer has opened, by neighbour."""
        self._leaving = asyncio.Event()
        self._told: set[str] = set()
        """To whom this peer has written its farewell."""
        self._doubted: set[str] = set()
        """Who has said what cannot be."""
        self._conversations = Counter[str]()
        """By neighbour: two for a moment, where both have dialled."""
        self._voices: dict[str, CountedPipe] = {}
        """On which stream each neighbour last gave a sign of life."""
        self._began: dict[str, float] = {}
        """The last of them, by the loop's clock."""
        self._ended = asyncio.Event()
        """Set when one of them ends."""
        self.closing = False

    async def part(self) -> None:
        """Say farewell to all neighbours and wait for the end of all streams: who hears it ends them."""
        self._leaving.set()
        self._state.durability.stir()  # each conversation waits there for its next beat
        while self._conversations.total() or not all(map(self._parted, self._edges.neighbours.values())):
            await self._news_of_an_end()

    async def _news_of_an_end(self) -> None:
        """Wait until a stream has ended, or somebody may have gone on to a later view."""
        self._ended.clear()
        async with background() as group:
            news = [
                group.create_task(self._ended.wait()),
                group.create_task(self._state.durability.beyond(self._state.durability.version)),
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
        self._state.durability.stir()  # each conversation waits there for its next beat
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
        retries, sayings = Backoff(self._timeouts), ThrottledReason(self._state.limits, self._timeouts)
        while await self._turn(neighbour):
            try:
                await self._dial(neighbour, retries)
                pause = self._timeouts.retry[-1]  # it has said farewell: should it come back, that is not now
            except LocallyClosedError:
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
        return self._state.id < other or not self._edges.can_be_dialled(self._state.id)

    async def _dial(self, neighbour: Neighbour, retries: Backoff) -> None:
        async with self._state.stream(neighbour, "Heartbeat") as (pipe, _):
            retries.welcomed()
            self._dialled[neighbour.id] = pipe
            await self._converse(neighbour.id, ClientBeats(pipe, self._state))

    async def accept(self, pipe: CountedPipe) -> None:
        """The accepting end of such a stream, after its hello; beside one in use it counts from its first beat on."""
        caller, counts = pipe.peer, self._accepted.enter(pipe)
        welcome = Reply(welcome=Welcome(durable=self._state.durability.own))
        try:
            await pipe.tell(welcome.SerializeToString(), self._timeouts.read)
            if not counts:
                await self._succeed(pipe)
            await self._converse(caller, ServerBeats(pipe, self._state))
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

    async def _succeed(self, pipe: CountedPipe) -> None:
        """A stream beside one in use: it takes that one's place when it says something."""
        beat = await pipe.receive()
        try:
            self._state.foreign.beat(beat)
        except BadFrameError as error:
            raise BreachError(str(error)) from None
        pipe.unread(beat)
        await self._accepted.succeed(pipe)

    async def _converse(self, other: str, beats: BeatCodec) -> None:
        """One stream to its end."""
        heard = partial(self._heard, other, beats.pipe)
        conversation = HeartbeatStream(self._state, self._callbacks, beats, self._leaving, heard)
        self._conversations[other] += 1
        self._began[other] = self._clock()
        try:
            await conversation.run()
        finally:
            self._conversations[other] -= 1
            if conversation.farewell_said:
                self._told.add(other)
            self._ended.set()

    async def _heard(self, other: str, pipe: CountedPipe, beat: Beat) -> None:
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
                self._state.durability.stir()  # a farewell may wait for it
        self._believe(other, beat)
        if beat.state == FAREWELL and self._state.durability.of(other) < self._last(other):
            self._now(other, "down", "it says farewell before it can have finished")
        elif beat.state == FAREWELL:
            self._now(other, "left", "finished")
        elif self._stuck(other, beat):
            self._now(other, "suspected", "it gives signs of life, but what is sent to it does not arrive")
        else:
            self._now(other, "up", "")

    def _stuck(self, other: str, beat: Beat) -> bool:
        taken = beat.taken if beat.HasField("taken") else None
        stuck = self._state.deliveries.stuck(other, taken, self._clock())
        if neighbour := self._edges.neighbours.get(other):
            neighbour.stuck = stuck
        return stuck

    async def _spoken(self, neighbour: Neighbour, pipe: CountedPipe) -> None:
        """Signs of life that come again, on another stream: the one before was cut off without a word, and so may be
        the connection for tensors, if it is an old one."""
        if self._voices.get(neighbour.id) is not pipe:
            self._voices[neighbour.id] = pipe
            missed = self._clock() - neighbour.heard > 2 * self._timeouts.beat
            old = neighbour.stands is not None and neighbour.stands < neighbour.heard
            if missed and old and neighbour.address and neighbour.state != "joining":
                await self._state.transport.renew(neighbour.address, "Tensors")

    def _last(self, other: str) -> int:
        return self._edges.last(other, self._state.last_round)

    def _believe(self, teller: str, beat: Beat) -> None:
        """What it says of itself counts; of others it may hold this peer back; what cannot be is told once."""
        durability = self._state.durability
        try:
            durability.said(teller, beat.durable)
            if not self._state.identity.keyring.signs:
                durability.overheard(teller, beat.others)
            for one in beat.announced:
                signature, certificate = b64encode(one.signature).decode(), b64encode(one.certificate).decode()
                durability.proved(one.id, one.round, signature, certificate)
        except ImpossibleError as error:
            if teller not in self._doubted:
                self._doubted.add(teller)
                self._callbacks.report(
                    CallerRefused(caller=teller, reason=f"{error}; compare its code with this peer's")
                )

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
