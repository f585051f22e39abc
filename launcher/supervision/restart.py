"""When a peer that ended is started again: a crash is, a decision is not."""

from dataclasses import dataclass

WRONG_INPUT = 2
STOPPED = (143, 130, -15, -2)
"""After SIGTERM or SIGINT: with a checkpoint, or before the peer could handle signals at all."""


@dataclass
class Restarts:
    """The restarts of one peer: at most `limit` in a row, each after twice the delay of the one before.

    A crash no longer counts as in a row with the last when the peer has completed a round in between, or has
    run for `steady` seconds: it is not crashing because it was started.
    """

    limit: int = 5
    first_delay: float = 0.5
    """Seconds before the first restart in a row."""
    steady: float = 60.0
    total: int = 0
    in_row: int = 0
    _started: float = 0.0
    _round: int = 0

    def started(self, round: int, now: float) -> None:
        """The peer was started at `now` (seconds), when it had completed `round` rounds."""
        self._started, self._round = now, round

    def delay(self, code: int, failed: bool, round: int, now: float) -> float | None:
        """Seconds to wait before starting the peer again; None if it is not to be started.

        failed: the peer itself said that it cannot go on (a diverged model, a neighbour that never came). Wrong input
        is a decision at the first start only: later it may be an address that somebody took for a moment.
        """
        if code == 0 or (code == WRONG_INPUT and not self.total) or code in STOPPED or failed:
            return None
        if round > self._round or now - self._started >= self.steady:
            self.in_row = 0
        if self.in_row == self.limit:
            return None
        self.in_row += 1
        self.total += 1
        return float(self.first_delay * 2 ** (self.in_row - 1))
