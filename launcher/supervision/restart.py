"""When a peer that ended is started again: a crash is, a decision is not."""

import signal
from dataclasses import dataclass, field
from typing import Self

from peer.spec.federation import Spec

WRONG_INPUT = 2
STOPPED = (143, 130, -15, -2)
"""After SIGTERM or SIGINT: with a checkpoint, or before the peer could handle signals at all."""


@dataclass(frozen=True)
class Policy:
    """How often a peer is started again, and how long it may take to end. All but `limit` are seconds."""

    limit: int = 5
    """Restarts in a row."""
    first_delay: float = 0.5
    """Before the first restart in a row; each waits twice as long as the one before."""
    steady: float = 60.0
    """A peer that has run for so long does not crash because it was started: a new row begins."""
    grace: float = 20.0
    """Between the first signal and SIGKILL; a peer writes its checkpoint meanwhile."""
    asks_by: signal.Signals = signal.SIGTERM
    """That first signal."""

    @classmethod
    def of(cls, spec: Spec, limit: int) -> Self:
        """At the end all are to stop, and none of them is to leave the others."""
        return cls(limit=limit, asks_by=signal.SIGINT if spec.on_stop == "leave" else signal.SIGTERM)


@dataclass
class Restarts:
    """The restarts of one peer: so many in a row, and in all. A row ends, too, with a round that is completed."""

    policy: Policy = Policy()
    total: int = field(default=0, init=False)
    in_row: int = field(default=0, init=False)
    _started: float = field(default=0.0, init=False)
    _round: int = field(default=0, init=False)

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
        if round > self._round or now - self._started >= self.policy.steady:
            self.in_row = 0
        if self.in_row == self.policy.limit:
            return None
        self.in_row += 1
        self.total += 1
        return float(self.policy.first_delay * 2 ** (self.in_row - 1))
