"""Which of a caller's streams counts, how often that changes, and how soon a neighbour is called again."""

import asyncio
from itertools import pairwise

import pytest
from strangers import MANIFEST, Door, answer, frame, hello, pipes

from peer.network.limits import Limits, RateLimiter, Timeouts
from peer.network.neighbours import Neighbour
from peer.network.streams.handshake import ThrottledReason
from peer.network.streams.heartbeat import LinkReporter
from peer.network.streams.link import Inbox
from peer.network.streams.stream import Backoff, CountedPipe, StreamTakeover, Traffic
from peer.network.transport import DisconnectedError
from peer.network.transport.memory import MemoryPipe
from peer.network.wire.frames import Key
from peer.telemetry.events import Event, LinkChanged

LIMITS = Limits()


class Clock:
    """The loop's time, as the test sets it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 0.0
        monkeypatch.setattr(asyncio.get_running_loop(), "time", lambda: self.now)


def stream(origin: str = "ipv4:10.0.0.1:1") -> CountedPipe:
    ours = pipes()[1]
    ours.origin = origin
    return CountedPipe(ours, "left", Traffic())


def dropped(one: CountedPipe) -> bool:
    assert isinstance(one._pipe, MemoryPipe)
    return one._pipe.broken


async def test_a_stream_that_says_nothing_takes_nobodys_place() -> None:
    door = Door()
    theirs, ours = pipes()
    first = asyncio.create_task(door.receiver.serve_tensors(ours))
    await theirs.send(hello())
    await answer(theirs)
    others = []
    for _ in range(50):
        near, far = pipes()
        others.append(asyncio.create_task(door.receiver.serve_tensors(far)))
        await near.send(hello())
        await answer(near)
    assert sum(not other.done() for other in others) == LIMITS.candidates
    await theirs.send(frame())
    await door.receiver.inbox("left").message(Key(0, 1, 0), 96)
    await near.send(frame(step=1))  # the newest speaks
    with pytest.raises(DisconnectedError):
        await first
    for other in others:
        other.cancel()
    await asyncio.gather(*others, return_exceptions=True)


async def test_nobody_elsewhere_pushes_a_candidate_out() -> None:
    streams, honest = StreamTakeover(LIMITS, Timeouts()), stream("ipv4:10.0.0.2:7")
    assert streams.add(stream())
    assert not streams.add(honest)
    crowd = [stream(f"ipv4:10.0.0.1:{port}") for port in range(40)]
    for one in crowd:
        streams.add(one)
    assert not dropped(honest)
    assert [dropped(one) for one in crowd[-LIMITS.candidates + 1 :]] == [False] * (LIMITS.candidates - 1)
    assert all(dropped(one) for one in crowd[: -LIMITS.candidates + 1])


async def test_a_stream_in_use_gives_way_some_times_and_then_seldom() -> None:
    streams = StreamTakeover(LIMITS, Timeouts(takeover_interval=1000))
    streams.add(stream())
    for _ in range(LIMITS.successions):
        next_one = stream()
        streams.add(next_one)
        await streams.promote(next_one)
        assert streams.active("left") is next_one
    waiting = stream()
    streams.add(waiting)
    succeeding = asyncio.create_task(streams.promote(waiting))
    await asyncio.sleep(0.01)
    assert not succeeding.done()
    streams.remove(next_one)  # it has ended by itself
    await succeeding
    assert streams.active("left") is waiting


async def test_who_has_lost_its_place_does_not_get_it_back() -> None:
    streams, old, new = StreamTakeover(LIMITS, Timeouts()), stream(), stream()
    streams.add(old)
    streams.add(new)
    await streams.promote(new)
    assert dropped(old)
    with pytest.raises(DisconnectedError, match="replaced by a newer stream"):
        await streams.promote(old)
    streams.remove(old)
    assert streams.active("left") is new


async def test_a_pace_is_a_burst_and_then_one_in_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, pace = Clock(monkeypatch), RateLimiter(3, 10.0)
    assert [pace.try_acquire() for _ in range(5)] == [True, True, True, False, False]
    assert pace.wait == 10.0
    clock.now = 9.0
    assert not pace.try_acquire()
    assert pace.wait == pytest.approx(1.0)
    clock.now = 10.0
    assert [pace.try_acquire(), pace.try_acquire()] == [True, False]


async def test_refusals_are_tried_again_ever_later_and_cuts_are_not(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, times = Clock(monkeypatch), Timeouts()
    retries = Backoff(times)
    assert [retries.after_refusal() for _ in range(8)] == [*times.retry_refused, times.retry_refused[-1]]
    assert retries.after_disconnect() == times.retry[0]
    retries.welcomed()
    assert retries.after_refusal() == times.retry_refused[-1], "a welcome alone is no progress"
    retries.welcomed()
    clock.now += times.stable_after
    assert retries.after_refusal() == times.retry_refused[0]


async def test_a_link_that_flaps_is_told_of_seldom_and_what_it_is_at_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, told = Clock(monkeypatch), list[Event]()
    news, neighbour = LinkReporter(LIMITS, Timeouts(), told.append), Neighbour("left", "l:1")
    for _ in range(500):
        news.change(neighbour, "up", "")
        news.change(neighbour, "down", "connection closed")
    assert len(told) == LIMITS.news
    clock.now += Timeouts().report_interval
    news.catch_up(neighbour)
    news.catch_up(neighbour)
    changes = 1000 - LIMITS.news
    last = LinkChanged(
        neighbour="left",
        state="down",
        reason=f"connection closed; the link has changed {changes} times since this was last told",
    )
    assert told[LIMITS.news :] == [last]


@pytest.mark.parametrize("kinds", [2, 1000])
async def test_ever_other_reasons_are_told_seldom(kinds: int, monkeypatch: pytest.MonkeyPatch) -> None:
    clock, times = Clock(monkeypatch), Timeouts()
    sayings = ThrottledReason(LIMITS, times)

    def changes() -> int:
        heard = [sayings.update(f"reason {number % kinds}") for number in range(1000)]
        return sum(one != before for before, one in pairwise(heard))

    assert changes() == LIMITS.sayings - 1
    clock.now += 6 * times.report_interval
    assert changes() <= 6


async def test_streams_that_wait_for_a_round_find_no_more_room_than_one() -> None:
    """A neighbour that had one frame of a later round wait on each could have twice as much here when it begins."""
    door = Door()
    door.receiver._most_held = 4 * (MANIFEST.largest + door.limits.message)
    (first, *others), tasks = await opened(door, 5)
    for step, other in enumerate(others):
        await other.send(frame(round=6, step=step))  # more than four rounds ahead
    sending = asyncio.create_task(flood(first))
    inbox = door.receiver.inbox("left")
    full = await settled(inbox)
    assert full == 4
    door.receiver.begin(2)
    assert await settled(inbox) == full
    for task in (sending, *tasks):
        task.cancel()
    await asyncio.wait([sending, *tasks])


async def test_who_takes_over_has_counted_the_repeats_on_its_stream_too() -> None:
    """Their sender has; or what it sends would seem not to arrive."""
    door = Door()
    (old, new), tasks = await opened(door, 2)
    for step in range(2):
        await old.send(frame(step=step))  # under way when the sender dialled anew
    inbox = door.receiver.inbox("left")
    await settled(inbox)
    for step in range(3):
        await new.send(frame(step=step))
    assert await settled(inbox) == 3
    assert door.state.deliveries.received_count("left") == 3
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)


async def opened(door: Door, count: int) -> tuple[list[MemoryPipe], list[asyncio.Task[None]]]:
    """So many welcomed streams of one sender: its ends, and the tasks that serve them."""
    callers, tasks = list[MemoryPipe](), list[asyncio.Task[None]]()
    for _ in range(count):
        caller, pipe = pipes()
        tasks.append(asyncio.create_task(door.receiver.serve_tensors(pipe)))
        await caller.send(hello())
        await answer(caller)
        callers.append(caller)
    return callers, tasks


async def flood(caller: MemoryPipe) -> None:
    for step in range(20):
        await caller.send(frame(round=5, step=step))


async def settled(inbox: Inbox) -> int:
    """How many messages are in it, once all that is under way has come as far as it can."""
    for _ in range(100):
        await asyncio.sleep(0)
    return len(inbox.messages)
