"""Links: how a message gets from one peer to another. Nothing above a link knows that it broke.

**A message's way.** A collective (`network/collectives.py`) calls `Network.open_message`, which lets out only what
the manifest and the edges allow, and records it in the audit. The `MessageWriter` cuts the message into frames,
encodes each once for all receivers, and puts it into the `Outbox` of each. The `OutgoingLink` to each sends what
its outbox holds, in the order of writing, over a pipe of the transport (`transport/grpc.py`; within one process
`transport/memory.py`). At the other end the `Receiver` reads the hello and admits or refuses the caller; checks
each frame against checksum, manifest and edges; and puts it into the `Inbox` of its sender, where frames become an
`IncomingMessage`. The collective that waits in `Network.message` works on what has arrived, frame by frame, and
takes the whole out by `Inbox.consume`.

The sender dials. A receiver without an address dials instead: its `ReverseLink` opens a `Fetch` stream, and the
sender answers on it with frames (`OutgoingLink.serve_reverse`).

**After a break** the end that dials does so again, after ever longer pauses (`DialledStream`), and the receiver's
welcome says what it has: its durable round, the round it is in, and of each message of which something has arrived
the first missing frame. The sender goes on from there. A newer stream takes the place of an older one once it has
brought something (`StreamTakeover`), and whether what is sent arrives is told by heartbeats (`DeliveryTracker`).

**The rules** that make a crash cost nothing but time; each is named beside the lines that uphold it. A message has
a key: (view, round, step), the step counting the collective calls of a round. A round is durable at a peer whose
checkpoint of it is on disk, and which will not fall back to an earlier one; to announce it is to tell the
neighbours so.

- **R1 Function.** A message depends only on the sender's state at the start of the round and on messages received
  in it; whatever else it depends on (a secret, a measurement) is in the journal, on disk, before it is used. So a
  peer that replays a round writes the same bytes again, and a repeat can be told from a conflict by its digest. The
  runtime upholds it (`runtime/checkpoints.py:Journal`); everything here rests on it.
- **R2 Outbox.** A checkpoint holds the state *and* the messages of the round that neighbours may still ask for
  (`Outbox.of_round`, `Network.outgoing_frames`). With the messages only in memory, two neighbours that die together
  can wait for each other without end. Large ones take no memory once there, and are read when asked for. They go
  back into the outboxes in the order of writing: in another one, a neighbour that replays could have no room for what
  it waits for.
- **R3 Durable.** A peer announces the older of its two newest checkpoints (`Durability.announce`): if the newest
  turns out damaged, it falls back to the one before without asking for what others have dropped. After the last
  round there is none to follow: that checkpoint is read back from disk and then announced. A peer that
  resumes where members change announces the newest intact one.
- **R4 Release.** `Outbox.release` drops a message when its receiver itself has announced the message's round, over
  its own stream, or a view that was decided says that it has it; no single other peer's word counts. What has not
  been released is sent again after a break, unless the welcome says that it is there (`OutgoingLink._send`).
- **R5 First of a key wins** (`IncomingMessage.add`). A repeat with the same content is ignored; with another
  content it is dropped and reported.
- **R6 Low watermark.** No peer starts a round more than W = 4 rounds past the durable round of any of its
  neighbours, nor, as far as it has heard, of any other peer (`Durability.wait_within_bound`). That bounds outboxes
  and inboxes. A frame from further ahead is not taken in before this peer has come closer (`Receiver._expected`).
- **R7 Old edges.** When the ring is reordered, an edge stays open for repeats until both ends have a later round on
  disk than the last one it was used in (`Edges.retire`). Of two peers that become neighbours one learns it first:
  its hello and its frames wait until the other has, too (`Receiver._wait_to_become_neighbour`,
  `Receiver._expected`).
- **R8 Serving.** A finished peer stays, and sends what it is asked for, until its neighbours have the last round on
  disk, or `patience` is over (`runtime/lifecycle.py:drain`); then it says farewell in its last heartbeat
  (`Heartbeats.close`).

docs/wire.md has the bytes; docs/reliability.md what is promised, how it was tested, and what it is worth when
members lie.
"""

import asyncio
import struct
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from math import isfinite
from typing import Literal, NoReturn

import numpy as np
import torch
from torch import Tensor

from peer.errors import FailedError
from peer.network.limits import Limits
from peer.network.neighbours import Direction, Neighbour
from peer.network.streams.audit import Audit
from peer.network.streams.handshake import REASON_WITHHELD, Refusals, RefusedError, ThrottledReason, do_handshake
from peer.network.streams.stream import CountedPipe, DialledStream, Memory, NetworkState, StreamTakeover, pageable
from peer.network.transport import BreachError, DisconnectedError, Pipe
from peer.network.wire.frames import BadFrameError, Frame, Heading, Key, decode, encode_frame, frame_count
from peer.network.wire.manifest import DTYPES, Manifest, NotDeclaredError, PayloadSpec, vector_bytes
from peer.network.wire.messages import Hello, Position, Refusal, Reply, Welcome, sanitise
from peer.tasks import background
from peer.telemetry.events import CallerRefused, Conflict, Report
from peer.views.view import STALENESS_BOUND

KeptFrames = list[tuple[list[str], bytes]]
"""Receivers and bytes of each frame, in the order they were written."""


@dataclass(slots=True)
class KeptFrame:
    """A frame as it goes on the wire; it is shared by the outboxes of all receivers, and its bytes never change."""

    serial: int
    """Of the frame among all that this peer writes to any peer: a receiver consumes messages in this order."""
    key: Key
    index: int
    """The frame's place within its message."""
    data: bytes | Callable[[], bytes]
    """Or, of a large model and once it is on disk, what reads it from there (blocking; FailedError if it is not there):
    a frame is rarely asked for again, and there is no room for all that might be."""

    async def content(self) -> bytes:
        return self.data if isinstance(self.data, bytes) else await asyncio.to_thread(self.data)


class Outbox:
    """Frames in the order in which they were written. A frame's position counts from the first one ever."""

    def __init__(self) -> None:
        self._frames: list[KeptFrame] = []
        self._first = 0
        self._released = -1
        self._grown = asyncio.Event()

    def append(self, frame: KeptFrame) -> None:
        self._frames.append(frame)
        self._grown.set()

    def release(self, durable: int) -> None:
        """Drop the messages of rounds up to `durable`: the receiver has them on disk (R4)."""
        self._released = max(self._released, durable)
        count = 0
        while count < len(self._frames) and self._frames[count].key.round <= self._released:
            count += 1
        del self._frames[:count]
        self._first += count

    @property
    def start(self) -> int:
        """The position of the first frame still held."""
        return self._first

    async def frame(self, position: int) -> tuple[int, KeptFrame]:
        """The first frame held from `position` on, and where it is; waits for one to be written."""
        # What was just written may be released before the waiting task is awake.
        while (position := max(position, self._first)) >= self._first + len(self._frames):
            self._grown.clear()
            await self._grown.wait()
        return position, self._frames[position - self._first]

    async def content(self, position: int, frame: KeptFrame) -> bytes | None:
        """The bytes of the frame at that position; None if it has been released, and its file is no longer there."""
        try:
            return await frame.content()
        except FailedError:
            if position >= self._first:
                raise
            return None

    @property
    def messages(self) -> set[tuple[int, int]]:
        """Round and step of the frames that are held."""
        return {(frame.key.round, frame.key.step) for frame in self._frames}

    @property
    def rounds(self) -> set[int]:
        """Of the frames that are held."""
        return {frame.key.round for frame in self._frames}

    def of_round(self, round: int) -> Iterator[KeptFrame]:
        """The frames of one round, for the checkpoint (R2)."""
        return (frame for frame in self._frames if frame.key.round == round)


class MessageWriter:
    """Puts a message into the outboxes of its receivers, block by block in order; `frame` bytes to a frame."""

    def __init__(
        self, boxes: Sequence[Outbox], serials: Iterator[int], heading: Heading, scalars: Sequence[float], frame: int
    ) -> None:
        self._boxes, self._serials, self._heading, self._frame = boxes, serials, heading, frame
        self._scalars = struct.pack(f"<{len(scalars)}d", *scalars)
        self._index = 0

    def write(self, block: memoryview) -> None:
        """The next frame's bytes, the same at a replay (R1); they are copied once for all receivers."""
        data = encode_frame(self._heading, self._index, self._scalars, block)
        frame = KeptFrame(next(self._serials), self._heading.key, self._index, data)
        for box in self._boxes:
            box.append(frame)
        self._index += 1

    def write_all(self, vector: Tensor) -> None:
        """The whole message, as the vector is now: what changes it afterwards does not change what was sent."""
        for block in self._blocks(vector):
            self.write(block)

    async def write_gradually(self, vector: Tensor) -> None:
        """The whole message of a vector that does not change meanwhile: the first frame is under way while the next is
        encoded, which for tens of megabytes saves a tenth of the time."""
        for block in self._blocks(vector):
            self.write(block)
            await asyncio.sleep(0)

    def _blocks(self, vector: Tensor) -> Iterator[memoryview]:
        data = vector_bytes(vector)
        for index in range(frame_count(len(data), self._frame)):
            yield data[self._frame * index : self._frame * (index + 1)]


class OutgoingLink(DialledStream):
    """The directed tensor stream to one neighbour. What it refuses is reported, and sent again after longer pauses."""

    service = "Tensors"

    def __init__(self, state: NetworkState, neighbour: Neighbour, welcomed: Callable[[str, Welcome], None]) -> None:
        super().__init__(state, neighbour)
        self.outbox = Outbox()
        self.bytes_per_second = 0.0
        self._welcomed = welcomed
        self._damaged = 0
        """How often in a row the neighbour has said that what was sent arrived damaged."""

    async def serve_reverse(self, pipe: Pipe, enters: Callable[[], Awaitable[None]]) -> None:
        """Send on a stream that the neighbour has opened, to its end.

        It `enters`, in place of an older one, when the neighbour has said what it has.
        """
        state = self._state
        try:
            theirs = await do_handshake(pipe, state.welcome(state.round), state.timeouts.answer, state.decoder)
            await enters()
            await self.serve(pipe, theirs)
        except RefusedError as error:
            self.on_refusal(error, self._reason.update(str(error)))

    async def serve(self, pipe: Pipe, welcome: Welcome) -> NoReturn:
        """One stream from its welcome to its break."""
        self._state.deliveries.on_open(self.neighbour.id)
        self._welcomed(self.neighbour.id, welcome)
        self._backoff.welcomed()
        first, has = welcome.round, self._already_received(welcome)
        del welcome  # a neighbour may have filled it with what is of no use
        self.neighbour.delivery.connected_since = asyncio.get_running_loop().time()
        try:
            async with background() as group:
                group.create_task(self._send(pipe, first, has))
                group.create_task(self._mark_stable())
                await self._until_refused(pipe)
        finally:
            self.neighbour.delivery.connected_since = None

    async def _mark_stable(self) -> None:
        """A neighbour that refuses nothing for a while takes what is sent to it."""
        await asyncio.sleep(self._state.timeouts.stable_after)
        self._damaged = 0
        self.neighbour.delivery.accepted()

    def on_refusal(self, error: RefusedError, reason: str) -> None:
        """Tell a refused stream from a neighbour that rejects what is sent to it.

        Only wrong code or a lie makes a neighbour say that a frame is not declared, or so often that one is damaged.
        Which of the two, and whose, is not known here: this peer's own check lets nothing out that it does not declare.
        """
        super().on_refusal(error, reason)
        self._damaged += error.reason == Refusal.DAMAGED
        if error.reason == Refusal.UNDECLARED or self._damaged >= self._state.limits.accidents:
            self.neighbour.delivery.rejection.set(
                f"it does not take what is sent to it: {reason}; compare its code with this peer's"
            )
        elif error.reason == Refusal.LOST:
            self.neighbour.delivery.knows_lost_rounds = True
            self.neighbour.delivery.rejection.set(reason)

    async def _until_refused(self, pipe: Pipe) -> NoReturn:
        """Wait on a welcomed stream for its end, or for RefusedError of what was sent; nothing else comes."""
        try:
            reply = self._state.decoder.reply(await pipe.receive())
        except BadFrameError as error:
            raise BreachError(str(error)) from None
        if not reply.HasField("refusal"):
            raise BreachError("its answer is not a refusal")
        raise RefusedError(reply.refusal)

    def _already_received(self, welcome: Welcome) -> dict[tuple[int, int], int]:
        """By round and step of the messages that are held here, the first frame that the neighbour lacks."""
        told = {(position.round, position.step): position.next for position in welcome.positions}
        return {key: told[key] for key in self.outbox.messages if key in told}

    async def _send(self, pipe: Pipe, first: int, has: Mapping[tuple[int, int], int]) -> None:
        """Send what is written from that round on, except what the neighbour has (R4)."""
        after = self.outbox.start
        clock = asyncio.get_running_loop().time
        while True:
            position, frame = await self.outbox.frame(after)
            after = position + 1
            round, step = frame.key.round, frame.key.step
            if round < first or frame.index < has.get((round, step), 0):
                continue
            if (data := await self.outbox.content(position, frame)) is None:
                continue
            began = clock()
            await pipe.send(data)
            self._state.deliveries.on_sent(self.neighbour.id)
            self._update_throughput(len(data), clock() - began)

    def _update_throughput(self, count: int, seconds: float) -> None:
        """A running mean over full frames only: small ones measure the latency."""
        if count >= 1 << 16 and seconds > 0:
            rate = count / seconds
            self.bytes_per_second += (rate - self.bytes_per_second) * (0.1 if self.bytes_per_second else 1)


AddResult = Literal["new", "repeat", "conflict"]
"""What became of a frame: kept, here already, or here already with other content (the first one counts)."""


class IncomingMessage:
    """A message that is arriving: float64 scalars with frame 0, and the vector's values frame by frame."""

    def __init__(self, heading: Heading, payload: PayloadSpec, frame: int, memory: Memory) -> None:
        self.heading, self._payload, self._frame = heading, payload, frame
        self.values = memory(heading.length // payload.width, DTYPES[payload.kind])
        self.scalars: tuple[float, ...] = ()
        self._bytes = vector_bytes(self.values)
        self._digests: list[int] = []
        self.released = False
        """Handed over to the collective that waited for it."""

    @property
    def next(self) -> int:
        """The first missing frame."""
        return len(self._digests)

    @property
    def bytes(self) -> int:
        """Of its vector and its numbers, as far as they are here or there is a place for them."""
        return self.values.nbytes + 8 * len(self.scalars)

    @property
    def empty(self) -> bool:
        """It only says that nothing is sent: it has neither values nor scalars."""
        return not self.heading.length and not self.heading.doubles

    def has(self, count: int) -> bool:
        """Whether its first `count` bytes are here, or all if it has fewer."""
        return self.next >= frame_count(min(count, self.heading.length), self._frame)

    def add(self, frame: Frame) -> AddResult:
        """Take a frame in, unless it is here already: by R1 a repeat has the same digest, and the first wins (R5)."""
        if frame.heading != self.heading:
            return "conflict"
        if frame.index < self.next:
            return "repeat" if frame.digest == self._digests[frame.index] else "conflict"
        if frame.index > self.next:
            raise BadFrameError(f"frame {frame.index} came before frame {self.next}")
        if frame.index == 0:
            self.scalars = tuple(np.frombuffer(frame.scalars, "<f8").tolist())
            if not all(map(isfinite, self.scalars)):
                raise NotDeclaredError("its values are not finite")
        self._payload.check_values(frame.values)
        start = self._frame * frame.index
        self._bytes[start : start + len(frame.values)] = frame.values
        if frame.index + 1 == frame_count(self.heading.length, self._frame):
            self._payload.check_content(self._bytes)
        self._digests.append(frame.digest)
        return "new"

    def release(self) -> tuple[Tensor, tuple[float, ...]]:
        """The values and the scalars, kept here no longer."""
        values, scalars, nothing = self.values, self.scalars, torch.empty(0)
        self.values, self.scalars, self._bytes = nothing, (), vector_bytes(nothing)
        self.released = True
        return values, scalars

    def block(self, start: int, count: int) -> Tensor:
        """The values of `count` bytes from `start` on, a view."""
        width = self._payload.width
        return self.values[start // width : (start + count) // width]


class Inbox:
    """All messages of one sender from this peer's present round on."""

    def __init__(self, limits: Limits, memory: Memory) -> None:
        self._limits, self._memory = limits, memory
        self.messages: dict[Key, IncomingMessage] = {}
        self.awaited: Key | None = None
        """The message that the protocol waits for now."""
        self.held = 0
        """Bytes of all vectors and numbers that wait to be consumed."""
        self._waiting = 0
        """In how many messages they are."""
        self._silent: set[Key] = set()
        self._changed = asyncio.Event()

    def add(self, frame: Frame, payload: PayloadSpec) -> AddResult:
        """Keep a frame; BadFrameError or NotDeclaredError when it is none that an honest neighbour sends."""
        frame.check(self._limits.frame)
        if frame.key in self._silent and (frame.heading.length or frame.heading.doubles):
            raise NotDeclaredError(
                f"`{payload.name}` was not to come from this sender in round {frame.key.round} (`of`)"
            )
        message = self.messages.get(frame.key)
        if message is None:
            if frame.index:
                raise BadFrameError(f"frame {frame.index} came before frame 0")
            message = IncomingMessage(frame.heading, payload, self._limits.frame, self._memory)
        result = message.add(frame)
        if frame.key not in self.messages:  # not before: what is refused must leave room for what is right
            self.messages[frame.key] = message
            self.held += message.bytes
            self._waiting += 1
        self._changed.set()
        return result

    def expect_empty(self, key: Key) -> bool:
        """Accept only an empty message under that key from now on; return whether another one is here already."""
        self._silent.add(key)
        message = self.messages.get(key)
        if message is None or message.empty:
            return False
        self._drop(key)
        return True

    async def wait_for_room(self, count: int) -> None:
        """Wait until no more than so many bytes wait to be consumed, with what each message takes besides.

        This never waits in vain: a protocol has at most three exchanges under way that it does not wait for, so what is
        needed next from this sender is here already, or there is room for it.
        """
        while self.held + self._limits.message * self._waiting > count:
            self._changed.clear()
            await self._changed.wait()

    def consume(self, message: IncomingMessage) -> tuple[Tensor, tuple[float, ...]]:
        """A message's values and scalars, handed over: only the digests are kept, to recognise a repeat."""
        self._hand_over(message)
        released = message.release()
        self._changed.set()
        return released

    def _hand_over(self, message: IncomingMessage) -> None:
        self._waiting -= not message.released
        self.held -= message.bytes

    def _drop(self, key: Key) -> None:
        self._hand_over(self.messages.pop(key))

    async def message(self, key: Key, count: int) -> IncomingMessage:
        """The message of that key, once its first `count` bytes are here, or all if it has fewer."""
        while (message := self.messages.get(key)) is None or not message.has(count):
            self.awaited = key
            self._changed.clear()
            await self._changed.wait()
        self.awaited = None
        return message

    def forget(self, before: int) -> None:
        """Drop the messages of rounds before that one: this run of the peer is past them."""
        for key in [key for key in self.messages if key.round < before]:
            self._drop(key)
        self._silent = {key for key in self._silent if key.round >= before}
        self._changed.set()


class Receiver:
    """Receives the tensor streams of all senders."""

    def __init__(
        self, state: NetworkState, manifest: Manifest, audit: Audit, report: Report, memory: Memory = pageable
    ) -> None:
        self._state, self._manifest, self._audit, self._memory = state, manifest, audit, memory
        self._identity, self._edges = state.identity, state.edges
        self._streams = StreamTakeover(state.limits, state.timeouts)
        self.refusals = Refusals(report, state.limits, state.edges.neighbours)
        self._reasons = defaultdict[str, ThrottledReason](lambda: ThrottledReason(state.limits, state.timeouts))
        self.inboxes: dict[str, Inbox] = {}
        self.round = 0
        """The round this peer is in: earlier messages are of no use, and no peer can be more than W ahead (R6)."""
        self._most_held = 4 * (manifest.largest + state.limits.frame + state.limits.message)
        """Bytes from one sender that may wait: four messages. An honest sender has at most three not awaited."""

    def inbox(self, sender: str) -> Inbox:
        if sender not in self.inboxes:
            self.inboxes[sender] = Inbox(self._state.limits, self._memory)
        return self.inboxes[sender]

    async def admit(self, pipe: Pipe, directions: tuple[Direction, ...]) -> CountedPipe | None:
        """Read the hello of an incoming stream; the pipe as the caller's, or None if it was refused."""
        patience = self._state.timeouts.hello
        try:
            async with asyncio.timeout(patience):
                said = await pipe.receive()
            hello = self._state.decoder.hello(said)
        except (TimeoutError, BadFrameError) as error:
            why = str(error) or f"sent nothing for {patience:.0f} s"
            self.refusals.add(CallerRefused(caller="a stranger", origin=pipe.origin, kind="stranger", reason=why))
            raise DisconnectedError(why) from None
        refusal = self._identity.check(hello, pipe.identity) or await self._wait_to_become_neighbour(hello, directions)
        if refusal is None and (lost := self._state.durability.lost(hello.id, hello)):
            refusal = Refusal(reason=Refusal.LOST, detail=lost)
        known = hello.id in self._edges.neighbours
        claimed = refusal is not None and refusal.reason == Refusal.IDENTITY
        counted = CountedPipe(pipe, hello.id, self._state.traffic, len(said)) if known and not claimed else None
        if refusal is None:
            pipe.welcome(hello.id)
            return counted
        told = refusal if await pipe.is_known() else REASON_WITHHELD
        await self._refuse(counted or pipe, hello.id or "a stranger", refusal, told)
        return None

    async def _wait_to_become_neighbour(self, hello: Hello, directions: tuple[Direction, ...]) -> Refusal | None:
        """Return the refusal of a caller that has not become a neighbour within a while (R7).

        Of two peers that become neighbours one learns it first, and dials. A caller in an earlier round than this peer
        knows of no order of the ring that this peer does not know: it is not waited for.
        """
        caller = hello.id
        becomes = self._edges.is_member(caller) and hello.round >= self._state.round
        with suppress(TimeoutError):
            async with asyncio.timeout(self._state.timeouts.newcomer_timeout if becomes else 0):
                while not any(self._edges.has(direction, caller) for direction in directions):
                    await self._edges.wait_changed()
                return None
        refusal = Refusal(reason=Refusal.STRANGER, detail=f"`{caller}` is no neighbour of `{self._identity.id}`")
        if self._edges.is_member(caller):
            refusal.durable = self._state.durability.own
        return refusal

    async def _refuse(self, pipe: Pipe, caller: str, refusal: Refusal, told: Refusal | None = None) -> None:
        """Answer with the refusal, or with `told` in its place; count it, and report it once."""
        why = refusal.detail + (": " + ", ".join(refusal.keys) if refusal.reason == Refusal.FEDERATION else "")
        why = sanitise(why, self._state.limits.characters)
        known = self._edges.neighbours.get(caller)
        # The refused peer knows more of what differs: both values. This peer may have been refused, too.
        unsaid = refusal.reason in (Refusal.MANIFEST, Refusal.FEDERATION) and known and not known.reach.refusal
        if known and (unsaid or refusal.reason == Refusal.VERSION):
            known.mark_refused(self._reasons[caller].update(f"it was refused: {why}"))
        # Two peers that hear of a new view, or of another order of the ring, one after the other: nothing is wrong.
        late = refusal.reason == Refusal.VIEW or (refusal.reason == Refusal.STRANGER and self._is_belated(caller))
        if not late:
            kind = Refusal.Reason.Name(refusal.reason).lower()
            self.refusals.add(CallerRefused(caller=caller, origin=pipe.origin, kind=kind, reason=why))
        await pipe.tell(Reply(refusal=told or refusal).SerializeToString(), self._state.timeouts.read)

    def _is_belated(self, caller: str) -> bool:
        """Whether it was a neighbour and may not have heard yet that it is none any more."""
        if (told := self._edges.former.get(caller)) is None:
            return False
        self._edges.former[caller] += 1
        return told < self._state.limits.belated

    async def serve_tensors(self, pipe: Pipe) -> None:
        """One incoming tensor stream, from hello to break."""
        if admitted := await self.admit(pipe, ("receive",)):
            await self._receive_all(admitted)

    async def receive_reverse(self, pipe: CountedPipe, welcome: Welcome) -> None:
        """The same on a stream that this peer has opened and the sender has welcomed."""
        if lost := self._state.durability.lost(pipe.peer, welcome):
            await self._refuse(pipe, pipe.peer, Refusal(reason=Refusal.LOST, detail=lost))
        else:
            await self._receive_all(pipe)

    async def _receive_all(self, pipe: CountedPipe) -> None:
        """Take frame after frame; return once one was refused, and the sender has been told."""
        sender = pipe.peer
        if self._streams.add(pipe):
            self._state.deliveries.on_accept(sender)
        self._edges.on_handshake("receive", sender)
        try:
            await pipe.tell(self._welcome(sender), self._state.timeouts.read)
            while True:
                await self._receive(pipe)
        except BadFrameError as error:
            await self._refuse(pipe, sender, Refusal(reason=Refusal.DAMAGED, detail=f"frame refused: {error}"))
        except NotDeclaredError as error:
            await self._refuse(pipe, sender, Refusal(reason=Refusal.UNDECLARED, detail=str(error)))
        finally:
            self._streams.remove(pipe)

    async def _receive(self, pipe: CountedPipe) -> None:
        """The next frame; the first that brings something on a stream beside the one in use makes it the one."""
        data, sender = await pipe.receive(), pipe.peer
        if self._streams.active(sender) is pipe:
            with self._state.deliveries.receiving(sender):
                await self._receive_in_turn(sender, data)
        elif await self._receive_in_turn(sender, data):
            await self._streams.promote(pipe)
            self._state.deliveries.on_accept(sender)
            with self._state.deliveries.receiving(sender):
                pass

    async def _receive_in_turn(self, sender: str, data: bytes) -> bool:
        await self.inbox(sender).wait_for_room(self._most_held)
        return await self.receive_frame(sender, data)

    def _welcome(self, sender: str) -> bytes:
        messages = self.inbox(sender).messages.items()
        positions = [Position(round=key.round, step=key.step, next=message.next) for key, message in messages]
        return self._state.welcome(self.round, positions)

    async def receive_frame(self, sender: str, data: bytes) -> bool:
        """Keep one frame, or raise what is wrong with it; return whether it is new."""
        frame = decode(data)
        key = frame.key
        if key.view != self._identity.view:
            raise NotDeclaredError(f"view {key.view} is not current")
        if key.round < self.round:
            return False  # a late repeat
        heading = frame.heading
        payload = self._manifest.check(heading.payload, key.round, heading.doubles, heading.offset, heading.length)
        if not await self._expected(sender, key.round):
            raise NotDeclaredError(f"`{sender}` does not send to this peer in round {key.round}")
        if key.round < self.round:
            return False  # it has become one while it waited
        result = self.inbox(sender).add(frame, payload)
        if result == "new":
            self._audit.record_received(key.round, sender, payload, len(frame.values), len(frame.scalars))
        elif result == "conflict":
            # R5: the first one counts; by R1 an honest sender cannot send another.
            self.refusals.add(Conflict(sender=sender, round=key.round, step=key.step))
        return result == "new"

    def end(self, sender: str) -> None:
        """It is no neighbour any more."""
        self._streams.end(sender)

    def expect_empty(self, sender: str, key: Key) -> None:
        """Accept only an empty message of that key.

        One with content that came before ends the sender's stream: it sends the message again, and is refused.
        """
        if self.inbox(sender).expect_empty(key) and (pipe := self._streams.active(sender)):
            pipe.abort()

    async def _expected(self, sender: str, round: int) -> bool:
        """Whether a neighbour sends to this peer in that round.

        Of two peers that become neighbours one learns it first: its messages wait until the other has, too (R7); and
        until that is at most W rounds behind them (R6).
        """
        while self.round <= round and not (
            round <= self.round + STALENESS_BOUND and self._edges.permits("receive", sender, round)
        ):
            await self._edges.wait_changed()
        return self._edges.permits("receive", sender, round)

    def begin(self, round: int) -> None:
        """This peer is in that round now."""
        self.round = round
        self._edges.changed.set()
        for inbox in self.inboxes.values():
            inbox.forget(round)


class ReverseLink(DialledStream):
    """The stream on which a neighbour that cannot dial this peer sends it tensors."""

    service = "Fetch"

    def __init__(self, state: NetworkState, neighbour: Neighbour, receiver: Receiver) -> None:
        super().__init__(state, neighbour)
        self._receiver = receiver

    async def serve(self, pipe: CountedPipe, welcome: Welcome) -> float:
        """Until the sender has been told what was wrong with a frame."""
        self._backoff.welcomed()
        await self._receiver.receive_reverse(pipe, welcome)
        with suppress(TimeoutError):
            async with asyncio.timeout(self._state.timeouts.answer):
                await pipe.finish()
        return self._backoff.after_refusal()
