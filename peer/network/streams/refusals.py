"""What was refused, counted by cause; each cause is reported once, however often it comes back."""

from collections import Counter
from dataclasses import asdict, replace
from typing import Any

from peer.network.limits import Limits
from peer.telemetry.events import Conflict, Refused, Report


class Refusals:
    """`report` is called for the first of each cause, with the event that describes it."""

    def __init__(self, report: Report, limits: Limits = Limits()) -> None:
        self._report, self._limits = report, limits
        self.counts: Counter[tuple[str, ...]] = Counter()

    def add(self, event: Refused | Conflict) -> None:
        """One more; fields other than `origin`, which changes with every connection, tell the causes apart."""
        most = self._limits.characters
        fields = {name: value for name, value in asdict(event).items() if name != "time"}
        words: dict[str, Any] = {name: text[:most] for name, text in fields.items() if isinstance(text, str)}
        cause = (event.name, *(str(text) for name, text in (fields | words).items() if name != "origin"))
        if cause not in self.counts and len(self.counts) >= self._limits.causes:
            cause = (event.name, "others")
            words = dict.fromkeys(words, "many others")
        self.counts[cause] += 1
        if self.counts[cause] == 1:
            self._report(replace(event, **words))
