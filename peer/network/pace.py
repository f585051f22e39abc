"""How often something may happen: some times at once, and from then on once in a while."""

import asyncio


class Pace:
    """`burst` times at once, and once more every so many seconds."""

    def __init__(self, burst: int, seconds: float) -> None:
        self._ahead, self._seconds = (burst - 1) * seconds, seconds
        self._clock = asyncio.get_running_loop().time
        self._spent_until = self._clock()
        """When all that has happened would have, had it come evenly."""

    def take(self) -> bool:
        """Whether it may happen now; then it counts as done."""
        if self.wait > 0:
            return False
        self._spent_until = max(self._spent_until, self._clock()) + self._seconds
        return True

    @property
    def wait(self) -> float:
        """Seconds until it may happen again. Whoever has waited so long finds that it may, whatever is rounded: shares
        that are added up could stay just below 1, and the waits be too short for a clock to tell."""
        return max(0.0, self._spent_until - self._ahead - self._clock())
