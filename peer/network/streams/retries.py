"""When a neighbour is called again: ever later, until a stream to it has stood for a while."""

import asyncio
from collections import Counter

from peer.network.limits import Timeouts
from peer.network.streams.handshake import RefusedError
from peer.network.wire.messages import Refusal


class Retries:
    """Of one kind of stream to one neighbour."""

    def __init__(self, timeouts: Timeouts) -> None:
        self._timeouts, self._clock = timeouts, asyncio.get_running_loop().time
        self._failed: Counter[tuple[float, ...]] = Counter()
        """Attempts in a row that ended in a cut, and those that ended in a refusal."""
        self._welcomed: float | None = None

    def welcomed(self) -> None:
        self._welcomed = self._clock()

    def cut(self) -> float:
        """The stream is over, or there was none: seconds until the next attempt."""
        return self._pause(self._timeouts.retry)

    def refused(self, error: RefusedError | None = None) -> float:
        """The same, when the neighbour has refused it or what was sent on it, and is likely to do so again."""
        elsewhere = error is not None and error.refusal.reason == Refusal.VIEW
        return self._pause(self._timeouts.elsewhere if elsewhere else self._timeouts.refused)

    def _pause(self, pauses: tuple[float, ...]) -> float:
        if self._welcomed is not None and self._clock() - self._welcomed >= self._timeouts.settle:
            self._failed.clear()
        self._welcomed = None
        pause = pauses[min(self._failed[pauses], len(pauses) - 1)]
        self._failed[pauses] += 1
        return pause
