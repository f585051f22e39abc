"""Whose attempts one member listens to, so that nobody holds up the rest for ever, nor outdoes others again and again.

Safety never rests on this: a ballot that is passed over here is as good as lost on its way. Progress does, as two who
outdo each other decide nothing (PBFT has a fixed order of primaries and ever longer timeouts for it).

- **T1** A turn belongs to the member whose new ballot was listened to. While it lasts no other ballot is, nor the next
  of the same member, as each costs a write to the disk. It lasts as long as a phase may take, from the last phase that
  was completed.
- **T2** Whose attempt comes to nothing says so (`Yield`), and its turn is over.
- **T3** After a turn its member is not listened to for a while, which grows exponentially with all the time that its
  turns have taken since the last view: those in which several members listen to it at different times end, too.
- **T4** All of that is forgotten once a view is decided, or one answers again that had been silent: then those who have
  tried in vain are as good as any.
"""

from collections import defaultdict
from collections.abc import Callable
from math import inf

PHASES = 3
"""In an attempt: promise, vote, commit."""
LONGEST = 900
"""For which a member is not listened to after its turn, at most, in times of a phase. Much shorter, and a liar could
always be in its turn at one of many members."""


class Turns:
    """As one member sees them."""

    def __init__(self, seconds: float, clock: Callable[[], float]) -> None:
        """seconds: that a phase may take."""
        self._seconds, self._clock = seconds, clock
        self._holder = ""
        """Whose the last turn was."""
        self._began = self._until = -inf
        self._charged = True
        """Whether the time of the last turn is counted already."""
        self._spent: defaultdict[str, float] = defaultdict(float)
        self._free_at: defaultdict[str, float] = defaultdict(lambda: -inf)
        self._raised: defaultdict[str, float] = defaultdict(lambda: -inf)
        """When each has last brought this member nearer to a ballot far above all others."""

    @property
    def over_for(self) -> float:
        """Seconds since the last turn was over; 0 while one lasts."""
        return max(0.0, self._clock() - self._until)

    def is_free(self, member: str) -> bool:
        """Whether a new ballot of that member would be listened to."""
        self._charge()
        return self._charged and self._clock() >= self._free_at[member]

    def take(self, member: str) -> bool:
        """Whether its new ballot is listened to; if so its turn begins."""
        if not self.is_free(member):
            return False
        self._holder, self._began, self._charged = member, self._clock(), False
        self._until = self._began + self._seconds
        return True

    def advance(self, member: str) -> None:
        """A phase of its attempt is over."""
        if not self._charged and self._holder == member:
            self._until = min(self._clock() + self._seconds, self._began + PHASES * self._seconds)

    def end(self, member: str | None = None) -> None:
        """Its turn is over; None: whosever it is."""
        if member in (None, self._holder):
            self._until = min(self._until, self._clock())
            self._charge()

    def forget(self) -> None:
        """Nobody has had a turn."""
        self._until, self._charged = min(self._until, self._clock()), True
        self._spent.clear()
        self._free_at.clear()

    def may_raise(self, member: str) -> bool:
        """Whether a ballot of that member that is too far above all others brings this one nearer to it: seldom enough
        for others to keep up."""
        now = self._clock()
        if now - self._raised[member] < self._seconds:
            return False
        self._raised[member] = now
        return True

    def _charge(self) -> None:
        if self._charged or self._clock() < self._until:
            return
        self._charged = True
        self._spent[self._holder] += self._until - self._began
        turns = min(self._spent[self._holder] / self._seconds, 32)
        self._free_at[self._holder] = self._until + self._seconds * min(2 * (2**turns - 1), LONGEST)
