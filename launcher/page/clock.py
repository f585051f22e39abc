"""Seconds since a run began, without the times in which none of its peers ran: a run may pause for days."""

from bisect import bisect_right
from collections.abc import Iterable

PAUSE = 5.0
"""Seconds without any peer that are still shown: a launcher waits as long before it starts one again."""


class Clock:
    """Made of when peers ran, each from its first event to its last, in unix seconds."""

    def __init__(self, lives: Iterable[tuple[float, float]]):
        self._spans: list[tuple[float, float, float]] = []
        """Begin and end in unix seconds, and how long the pauses before were."""
        for begin, end in sorted(lives):
            if self._spans and begin <= self._spans[-1][1] + PAUSE:
                first, last, paused = self._spans[-1]
                self._spans[-1] = (first, max(last, end), paused)
            else:
                paused = self._spans[-1][2] + begin - self._spans[-1][1] if self._spans else begin
                self._spans.append((begin, end, paused))

    def seconds(self, time: float) -> float:
        """Since the run began; a time within a pause counts as its beginning."""
        at = bisect_right(self._spans, time, key=lambda span: span[0]) - 1
        if at < 0:
            return 0.0
        _, end, paused = self._spans[at]
        return round(min(time, end) - paused, 3)

    @property
    def pauses(self) -> list[float]:
        """Where on this clock a pause was left out."""
        return [round(begin - paused, 3) for begin, _, paused in self._spans[1:]]
