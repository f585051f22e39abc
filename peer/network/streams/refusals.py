"""What was refused, counted by cause; each cause is reported once, however often it comes back."""

import logging
from collections import Counter
from collections.abc import Container
from dataclasses import asdict, replace
from traceback import extract_tb, format_list
from typing import Any

from peer.errors import FailedError, InputError
from peer.network.limits import Limits, Timeouts
from peer.network.pace import Pace
from peer.network.wire.foreign import plain
from peer.telemetry.events import Conflict, Refused, Report

STRANGERS = "strangers"
"""All who are no neighbours, together: they make up their names."""
SAME = ("origin", "kind")
"""Fields that tell no causes apart: the first changes with every connection, the second follows from the reason."""


class Refusals:
    """`report` is called for the first of each cause, with the event that describes it; `known` are the neighbours."""

    def __init__(self, report: Report, limits: Limits = Limits(), known: Container[str] = ()) -> None:
        self._report, self._limits, self._known = report, limits, known
        self.counts: Counter[tuple[str, ...]] = Counter()
        self._causes: Counter[str] = Counter()
        """Those that are told apart, by party."""

    def add(self, event: Refused | Conflict) -> None:
        """One more; fields other than those of SAME tell the causes apart."""
        most = self._limits.characters
        fields = {name: value for name, value in asdict(event).items() if name != "time"}
        words: dict[str, Any] = {name: plain(text, most) for name, text in fields.items() if isinstance(text, str)}
        cause = (event.name, *(str(text) for name, text in (fields | words).items() if name not in SAME))
        who = event.caller if isinstance(event, Refused) else event.sender
        party = who if who in self._known else STRANGERS
        if cause not in self.counts and self._causes[party] >= self._limits.causes:
            cause = (event.name, party, "others")
            words = {name: "many others" for name in words if party == STRANGERS or words[name] != party}
        self.counts[cause] += 1
        if self.counts[cause] == 1:
            self._causes[party] += 1
            self._report(replace(event, **words))


class Surprises:
    """Errors in serving a stream that nobody has foreseen: the stream ends, and nothing else.

    Those of this peer's own state are none of them: what the code raises to end the peer, a disk, memory.
    """

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._logged: set[str] = set()
        """Where they were raised."""

    def explain(self, error: Exception) -> str:
        """In words, once the log has its traceback; raises the error itself where it is of this peer's own state."""
        disk = isinstance(error, OSError) and error.errno and not isinstance(error, ConnectionError)
        if disk or isinstance(error, FailedError | InputError | MemoryError):
            raise error
        *_, place = trace = extract_tb(error.__traceback__)
        kind = f"{type(error).__name__} at {place.filename}:{place.lineno}"
        if kind not in self._logged:
            self._logged.add(kind)
            # Without the error's own words: they may be the other end's, and forge lines.
            logging.getLogger("dfl").error("a stream was closed by %s\n%s", kind, "".join(format_list(trace)).rstrip())
        return f"{type(error).__name__}: {plain(str(error), self._limits.characters)}; report this"


class Sayings:
    """Why one neighbour does not go together with this peer: what is told of it changes some times, and then seldom."""

    def __init__(self, limits: Limits, timeouts: Timeouts) -> None:
        self._pace = Pace(limits.sayings, timeouts.news)
        self._last = ""

    def hear(self, why: str) -> str:
        """The reason as it is to be told now."""
        if why != self._last and self._pace.take():
            self._last = why
        return self._last
