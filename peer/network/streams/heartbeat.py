"""Heartbeats between neighbours, with what they carry besides: durable rounds, what arrives, and resources.

- `LinkReporter` reports changes of a neighbour's state: every one, or how it is by now where it changes too often.
- `FailureDetector` suspects neighbours that are silent, and reconnects as soon as the way is free.
- `HeartbeatStream` is one stream: the beats that this end sends, down to the farewell, and those that it receives.
- `NeighbourHeartbeats` is all that concerns one neighbour: the streams that either end opened, and the reaction to
  each beat. `DialledHeartbeats` says which of the two dials, and when.
- `Heartbeats` is all neighbours together: started, and closed with farewells.

Suspicion is only shown and counted; it never changes the run. Only what beats carry changes it: durable rounds, of
which `durability.py` says whose word counts for what; and the farewell of a peer that has finished (R8), whose silence
afterwards is no loss. A former neighbour is told all that it lacks to forget the edge, too, before the stream ends
(R7).
"""

import asyncio
from base64 import b64decode, b64encode
from collections.abc import Awaitable, Callable
from contextlib import suppress
from math import inf

from peer.network.durability import NOTHING, ImpossibleError
from peer.network.limits import Limits, RateLimiter, Timeouts
from peer.network.neighbours import LinkState, Neighbour, Problem
from peer.network.streams.handshake import RefusedError
from peer.network.streams.stream import CountedPipe, DialledStream, NetworkCallbacks, NetworkState, StreamTakeover
from peer.network.transport import REFUSED, TIMED_OUT, BreachError, DisconnectedError
from peer.network.wire.frames import BadFrameError
from peer.network.wire.messages import Beat, Reply, Welcome
from peer.tasks import background
from peer.telemetry.events import CallerRefused, LinkChanged, Report
from peer.views.statements import Announcement, Signed


class LinkReporter:
    """Reports changes of one neighbour's state; those that come too quickly are counted.

    Another reason for the same state is told when it has lasted: of several in a row only the last is of use.
    """

    def __init__(self, limits: Limits, timeouts: Timeouts, report: Report) -> None:
        self._suspect_after, self._report = timeouts.suspect_after, report
        self._pace = RateLimiter(limits.news, timeouts.report_interval)
        self._clock = asyncio.get_running_loop().time
        self._changes = 0
        """Of its state, that have not been told."""
        self._reason = ""
        """The last one told."""
        self._newer = Problem()
        """The reason now, where that is another one."""

    def change(self, neighbour: Neighbour, state: LinkState, reason: str) -> None:
        self._changes += state != neighbour.state
        neighbour.state, neighbour.reason = state, reason
        self.catch_up(neighbour)

    def catch_up(self, neighbour: Neighbour) -> None:
        """Tell what has not been told, unless it is too soon."""
        if (self._changes or self._is_stale(neighbour)) and self._pace.try_acquire():
            times = f"the link has changed {self._changes} times since this was last told"
            reason = "; ".join(filter(None, [neighbour.reason, *([times] if self._changes > 1 else [])]))
            self._changes, self._reason = 0, neighbour.reason
            self._report(LinkChanged(neighbour=neighbour.id, state=neighbour.state, reason=reason))

    def _is_stale(self, neighbour: Neighbour) -> bool:
        """Whether the reason that was told has not been the present one for a while."""
        if neighbour.state not in ("suspected", "down") or neighbour.reason == self._reason:
            self._newer.clear()
            return False
        if self._newer.reason != neighbour.reason:
            self._newer = Problem(neighbour.reason, self._clock())
        return self._clock() - self._newer.since > self._suspect_after


class FailureDetector:
    """Suspects neighbours that are silent, and reconnects as soon as the way to them is free.

    A connection that was cut off without a word (a NAT that forgot it, a cable) resends ever more seldom, and gRPC
    tries to connect ever more seldom: so the way is tried here, every half second, and what stands is given up once it
    is free.
    """

    def __init__(self, heartbeats: "Heartbeats") -> None:
        self._heartbeats, self._transport = heartbeats, heartbeats.state.transport
        self._edges, self._timeouts = heartbeats.state.edges, heartbeats.state.timeouts
        self._clock = asyncio.get_running_loop().time
        self._tried: set[str] = set()
        """Neighbours to which the way is being tried."""

    def _is_silent(self, neighbour: Neighbour) -> bool:
        """For longer than it takes to be suspected."""
        return self._clock() - neighbour.signs.last_heartbeat > self._timeouts.suspect_after

    async def run(self) -> None:
        """Scan all neighbours every `poll` seconds until cancelled."""
        looked = self._clock()
        async with background() as group:
            while True:
                await asyncio.sleep(self._timeouts.poll)
                late, looked = self._clock() - looked - self._timeouts.poll, self._clock()
                for neighbour in [*self._edges.neighbours.values()]:
                    heartbeats = self._heartbeats.of(neighbour.id)
                    heartbeats.reporter.catch_up(neighbour)
                    # After a pause of this process, pending heartbeats have not been read yet.
                    if late >= self._timeouts.heartbeat_interval:
                        continue
                    if neighbour.state == "up" and self._is_silent(neighbour):
                        neighbour.signs.alive = False
                        heartbeats.set_state("suspected", f"silent for {self._timeouts.suspect_after} s")
                    if self._away(neighbour) and neighbour.address and neighbour.id not in self._tried:
                        self._tried.add(neighbour.id)
                        group.create_task(self._try(neighbour, neighbour.address))

    def _away(self, neighbour: Neighbour) -> bool:
        """No heartbeat comes from it, or nothing that this peer sends reaches it."""
        current = self._edges.neighbours.get(neighbour.id) is neighbour
        lost = self._is_silent(neighbour) or neighbour.is_unreachable or neighbour.delivery.is_stalled
        return current and neighbour.state != "left" and lost

    async def _try(self, neighbour: Neighbour, address: str) -> None:
        """Try the way to a neighbour until it gives signs of life."""
        away, renewed = False, self._clock()
        forgotten = neighbour.state == "suspected"
        while self._away(neighbour):
            if why := await self._obstacle(address):
                # A longer attempt than this one may have found out more than that nothing came.
                if why != TIMED_OUT or not neighbour.reach.outbound:
                    neighbour.mark_unreachable(why)
                away = away or why != REFUSED  # a machine that refuses is there: gRPC asks it often enough
            elif away or self._clock() - renewed > self._timeouts.reconnect_after:
                away, renewed = False, self._clock()
                await self._transport.renew(address)
            elif forgotten:
                # The way is free, and has been: the peer is slow, or what stood was forgotten on the way.
                await self._transport.renew(address, "Tensors" if neighbour.delivery.is_stalled else "Heartbeat")
            forgotten = False
            await asyncio.sleep(self._timeouts.probe / 2)
        self._tried.discard(neighbour.id)

    async def _obstacle(self, address: str) -> str:
        """Why that address cannot be reached; empty if it can."""
        try:
            async with asyncio.timeout(self._timeouts.probe):
                await self._transport.reach(address)
        except TimeoutError:
            return TIMED_OUT
        except DisconnectedError as error:
            return str(error)
        return ""


FAREWELL = "done"
"""The state in the last beat of a peer that has finished: its silence afterwards is no loss."""
BeatHandler = Callable[[CountedPipe, Beat], Awaitable[None]]


class HeartbeatStream:
    """A stream of heartbeats, from its welcome to a farewell, or until the two are no neighbours any more.

    The end that dialled sends a Beat in each message; the other one answers with a Beat in a Reply.
    """

    def __init__(self, all: "Heartbeats", pipe: CountedPipe, dialled: bool, on_beat: BeatHandler) -> None:
        self._callbacks, self._leaving, self._state = all.callbacks, all.leaving, all.state
        self._durability, self._timeouts = all.state.durability, all.state.timeouts
        self._pipe, self._dialled, self._on_beat = pipe, dialled, on_beat
        self.farewell_sent = False
        """That it arrived cannot be known of a stream that broke then."""

    async def run(self) -> None:
        """Until the other end says farewell; DisconnectedError once that has heard this end's, or is cut off."""
        async with background() as group:
            group.create_task(self._speak())
            # The end that has read the last beat ends the stream. Were it ended here, a beat on its way from there
            # would fail, and gRPC then drops what has not been read: the last beats, for which that peer waits to its
            # `patience`.
            await self._listen()

    async def _speak(self) -> None:
        """Send beat after beat; the last is the farewell (R8), or tells a former neighbour all that it lacks to forget
        the edge, too (R7)."""
        told: dict[str, int] = {}
        shown: dict[str, Signed[Announcement]] = {}
        clock = asyncio.get_running_loop().time
        advertised = -inf
        while True:
            version, listener = self._durability.version, self._pipe.peer
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
            message = beat if self._dialled else Reply(beat=beat)
            await self._pipe.tell(message.SerializeToString(), self._timeouts.read)
            self.farewell_sent = last
            if last or parted:
                break
            await self._until_news(version)
        await self._pipe.finish()

    def _announce(self, beat: Beat, shown: dict[str, Signed[Announcement]]) -> None:
        """What is not yet among `shown` on this stream of what members have signed, but the listener's own."""
        for peer, signed in self._durability.announcements().items():
            if peer != self._pipe.peer and shown.get(peer) != signed:
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
        """Whether it knows all that this peer has on disk (R8).

        A farewell may be lost with its stream; a listener that did not know of the last round by then would wait to its
        `patience`.
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
            beat = self._decoded(await self._pipe.receive())
            await self._on_beat(self._pipe, beat)
            if beat.state == FAREWELL:
                return

    def _decoded(self, data: bytes) -> Beat:
        try:
            if not self._dialled:
                return self._state.decoder.beat(data)
            reply = self._state.decoder.reply(data)
        except BadFrameError as error:
            raise BreachError(str(error)) from None
        if not reply.HasField("beat"):
            raise BreachError("its answer is not a Beat")
        return reply.beat


class NeighbourHeartbeats:
    """Heartbeats to and from one neighbour, on the streams that either has opened, and what follows from them.

    It outlives the edge for as long as streams with the former neighbour last.
    """

    def __init__(self, id: str, all: "Heartbeats") -> None:
        self.id, self._all, self._state = id, all, all.state
        self._edges, self._timeouts = all.state.edges, all.state.timeouts
        self._clock = asyncio.get_running_loop().time
        self.reporter = LinkReporter(all.state.limits, all.state.timeouts, all.callbacks.report)
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
            await self.converse(pipe, dialled=False)
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
            self._state.decoder.beat(beat)
        except BadFrameError as error:
            raise BreachError(str(error)) from None
        pipe.unread(beat)
        await self._all.accepted.promote(pipe)

    async def converse(self, pipe: CountedPipe, dialled: bool) -> None:
        """One stream from its welcome to its end."""
        stream = HeartbeatStream(self._all, pipe, dialled, self._on_beat)
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
        if beat.state == FAREWELL:
            finished = self._state.durability.of(self.id) >= self._edges.last(self.id, self._state.last_round)
            early = "it said farewell before it can have finished"
            self.set_state("left" if finished else "down", "finished" if finished else early)
        elif self._is_stalled(beat.taken if beat.HasField("taken") else None):
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
        """What it says of itself counts; of others it can only hold this peer back. Nonsense is reported once."""
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
            self.reporter.change(neighbour, state, reason)

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
        await self._heartbeats.converse(pipe, dialled=True)
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
        self.leaving = asyncio.Event()
        self.stream_ended = asyncio.Event()
        self.closing = False
        """Every stream ends now, and that is no news."""
        self._by_id: dict[str, NeighbourHeartbeats] = {}

    def of(self, id: str) -> NeighbourHeartbeats:
        if id not in self._by_id:
            self._by_id[id] = NeighbourHeartbeats(id, self)
        return self._by_id[id]

    async def run_failure_detector(self) -> None:
        """Suspect neighbours that are silent, and try the way to them; until cancelled."""
        await FailureDetector(self).run()

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
