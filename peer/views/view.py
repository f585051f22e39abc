"""Views: the members from a round on, and the chain of all views that were decided.

A view says why each absent member of the federation is not in it, including those that were out before. The next view
reads these reasons from it, so that nothing else needs to be kept or agreed on.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import inf
from typing import Annotated, Any

from pydantic import Field, StrictBool

from peer.records import Many

Id = Annotated[str, Field(max_length=64, pattern=r"^[a-z0-9-]+$")]
Number = Annotated[int, Field(ge=0, le=1 << 31, strict=True)]
Round = Annotated[int, Field(ge=-1, le=1_000_001, strict=True)]
"""A round's number; -1: before the first one. The longest run has a million rounds."""
STALENESS_BOUND = 4
"""W of rule R6: no peer starts a round more than W beyond the least durable round of all."""
MAX_REASON_LENGTH = 300
Reason = Annotated[str, Field(max_length=MAX_REASON_LENGTH, pattern=r"^[ -~]*$")]


@dataclass(frozen=True)
class View:
    """The members from a round on."""

    number: Number
    members: Annotated[Many[Id], Field(min_length=1)]
    """The members in the order of the spec; the first one breaks ties."""
    first: Annotated[Round, Field(ge=0)]
    """The first round that is played in this view."""
    planned: StrictBool = False
    """True: all members of the view before play on to the end of round first - 1. False: that view's rounds from
    `first` on are void, and all go back to the state after round first - 1."""
    entrants: Many[tuple[Id, Round]] = ()
    """Members that are admitted, each with the round of the private state that it brings; -1: none."""
    reason: Reason = ""
    expelled: Many[Id] = ()
    """Members expelled in this view or before, in the order of the spec; they are not admitted again."""

    def tolerates(self, faulty: int) -> int:
        """Return f, how many members may lie: at most `faulty`, and less than a third of the members."""
        return min(faulty, (len(self.members) - 1) // 3)

    def is_quorum(self, ids: Collection[str], faulty: int) -> bool:
        """Return whether these are more than (n + f)/2 of the members: any two quorums then share f + 1 members, at
        least one of them honest.

        If f is 0, exactly half of the members are a quorum, too, provided that the first member is among them.
        """
        those, f = {*ids} & {*self.members}, self.tolerates(faulty)
        twice = 2 * len(those)
        half = twice == len(self.members) and f == 0 and self.members[0] in those
        return twice > len(self.members) + f or half

    def needed(self, ids: Collection[str], faulty: int) -> tuple[int, str]:
        """Return the size that a quorum with these members must have, and the member whose presence would make half of
        all enough: empty if there is none, or if it is among these already."""
        n, f, first = len(self.members), self.tolerates(faulty), self.members[0]
        if n % 2 or f:
            return (n + f) // 2 + 1, ""
        return (n // 2, "") if first in ids else (n // 2 + 1, first)

    def as_json(self) -> dict[str, Any]:
        return {**vars(self)}

    def resets_member(self, id: str) -> bool:
        """Return whether that member goes back or is admitted in this view, rather than playing on from the last."""
        return not self.planned or id in dict(self.entrants)


class ViewChain:
    """The decided views, from number 0."""

    def __init__(self, views: Sequence[View]) -> None:
        """views: numbered from 0 without gaps; raises ValueError otherwise."""
        if not views:
            raise ValueError("a chain begins with the view of number 0")
        self._views: list[View] = []
        for view in views:
            self.extend(view)

    @property
    def current(self) -> View:
        return self._views[-1]

    def extend(self, view: View) -> None:
        """Append the next view; raises ValueError for a view of another number."""
        if view.number != len(self._views):
            raise ValueError(f"view {view.number} does not follow view {len(self._views) - 1}")
        self._views.append(view)

    def of(self, number: int) -> View:
        """Return the view of that number, which must be known."""
        return self._views[number]

    def since(self, number: int) -> tuple[View, ...]:
        """Return the views after that number."""
        return tuple(self._views[max(0, number + 1) :])

    def after(self, number: int, id: str) -> View | None:
        """Return the view that a member plays after the view of that number; None if there is none for it.

        Planned views are played one after the other, also by a member that leaves with a later one. Views before one
        for which all went back, or that admitted this member, are skipped.
        """
        later = self.since(number)
        cuts = [view for view in later if view.resets_member(id)]
        if id not in self.current.members:
            return later[0] if later and not cuts and id in later[0].members else None
        return cuts[-1] if cuts else later[0] if later else None

    def is_over(self, number: int, id: str) -> bool:
        """Return whether that member has nothing left to do in the view of that number. While only planned views
        follow, the view is played to its end, also by a member that leaves. A view without rounds is skipped, as
        no member is sure to come to it."""
        view = self._views[number]
        return id not in view.members or any(
            one.resets_member(id) or one.first == view.first for one in self.since(number)
        )

    def last_valid_round(self, entered: int) -> int | None:
        """Return the last round whose checkpoint counts among those made in view `entered`; None if all count."""
        return min((view.first - 1 for view in self.since(entered)), default=None)

    def valid(self, round: int, entered: int) -> int:
        """Return that round of view `entered` or, if it is void by now, the last round of that view that counts."""
        return min([round, *(view.first - 1 for view in self.since(entered))])

    def floor(self, id: str) -> int:
        """Return the round that a member of the current view can certainly go back to, given the decided views: a
        member that promises less has lost its disk (rule V4).

        For a planned view, that is as many rounds before its first one as members of the view before could be ahead of
        each other when all promised.
        """
        least, found = 1 << 31, -1
        for view in reversed(self._views[1:]):
            least = min(least, view.first - 1)
            if id not in view.members:
                continue
            if view.resets_member(id):
                return max(found, least)
            found = max(found, least - STALENESS_BOUND - len(self._views[view.number - 1].members))
        return found

    def admission(self, id: str) -> tuple[int, int]:
        """Return the first round that a member of the current view can be in, and the round of the private state that
        it brought then, or -1: as the view says that admitted it last, unless all went back to before it. (0, -1) for a
        member that has been there from the beginning."""
        least = inf
        for view in reversed(self._views):
            if view.first < least and id in (entrants := dict(view.entrants)):
                return view.first, entrants[id]
            least = least if view.planned else min(least, view.first)
        return 0, -1

    def last_rounds(self, number: int) -> dict[int, int]:
        """Return the last round, by number, of each view from which only planned views lead to view `number`.

        Members that play view `number` have that round on disk, and so have their neighbours.
        """
        found: dict[int, int] = {}
        for view in reversed(self._views[1 : number + 1]):
            if not view.planned:
                break
            found[view.number - 1] = view.first - 1
        return found


@dataclass(frozen=True)
class ViewRounds:
    """The rounds of a view that count: `first` to `last`, inclusive."""

    view: View
    first: int
    last: int

    @property
    def rounds(self) -> range:
        return range(self.first, self.last + 1)


def view_rounds(views: Sequence[View], rounds: int) -> Sequence[ViewRounds]:
    """Return the rounds that count, view by view, in order; each round belongs to exactly one view. Views without such
    rounds are left out."""
    last, found = rounds, list[ViewRounds]()
    for view in reversed(views):
        if view.first <= last:
            found.append(ViewRounds(view, view.first, last))
        last = min(last, view.first - 1)
    return found[::-1]


def played(views: Sequence[View], rounds: int) -> Iterator[tuple[ViewRounds, Mapping[str, Sequence[range]]]]:
    """Yield `view_rounds` in order, each with the earlier rounds of which each member, by id, may hold a state."""
    found: dict[str, Sequence[range]] = {}
    for span in view_rounds(views, rounds):
        yield span, found
        entrants = dict(span.view.entrants)
        for id in span.view.members:
            brought = entrants.get(id, span.first - 1)
            kept = [range(one.start, min(one.stop, brought + 1)) for one in found.get(id, ())]
            found[id] = [*filter(None, kept), span.rounds]
