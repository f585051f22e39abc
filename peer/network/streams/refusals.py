"""What was refused, counted by cause; each cause is reported once, however often it comes back."""

from collections import Counter
from collections.abc import Callable

MAX_CAUSES = 1000
"""Causes that are told apart: a caller makes up names and reasons faster than anyone can read them."""
MAX_CHARACTERS = 300
"""Characters of a caller's words that are kept."""


class Refusals:
    """`report` is called for the first of each cause, with the fields that describe it."""

    def __init__(self, report: Callable[..., None]) -> None:
        self._report = report
        self.counts: Counter[tuple[str, ...]] = Counter()

    def add(self, event: str, **fields: str | int) -> None:
        """One more; fields other than `origin`, which changes with every connection, tell the causes apart."""
        words = {name: text[:MAX_CHARACTERS] if isinstance(text, str) else text for name, text in fields.items()}
        cause = (event, *(str(text) for name, text in words.items() if name != "origin"))
        if cause not in self.counts and len(self.counts) >= MAX_CAUSES:
            cause = (event, "others")
        self.counts[cause] += 1
        if self.counts[cause] > 1:
            return
        if cause == (event, "others"):
            words |= {name: "many others" for name, text in words.items() if isinstance(text, str)}
        self._report(event, **words)
