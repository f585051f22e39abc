"""Tasks that end with the block they were started in."""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any, TypeVar

T = TypeVar("T")


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
            raise asyncio.CancelledError from None
        error = _first(errors)
        if not isinstance(error, _OverError):
            raise error from error.__cause__


def _first(errors: BaseExceptionGroup[BaseException]) -> BaseException:
    error = errors.exceptions[0]
    return _first(error) if isinstance(error, BaseExceptionGroup) else error


async def uninterrupted(function: Callable[..., Coroutine[Any, Any, T]], *arguments: Any) -> T:
    """What the function returns; a cancellation waits for its end."""
    async with background() as group:
        task = group.create_task(function(*arguments))
        try:
            await asyncio.wait((task,))
        except asyncio.CancelledError:
            await asyncio.wait((task,))
            raise
    return task.result()
