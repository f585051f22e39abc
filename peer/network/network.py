"""One peer's end of the federation: its links, what arrives on them, and which rounds are safely on disk."""

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from itertools import count
from typing import Any

from torch import Tensor

from peer.errors import WrongMessageError
from peer.network.durability import NOTHING, ImpossibleError
from peer.network.limits import RateLimiter
from peer.network.neighbours import Neighbour
from peer.network.streams.audit import Audit
from peer.network.streams.heartbeat import DialledHeartbeats, FailureDetector, Heartbeats
from peer.network.streams.incoming import IncomingStreams
from peer.network.streams.link import (
    Inbox,
    IncomingMessage,
    KeptFrame,
    KeptFrames,
    MessageWriter,
    NeverSentError,
    OutgoingLink,
    Receiver,
    ReverseLink,
)
from peer.network.streams.stream import NetworkCallbacks, NetworkState, StreamTakeover
from peer.network.transport import SERVICES, BreachError, DisconnectedError, Pipe, Service
from peer.network.wire.frames import Call, Heading, Key, MessageShape, decode
from peer.network.wire.manifest import Manifest, NotDeclaredError
from peer.network.wire.messages import Welcome
from peer.tasks import background, within
from peer.telemetry.events import PeerRegressed


class Network:
    """The base of the collectives: frames to neighbours and messages from them, keyed by round and step."""

    def __init__(self, state: NetworkState, manifest: Manifest, callbacks: NetworkCallbacks) -> None:
        self._state, self.identity, self.manifest, self.limits = state, state.identity, manifest, state.limits
        self.audit, self.traffic = Audit(state.identity.view), state.traffic
        self.edges, self.durability = state.edges, state.durability
        self.resources = callbacks.resources
        self.links: dict[str, OutgoingLink] = {}
        self.serials = count()
        """The serial numbers of the frames that this peer writes."""
        self.transport = state.transport
        self._tasks: asyncio.TaskGroup | None = None
        """The tasks while the network runs; None before that, when streams are declared but not opened."""
        self._streams: dict[tuple[str, Service], asyncio.Task[None]] = {}
        """The streams that this peer keeps open, by (neighbour, service)."""
        self._receiver = Receiver(state, manifest, self.audit, callbacks.report, callbacks.memory)
        self._heartbeats = Heartbeats(state, callbacks)
        self._told_lost: set[str] = set()
        """The neighbours whose present loss of rounds was reported."""
        self._losses = defaultdict[str, RateLimiter](
            lambda: RateLimiter(state.limits.sayings, state.timeouts.report_interval)
        )
        """How often losses of a neighbour may be reported: it could lose rounds and have them again without end."""
        self._fetching = StreamTakeover(state.limits, state.timeouts)
        """The streams that neighbours without an address have opened to fetch tensors."""
        self.report = callbacks.report
        self._incoming = IncomingStreams(
            {
                "Tensors": self._receiver.serve_tensors,
                "Fetch": self._accept_fetching,
                "Heartbeat": self._accept_heartbeats,
                "Views": callbacks.questions,
            },
            self._receiver.refusals,
            state.surprises,
        )

    async def listen(self) -> None:
        """Open the server; InputError if the address is in use."""
        await self.transport.listen(self._incoming.serve)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Run links and heartbeats during the block, and close everything after it.

        A fatal error in any of them ends the block, and is raised.
        """
        try:
            async with background() as self._tasks:
                self._tasks.create_task(self.transport.run())
                self._tasks.create_task(FailureDetector(self._heartbeats).run())
                self._tasks.create_task(self._watch_durability(self._tasks))
                self._tasks.create_task(self._incoming.watch())
                self._open_streams()
                try:
                    yield
                finally:
                    self._heartbeats.closing = True
        finally:
            self._tasks = None
            await self.transport.close()

    def set_edges(self, round: int, receivers: Sequence[str], senders: Sequence[str]) -> None:
        """Exchange messages with these receivers and senders from that round on."""
        # A protocol may reorder the ring, which could not be checked beforehand.
        self.edges.refuse_unreachable(self.identity.id, (*receivers, *senders))
        self.edges.use(round, receivers, senders)
        self.audit.note_edges(round, receivers, senders)
        self._open_streams()

    def _open_streams(self) -> None:
        """Open a stream of tensors to each receiver, and one of heartbeats per pair, which either end may open."""
        dials_only = not self.edges.can_be_dialled(self.identity.id)
        for peer, neighbour in self.edges.neighbours.items():
            if self.edges.has("send", peer) and peer not in self.links:
                self.links[peer] = OutgoingLink(self._state, neighbour, self._welcomed)
            if neighbour.address and peer in self.links:
                self._keep_open(peer, "Tensors", self.links[peer].run)
            if dials_only and self.edges.has("receive", peer):
                self._keep_open(peer, "Fetch", ReverseLink(self._state, neighbour, self._receiver).run)
            if neighbour.address:
                self._keep_open(peer, "Heartbeat", DialledHeartbeats(self._heartbeats, neighbour).run)

    def _keep_open(self, peer: str, service: Service, run: Callable[[], Coroutine[Any, Any, None]]) -> None:
        if self._tasks and (peer, service) not in self._streams:
            self._streams[peer, service] = self._tasks.create_task(run())

    def open_message(
        self, to: Sequence[str], call: Call, length: int, scalars: Sequence[float] = (), offset: int = 0
    ) -> MessageWriter:
        """Begin a message of `length` bytes, which begin `offset` bytes into the vector of the call."""
        for peer in to:
            if not self.edges.permits("send", peer, call.round):
                raise NotDeclaredError(f"`{peer}` is no receiver of `{self.identity.id}` in round {call.round}")
        number = self.manifest.number(call.name, call.round)
        self.manifest.check(number, call.round, len(scalars), offset, length)
        heading = Heading(self.key(call), number, call.tag, len(scalars), offset, length)
        self.audit.record_sent(call.round, to, self.manifest.payloads[number], heading)
        return MessageWriter(
            [self.links[peer].outbox for peer in to], self.serials, heading, scalars, self.limits.frame
        )

    def begin_round(self, round: int) -> None:
        self._receiver.begin(round)

    def inbox(self, sender: str) -> Inbox:
        return self._receiver.inbox(sender)

    async def message(self, sender: str, call: Call, shape: MessageShape, count: int | None = None) -> IncomingMessage:
        """Wait for a sender's message of that call until its first `count` bytes have arrived; None: all of them.

        WrongMessageError if it is not what every peer sends in that call.
        """
        longest = self.manifest.largest if count is None else count
        try:
            message = await self.inbox(sender).message(self.key(call), longest)
        except NeverSentError as error:
            raise WrongMessageError(
                f"{sender} {error}, and this peer still calls {call} in round {call.round}; every peer must make the "
                "same calls: compare its code with this peer's",
                sender,
            ) from None
        heading, number = message.heading, self.manifest.number(call.name, call.round)
        if heading.payload != number or heading.call != call.tag:
            other = self.manifest.payloads[heading.payload].name
            what = (
                f"sent `{other}`" if heading.payload != number else "sent numbers of other names, or by another call,"
            )
            raise WrongMessageError(
                f"{sender} {what} in round {call.round} where this peer calls {call}; compare its code with this "
                "peer's",
                sender,
            )
        if shape.may_be_empty and message.empty:
            shape = MessageShape(0)
        sent = MessageShape(heading.length, heading.doubles, heading.offset)
        length = heading.length if shape.length is None else shape.length
        if sent != (expected := MessageShape(length, shape.scalars, shape.offset)):
            raise WrongMessageError(
                f"{sender} sent {sent} of `{call.name}` in round {call.round}, where {expected} belong; "
                "compare its code with this peer's",
                sender,
            )
        return message

    async def receive(self, sender: str, call: Call, shape: MessageShape) -> tuple[Tensor, tuple[float, ...]]:
        """Take the values and scalars of a whole message."""
        return self.inbox(sender).consume(await self.message(sender, call, shape))

    def expect_empty(self, sender: str, call: Call) -> None:
        """Refuse everything but an empty message from that sender in that call."""
        self._receiver.expect_empty(sender, self.key(call))

    def stalled_messages(self) -> Iterator[tuple[Neighbour, Key, int]]:
        """Yield the neighbours that keep this peer waiting, with the message's key and how many frames have arrived."""
        for sender, inbox in self._receiver.inboxes.items():
            if inbox.awaited and (neighbour := self.edges.neighbours.get(sender)):
                message = inbox.messages.get(inbox.awaited)
                yield neighbour, inbox.awaited, message.next if message else 0

    def state_dict(self) -> dict[str, Any]:
        """What this peer must know about the others after a restart, and what it has counted, as plain JSON."""
        return {
            "edges": self.edges.dump(),
            "durable": {peer: at for peer, at in self.durability.first_hand.items() if peer != self.identity.id},
            "sent": dict(self.traffic.sent),
            "received": dict(self.traffic.received),
            "tensor_bytes": self.audit.tensor_bytes,
        }

    def load_state_dict(self, round: int, state: Mapping[str, Any]) -> None:
        """Go on after `round` from the result of `state_dict`."""
        self._begin_after(round, state)
        self.edges.load(state["edges"])
        self._open_streams()
        # Peers that have finished and left can no longer be asked how far they are.
        self.durability.remember(state["durable"])

    def outgoing_frames(self, round: int) -> list[tuple[list[str], KeptFrame]]:
        """The frames of that round that neighbours may still ask for, each once, with its receivers (R2).

        They are in the order of writing: in another order, a replaying neighbour might have no room for what it needs.
        """
        receivers: dict[int, list[str]] = {}
        frames: dict[int, KeptFrame] = {}
        for neighbour, link in self.links.items():
            for frame in link.outbox.of_round(round):
                receivers.setdefault(frame.serial, []).append(neighbour)
                frames[frame.serial] = frame
        return [(receivers[serial], frames[serial]) for serial in sorted(frames)]

    def begin_view(self, first: int, state: Mapping[str, Any], durable: Mapping[str, int]) -> None:
        """Go on in a view that begins with round `first`. durable: the rounds that others are known to have on disk.

        state: from `state_dict` in an earlier view; only its counts are still of use.
        """
        self._begin_after(first - 1, state)
        self.durability.grant(durable)

    def _begin_after(self, round: int, state: Mapping[str, Any]) -> None:
        self.begin_round(round + 1)
        self.audit.tensor_bytes = state["tensor_bytes"]
        self.traffic.sent.update(state["sent"])
        self.traffic.received.update(state["received"])

    def load_frames(self, frames: KeptFrames) -> list[KeptFrame]:
        """Restore a round's frames, after those of earlier rounds (R2); return them as they are in the outboxes."""
        loaded = []
        for receivers, data in frames:
            frame = decode(data)
            kept = KeptFrame(next(self.serials), frame.key, frame.index, data)
            for link in [self.links[receiver] for receiver in receivers if receiver in self.links]:
                link.outbox.append(kept)
            loaded.append(kept)
        return loaded

    def receivers_without(self, round: int, state: Mapping[str, Any]) -> list[str]:
        """The receivers that, by `state` of `state_dict`, may not have that round's messages on disk (R2)."""
        receivers = [peer for way, peer, first, _ in state["edges"] if way == "send" and first <= round]
        return [peer for peer in receivers if state["durable"].get(peer, NOTHING) < round]

    def rounds_still_needed(self) -> set[int]:
        """The rounds whose messages neighbours may still ask for."""
        return {round for link in self.links.values() for round, _ in link.outbox.messages}

    def key(self, call: Call) -> Key:
        return Key(self.identity.view, call.round, call.step)

    @property
    def last_round(self) -> int:
        """The round after which all peers end, as far as this peer knows."""
        return self._state.last_round

    def set_last_round(self, round: int) -> None:
        """End after that round, as all peers have agreed, whether it is the run that ends or their view."""
        self._state.last_round = round
        self.edges.end_after(round)
        self.durability.changed.set()

    def announce(self, durable: int) -> None:
        """Announce that rounds up to `durable` are on this peer's disk (rule R3)."""
        self.durability.announce(durable)

    async def let_arrive(self) -> None:
        """Wait until the neighbours have what was written for them, are gone, or `farewell_timeout` is over."""
        arrived = self._state.deliveries.news.until(
            lambda: all(link.has_arrived or not link.neighbour.signs.alive for link in self.links.values())
        )
        await within(self._state.timeouts.farewell_timeout, arrived)

    async def close_gracefully(self) -> None:
        """Tell the neighbours the last news, and wait until they have ended their heartbeat streams (R8)."""
        await within(self._state.timeouts.farewell_timeout, self._heartbeats.close())

    async def _accept_heartbeats(self, pipe: Pipe) -> None:
        if admitted := await self._receiver.admit(pipe, ("send", "receive")):
            await self._heartbeats.of(admitted.peer).accept(admitted)

    async def _accept_fetching(self, pipe: Pipe) -> None:
        """Send tensors on the stream that a neighbour without an address has opened for this."""
        admitted = await self._receiver.admit(pipe, ("send",))
        if admitted is None:
            return
        first = self._fetching.add(admitted)

        async def enters() -> None:
            if not first:
                await self._fetching.promote(admitted)

        try:
            await self.links[admitted.peer].serve_reverse(admitted, enters)
        finally:
            self._fetching.remove(admitted)

    def _welcomed(self, peer: str, welcome: Welcome) -> None:
        """Take note of a welcome; DisconnectedError if the neighbour has lost rounds, or its report cannot be true, or
        it took so long to answer that it is no neighbour any more.
        """
        if not self.edges.has("send", peer):
            raise DisconnectedError("it is no neighbour any more")
        progress = self.edges.neighbours[peer].progress
        if lost := self.durability.lost(peer, welcome):
            progress.regressed = True
            if peer not in self._told_lost and self._losses[peer].try_acquire():
                self._told_lost.add(peer)
                self.report(PeerRegressed(neighbour=peer, sentence=lost))
            raise DisconnectedError(lost)
        progress.regressed = False
        self._told_lost.discard(peer)
        try:
            self.durability.record_first_hand(peer, welcome.durable)
        except ImpossibleError as error:
            raise BreachError(str(error)) from None
        self.links[peer].outbox.release(self.durability.of(peer))  # R4: first-hand
        self.edges.on_handshake("send", peer)

    async def _watch_durability(self, tasks: asyncio.TaskGroup) -> None:
        """Release what is durable elsewhere (R4), forget edges that both ends are past (R7); by first-hand reports."""
        while True:
            for peer, link in self.links.items():
                link.outbox.release(self.durability.of(peer))
            for peer in self.edges.retire(self.durability.first_hand, self.durability.own):
                self.links.pop(peer, None)
                self._state.deliveries.forget(peer)
                kept = {name: stream for name in SERVICES if (stream := self._streams.pop((peer, name), None))}
                tasks.create_task(self._part_with(peer, kept))
            await self.durability.changed.next()

    async def _part_with(self, peer: str, kept: Mapping[Service, asyncio.Task[None]]) -> None:
        """End all streams with a former neighbour (R7). Those that it could open again end last, once it has forgotten
        the edge, too: otherwise it would wait for repeats on that edge, and dial."""
        for service, stream in kept.items():
            if service != "Heartbeat":
                stream.cancel()
        await self._heartbeats.close_with(peer)
        if dialling := kept.get("Heartbeat"):
            dialling.cancel()
        if peer not in self.edges.neighbours:  # it may have become one again
            for incoming in (self._receiver, self._heartbeats, self._fetching):
                incoming.end(peer)
