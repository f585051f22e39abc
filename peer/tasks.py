"""Tasks that end with the block they were started in, and waits that end in time or with a change."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager, suppress
from functools import partial
from math import inf
from typing import Any, ParamSpec, TypeVar

from peer.errors import first_cause

P = ParamSpec("P")
T = TypeVar("T")


class News(asyncio.Event):
    """Set at each change of something: those who wait for it look again then."""

    async def next(self) -> None:
        """Wait for the next change."""
        self.clear()
        await self.wait()

    async def until(self, holds: Callable[[], object]) -> None:
        """Wait until that holds; it is looked at now and at each change."""
        while not holds():
            await self.next()


async def within(seconds: float, awaited: Awaitable[object]) -> bool:
    """Wait for it at most so many seconds, perhaps without limit (inf); return whether it came to its end."""
    with suppress(TimeoutError):
        async with asyncio.timeout(None if seconds == inf else seconds):
            await awaited
        return True
    return False


async def unless(event: asyncio.Event, awaited: Awaitable[T]) -> T | None:
    """Return the result, or None if the event is set before: then what was awaited is cancelled."""

    async def over() -> None:
        await event.wait()
        raise _OverError

    found: list[T] = []
    async with background() as tasks:
        tasks.create_task(over())
        found.append(await awaited)
    return found[0] if found else None


class _OverError(Exception):
    """The block has come to its end: the way that the standard library names for ending a group."""


@asynccontextmanager
async def background() -> AsyncIterator[asyncio.TaskGroup]:
    """Tasks beside a block, for as long as it lasts: at its end those that still run are cancelled.

    The first error, of the block or of a task, ends all of them and is raised as it is, in no ExceptionGroup.
    A cancellation from outside counts more than an error: before Python 3.13 a TaskGroup that meets both in the same
    moment forgets the cancellation, and a loop that goes on after the error would never end.
    """
    try:
        async with asyncio.TaskGroup() as group:
            yield group
            raise _OverError
    except BaseExceptionGroup as errors:
        task = asyncio.current_task()
        if task and task.cancelling():
            with suppress(asyncio.CancelledError):  # from 3.13 on a TaskGroup has it raised once more at the next await
                await asyncio.sleep(0)
            raise asyncio.CancelledError from None
        error = first_cause(errors)
        if not isinstance(error, _OverError):
            raise error from error.__cause__


async def shielded(function: Callable[..., Coroutine[Any, Any, T]], *arguments: Any) -> T:
    """Return what the function returns; a cancellation, or several, wait for its end."""
    task, cancelled = asyncio.create_task(function(*arguments)), False
    while not task.done():
        try:
            await asyncio.wait((task,))
        except asyncio.CancelledError:
            cancelled = True
    if cancelled:
        if not task.cancelled():
            task.exception()  # retrieved, or asyncio would complain that it never was
        raise asyncio.CancelledError
    return task.result()


async def in_thread(function: Callable[P, T], *arguments: P.args, **named: P.kwargs) -> T:
    """Run a blocking function in a thread and return its result; a cancellation waits for its end.

    A thread cannot be stopped: without that it would still write while the next one writes the same file.
    """
    return await shielded(partial(asyncio.to_thread, function, *arguments, **named))
