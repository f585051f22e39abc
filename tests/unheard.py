"""A peer in a place that tells nothing of it."""

import asyncio

from launcher.engines.base import Process


class Unheard(Process):
    """A process whose end is never noticed; the signals that were sent to it are kept."""

    def __init__(self) -> None:
        self.signals = list[int]()

    async def wait(self) -> int:
        await asyncio.Event().wait()
        return 0

    def signal(self, number: int) -> None:
        self.signals.append(number)
