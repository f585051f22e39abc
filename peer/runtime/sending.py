"""The order in which one peer's calls send, where what they send is still on its way to the CPU."""

import asyncio
from collections.abc import Callable, Collection
from typing import Any, TypeVar

from peer.learning.transfer import Fetched

T = TypeVar("T")


class Sending:
    """Each call sends when its vectors are here and the calls before it have sent: at once, where they never left."""

    def __init__(self) -> None:
        self._last: asyncio.Future[Any] | None = None

    def when_here(self, fetched: Collection[Fetched], send: Callable[[], T]) -> asyncio.Future[T]:
        """What `send` gives. Where nothing is to be waited for, it is called, and raises, before this returns."""
        if self._last is None and all(one.copied is None for one in fetched):
            sent = asyncio.get_running_loop().create_future()
            sent.set_result(send())
            return sent
        task = asyncio.get_running_loop().create_task(_in_turn(self._last, fetched, send))
        task.add_done_callback(lambda done: done.cancelled() or done.exception())  # or it is told twice
        self._last = task
        return task


async def _in_turn(before: asyncio.Future[Any] | None, fetched: Collection[Fetched], send: Callable[[], T]) -> T:
    if before:
        await before
    for one in fetched:
        await asyncio.to_thread(one.wait)
    return send()
