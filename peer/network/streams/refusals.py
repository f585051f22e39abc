"""What was refused, counted by cause; each cause is reported once, however often it comes back."""

from collections import Counter
from collections.abc import Callable

from peer.network.limits import Limits


class Refusals:
    """`report` is called for the first of each cause, with the fields that describe it."""

    def __init__(self, report: Callable[..., None], limits: Limits = Limits()) -> None:
        self._report, self._limits = report, limits
        self.counts: Counter[tuple[str, ...]] = Counter()

    def add(self, event: str, **fields: str | int) -> None:
        """One more; fields other than `origin`, which changes with every connection, tell the causes apart."""
        most = self._limits.characters
        words = {name: text[:most] if isinstance(text, str) else text for name, text in fields.items()}
        cause = (event, *(str(text) for name, text in words.items() if name != "origin"))
        if cause not in self.counts and len(self.counts) >= self._limits.causes:
            cause = (event, "others")
        self.counts[cause] += 1
        if self.counts[cause] > 1:
            return
        if cause == (event, "others"):
            words |= {name: "many others" for name, text in words.items() if isinstance(text, str)}
        self._report(event, **words)
