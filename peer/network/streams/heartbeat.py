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
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from math import inf

from peer.network.durability import NOTHING, ImpossibleError
from peer.network.limits import Limits, RateLimiter, Timeouts
from peer.network.neighbours import LinkState, Neighbour
from peer.network.streams.handshake import RefusedError
from peer.network.streams.state import DialledStream, NetworkCallbacks, NetworkState
from peer.network.streams.stream import CountedPipe, StreamTakeover
from peer.network.transport import REFUSED, TIMED_OUT, BreachError, DisconnectedError
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
        if (told.changes or self._replaced(neighbour, told)) and told.pace.try_acquire():
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
        return self._clock() - told.since > self._timeouts.suspect_after

    def _of(self, neighbour: Neighbour) -> LinkReport:
        if neighbour.id not in self._told:
            self._told[neighbour.id] = LinkReport(RateLimiter(self._limits.news, self._timeouts.report_interval))
        return self._told[neighbour.id]


SetState = Callable[[Neighbour, LinkState, str], None]
"""Takes note of a neighbour's state, and why it is in it."""


class FailureDetector:
    """Watches all neighbours.

    A connection that was cut off without a word (a NAT that forgot it, a cable) resends ever more seldom, and gRPC
    tries to connect ever more seldom: so the way is tried here, again and again, and what stands is given up once it
    is free.
    """

    def __init__(self, state: NetworkState, set_state: SetState, catch_up: Callable[[Neighbour], None]) -> None:
        self._state, self._set_state, self._catch_up = state, set_state, catch_up
        self._edges, self._timeouts = state.edges, state.timeouts
        self._clock = asyncio.get_running_loop().time
        self._tried: set[str] = set()
        """To whom the way is being tried."""

    def _is_silent(self, neighbour: Neighbour) -> bool:
        """For longer than it takes to be suspected."""
        return self._clock() - neighbour.signs.last_heartbeat > self._timeouts.suspect_after

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
                    if late >= self._timeouts.heartbeat_interval:
                        continue
                    if neighbour.state == "up" and self._is_silent(neighbour):
                        neighbour.signs.alive = False
                        self._set_state(neighbour, "suspected", f"silent for {self._timeouts.suspect_after} s")
                    if self._away(neighbour) and neighbour.address and neighbour.id not in self._tried:
                        self._tried.add(neighbour.id)
                        group.create_task(self._try(neighbour, neighbour.address))

    def _away(self, neighbour: Neighbour) -> bool:
        """Nothing is heard of it, or nothing that this peer sends reaches it."""
        current = self._edges.neighbours.get(neighbour.id) is neighbour
        lost = self._is_silent(neighbour) or neighbour.is_unreachable or neighbour.delivery.is_stalled
        return current and neighbour.state != "left" and lost

    async def _try(self, neighbour: Neighbour, address: str) -> None:
        """Until it gives signs of life: is the way free?"""
        away, renewed = False, self._clock()
        forgotten = neighbour.state == "suspected"
        while self._away(neighbour):
            if why := await self._obstacle(address):
                # A longer attempt than this one may have found out more than that nothing came.
                if why != TIMED_OUT or not neighbour.reach.outbound:
                    neighbour.mark_unreachable(why)
                away = away or why != REFUSED  # who refuses is there: gRPC asks it often enough
            elif away or self._clock() - renewed > self._timeouts.reconnect_after:
                away, renewed = False, self._clock()
                await self._state.transport.renew(address)
            elif forgotten:
                # The way is free, and has been: the peer is slow, or what stood was forgotten on the way.
                await self._state.transport.renew(address, "Tensors" if neighbour.delivery.is_stalled else "Heartbeat")
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
        self.farewell_sent = False
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
            known = self._durability.relayed_for(listener)
            state, round = self._callbacks.state()
            beat = Beat(durable=self._durability.own, state=FAREWELL if last else state, round=round)
            if self._state.identity.keyring.signs:
                self._announce(beat, shown)
            else:
                beat.others.update({peer: at for peer, at in known.items() if told.get(peer) != at})
                told = known
            if (neighbour := self._state.edges.neighbours.get(listener)) and neighbour.is_unreachable:
                beat.obstacle.address, beat.obstacle.reason = neighbour.address or "", neighbour.reach.outbound.reason
            if (taken := self._state.deliveries.received_count(listener)) is not None:
                beat.taken = taken
            if clock() - advertised > self._timeouts.resources:
                advertised = clock()
                beat.resources.CopyFrom(self._callbacks.resources())
            if (heard := self._durability.of(listener)) > NOTHING:
                beat.heard = heard
            await self._beats.send(beat)
            self.farewell_sent = last
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
        return (
            neighbour is None or neighbour.state == "left" or neighbour.progress.acked_durable >= self._durability.own
        )

    async def _until_news(self, version: int) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(self._timeouts.heartbeat_interval):
                await self._durability.wait_changed(version)

    async def _listen(self) -> None:
        while True:
            try:
                beat = await self._beats.receive()
            except BadFrameError as error:
                raise BreachError(str(error)) from None
            await self._heard(beat)
            if beat.state == FAREWELL:
                return


class NeighbourHeartbeats:
    """Heartbeats to and from one neighbour, on the streams that either has opened, and what follows from them.

    It outlives the edge for as long as streams with the former neighbour last.
    """

    def __init__(self, id: str, all: "Heartbeats") -> None:
        self.id, self._all, self._state = id, all, all.state
        self._edges, self._timeouts = all.state.edges, all.state.timeouts
        self._clock = asyncio.get_running_loop().time
        self.dialled: CountedPipe | None = None
        """The stream that this peer has opened."""
        self.streams = 0
        """Those that stand: two for a moment, where both have dialled."""
        self.farewell_sent = False
        self._began = inf
        """When the last of them began, by the loop's clock."""
        self._latest: CountedPipe | None = None
        """The stream on which the last heartbeat came."""
        self._doubted = False
        """It has said what cannot be."""

    @property
    def _neighbour(self) -> Neighbour | None:
        """It may have ceased to be one, and become one again, since a stream was opened."""
        return self._edges.neighbours.get(self.id)

    @property
    def accepted(self) -> CountedPipe | None:
        """The stream in use among those that the other peer has opened."""
        return self._all.accepted.active(self.id)

    @property
    def dials_first(self) -> bool:
        """Of two peers that can be dialled the one with the smaller id is the first to dial."""
        return self._state.id < self.id or not self._edges.can_be_dialled(self._state.id)

    async def accept(self, pipe: CountedPipe) -> None:
        """The accepting end of a stream, after its hello; beside one in use it counts from its first beat on."""
        is_used = self._all.accepted.add(pipe)
        welcome = Reply(welcome=Welcome(durable=self._state.durability.own))
        try:
            await pipe.tell(welcome.SerializeToString(), self._timeouts.read)
            if not is_used:
                await self._take_over(pipe)
            await self.converse(ServerBeats(pipe, self._state))
        except DisconnectedError as error:
            if self.accepted is pipe:
                self.on_end(str(error))
            if isinstance(error, BreachError):
                raise
        except asyncio.CancelledError:
            # This is how a handler learns that its caller is gone, or that this peer closes.
            if self.accepted is pipe and not self._all.closing:
                self.on_end("connection closed")
            raise
        finally:
            self._all.accepted.remove(pipe)

    async def _take_over(self, pipe: CountedPipe) -> None:
        """A stream beside one in use takes its place when it says something."""
        beat = await pipe.receive()
        try:
            self._state.foreign.beat(beat)
        except BadFrameError as error:
            raise BreachError(str(error)) from None
        pipe.unread(beat)
        await self._all.accepted.promote(pipe)

    async def converse(self, beats: BeatCodec) -> None:
        """One stream from its welcome to its end."""
        on_beat = partial(self._on_beat, beats.pipe)
        stream = HeartbeatStream(self._state, self._all.callbacks, beats, self._all.leaving, on_beat)
        self.streams += 1
        self._began = self._clock()
        try:
            await stream.run()
        finally:
            self.streams -= 1
            self.farewell_sent |= stream.farewell_sent
            self._all.stream_ended.set()

    async def _on_beat(self, pipe: CountedPipe, beat: Beat) -> None:
        if self.dialled and pipe is self.accepted and not self.dials_first:
            self.dialled.abort()  # one stream is enough: the first one's
        if neighbour := self._neighbour:
            await self._renew_if_cut(neighbour, pipe)
            signs = neighbour.signs
            signs.alive, signs.last_heartbeat = True, self._clock()
            signs.activity = f"{beat.state[:20]} in round {beat.round}"
            neighbour.on_complaint(beat.obstacle if beat.HasField("obstacle") else None)
            if beat.HasField("resources"):
                signs.resources = beat.resources
            if beat.HasField("heard") and beat.heard > neighbour.progress.acked_durable:
                neighbour.progress.acked_durable = beat.heard
                self._state.durability.notify_changed()  # a farewell may wait for it
        self._apply_durable(beat)
        taken = beat.taken if beat.HasField("taken") else None
        if beat.state == FAREWELL and self._state.durability.of(self.id) < self._last_round:
            self.set_state("down", "it says farewell before it can have finished")
        elif beat.state == FAREWELL:
            self.set_state("left", "finished")
        elif self._is_stalled(taken):
            self.set_state("suspected", "it gives signs of life, but what is sent to it does not arrive")
        else:
            self.set_state("up", "")

    async def _renew_if_cut(self, neighbour: Neighbour, pipe: CountedPipe) -> None:
        """Heartbeats that come again, on another stream: the one before was cut off without a word, and so may be
        the connection for tensors, if it is an old one."""
        if self._latest is not pipe:
            self._latest = pipe
            last, since = neighbour.signs.last_heartbeat, neighbour.delivery.connected_since
            missed = self._clock() - last > 2 * self._timeouts.heartbeat_interval
            if missed and since is not None and since < last and neighbour.address and neighbour.state != "joining":
                await self._state.transport.renew(neighbour.address, "Tensors")

    def _apply_durable(self, beat: Beat) -> None:
        """What it says of itself counts; of others it may hold this peer back; what cannot be is told once."""
        durability = self._state.durability
        try:
            durability.record_first_hand(self.id, beat.durable)
            if not self._state.identity.keyring.signs:
                durability.record_relayed(self.id, beat.others)
            for one in beat.announced:
                signature, certificate = b64encode(one.signature).decode(), b64encode(one.certificate).decode()
                durability.record_signed(one.id, one.round, signature, certificate)
        except ImpossibleError as error:
            if not self._doubted:
                self._doubted = True
                reason = f"{error}; compare its code with this peer's"
                self._all.callbacks.report(CallerRefused(caller=self.id, reason=reason))

    def _is_stalled(self, taken: int | None) -> bool:
        stalled = self._state.deliveries.is_stalled(self.id, taken, self._clock())
        if neighbour := self._neighbour:
            neighbour.delivery.is_stalled = stalled
        return stalled

    @property
    def _last_round(self) -> int:
        return self._edges.last(self.id, self._state.last_round)

    def on_end(self, reason: str) -> None:
        """A stream has ended, or there is none; nothing is lost while another one stands."""
        if not self.streams:
            if neighbour := self._neighbour:
                neighbour.signs.alive = False
            self.set_state("down", reason)

    def set_state(self, state: LinkState, reason: str) -> None:
        """Take note of it, and report it unless that is too soon."""
        neighbour = self._neighbour
        if neighbour is None or (state in ("down", "suspected") and self._all.leaving.is_set()):
            return
        if state == "up" and (problem := neighbour.problem(self._settled)):
            state, reason = "suspected", problem
        if state == "down" and self.id not in self._edges.current():
            # The ring has another order now: it was the first to forget.
            state, reason = "left", "no neighbour any more"
        if state == "down" and neighbour.state in ("joining", "left"):
            neighbour.mark_unreachable(reason)
        else:
            self._all.reporter.change(neighbour, state, reason)

    @property
    def _settled(self) -> float:
        """Since when something must have been wrong to be told: at first there may be other streams to be opened."""
        settled = self._clock() - self._timeouts.stable_after
        return settled if self._began < settled else -inf


class DialledHeartbeats(DialledStream):
    """The heartbeat stream that this peer keeps open to a neighbour, as far as that is for this peer to do."""

    service = "Heartbeat"

    def __init__(self, all: "Heartbeats", neighbour: Neighbour) -> None:
        super().__init__(all.state, neighbour)
        self._all, self._heartbeats = all, all.of(neighbour.id)

    async def wait_for_turn(self) -> bool:
        """Wait until this peer is to dial; False once the two have parted.

        The one that is not the first to dial does so when nothing comes: the way may be free in its direction only.
        """
        self._heartbeats.dialled = None
        timeouts, clock = self._state.timeouts, asyncio.get_running_loop().time
        while self._heartbeats.accepted or not self._heartbeats.dials_first:
            wait = self.neighbour.signs.last_heartbeat + timeouts.suspect_after + timeouts.probe - clock()
            if wait <= 0 or self._all.has_parted(self.neighbour):
                break
            with suppress(TimeoutError):
                async with asyncio.timeout(wait):
                    await self._all.wait_stream_ended()
        return not self._all.has_parted(self.neighbour)

    async def serve(self, pipe: CountedPipe, welcome: Welcome) -> float:
        self._backoff.welcomed()
        self._heartbeats.dialled = pipe
        await self._heartbeats.converse(ClientBeats(pipe, self._state))
        return self._state.timeouts.retry[-1]  # it has said farewell: should it come back, that is not now

    def on_disconnect(self, reason: str) -> None:
        if not self._heartbeats.dialled:
            self.neighbour.mark_unreachable(reason)
        self._heartbeats.on_end(reason)

    def on_refusal(self, error: RefusedError, reason: str) -> None:
        self._heartbeats.on_end(reason)


class Heartbeats:
    """Heartbeats to and from all neighbours."""

    def __init__(self, state: NetworkState, callbacks: NetworkCallbacks) -> None:
        self.state, self.callbacks = state, callbacks
        self.accepted = StreamTakeover(state.limits, state.timeouts)
        self.reporter = LinkReporter(state.limits, state.timeouts, callbacks.report)
        self.leaving = asyncio.Event()
        self.stream_ended = asyncio.Event()
        self.closing = False
        """Every stream ends now, and that is no news."""
        self._by_id: dict[str, NeighbourHeartbeats] = {}

    def of(self, id: str) -> NeighbourHeartbeats:
        if id not in self._by_id:
            self._by_id[id] = NeighbourHeartbeats(id, self)
        return self._by_id[id]

    async def watch(self) -> None:
        """Suspect neighbours that are silent, and try the way to them; until cancelled."""
        detector = FailureDetector(
            self.state,
            lambda neighbour, state, reason: self.of(neighbour.id).set_state(state, reason),
            self.reporter.catch_up,
        )
        await detector.run()

    async def run(self, neighbour: Neighbour) -> None:
        """Keep a stream to a neighbour open."""
        await DialledHeartbeats(self, neighbour).run()

    async def accept(self, pipe: CountedPipe) -> None:
        """Serve a stream that a neighbour has opened, after its hello."""
        await self.of(pipe.peer).accept(pipe)

    async def close(self) -> None:
        """Say farewell to all neighbours (R8) and wait for the end of all streams: the hearer of a farewell ends it."""
        self.leaving.set()
        self.state.durability.notify_changed()  # each stream waits there for its next beat
        while any(one.streams for one in self._by_id.values()) or not all(
            map(self.has_parted, self.state.edges.neighbours.values())
        ):
            await self._wait_stream_ended_or_durable()

    async def _wait_stream_ended_or_durable(self) -> None:
        """Wait until a stream has ended, or a neighbour may be in a later view."""
        async with background() as group:
            news = [
                group.create_task(self.wait_stream_ended()),
                group.create_task(self.state.durability.wait_changed(self.state.durability.version)),
            ]
            await asyncio.wait(news, return_when=asyncio.FIRST_COMPLETED)

    async def wait_stream_ended(self) -> None:
        self.stream_ended.clear()
        await self.stream_ended.wait()

    def has_parted(self, neighbour: Neighbour) -> bool:
        """Whether one of the two has said farewell, or forgotten the edge: from then on this peer does not dial."""
        if self.state.edges.neighbours.get(neighbour.id) is not neighbour:
            return True
        told = self.of(neighbour.id).farewell_sent
        return self.leaving.is_set() and (told or neighbour.progress.in_later_view or neighbour.state == "left")

    async def close_with(self, former: str) -> None:
        """Tell a former neighbour the last news (R7), and wait until it has ended its streams: then it knows them."""
        self.state.durability.notify_changed()  # each stream waits there for its next beat
        with suppress(TimeoutError):
            async with asyncio.timeout(self.state.timeouts.farewell_timeout):
                while self.of(former).streams:
                    await self.wait_stream_ended()

    def end(self, former: str) -> None:
        """It is no neighbour any more."""
        self.accepted.end(former)
        self._by_id.pop(former, None)
