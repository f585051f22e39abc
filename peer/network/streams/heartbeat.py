"""Heartbeats between neighbours, and what else they carry: durable rounds, what has arrived, and resources.

- `LinkReporter` reports changes of a neighbour's state: each one, or only the latest if there are too many.
- `FailureDetector` suspects silent neighbours, and reconnects as soon as they can be reached.
- `HeartbeatStream` is one stream: the beats that this end sends, the last of them the farewell, and those it receives.
- `NeighbourHeartbeats` is all that concerns one neighbour: the streams that either end opened, and the reaction to
  each beat. `DialledHeartbeats` says which of the two dials, and when.
- `Heartbeats` is all neighbours together: started, and closed with farewells.

That a neighbour is suspected is shown, and makes this peer reconnect; it excludes nobody and ends nothing. Longer
silence does: after `absence` with `on_loss: bypass` (`lost_neighbours` in `runtime/membership/gate.py`), after
`patience` with `stop` (`watch_unresponsive` in `runtime/lifecycle.py`). Two things that beats say count: durable
rounds, for which `durability.py` says whose word counts for what; and the farewell of a peer that has finished (R8),
whose silence afterwards is no loss. Before a stream with a former neighbour ends, that one is told all that it needs to
forget the edge, too (R7).
"""

import asyncio
from base64 import b64decode, b64encode
from collections.abc import Awaitable, Callable
from functools import partial
from math import inf
from typing import NamedTuple

from peer.network.durability import NOTHING, ImpossibleError
from peer.network.limits import Limits, RateLimiter, Timeouts
from peer.network.neighbours import CLOSED_PORT_REASONS, LinkState, Neighbour, Problem
from peer.network.streams.handshake import RefusedError
from peer.network.streams.stream import CountedPipe, DialledStream, NetworkCallbacks, NetworkState, StreamTakeover
from peer.network.transport import REFUSED, TIMED_OUT, BreachError, DisconnectedError
from peer.network.wire.frames import BadFrameError
from peer.network.wire.messages import Beat, Reply, Welcome
from peer.tasks import News, background, within
from peer.telemetry.events import CallerRefused, Halted, LinkChanged, ReleaseSeen, Report
from peer.versions import release


class LinkReporter:
    """Reports changes of one neighbour's state; those that come too quickly are only counted.

    A new reason for the same state is reported when it has lasted a while: of several in a row only the last matters.
    That it runs another release than this peer, or than before, is reported with them.
    """

    def __init__(self, limits: Limits, timeouts: Timeouts, report: Report) -> None:
        self._suspect_after, self._report = timeouts.suspect_after, report
        self._pace = RateLimiter(limits.news, timeouts.report_interval)
        self._clock = asyncio.get_running_loop().time
        self._changes = 0
        """How many changes of state have not been reported."""
        self._reason = ""
        """The reason that was last reported."""
        self._release = release()
        """The release that was last reported; at first this peer's own, which is not."""
        self._newer = Problem()
        """The present reason, if it is another one."""

    def change(self, neighbour: Neighbour, state: LinkState, reason: str) -> None:
        self._changes += state != neighbour.state
        neighbour.state, neighbour.reason = state, reason
        self.catch_up(neighbour)

    def catch_up(self, neighbour: Neighbour) -> None:
        """Report what has not been reported, unless it is too soon."""
        if (self._changes or self._is_stale(neighbour)) and self._pace.try_acquire():
            times = f"the link has changed {self._changes} times since this was last told"
            reason = "; ".join(filter(None, [neighbour.reason, *([times] if self._changes > 1 else [])]))
            self._changes, self._reason = 0, neighbour.reason
            self._report(LinkChanged(neighbour=neighbour.id, state=neighbour.state, reason=reason))
        if neighbour.release not in ("", self._release) and self._pace.try_acquire():
            self._release = neighbour.release
            self._report(ReleaseSeen(neighbour=neighbour.id, release=self._release, own=release()))

    def _is_stale(self, neighbour: Neighbour) -> bool:
        """Return whether the present reason has differed from the reported one for a while."""
        if neighbour.state not in ("suspected", "down") or neighbour.reason == self._reason:
            self._newer.clear()
            return False
        if self._newer.reason != neighbour.reason:
            self._newer = Problem(neighbour.reason, self._clock())
        return self._clock() - self._newer.since > self._suspect_after


class FailureDetector:
    """Suspects silent neighbours, and reconnects as soon as they can be reached.

    On a connection that was cut without a word (a NAT that forgot it, a cable) TCP resends ever more rarely, and gRPC
    tries to connect ever more rarely. So this probes every half second whether a neighbour can be reached, and replaces
    the old connections once it can.
    """

    def __init__(self, heartbeats: "Heartbeats") -> None:
        self._heartbeats, self._transport = heartbeats, heartbeats.state.transport
        self._edges, self._timeouts = heartbeats.state.edges, heartbeats.state.timeouts
        self._clock = asyncio.get_running_loop().time
        self._pace = RateLimiter(heartbeats.state.limits.news, self._timeouts.report_interval)
        self._tried: set[str] = set()
        """The neighbours that are being probed."""

    def _is_silent(self, neighbour: Neighbour) -> bool:
        """Return whether a neighbour has been silent for long enough to be suspected."""
        return self._clock() - neighbour.signs.last_heartbeat > self._timeouts.suspect_after

    async def run(self) -> None:
        """Scan all neighbours every `poll` seconds until cancelled."""
        looked = self._clock()
        async with background() as group:
            while True:
                await asyncio.sleep(self._timeouts.poll)
                late, looked = self._clock() - looked - self._timeouts.poll, self._clock()
                if late >= self._timeouts.suspect_after and self._pace.try_acquire():
                    self._heartbeats.callbacks.report(Halted(seconds=late))
                for neighbour in [*self._edges.neighbours.values()]:
                    heartbeats = self._heartbeats.of(neighbour.id)
                    heartbeats.reporter.catch_up(neighbour)
                    # After a pause of this process, heartbeats that arrived meanwhile have not been read yet.
                    if late >= self._timeouts.heartbeat_interval:
                        continue
                    if neighbour.state == "up" and self._is_silent(neighbour):
                        heartbeats.note_lifeless(neighbour)
                        heartbeats.set_state("suspected", f"silent for {self._timeouts.suspect_after} s")
                    if self._away(neighbour) and neighbour.address and neighbour.id not in self._tried:
                        self._tried.add(neighbour.id)
                        group.create_task(self._try(neighbour, neighbour.address))

    def _away(self, neighbour: Neighbour) -> bool:
        """Return whether no heartbeat comes from a neighbour, or nothing that this peer sends reaches it."""
        current = self._edges.neighbours.get(neighbour.id) is neighbour
        lost = self._is_silent(neighbour) or neighbour.is_unreachable or neighbour.delivery.is_stalled
        return current and neighbour.state != "left" and lost

    async def _try(self, neighbour: Neighbour, address: str) -> None:
        """Probe a neighbour until it gives signs of life, and replace connections when it can be reached."""
        away, renewed = False, self._clock()
        forgotten = neighbour.state == "suspected"
        while self._away(neighbour):
            if why := await self._obstacle(address):
                # A longer attempt may have found out more than a timeout.
                if why != TIMED_OUT or not neighbour.reach.outbound:
                    neighbour.mark_unreachable(why)
                away = away or why != REFUSED  # a machine that refuses is there: gRPC asks it often enough
            elif neighbour.reach.outbound.reason in CLOSED_PORT_REASONS and not self._is_silent(neighbour):
                neighbour.reach.outbound.clear()  # it has come since, and perhaps this peer is to dial nothing
            elif away or self._clock() - renewed > self._timeouts.reconnect_after:
                away, renewed = False, self._clock()
                await self._transport.renew(address)
            elif forgotten:
                # It can be and could be reached: the peer is slow, or a device on the way forgot the connection.
                await self._transport.renew(address, "Tensors" if neighbour.delivery.is_stalled else "Heartbeat")
            forgotten = False
            await asyncio.sleep(self._timeouts.probe / 2)
        self._tried.discard(neighbour.id)

    async def _obstacle(self, address: str) -> str:
        """Return why that address cannot be reached; empty if it can."""
        try:
            return "" if await within(self._timeouts.probe, self._transport.reach(address)) else TIMED_OUT
        except DisconnectedError as error:
            return str(error)


FAREWELL = "done"
"""The state in the last beat of a peer that has finished, whose silence afterwards is no loss."""
BeatHandler = Callable[[CountedPipe, Beat], Awaitable[None]]


class Standing(NamedTuple):
    """What a listener is told at once when it changes."""

    durable: int
    """This peer's durable round."""
    acknowledged: int
    """The listener's durable round, once it has the last round of this edge: it may wait until that is acknowledged."""
    parted: bool
    """Whether the two are no longer neighbours."""
    leaves: bool
    """Whether this peer says farewell."""


class HeartbeatStream:
    """A stream of heartbeats, from its welcome to a farewell, or until the two are no longer neighbours.

    The end that dialled sends each beat as a Beat; the other end sends it as a Beat in a Reply.
    """

    def __init__(self, all: "Heartbeats", pipe: CountedPipe, dialled: bool, on_beat: BeatHandler) -> None:
        self._callbacks, self._leaving, self._state = all.callbacks, all.leaving, all.state
        self._durability, self._timeouts = all.state.durability, all.state.timeouts
        self._pipe, self._dialled, self._on_beat = pipe, dialled, on_beat
        self._there: dict[str, int] = {}
        """The durable rounds that the listener knows: those told to it on this stream, and those it told correctly."""
        self._shown: dict[str, str] = {}
        """The certificates that the listener was last shown on this stream, base64."""
        self._brought: dict[str, bytes] = {}
        """The certificates that this stream has last brought."""
        self.farewell_sent = False
        """Whether the farewell was sent; if the stream then broke, it may not have arrived."""

    async def run(self) -> None:
        """Run until the other end says farewell; DisconnectedError when it has heard this end's, or is cut off."""
        async with background() as group:
            group.create_task(self._speak())
            # The end that has read the last beat ends the stream. If this end did, a beat on its way from the other
            # would fail, and gRPC would drop what was not read yet: the last beats, which that peer would then await
            # until its `patience` ends.
            await self._listen()

    async def _speak(self) -> None:
        """Send beat after beat, at once when there is news; the last one is the farewell (R8), or tells a former
        neighbour all that it needs to forget the edge, too (R7)."""
        clock = asyncio.get_running_loop().time
        advertised = -inf
        while True:
            listener, standing = self._pipe.peer, self._standing()
            state, round = self._callbacks.state()
            beat = Beat(durable=standing.durable, state=FAREWELL if standing.leaves else state, round=round)
            self._relay(beat)
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
            self.farewell_sent = standing.leaves
            if standing.leaves or standing.parted:
                break
            due = self._durability.changed.until(partial(self._is_due, standing))
            await within(self._timeouts.heartbeat_interval, due)
        await self._pipe.finish()

    def _standing(self) -> Standing:
        listener, edges = self._pipe.peer, self._state.edges
        heard = self._durability.of(listener)
        return Standing(
            self._durability.own,
            heard if heard >= edges.last(listener, self._state.last_round) else NOTHING,
            listener not in edges.neighbours,
            self._leaving.is_set() and self._is_up_to_date(listener),
        )

    def _is_due(self, told: Standing) -> bool:
        """Return whether the next beat is to be sent at once."""
        return self._standing() != told or bool(self._news())

    def _news(self) -> dict[str, int]:
        """The durable rounds that are passed on, of which the listener has neither been told here nor has told."""
        known = self._durability.passed_on(self._pipe.peer)
        return {peer: round for peer, round in known.items() if round > self._there.get(peer, NOTHING - 1)}

    def _relay(self, beat: Beat) -> None:
        """Add the news; where members sign, what each has announced, with its certificate unless it has been shown."""
        news = self._news()
        self._there |= news
        if not self._state.identity.keyring.signs:
            beat.others.update(news)
            return
        announcements = self._durability.announcements()
        for peer, round in news.items():
            signed = announcements[peer]
            same = self._shown.get(peer) == signed.certificate
            self._shown[peer] = signed.certificate
            certificate = b"" if same else b64decode(signed.certificate)
            beat.announced.add(id=peer, round=round, signature=b64decode(signed.signature), certificate=certificate)

    def _is_up_to_date(self, listener: str) -> bool:
        """Return whether the listener knows this peer's durable round (R8).

        A farewell may be lost with its stream; a listener that did not know the last round by then would wait until its
        `patience` ends.
        """
        neighbour = self._state.edges.neighbours.get(listener)
        return (
            neighbour is None or neighbour.state == "left" or neighbour.progress.acked_durable >= self._durability.own
        )

    async def _listen(self) -> None:
        while True:
            beat = self._decoded(await self._pipe.receive())
            for one in beat.announced:
                one.certificate = one.certificate or self._brought.get(one.id, b"")
                if one.id in self._state.edges.members:
                    self._brought[one.id] = one.certificate
            await self._on_beat(self._pipe, beat)
            told = [*beat.others.items(), *((one.id, one.round) for one in beat.announced)]
            known = self._durability.passed_on(self._pipe.peer)
            # No false claim may keep from the listener what holds it back: the ring would wait for it.
            self._there |= {
                id: at for id, at in told if self._there.get(id, NOTHING - 1) < at <= known.get(id, NOTHING - 1)
            }
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

    This object outlives the edge for as long as streams with the former neighbour last.
    """

    def __init__(self, id: str, all: "Heartbeats") -> None:
        self.id, self._all, self._state, self._own = id, all, all.state, all.state.identity.id
        self._edges, self._timeouts = all.state.edges, all.state.timeouts
        self._clock = asyncio.get_running_loop().time
        self.reporter = LinkReporter(all.state.limits, all.state.timeouts, all.callbacks.report)
        self.dialled: CountedPipe | None = None
        """The stream that this peer has opened."""
        self.streams = 0
        """The number of open streams: two for a moment if both ends have dialled."""
        self.farewell_sent = False
        self._began = inf
        """The loop's time when the last stream began."""
        self._latest: CountedPipe | None = None
        """The stream on which the last heartbeat came."""
        self._doubted = False
        """Whether it has made a report that cannot be true, which is reported once."""

    @property
    def _neighbour(self) -> Neighbour | None:
        """The neighbour, which may have ceased to be one, or become one again, since a stream was opened; else None."""
        return self._edges.neighbours.get(self.id)

    @property
    def accepted(self) -> CountedPipe | None:
        """The stream in use among those that the other peer has opened."""
        return self._all.accepted.active(self.id)

    @property
    def dials_first(self) -> bool:
        """Whether this peer dials first: if both can be dialled, the one with the smaller id does."""
        return self._own < self.id or not self._edges.can_be_dialled(self._own)

    async def accept(self, pipe: CountedPipe) -> None:
        """Serve an accepted stream, after its hello; besides an active one, it counts from its first beat on."""
        is_used = self._all.accepted.add(pipe)
        try:
            await pipe.tell(self._state.welcome(), self._timeouts.read)
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
        """Let a stream replace the active one when it says something."""
        beat = await pipe.receive()
        try:
            self._state.decoder.beat(beat)
        except BadFrameError as error:
            raise BreachError(str(error)) from None
        pipe.unread(beat)
        await self._all.accepted.promote(pipe)

    async def converse(self, pipe: CountedPipe, dialled: bool) -> None:
        """Run one stream, from its welcome to its end."""
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
            self.dialled.abort()  # one stream is enough: that of the peer that dials first
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
                self._state.durability.changed.set()  # a farewell may wait for it
        self._apply_durable(beat)
        if beat.state == FAREWELL:
            # It must have heard that this peer has its last round, too (R8); or it leaves what it still owes.
            both = min(self._state.durability.of(self.id), self._state.durability.own)
            finished = both >= self._edges.last(self.id, self._state.last_round)
            early = "it said farewell before both ends can have finished"
            self.set_state("left" if finished else "down", "finished" if finished else early)
        elif self._is_stalled(beat.taken if beat.HasField("taken") else None):
            self.set_state("suspected", "it gives signs of life, but what is sent to it does not arrive")
        else:
            self.set_state("up", "")

    async def _renew_if_cut(self, neighbour: Neighbour, pipe: CountedPipe) -> None:
        """Replace an old tensor connection if heartbeats come again on another stream: the one before was cut without a
        word, and so may be the tensors'."""
        if self._latest is not pipe:
            self._latest = pipe
            last, since = neighbour.signs.last_heartbeat, neighbour.delivery.connected_since
            missed = self._clock() - last > 2 * self._timeouts.heartbeat_interval
            if missed and since is not None and since < last and neighbour.address and neighbour.state != "joining":
                await self._state.transport.renew(neighbour.address, "Tensors")

    def _apply_durable(self, beat: Beat) -> None:
        """Apply a beat's reports; those about others can only hold this peer back. Report impossible ones once."""
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
        """React to the end of a stream, or to a failed attempt; nothing is lost while another stream is open."""
        if not self.streams:
            if neighbour := self._neighbour:
                self.note_lifeless(neighbour)
            self.set_state("down", reason)

    def note_lifeless(self, neighbour: Neighbour) -> None:
        """Note that a neighbour gives no signs of life, which whoever waits for deliveries to it must know."""
        neighbour.signs.alive = False
        self._state.deliveries.news.set()

    def set_state(self, state: LinkState, reason: str) -> None:
        """Set the state, and report it unless it is too soon."""
        neighbour = self._neighbour
        if neighbour is None or (state in ("down", "suspected") and self._all.leaving.is_set()):
            return
        if state == "up" and (problem := neighbour.problem(self._settled)):
            state, reason = "suspected", problem
        if state == "down" and self.id not in self._edges.current():
            # The ring was reordered, and that peer forgot the edge first.
            state, reason = "left", "no neighbour any more"
        if state == "down" and neighbour.state in ("joining", "left"):
            neighbour.mark_unreachable(reason)
        else:
            self.reporter.change(neighbour, state, reason)

    @property
    def _settled(self) -> float:
        """The time since which a problem must exist to be reported: at first, other streams may still have to open."""
        settled = self._clock() - self._timeouts.stable_after
        return settled if self._began < settled else -inf


class DialledHeartbeats(DialledStream):
    """The heartbeat stream that this peer keeps open to a neighbour, when it is this peer's turn to dial."""

    service = "Heartbeat"

    def __init__(self, all: "Heartbeats", neighbour: Neighbour) -> None:
        super().__init__(all.state, neighbour)
        self._all, self._heartbeats = all, all.of(neighbour.id)

    async def wait_for_turn(self) -> bool:
        """Wait until this peer is to dial; return False once the two have parted.

        The peer that does not dial first dials when nothing comes: perhaps only its direction is open.
        """
        self._heartbeats.dialled = None
        timeouts, clock = self._state.timeouts, asyncio.get_running_loop().time
        while self._heartbeats.accepted or not self._heartbeats.dials_first:
            wait = self.neighbour.signs.last_heartbeat + timeouts.suspect_after + timeouts.probe - clock()
            if wait <= 0 or self._all.has_parted(self.neighbour):
                break
            await within(wait, self._all.stream_ended.next())
        return not self._all.has_parted(self.neighbour)

    async def serve(self, pipe: CountedPipe, welcome: Welcome) -> float:
        self._backoff.welcomed()
        if welcome.life:  # an older hello of that process may yet come, on another stream, which is no loss
            self._state.durability.lost(self.neighbour.id, welcome)
        self._heartbeats.dialled = pipe
        await self._heartbeats.converse(pipe, dialled=True)
        return self._state.timeouts.retry[-1]  # it has said farewell, and will not be back at once

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
        self.stream_ended = News()
        self.closing = False
        """Whether this peer closes all streams, so that their ends need not be reported."""
        self._by_id: dict[str, NeighbourHeartbeats] = {}

    def of(self, id: str) -> NeighbourHeartbeats:
        if id not in self._by_id:
            self._by_id[id] = NeighbourHeartbeats(id, self)
        return self._by_id[id]

    async def close(self) -> None:
        """Say farewell to all neighbours (R8) and wait until they have ended the streams, as they do on hearing it."""
        self.leaving.set()
        self.state.durability.changed.set()  # wakes the streams, which wait there before their next beat
        # Each looks before it waits: a stream could end before the task does.
        news = (self.stream_ended.until(self._all_parted), self.state.durability.changed.until(self._all_parted))
        async with background() as group:
            await asyncio.wait([*map(group.create_task, news)], return_when=asyncio.FIRST_COMPLETED)

    def _all_parted(self) -> bool:
        """Return whether no stream is open, and none will be."""
        streams = any(one.streams for one in self._by_id.values())
        return not streams and all(map(self.has_parted, self.state.edges.neighbours.values()))

    def has_parted(self, neighbour: Neighbour) -> bool:
        """Return whether one of the two has said farewell or forgotten the edge, so that this peer no longer dials."""
        if self.state.edges.neighbours.get(neighbour.id) is not neighbour:
            return True
        told = self.of(neighbour.id).farewell_sent
        return self.leaving.is_set() and (told or neighbour.progress.in_later_view or neighbour.state == "left")

    async def close_with(self, former: str) -> None:
        """Tell a former neighbour the last news (R7), and wait until it has ended the streams, having read them."""
        self.state.durability.changed.set()  # wakes the streams, which wait there before their next beat
        ended = self.stream_ended.until(lambda: not self.of(former).streams)
        await within(self.state.timeouts.farewell_timeout, ended)

    def end(self, former: str) -> None:
        """Drop a peer that is no neighbour any more."""
        self.accepted.end(former)
        self._by_id.pop(former, None)
