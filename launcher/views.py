"""The views of a run as its peers report them: the members in each round, and what that did to the result."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

from peer.telemetry.events import ViewDecided
from peer.views.view import View, ViewRounds, view_rounds


@dataclass(frozen=True)
class Views:
    """The views of a run of `rounds` rounds with the peers `ids`. later: the views after view 0, by number."""

    ids: tuple[str, ...]
    rounds: int
    later: tuple[View, ...] = ()

    @cached_property
    def by_number(self) -> dict[int, View]:
        return {view.number: view for view in (View(0, self.ids, first=0), *self.later)}

    @cached_property
    def spans(self) -> Sequence[ViewRounds]:
        return view_rounds([*self.by_number.values()], self.rounds)

    @cached_property
    def exact(self) -> bool:
        """Whether all peers took part in all rounds, each with all that it had: a view that only goes back is played
        again to the same bits."""
        return all(set(span.view.members) == set(self.ids) and not span.view.entrants for span in self.spans)

    @property
    def finishers(self) -> Sequence[str]:
        """The peers that are to have finished: the members of the last round that were not lost after it."""
        last = [*self.by_number.values()][-1]
        return [id for id in self.ids if self.spans and id in self.spans[-1].view.members and id in last.members]

    def counts(self, ring: Iterable[str]) -> bool:
        """Whether a result with this ring counts: it is of the view with the last round, or of one decided after it.
        Any other is of rounds that are void."""
        last = self.spans[-1].view.number if self.spans else 0
        return any({*ring} == {*view.members} for number, view in self.by_number.items() if number >= last)

    def members_of(self, number: int) -> tuple[str, ...]:
        """The members of a view; none if it was not reported."""
        view = self.by_number.get(number)
        return view.members if view else ()

    def members(self, round: int) -> tuple[str, ...]:
        return next((span.view.members for span in self.spans if round in span.rounds), ())

    def lost_after(self, span: ViewRounds) -> set[str]:
        """Members that were lost, or had forgotten, at the end of a span: before the next of which a round counts."""
        views, members, lost = [*self.by_number.values()], set(span.view.members), set[str]()
        counting = {one.view.number for one in self.spans}
        for view in views[views.index(span.view) + 1 :]:
            lost |= (members - set(view.members)) | (members & dict(view.entrants).keys())
            if view.number in counting:
                break
        return lost

    def returned_with_nothing(self, id: str) -> int:
        """The number of the last view to which that member brought no state of its own; 0: of none."""
        return max((view.number for view in self.later if (id, -1) in view.entrants), default=0)

    def absences(self) -> dict[str, list[tuple[int, int]]]:
        """The first and last of the rounds in which a peer took no part, by id."""
        found: dict[str, list[tuple[int, int]]] = {}
        for span in self.spans:
            for id in [id for id in self.ids if id not in span.view.members]:
                known = found.setdefault(id, [])
                begun = known.pop()[0] if known and known[-1][1] == span.first - 1 else span.first
                known.append((begun, span.last))
        return found

    def changes(self) -> list[tuple[int, str]]:
        """The rounds from which on other members took part, and what changed."""
        views = [View(0, self.ids, first=0), *(span.view for span in self.spans)]
        words = [describe_change(before, after) for before, after in pairwise(views)]
        return [(span.first, what) for span, what in zip(self.spans, words, strict=True) if what]


def view_of_event(event: ViewDecided) -> View:
    return View(event.number, event.members, event.first, event.planned, event.entrants, event.reason, event.expelled)


def describe_change(before: View, after: View) -> str:
    """Say in a few words which members were lost and which are back; empty if there are none."""
    gone = [id for id in before.members if id not in after.members]
    out = [id for id in after.expelled if id not in before.expelled]
    left = [id for id in gone if after.planned and id not in out]
    lost = [id for id in gone if id not in {*left, *out}]
    back = [id for id in after.members if id not in before.members]
    anew = [id for id, _ in after.entrants if id in before.members and id in after.members]
    said = [(lost, "lost"), (left, "left"), (out, "voted out"), (back, "back"), (anew, "taken in anew")]
    return ", ".join(f"{' and '.join(ids)} {what}" for ids, what in said if ids)


def change_in_words(before: View, after: View) -> str:
    """Say from which round on there is a new view, what it changes, and why."""
    what = describe_change(before, after) or "later rounds rolled back"
    why = f" ({after.reason})" if after.reason else ""
    return f"view {after.number} from round {after.first}: {what}{why}"
