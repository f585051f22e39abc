"""How long the rest of a run will take: one estimate for the terminal, the live page and a peer's own log."""

from collections import deque
from statistics import median

ROUNDS_COUNTED = 9
"""Rounds that an estimate rests on."""


class Remaining:
    """Estimates by the median of the last rounds, each measured from the end of the one before.

    So the start-up counts in no round, and a wait, or a time in which nothing ran, in one at most. All times are
    seconds of one clock.
    """

    def __init__(self) -> None:
        self._round, self._ended = 0, 0.0
        self._seen = False
        """Whether the end of that round was seen, and when it was is known."""
        self._durations = deque[float](maxlen=ROUNDS_COUNTED)

    def begin(self, round: int) -> None:
        """A start, or a step back, after so many rounds: when the last of them ended says nothing."""
        self._round, self._seen = round, False

    def see(self, round: int, now: float) -> None:
        """Note that `round` rounds are over; those that ended since the last look count as ended now."""
        if round < self._round:
            self.begin(round)
        elif ended := round - self._round:
            if self._seen:
                self._durations.extend([max(now - self._ended, 0.0) / ended] * min(ended, ROUNDS_COUNTED))
            self._round, self._ended, self._seen = round, now, True

    def seconds(self, rounds: int, now: float) -> float | None:
        """Seconds until the last of so many rounds is over; None while no round is over, and when none is left."""
        if not self._durations or self._round >= rounds:
            return None
        one = median(self._durations)
        spent = min(max(now - self._ended, 0.0), one) if self._seen else 0.0
        return one * (rounds - self._round) - spent
