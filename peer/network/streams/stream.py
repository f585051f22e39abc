"""What all streams of one peer share (`NetworkState`), and one stream with a neighbour: dialled, counted, replaced by a
newer one, opened again, and watched for whether frames arrive. `link.py` and `heartbeat.py` build on it.

- `CountedPipe` counts bytes where they pass, so that no kind of message can be left out.
- `StreamTakeover`: a newer stream replaces the active one only once it has brought something useful. Streams that bring
  nothing change nothing, however many are opened, which any caller can do without certificates.
- `Backoff`: a neighbour is dialled again after growing pauses, until a stream to it has lasted for a while.
- `DeliveryTracker`: tensors and signs of life have separate connections, and one may be cut while the other works. So
  both ends of a tensor stream count its frames, and compare the counts in their heartbeats.
- `DialledStream` is what the three kinds of streams that a peer keeps open have in common.
"""

import asyncio
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Mapping, Set
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field

import torch
from torch import Tensor

from peer.network.durability import Durability, ImpossibleError, SharedDurability
from peer.network.limits import Limits, RateLimiter, Timeouts
from peer.network.neighbours import Edges, Neighbour
from peer.network.streams.handshake import (
    Identity,
    NoAnswerError,
    RefusedError,
    SentMessages,
    Surprises,
    ThrottledReason,
    do_handshake,
)
from peer.network.transport import DisconnectedError, LocallyClosedError, Pipe, Service, Transport
from peer.network.wire.messages import Position, Refusal, Reply, Resources, UntrustedDecoder, Welcome
from peer.tasks import News, within
from peer.telemetry.events import Report
from peer.versions import release


@dataclass
class Traffic:
    """Bytes handed to and taken from the transport, by neighbour; bytes of unknown callers are not counted."""

    sent: Counter[str] = field(default_factory=Counter)
    received: Counter[str] = field(default_factory=Counter)

    def __sub__(self, earlier: "Traffic") -> "Traffic":
        """The traffic since `earlier`."""
        return Traffic(self.sent - earlier.sent, self.received - earlier.received)

    def copy(self) -> "Traffic":
        return Traffic(self.sent.copy(), self.received.copy())


class CountedPipe(Pipe):
    """A pipe to or from the neighbour `peer`. received: bytes that were read before the neighbour was identified."""

    def __init__(self, pipe: Pipe, peer: str, traffic: Traffic, received: int = 0) -> None:
        self._pipe, self.peer, self._traffic = pipe, peer, traffic
        self.identity, self.origin, self.member = pipe.identity, pipe.origin, peer
        self._unread: list[bytes] = []
        self.frames = 0
        """How many frames have come on it, repeats included."""
        if received:
            traffic.received[peer] += received

    async def send(self, data: bytes) -> None:
        await self._pipe.send(data)
        self._traffic.sent[self.peer] += len(data)

    def unread(self, data: bytes) -> None:
        """Put received data back, to be received again."""
        self._unread.append(data)

    async def receive(self) -> bytes:
        if self._unread:
            return self._unread.pop()
        data = await self._pipe.receive()
        self._traffic.received[self.peer] += len(data)
        return data

    async def finish(self) -> None:
        await self._pipe.finish()

    def abort(self) -> None:
        self._pipe.abort()

    def in_use(self) -> None:
        self._pipe.in_use()


class StreamTakeover:
    """The streams of one kind that other peers have opened, by peer: for each an active one, and candidates."""

    def __init__(self, limits: Limits, timeouts: Timeouts) -> None:
        self._limits, self._timeouts = limits, timeouts
        self._active: dict[str, CountedPipe] = {}
        self._candidates: dict[str, list[CountedPipe]] = {}
        self._paces: dict[str, RateLimiter] = {}
        self._changed = News()

    def active(self, caller: str) -> CountedPipe | None:
        """The active stream of a caller; None if it has none."""
        return self._active.get(caller)

    def add(self, pipe: CountedPipe) -> bool:
        """Add a welcomed stream; return whether it is active at once, as there is no other, or else a candidate."""
        if pipe.peer not in self._active:
            self._put_in_use(pipe)
            return True
        candidates = self._candidates.setdefault(pipe.peer, [])
        candidates.append(pipe)
        if len(candidates) > self._limits.candidates:
            _one_too_many(candidates).abort()
        return False

    async def promote(self, pipe: CountedPipe) -> None:
        """Make a candidate that has brought something useful the active stream, and end the older one.

        After several takeovers in a row, the next one has to wait, at most until the active stream ends.
        """
        pace = self._paces.setdefault(
            pipe.peer, RateLimiter(self._limits.successions, self._timeouts.takeover_interval)
        )
        while (older := self._active.get(pipe.peer)) and not pace.try_acquire():
            await within(pace.wait, self._changed.next())
        candidates = self._candidates.get(pipe.peer, [])
        if pipe not in candidates:
            raise DisconnectedError("replaced by a newer stream")
        candidates.remove(pipe)
        self._put_in_use(pipe)
        if older:
            older.abort()

    def _put_in_use(self, pipe: CountedPipe) -> None:
        self._active[pipe.peer] = pipe
        pipe.in_use()

    def end(self, caller: str) -> None:
        """End all streams of a caller that is no neighbour any more."""
        present = self._active.get(caller)
        for pipe in (*([present] if present else []), *self._candidates.pop(caller, [])):
            pipe.abort()

    def remove(self, pipe: CountedPipe) -> None:
        if self._active.get(pipe.peer) is pipe:
            del self._active[pipe.peer]
            self._changed.set()
        elif pipe in self._candidates.get(pipe.peer, []):
            self._candidates[pipe.peer].remove(pipe)


def _one_too_many(candidates: list[CountedPipe]) -> CountedPipe:
    """Remove and return the oldest candidate of the host with the most: so no other host can push out an honest one."""
    origins = Counter(_host(pipe) for pipe in candidates)
    most = max(origins.values())
    oldest = next(pipe for pipe in candidates if origins[_host(pipe)] == most)
    candidates.remove(oldest)
    return oldest


def _host(pipe: CountedPipe) -> str:
    return pipe.origin.rpartition(":")[0]


class Backoff:
    """The pauses between attempts to open one kind of stream to one neighbour."""

    def __init__(self, timeouts: Timeouts) -> None:
        self._timeouts, self._clock = timeouts, asyncio.get_running_loop().time
        self._failed: Counter[tuple[float, ...]] = Counter()
        """How many attempts in a row have failed, by the pauses that apply: after a cut or after a refusal."""
        self._welcomed: float | None = None

    def welcomed(self) -> None:
        self._welcomed = self._clock()

    def after_disconnect(self) -> float:
        """Return the seconds until the next attempt, after a stream has ended or could not be opened."""
        return self._pause(self._timeouts.retry)

    def after_refusal(self, error: RefusedError | None = None) -> float:
        """Return the seconds until the next attempt, after a refusal, which is likely to be repeated."""
        elsewhere = error is not None and error.refusal.reason == Refusal.VIEW
        return self._pause(self._timeouts.retry_other_view if elsewhere else self._timeouts.retry_refused)

    def _pause(self, pauses: tuple[float, ...]) -> float:
        if self._welcomed is not None and self._clock() - self._welcomed >= self._timeouts.stable_after:
            self._failed.clear()
        self._welcomed = None
        pause = pauses[min(self._failed[pauses], len(pauses) - 1)]
        self._failed[pauses] += 1
        return pause


class DeliveryTracker:
    """Counts the frames of the present stream to and from each neighbour."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        """The longest time from one arriving frame to the next."""
        self._sent, self._taken = Counter[str](), Counter[str]()
        self._waiting: set[str] = set()
        self._progress: dict[str, tuple[int, float]] = {}
        """How many frames each neighbour had received, and since when it has received no more."""
        self._told: dict[str, int] = {}
        """How many frames each neighbour has said it has received."""
        self.news = News()
        """Set when a neighbour has said so, or is gone."""

    def on_open(self, to: str) -> None:
        self._sent[to] = self._told[to] = 0

    def forget(self, to: str) -> None:
        """Forget a neighbour, as there will be no other stream to it."""
        self._sent.pop(to, None)
        self._told.pop(to, None)

    def on_sent(self, to: str) -> None:
        self._sent[to] += 1

    def on_accept(self, sender: str, frames: int = 0) -> None:
        """Count on that sender's active stream from now on, on which so many frames have come."""
        self._taken[sender] = frames

    @contextmanager
    def receiving(self, sender: str) -> Iterator[None]:
        """Count one more frame from that sender; the next one is read after the block."""
        self._taken[sender] += 1
        self._waiting.add(sender)
        try:
            yield
        finally:
            self._waiting.discard(sender)

    def received_count(self, sender: str) -> int | None:
        """The count for heartbeats; None while this peer makes the sender wait, and reads nothing on purpose."""
        return None if sender in self._waiting else self._taken.get(sender)

    def has_arrived(self, to: str) -> bool:
        """Return whether a neighbour says that it has all that was sent to it."""
        return self._told.get(to, 0) >= self._sent[to]

    def is_stalled(self, to: str, taken: int | None, now: float) -> bool:
        """Return whether frames have been on their way to a neighbour for too long. taken: how many it says it has."""
        if taken is not None:
            self._told[to] = taken
            self.news.set()
        if taken is None or self.has_arrived(to):
            self._progress.pop(to, None)
            return False
        before, since = self._progress.get(to, (taken, now))
        self._progress[to] = (taken, since if before == taken else now)
        return now - self._progress[to][1] > self._seconds


Memory = Callable[[int, torch.dtype], Tensor]
"""Allocates an uninitialised CPU vector of so many values, into which a message is received."""


def pageable(size: int, dtype: torch.dtype) -> Tensor:
    """Allocate ordinary memory."""
    return torch.empty(size, dtype=dtype)


async def no_views(_pipe: Pipe) -> None:
    """Answer no question about views, as the members of the run stay the same."""
    raise DisconnectedError("the members of this run stay the same")


@dataclass(frozen=True)
class NetworkCallbacks:
    """What the network needs from the peer above it."""

    report: Report
    state: Callable[[], tuple[str, int]]
    """Returns the peer's state and its round."""
    resources: Callable[[], Resources]
    memory: Memory = pageable
    questions: Callable[[Pipe], Awaitable[None]] = no_views
    """Serves a stream with a question about views."""


class NetworkState:
    """What the streams of one peer share."""

    def __init__(
        self,
        identity: Identity,
        addresses: Mapping[str, str | None],
        transport: Transport,
        timeouts: Timeouts = Timeouts(),
        limits: Limits = Limits(),
    ) -> None:
        self.identity, self.transport = identity, transport
        self.timeouts, self.limits = timeouts, limits
        self.edges = Edges(addresses)
        board = transport.board
        self.durability = (
            SharedDurability(identity.id, self.edges, identity.rounds, board)
            if board
            else Durability(identity.id, self.edges, identity.rounds, identity.keyring, identity.view)
        )
        self.traffic, self.deliveries = Traffic(), DeliveryTracker(timeouts.delivery_timeout)
        self.decoder, self.surprises = UntrustedDecoder(limits, len(addresses)), Surprises(limits)
        self.round = 0
        """The round this peer is in."""
        self.last_round = identity.rounds
        """The round after which all peers end, as far as this peer knows."""

    def welcome(self, positions: Iterable[Position] = ()) -> bytes:
        """The serialised answer to a hello: the durable round (R3), and on a tensor stream what has arrived since."""
        welcome = Welcome(durable=self.durability.own, round=self.round, positions=positions, release=release())
        welcome.life = self.identity.life
        return Reply(welcome=welcome).SerializeToString()

    @asynccontextmanager
    async def stream(
        self, neighbour: Neighbour, service: Service, sent: SentMessages = frozenset
    ) -> AsyncIterator[tuple[CountedPipe, Welcome]]:
        """A welcomed stream to a neighbour, dropped after the block; RefusedError or DisconnectedError without one."""
        assert neighbour.address
        pipe = CountedPipe(await self.transport.dial(neighbour.address, service), neighbour.id, self.traffic)
        try:
            hello = self.identity.hello(neighbour.id, self.durability.own, self.round)
            welcome = await do_handshake(pipe, hello, self.timeouts.answer, self.decoder, sent)
            neighbour.mark_reachable()
            neighbour.note_release(welcome.release)
            yield pipe, welcome
        except RefusedError as error:
            self._learn_from_refusal(neighbour, error.refusal)
            raise RefusedError(error.refusal, self.identity) from None
        except NoAnswerError:
            await self.transport.renew(neighbour.address)
            raise
        except DisconnectedError:
            raise
        except Exception as error:  # noqa: BLE001 (as in `IncomingStreams`)
            raise DisconnectedError(f"this peer has closed its stream: {self.surprises.explain(error)}") from None
        finally:
            pipe.abort()

    def _learn_from_refusal(self, neighbour: Neighbour, refusal: Refusal) -> None:
        """Take the durable round in the refusal of a neighbour in a later view, or that has forgotten the edge (R7)."""
        if refusal.reason == Refusal.VIEW:
            neighbour.signs.last_heartbeat = asyncio.get_running_loop().time()  # it is alive, and not lost
        if refusal.reason == Refusal.VIEW and refusal.HasField("durable"):
            with suppress(ImpossibleError):
                self.durability.record_first_hand(neighbour.id, refusal.durable)
                neighbour.progress.in_later_view = True
                self.durability.changed.set()
                self.edges.changed.set()
        progress = neighbour.progress
        if refusal.reason == Refusal.STRANGER and refusal.HasField("durable") and not progress.has_forgotten_edge:
            with suppress(ImpossibleError):
                self.durability.record_first_hand(neighbour.id, refusal.durable)
                progress.has_forgotten_edge = neighbour.id not in self.edges.current()
                self.durability.changed.set()


class DialledStream(ABC):
    """A stream of one kind to one neighbour that this peer keeps open, dialling again after growing pauses."""

    service: Service

    def __init__(self, state: NetworkState, neighbour: Neighbour) -> None:
        self._state, self.neighbour = state, neighbour
        self._backoff, self._reason = Backoff(state.timeouts), ThrottledReason(state.limits, state.timeouts)

    async def run(self) -> None:
        """Keep the stream open until this peer is to dial no more."""
        while await self.wait_for_turn():
            try:
                async with self._state.stream(self.neighbour, self.service, self.sent) as (pipe, welcome):
                    pause = await self.serve(pipe, welcome)
            except LocallyClosedError:
                pause = self._backoff.after_disconnect()
            except DisconnectedError as error:
                self.on_disconnect(self._reason.update(str(error)))
                pause = self._backoff.after_disconnect()
            except RefusedError as error:
                self.on_refusal(error, self._reason.update(str(error)))
                pause = self._backoff.after_refusal(error)
            await asyncio.sleep(pause)

    def sent(self) -> Set[tuple[int, int]]:
        """The messages, by round and step, of which a welcome says what has arrived."""
        return frozenset()

    async def wait_for_turn(self) -> bool:
        """Wait until this peer is to dial; return False if it is not to dial any more."""
        return True

    @abstractmethod
    async def serve(self, pipe: CountedPipe, welcome: Welcome) -> float:
        """Serve one stream, from its welcome to its end; return the seconds until the next attempt."""

    def on_disconnect(self, reason: str) -> None:
        """React to the end of a stream, or to a failed attempt to open one."""
        self.neighbour.mark_unreachable(reason)

    def on_refusal(self, _error: RefusedError, reason: str) -> None:
        """React to a refusal of the stream, or of what was sent on it."""
        self.neighbour.mark_refused(reason)
