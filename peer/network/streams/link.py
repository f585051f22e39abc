"""Links: how a message gets from one peer to another. Nothing above a link knows that it broke.

**A message's way.** A collective (`network/collectives.py`) calls `Network.open_message`, which lets out only what
the manifest and the edges allow, and records it in the audit. The `MessageWriter` cuts the message into frames,
makes the bytes of each once for all receivers, and puts it into the `Outbox` of each. The `OutgoingLink` to each
sends what its outbox holds, in the order of writing, over a pipe of the transport (`transport/grpc.py`; within one
process `transport/memory.py`). At the other end the `Receiver` reads the hello and admits or refuses the caller; checks
each frame against checksum, manifest and edges; and puts it into the `Inbox` of its sender, where frames become an
`IncomingMessage`. The collective that waits in `Network.message` works on what has arrived, frame by frame, and
takes the whole message out with `Inbox.consume`.

The sender dials. A receiver without an address dials instead: its `ReverseLink` opens a `Fetch` stream, and the
sender answers on it with frames (`OutgoingLink.serve_reverse`).

**After a break** the end that dials does so again, after growing pauses (`DialledStream`), and the receiver's welcome
says what it has: its durable round, the round it is in, and the first missing frame of each message of which something
has arrived. The sender goes on from there. A newer stream replaces an older one once it has brought something
(`StreamTakeover`), and heartbeats tell whether what is sent arrives (`DeliveryTracker`).

**The rules** make a crash cost nothing but time; each is named beside the lines that uphold it. A message has a key:
(view, round, step), where the step counts the collective calls of a round. A round is durable at a peer that has its
checkpoint on disk and will not fall back to an earlier one; to announce the round is to tell the neighbours so.

- **R1 Function.** A message depends only on the sender's state at the start of the round and on messages received
  in it; whatever else it depends on (a secret, a measurement) is in the journal, on disk, before it is used. So a
  peer that replays a round writes the same bytes again, and a repeat can be told from a conflict by its digest. The
  runtime upholds it (`runtime/checkpoints.py:Journal`); everything here rests on it.
- **R2 Outbox.** A checkpoint holds the state *and* the messages of the round that neighbours may still ask for
  (`Outbox.of_round`, `Network.outgoing_frames`). With the messages only in memory, two neighbours that die together
  could wait for each other for ever. Once on disk, large messages take no memory, and are read when asked for. They are
  restored to the outboxes in the order of writing: in another order, a replaying neighbour might have no room for what
  it waits for.
- **R3 Durable.** A peer announces the older of its two newest checkpoints (`Durability.announce`): if the newest
  turns out damaged, it falls back to the one before without asking for what others have dropped. No checkpoint follows
  the last round's, which is read back from disk and then announced. A peer that resumes in a run whose members may
  change announces the newest intact one.
- **R4 Release.** `Outbox.release` drops a message when its receiver itself has announced the message's round, over
  its own stream, or when a decided view says that it has it; no single other peer's word counts. What has not been
  released is sent again after a break, unless the welcome says that it has arrived (`OutgoingLink._send`).
- **R5 First of a key wins** (`IncomingMessage.add`). A repeat with the same content is ignored; with another
  content it is dropped and reported.
- **R6 Low watermark.** No peer starts a round more than W = 4 rounds past the durable round of any of its
  neighbours, nor, as far as it has heard, of any other peer (`Durability.wait_within_bound`). That bounds outboxes
  and inboxes. A frame from further ahead has to wait until this peer has come closer (`Receiver._expected`).
- **R7 Old edges.** When the ring is reordered, an edge stays open for repeats until both ends have a later round on
  disk than the last one it was used in (`Edges.retire`). If two peers become neighbours and one learns it first, its
  hello and its frames wait until the other has learnt it, too (`Receiver._wait_to_become_neighbour`,
  `Receiver._expected`).
- **R8 Serving.** A finished peer stays, and sends what it is asked for, until its neighbours have the last round on
  disk, or are silent for `patience` (`runtime/lifecycle.py:drain`); then it says farewell in its last heartbeat
  (`Heartbeats.close`).

docs/wire.md describes the bytes; docs/reliability.md says what is promised, how it was tested, and what it is worth
when members lie.
"""

import asyncio
import struct
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence, Set
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
from peer.tasks import News, background, within
from peer.telemetry.events import CallerRefused, Conflict, Report
from peer.views.view import STALENESS_BOUND

KeptFrames = list[tuple[list[str], bytes]]
"""The receivers and bytes of frames, in the order of writing."""


@dataclass(slots=True)
class KeptFrame:
    """A frame as it goes on the wire. The outboxes of all receivers share it, and its bytes never change."""

    serial: int
    """Its number among all frames that this peer writes to any peer; a receiver consumes messages in this order."""
    key: Key
    index: int
    """Its place within its message."""
    data: bytes | Callable[[], bytes]
    """Its bytes; for a large model, once they are on disk, a function that reads them (blocking; FailedError if they
    are gone): frames are rarely asked for again, and there may be no room for all of them."""

    async def content(self) -> bytes:
        return self.data if isinstance(self.data, bytes) else await asyncio.to_thread(self.data)


class Outbox:
    """Frames in the order of writing. A frame's position counts from the first one ever."""

    def __init__(self) -> None:
        self._frames: list[KeptFrame] = []
        self._first = 0
        self._released = -1
        self._grown = News()

    def append(self, frame: KeptFrame) -> None:
        self._frames.append(frame)
        self._grown.set()

    def release(self, durable: int) -> None:
        """Drop the messages of rounds up to `durable`, which the receiver has on disk (R4)."""
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

    @property
    def end(self) -> int:
        """The position of the next frame that will be written."""
        return self._first + len(self._frames)

    async def frame(self, position: int) -> tuple[int, KeptFrame]:
        """Return the first frame held from `position` on, with its position; wait for one to be written."""
        # A frame just written may be released before the waiting task wakes up.
        while (position := max(position, self._first)) >= self.end:
            await self._grown.next()
        return position, self._frames[position - self._first]

    async def content(self, position: int, frame: KeptFrame) -> bytes | None:
        """Return the bytes of the frame at that position; None if it was released meanwhile and its file is gone."""
        try:
            return await frame.content()
        except FailedError:
            if position >= self._first:
                raise
            return None

    @property
    def messages(self) -> set[tuple[int, int]]:
        """The rounds and steps of the frames that are held."""
        return {(frame.key.round, frame.key.step) for frame in self._frames}

    def of_round(self, round: int) -> Iterator[KeptFrame]:
        """The frames of one round, for the checkpoint (R2)."""
        return (frame for frame in self._frames if frame.key.round == round)


class MessageWriter:
    """Puts a message into the outboxes of its receivers, block by block in order, with `frame` bytes per frame."""

    def __init__(
        self, boxes: Sequence[Outbox], serials: Iterator[int], heading: Heading, scalars: Sequence[float], frame: int
    ) -> None:
        self._boxes, self._serials, self._heading, self._frame = boxes, serials, heading, frame
        self._scalars = struct.pack(f"<{len(scalars)}d", *scalars)
        self._index = 0

    def write(self, block: memoryview) -> None:
        """Write the bytes of the next frame, the same in a replay (R1); they are copied once for all receivers."""
        data = encode_frame(self._heading, self._index, self._scalars, block)
        frame = KeptFrame(next(self._serials), self._heading.key, self._index, data)
        for box in self._boxes:
            box.append(frame)
        self._index += 1

    def write_all(self, vector: Tensor) -> None:
        """Write the whole message with the vector as it is now; later changes of the vector do not affect it."""
        for block in self._blocks(vector):
            self.write(block)

    async def write_gradually(self, vector: Tensor) -> None:
        """Write the whole message of a vector that does not change meanwhile: frames are sent while the next ones are
        encoded, which saves a tenth of the time for tens of megabytes."""
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
        """How often in a row the neighbour has said that a frame arrived damaged."""
        self._passed = 0
        """The position up to which frames were passed to the stream."""

    def sent(self) -> Set[tuple[int, int]]:
        return self.outbox.messages

    @property
    def has_arrived(self) -> bool:
        """Whether the neighbour says that it has all that was written for it."""
        return self._passed >= self.outbox.end and self._state.deliveries.has_arrived(self.neighbour.id)

    async def serve_reverse(self, pipe: Pipe, enters: Callable[[], Awaitable[None]]) -> None:
        """Send on a stream that the neighbour has opened, to its end.

        enters: called when the neighbour has said what it has, to make the stream replace an older one.
        """
        state = self._state
        try:
            theirs = await do_handshake(pipe, state.welcome(), state.timeouts.answer, state.decoder, self.sent)
            await enters()
            await self.serve(pipe, theirs)
        except RefusedError as error:
            self.on_refusal(error, self._reason.update(str(error)))

    async def serve(self, pipe: Pipe, welcome: Welcome) -> NoReturn:
        """Send on one stream, from its welcome to its break."""
        self._state.deliveries.on_open(self.neighbour.id)
        self._welcomed(self.neighbour.id, welcome)
        self._backoff.welcomed()
        first = welcome.round
        has = {(position.round, position.step): position.next for position in welcome.positions}
        self.neighbour.delivery.connected_since = asyncio.get_running_loop().time()
        try:
            async with background() as group:
                group.create_task(self._send(pipe, first, has))
                group.create_task(self._mark_stable())
                await self._until_refused(pipe)
        finally:
            self.neighbour.delivery.connected_since = None

    async def _mark_stable(self) -> None:
        """Wait a while and note that the neighbour accepts what is sent to it, as it has refused nothing."""
        await asyncio.sleep(self._state.timeouts.stable_after)
        self._damaged = 0
        self.neighbour.delivery.accepted()

    def on_refusal(self, error: RefusedError, reason: str) -> None:
        """Distinguish a refused stream from a neighbour that rejects what is sent to it.

        Only wrong code or a lie makes a neighbour say that a frame is not declared, or so often that one is damaged.
        Whose it is cannot be known here, except that this peer's own check lets nothing undeclared out.
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
        """Wait until a welcomed stream ends; RefusedError if the neighbour refuses a frame. Nothing else may come."""
        try:
            reply = self._state.decoder.reply(await pipe.receive())
        except BadFrameError as error:
            raise BreachError(str(error)) from None
        if not reply.HasField("refusal"):
            raise BreachError("its answer is not a refusal")
        raise RefusedError(reply.refusal)

    async def _send(self, pipe: Pipe, first: int, has: Mapping[tuple[int, int], int]) -> None:
        """Send what was and will be written from round `first` on, except what the neighbour has (R4)."""
        after = self.outbox.start
        clock = asyncio.get_running_loop().time
        while True:
            self._passed = after
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
        """Update a running mean over full frames only, as small ones measure the latency."""
        if count >= 1 << 16 and seconds > 0:
            rate = count / seconds
            self.bytes_per_second += (rate - self.bytes_per_second) * (0.1 if self.bytes_per_second else 1)


AddResult = Literal["new", "repeat", "conflict"]
"""What became of a frame: kept, already here, or already here with other content (the first one counts)."""


class IncomingMessage:
    """A message that is arriving: float64 scalars with frame 0, and the vector's values frame by frame."""

    def __init__(self, heading: Heading, payload: PayloadSpec, frame: int, memory: Memory) -> None:
        self.heading, self._payload, self._frame = heading, payload, frame
        self.values = memory(heading.length // payload.width, DTYPES[payload.kind])
        self.scalars: tuple[float, ...] = ()
        self._bytes = vector_bytes(self.values)
        self._digests: list[int] = []
        self._refused = ""
        """Why the whole message was refused; it is not judged again, whatever else comes for its end."""
        self.handed_over = False
        """Whether it was handed over to the collective that waited for it."""

    @property
    def next(self) -> int:
        """The number of the first missing frame."""
        return len(self._digests)

    @property
    def bytes(self) -> int:
        """The bytes allocated for its vector and its scalars."""
        return self.values.nbytes + 8 * len(self.scalars)

    @property
    def empty(self) -> bool:
        """Whether it has neither values nor scalars, and so only says that nothing is sent."""
        return not self.heading.length and not self.heading.doubles

    def has(self, count: int) -> bool:
        """Return whether its first `count` bytes have arrived, or all if it has fewer."""
        return self.next >= frame_count(min(count, self.heading.length), self._frame)

    def add(self, frame: Frame) -> AddResult:
        """Take a frame in, unless it is already here: by R1 a repeat has the same digest, and the first wins (R5)."""
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
            self._check_content()
        self._digests.append(frame.digest)
        return "new"

    def _check_content(self) -> None:
        if self._refused:
            raise NotDeclaredError(self._refused)
        try:
            self._payload.check_content(self._bytes)
        except NotDeclaredError as error:
            self._refused = str(error)
            raise
        except MemoryError:
            raise BadFrameError("there is not enough memory to decode it") from None

    def hand_over(self) -> tuple[Tensor, tuple[float, ...]]:
        """Return the values and the scalars, and keep them no longer."""
        values, scalars, nothing = self.values, self.scalars, torch.empty(0)
        self.values, self.scalars, self._bytes = nothing, (), vector_bytes(nothing)
        self.handed_over = True
        return values, scalars

    def block(self, start: int, count: int) -> Tensor:
        """The values in `count` bytes from `start` on, as a view of the tensor."""
        width = self._payload.width
        return self.values[start // width : (start + count) // width]


class NeverSentError(Exception):
    """Raised for a message that its sender has left out; the text says how that is known."""


class Inbox:
    """All messages of one sender, from this peer's present round on."""

    def __init__(self, limits: Limits, memory: Memory) -> None:
        self._limits, self._memory = limits, memory
        self.messages: dict[Key, IncomingMessage] = {}
        self.awaited: Key | None = None
        """The message that the protocol waits for now."""
        self.held = 0
        """The bytes of all vectors and scalars that wait to be consumed."""
        self._waiting = 0
        """The number of messages that wait to be consumed."""
        self._latest = -1
        """The newest round of which something has come."""
        self._silent: set[Key] = set()
        self._changed = News()

    def add(self, frame: Frame, payload: PayloadSpec) -> AddResult:
        """Keep a frame; BadFrameError or NotDeclaredError if no honest neighbour sends it."""
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
        if frame.key not in self.messages:  # not earlier: a refused message must not take up the key
            self.messages[frame.key] = message
            self.held += message.bytes
            self._waiting += 1
            self._latest = max(self._latest, frame.key.round)
        self._changed.set()
        return result

    def expect_empty(self, key: Key) -> bool:
        """Accept only an empty message with that key from now on; return whether another one was already here."""
        self._silent.add(key)
        message = self.messages.get(key)
        if message is None or message.empty:
            return False
        self._drop(key)
        return True

    async def wait_for_room(self, heading: Heading, count: int) -> None:
        """Wait until that message is here, or fits into `count` bytes with all that wait to be consumed.

        This cannot deadlock if at most three messages that nobody waits for yet come before the one that is needed,
        and if the frames of no other call round the ring come between its own. `CheckedPeer` refuses a fourth exchange
        and a second call round the ring; that a protocol passes no more than three tokens ahead is not checked.
        """
        size, each = heading.length + 8 * heading.doubles, self._limits.message
        await self._changed.until(
            lambda: heading.key in self.messages or self.held + size + each * (self._waiting + 1) <= count
        )

    def consume(self, message: IncomingMessage) -> tuple[Tensor, tuple[float, ...]]:
        """Take a message's values and scalars out; only the digests are kept, to recognise repeats."""
        self._hand_over(message)
        content = message.hand_over()
        self._changed.set()
        return content

    def _hand_over(self, message: IncomingMessage) -> None:
        self._waiting -= not message.handed_over
        self.held -= message.bytes

    def _drop(self, key: Key) -> None:
        self._hand_over(self.messages.pop(key))

    async def message(self, key: Key, count: int) -> IncomingMessage:
        """Wait until the first `count` bytes of the message with that key, or all of it, have arrived; return it.

        NeverSentError if something of a later round is here: on each stream all that the sender wrote before, and this
        peer lacks, comes before it.
        """
        try:
            while (message := self.messages.get(key)) is None or not message.has(count):
                if message is None and self._latest > key.round:
                    raise NeverSentError(f"has gone on to round {self._latest}")
                self.awaited = key
                await self._changed.next()
        finally:
            self.awaited = None
        return message

    def forget(self, before: int) -> None:
        """Drop the messages of rounds before `before`, which this peer is past."""
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
        self._most_held = 4 * (manifest.largest + state.limits.frame + state.limits.message)
        """The bytes of one sender that may wait: four messages, each with a frame that waits for room. An honest
        sender has at most three not awaited (`MAX_PENDING` in runtime/rounds/calls.py)."""

    def inbox(self, sender: str) -> Inbox:
        if sender not in self.inboxes:
            self.inboxes[sender] = Inbox(self._state.limits, self._memory)
        return self.inboxes[sender]

    async def admit(self, pipe: Pipe, directions: tuple[Direction, ...]) -> CountedPipe | None:
        """Read the hello of an incoming stream; return its pipe, counted for the caller, or None if it was refused."""
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
            pipe.identify(hello.id)
            if neighbour := self._edges.neighbours.get(hello.id):
                neighbour.note_release(hello.release)
            return counted
        told = refusal if await pipe.is_known() else REASON_WITHHELD
        await self._refuse(counted or pipe, hello.id or "a stranger", refusal, told)
        return None

    async def _wait_to_become_neighbour(self, hello: Hello, directions: tuple[Direction, ...]) -> Refusal | None:
        """Wait for a caller to become a neighbour (R7); return its refusal if it has not after a while, else None.

        If two peers become neighbours, the one that learns it first dials. A caller in an earlier round than this peer
        cannot know an order of the ring that this peer does not know, so this peer does not wait for it.
        """
        caller = hello.id
        becomes = caller in self._edges.members and hello.round >= self._state.round
        came = self._edges.changed.until(lambda: any(self._edges.has(direction, caller) for direction in directions))
        if await within(self._state.timeouts.newcomer_timeout if becomes else 0, came):
            return None
        if becomes and not self._edges.known:
            raise DisconnectedError("this peer has not read its checkpoint yet")  # the caller will dial again
        refusal = Refusal(reason=Refusal.STRANGER, detail=f"`{caller}` is no neighbour of `{self._identity.id}`")
        if caller in self._edges.members:
            refusal.durable = self._state.durability.own
        return refusal

    async def _refuse(self, pipe: Pipe, caller: str, refusal: Refusal, told: Refusal | None = None) -> None:
        """Answer with the refusal, or with `told` instead; count it, and report it once."""
        why = refusal.detail + (": " + ", ".join(refusal.keys) if refusal.reason == Refusal.FEDERATION else "")
        why = sanitise(why, self._state.limits.characters)
        known = self._edges.neighbours.get(caller)
        # The refused peer learns both values that differ, this one only that it refused; unless it was refused, too.
        unsaid = refusal.reason in (Refusal.MANIFEST, Refusal.FEDERATION) and known and not known.reach.refusal
        if known and (unsaid or refusal.reason == Refusal.VERSION):
            known.mark_refused(self._reasons[caller].update(f"it was refused: {why}"))
        # Nothing is wrong if two peers learn of a new view, or of another order of the ring, one after the other.
        late = refusal.reason == Refusal.VIEW or (refusal.reason == Refusal.STRANGER and self._is_belated(caller))
        if not late:
            kind = Refusal.Reason.Name(refusal.reason).lower()
            self.refusals.add(CallerRefused(caller=caller, origin=pipe.origin, kind=kind, reason=why))
        await pipe.tell(Reply(refusal=told or refusal).SerializeToString(), self._state.timeouts.read)

    def _is_belated(self, caller: str) -> bool:
        """Return whether it was a neighbour and may not have heard yet that it is none any more; counts its calls."""
        if (told := self._edges.former.get(caller)) is None:
            return False
        self._edges.former[caller] += 1
        return told < self._state.limits.belated

    async def serve_tensors(self, pipe: Pipe) -> None:
        """Serve an incoming tensor stream, from its hello to its break."""
        if admitted := await self.admit(pipe, ("receive",)):
            await self._receive_all(admitted)

    async def receive_reverse(self, pipe: CountedPipe, welcome: Welcome) -> None:
        """Receive tensors on a stream that this peer has opened and the sender has welcomed."""
        if lost := self._state.durability.lost(pipe.peer, welcome):
            await self._refuse(pipe, pipe.peer, Refusal(reason=Refusal.LOST, detail=lost))
        else:
            await self._receive_all(pipe)

    async def _receive_all(self, pipe: CountedPipe) -> None:
        """Take frame after frame; return once one was refused and the sender was told so."""
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
        """Receive the next frame. The first new one on a stream besides the active one makes that one active."""
        data, sender = await pipe.receive(), pipe.peer
        pipe.frames += 1
        if self._streams.active(sender) is pipe:
            with self._state.deliveries.receiving(sender):
                await self.receive_frame(sender, data)
        elif await self.receive_frame(sender, data):
            await self._streams.promote(pipe)
            self._state.deliveries.on_accept(sender, pipe.frames)

    def _welcome(self, sender: str) -> bytes:
        messages = self.inbox(sender).messages.items()
        positions = [Position(round=key.round, step=key.step, next=message.next) for key, message in messages]
        return self._state.welcome(positions)

    async def receive_frame(self, sender: str, data: bytes) -> bool:
        """Keep a frame, once there is room; return whether it is new. BadFrameError, NotDeclaredError: it is wrong."""
        frame = decode(data)
        key = frame.key
        if key.view != self._identity.view:
            raise NotDeclaredError(f"view {key.view} is not current")
        if key.round < self._state.round:
            return False  # a late repeat
        heading = frame.heading
        payload = self._manifest.check(heading.payload, key.round, heading.doubles, heading.offset, heading.length)
        if not await self._expected(sender, key.round):
            raise NotDeclaredError(f"`{sender}` does not send to this peer in round {key.round}")
        # After all other waits: several streams of a sender could wait for a round, each with room before it began.
        await self.inbox(sender).wait_for_room(heading, self._most_held)
        if key.round < self._state.round:
            return False  # it has become late while it waited
        result = self.inbox(sender).add(frame, payload)
        if result == "new":
            self._audit.record_received(key.round, sender, payload, len(frame.values), len(frame.scalars))
        elif result == "conflict":
            # R5: the first one counts; by R1 an honest sender cannot send another.
            self.refusals.add(Conflict(sender=sender, round=key.round, step=key.step))
        return result == "new"

    def end(self, sender: str) -> None:
        """End the streams of a sender that is no neighbour any more."""
        self._streams.end(sender)

    def expect_empty(self, sender: str, key: Key) -> None:
        """Accept only an empty message with that key.

        If one with content came before, the sender's stream is ended, so that it sends the message again, and is
        refused.
        """
        if self.inbox(sender).expect_empty(key) and (pipe := self._streams.active(sender)):
            pipe.abort()

    async def _expected(self, sender: str, round: int) -> bool:
        """Return whether a neighbour sends to this peer in that round.

        If two peers become neighbours and one learns it first, its messages wait until the other has learnt it, too
        (R7), and is at most W rounds behind them (R6).
        """
        while self._state.round <= round and not (
            round <= self._state.round + STALENESS_BOUND and self._edges.permits("receive", sender, round)
        ):
            await self._edges.changed.next()
        return self._edges.permits("receive", sender, round)

    def begin(self, round: int) -> None:
        """Note that this peer is in that round now, and forget messages of earlier ones, which are useless."""
        self._state.round = round
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
        """Receive tensors until the sender has been told what was wrong with a frame; return the pause."""
        self._backoff.welcomed()
        await self._receiver.receive_reverse(pipe, welcome)
        await within(self._state.timeouts.answer, pipe.finish())
        return self._backoff.after_refusal()
