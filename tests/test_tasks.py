"""Tasks beside a block: they end with it, an error is raised as it is, and no cancellation is ever forgotten."""

import asyncio
import threading
from collections.abc import Callable, Coroutine
from functools import partial
from math import inf
from typing import Any

import pytest

from peer.tasks import News, background, in_thread, shielded, unless, within


async def for_ever(ended: asyncio.Event | None = None) -> None:
    try:
        await asyncio.get_running_loop().create_future()
    finally:
        if ended:
            ended.set()


async def fail(what: str) -> None:
    await asyncio.sleep(0)  # what was started before it has begun
    raise ValueError(what)


async def test_what_is_left_ends_with_the_block() -> None:
    async with background() as group:
        task = group.create_task(for_ever())
    assert task.cancelled()


async def test_what_is_awaited_unless_something_happens() -> None:
    event, ended = asyncio.Event(), asyncio.Event()
    assert await unless(event, asyncio.sleep(0, "result")) == "result"
    asyncio.get_running_loop().call_soon(event.set)
    assert await unless(event, for_ever(ended)) is None
    assert ended.is_set()
    with pytest.raises(ValueError, match="wrong"):
        await unless(asyncio.Event(), fail("wrong"))


async def block(own: Coroutine[Any, Any, None], *beside: Coroutine[Any, Any, None]) -> None:
    """`own` in a block with tasks beside it."""
    async with background() as group:
        for one in beside:
            group.create_task(one)
        await own


async def test_a_task_s_error_ends_the_block_and_is_raised_as_it_is() -> None:
    ended = asyncio.Event()
    with pytest.raises(ValueError, match="one") as raised:
        await block(for_ever(ended), fail("one"), for_ever())
    assert type(raised.value) is ValueError
    assert ended.is_set()
    assert not asyncio.current_task().cancelling()  # type: ignore[union-attr]


async def test_of_blocks_in_blocks_the_innermost_error_is_raised() -> None:
    with pytest.raises(ValueError, match="inner"):
        await block(block(for_ever(), fail("inner")), for_ever())


async def test_the_block_s_own_error_ends_the_tasks() -> None:
    ended = asyncio.Event()
    with pytest.raises(ValueError, match="own"):
        await block(fail("own"), for_ever(ended))
    assert ended.is_set()


async def test_a_cancellation_in_the_moment_of_an_error_is_not_forgotten() -> None:
    """A link that tries again after every break would never end; and what is to be cleaned up is."""
    tries, cut, cleaned = 0, asyncio.Event(), list[str]()

    async def breaks() -> None:
        await cut.wait()
        raise ConnectionError

    async def link() -> None:
        nonlocal tries
        while True:
            tries += 1
            try:
                async with background() as group:
                    group.create_task(breaks())
                    await for_ever()
            except ConnectionError:
                cut.clear()
            finally:
                await asyncio.sleep(0)
                cleaned.append("port")

    task = asyncio.create_task(link())
    await asyncio.sleep(0.01)
    cut.set()
    await asyncio.sleep(0)
    task.cancel()
    await asyncio.wait_for(asyncio.wait([task]), 10)
    assert task.cancelled()
    assert (tries, cleaned) == (1, ["port"])


async def cancel_again_and_again(running: Coroutine[Any, Any, int], let_go: Callable[[], None]) -> None:
    """It ends when it is let go, not before, and as cancelled."""
    task = asyncio.create_task(running)
    await asyncio.sleep(0.01)
    for _ in range(2):
        task.cancel()
        await asyncio.sleep(0.01)
        assert not task.done()
    let_go()
    await asyncio.wait([task])
    assert task.cancelled()


async def test_a_cancellation_waits_for_what_must_not_be_cut_short() -> None:
    let_go, done = asyncio.Event(), False

    async def write() -> int:
        nonlocal done
        await let_go.wait()
        done = True
        return 7

    await cancel_again_and_again(shielded(write), let_go.set)
    assert done
    assert await shielded(write) == 7
    with pytest.raises(ValueError, match="disk"):
        await shielded(fail, "disk")


async def test_a_cancellation_waits_for_a_thread() -> None:
    """Nothing stops it, and what it writes is not to be written by two."""
    let_go, written = threading.Event(), list[int]()

    def write(number: int) -> int:
        assert let_go.wait(10)
        written.append(number)
        return number

    await cancel_again_and_again(in_thread(write, 1), let_go.set)
    assert written == [1]
    assert await in_thread(write, number=2) == 2


async def test_what_fails_after_a_cancellation_is_a_cancellation() -> None:
    task = asyncio.create_task(shielded(fail, "disk"))
    await asyncio.sleep(0)
    task.cancel()
    await asyncio.wait([task])
    assert task.cancelled()


async def test_what_is_not_over_in_time_is_cancelled_and_said() -> None:
    ended = asyncio.Event()
    assert not await within(0.01, for_ever(ended))
    assert ended.is_set()
    assert await within(0, asyncio.sleep(0)) is False, "it would have had to wait"
    for seconds in (1.0, inf):
        assert await within(seconds, asyncio.sleep(0))
    with pytest.raises(ValueError, match="its own"):
        await within(1.0, fail("its own"))


async def test_all_who_wait_for_news_look_at_each_change() -> None:
    news, values = News(), list[int]()
    waiting = [asyncio.create_task(news.until(partial(values.count, wanted))) for wanted in range(3)]
    for value in range(3):
        values.append(value)
        news.set()
        await asyncio.sleep(0.01)
        assert [task.done() for task in waiting] == [wanted in values for wanted in range(3)]
