"""Views: who is a member from which round on, and the chain of all that were decided."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

from peer.errors import FailedError


class ConflictError(FailedError):
    """Two different views of one number were decided, which must never be; the message names the number."""


@dataclass(frozen=True)
class View:
    """Who is a member from a round on."""

    number: int
    members: tuple[str, ...]
    """In the order of the spec. The first of them settles what half of them ask for."""
    first: int
    """The first round that is played in it."""
    planned: bool = False
    """Everybody of the view before plays that view's rounds to the end of first - 1. Otherwise its rounds from `first`
    on are void, and all go back to the state after first - 1."""
    entrants: tuple[tuple[str, int], ...] = ()
    """Members that are taken in: each with the round after which the private state stands that it brings, or -1."""
    reason: str = ""
    expelled: tuple[str, ...] = ()
    """Who was voted out, in this view or before, in the order of the spec: nobody of them is taken in again."""

    def is_quorum(self, ids: Iterable[str]) -> bool:
        """More than half of the members, or exactly half with the first of them: any two quorums have one in common."""
        those = set(ids) & set(self.members)
        twice = 2 * len(those)
        return twice > len(self.members) or (twice == len(self.members) and self.members[0] in those)

    def as_json(self) -> dict[str, Any]:
        return {**vars(self)}

    @classmethod
    def from_json(cls, kept: Mapping[str, Any]) -> Self:
        entrants = tuple((id, private) for id, private in kept["entrants"])
        expelled = tuple(kept.get("expelled", ()))
        return cls(**{**kept, "members": tuple(kept["members"]), "entrants": entrants, "expelled": expelled})

    def cuts(self, id: str) -> bool:
        """Whether that member does not simply live on into this view from the one before."""
        return not self.planned or id in dict(self.entrants)


class Chain:
    """The decided views, from number 0."""

    def __init__(self, views: Sequence[View]) -> None:
        """`views`: at least the one of number 0, none left out. ValueError if one is."""
        if not views:
            raise ValueError("a chain begins with the view of number 0")
        self._views: list[View] = []
        for view in views:
            self.extend(view)

    @property
    def current(self) -> View:
        return self._views[-1]

    def extend(self, view: View) -> None:
        """Takes the next view; one that is known already changes nothing.

        ValueError if others are missing before it; ConflictError if another one of its number was decided.
        """
        if view.number > len(self._views) or view.number < 0:
            raise ValueError(f"view {view.number} does not follow view {len(self._views) - 1}")
        if view.number == len(self._views):
            self._views.append(view)
        elif view != self._views[view.number]:
            raise ConflictError(
                f"two views of number {view.number} were decided: two federations of one name have met, or a peer's "
                "directory is an old copy; start that peer with an empty directory"
            )

    def since(self, number: int) -> tuple[View, ...]:
        """The views after that one."""
        return tuple(self._views[max(0, number + 1) :])

    def after(self, number: int, id: str) -> View | None:
        """The view to live in after that of the number; None for whom there is none.

        Planned ones are lived in one after the other, also by a member that a later one is without: it leaves then.
        What lies before one for which all went back, or by which that member was taken in, is passed over.
        """
        later = self.since(number)
        cuts = [view for view in later if view.cuts(id)]
        if id not in self.current.members:
            return later[0] if later and not cuts and id in later[0].members else None
        return cuts[-1] if cuts else later[0]

    def is_over(self, number: int, id: str) -> bool:
        """Whether that member has nothing to do any more in the view of that number: while only planned ones follow, it
        is lived in to its end, also by who leaves. One without a round is passed over, as nobody is sure to come."""
        view = self._views[number]
        return id not in view.members or any(one.cuts(id) or one.first == view.first for one in self.since(number))

    def ceiling(self, entered: int) -> int | None:
        """The last round whose checkpoint still counts if it was made in view `entered`; None if every one does."""
        return min((view.first - 1 for view in self.since(entered)), default=None)

    def passed(self, number: int) -> dict[int, int]:
        """By the number of each view from which planned ones alone lead to that of `number`: its last round.

        Whoever lives in the latter has that round on disk, and so have its neighbours.
        """
        found: dict[int, int] = {}
        for view in reversed(self._views[1 : number + 1]):
            if not view.planned:
                break
            found[view.number - 1] = view.first - 1
        return found

    def state_dict(self) -> list[dict[str, Any]]:
        """Plain JSON, for `load`."""
        return [view.as_json() for view in self._views]

    @classmethod
    def load(cls, kept: Iterable[Mapping[str, Any]]) -> Self:
        return cls([View.from_json(view) for view in kept])
