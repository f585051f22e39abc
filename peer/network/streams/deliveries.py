"""Whether what is sent arrives: both ends of a stream of tensors count its frames, and tell each other in their beats.

Tensors and signs of life go over connections of their own: one may be cut off while the other is well.
"""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager


class Deliveries:
    """Frames of the present stream to and from each neighbour."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        """From a frame that arrives to the next, at most."""
        self._sent, self._taken = Counter[str](), Counter[str]()
        self._waiting: set[str] = set()
        self._progress: dict[str, tuple[int, float]] = {}
        """How many frames each neighbour had taken, and since when it has not taken more."""

    def opened(self, to: str) -> None:
        """A new stream."""
        self._sent[to] = 0

    def ended(self, to: str) -> None:
        """There will be no other stream."""
        self._sent.pop(to, None)

    def sent(self, to: str) -> None:
        """One more frame."""
        self._sent[to] += 1

    def accepted(self, sender: str) -> None:
        """A new stream from there."""
        self._taken[sender] = 0

    @contextmanager
    def took(self, sender: str) -> Iterator[None]:
        """One more frame from there; the next one is read after the block."""
        self._taken[sender] += 1
        self._waiting.add(sender)
        try:
            yield
        finally:
            self._waiting.discard(sender)

    def taken(self, sender: str) -> int | None:
        """For the beats; None while the sender has to wait for this peer: nothing is read then, and all is well."""
        return None if sender in self._waiting else self._taken.get(sender)

    def stuck(self, to: str, taken: int | None, now: float) -> bool:
        """Whether frames have been on their way to a neighbour for too long, which now says how many it has taken."""
        if taken is None or taken >= self._sent.get(to, 0):
            self._progress.pop(to, None)
            return False
        before, since = self._progress.get(to, (taken, now))
        self._progress[to] = (taken, since if before == taken else now)
        return now - self._progress[to][1] > self._seconds
