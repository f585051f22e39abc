"""What strangers do that the peer can do nothing about but count it: told once, and again when there is far more."""

from collections import Counter
from threading import Lock

from peer.telemetry.events import Refused, Report

MORE = 10
"""Times as often."""


class Nuisances:
    """From any thread. Each kind is told when it has come `first` times, and whenever that is MORE times as often."""

    def __init__(self, report: Report, first: int = 1) -> None:
        self._report, self._first = report, first
        self._counts: Counter[str] = Counter()
        self._next: dict[str, int] = {}
        self._lock = Lock()

    def add(self, reason: str, origin: str = "") -> None:
        """One more; reasons are this peer's own words, so they are few."""
        with self._lock:
            self._counts[reason] += 1
            count, due = self._counts[reason], self._next.get(reason, self._first)
            if count < due:
                return
            self._next[reason] = MORE * due
        words = reason if count == 1 else f"{reason}, {count:,} times by now"
        self._report(Refused(caller="a stranger", origin=origin, kind="stranger", reason=words))
