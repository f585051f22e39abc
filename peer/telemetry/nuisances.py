"""What goes wrong while strangers call: their doing is counted and seldom told, a fault of the peer's own told once."""

import logging
from collections import Counter
from threading import Lock
from traceback import extract_tb

from peer.telemetry.events import Refused, Report

MORE = 10
"""Times as often."""
log = logging.getLogger("dfl")


class Nuisances:
    """From any thread."""

    def __init__(self, report: Report) -> None:
        self._report = report
        self._counts: Counter[str] = Counter()
        self._next: dict[str, int] = {}
        self._lock = Lock()

    def add(self, reason: str, origin: str = "", first: int = 1) -> None:
        """One more. It is told when it has come `first` times, and whenever that is MORE times as often.

        Reasons are this peer's own words, so they are few.
        """
        with self._lock:
            self._counts[reason] += 1
            count, due = self._counts[reason], self._next.get(reason, first)
            if count < due:
                return
            self._next[reason] = MORE * due
        words = reason if count == 1 else f"{reason}, {count:,} times by now"
        self._report(Refused(caller="a stranger", origin=origin, kind="stranger", reason=words))


class Faults:
    """From any thread. `where`: what met them."""

    def __init__(self, where: str) -> None:
        self._where = where
        self._told: set[tuple[str, int | None]] = set()

    def tell(self, error: BaseException) -> None:
        """With its traceback, once for each line of code."""
        where = [(frame.filename, frame.lineno) for frame in extract_tb(error.__traceback__)[-1:]]
        line = where[0] if where else (type(error).__name__, None)
        if line not in self._told:
            self._told.add(line)
            log.error("%s met a fault of this peer's own, which is told once", self._where, exc_info=error)
