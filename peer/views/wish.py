"""What a proposer would have, and the view that comes of it by what the members have promised."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from peer.views.messages import Promise
from peer.views.view import View


@dataclass(frozen=True)
class Wish:
    """Who shall leave and who shall be taken in; who does not promise leaves anyway."""

    leave: frozenset[str] = frozenset()
    """By themselves: they play to the end of the view before, if that can be."""
    enter: Mapping[str, int] = field(default_factory=dict)
    """Each with the round after which the private state stands that it brings, or -1. Of a member that promises nothing
    comes of it: what it says itself is newer."""
    at_least: int = 1
    """Fewer members are never proposed."""
    unanimous: bool = False
    """Nothing is proposed unless everybody promises who is not voted out: nobody counts as lost yet."""
    rollback: bool = False
    """All go back even if everybody promises: the rounds that have begun cannot be finished, because one that is no
    member any more was lost."""
    reason: str = ""
    expel: frozenset[str] = frozenset()
    """Who is voted out: what they promise counts for nothing, and they are never taken in again."""


def next_view(view: View, promises: Mapping[str, Promise], wish: Wish, order: Sequence[str]) -> View | None:
    """The view to propose after `view`, by those promises; None if nothing is to change.

    `order`: all ids of the spec, as it orders them.
    """
    expelled = wish.expel.union(view.expelled)
    promises = {id: promise for id, promise in promises.items() if id not in expelled}
    enter = {id: private for id, private in wish.enter.items() if id not in expelled.union(promises)}
    members = (promises.keys() - wish.leave) | enter.keys()
    everybody = promises.keys() == set(view.members)
    changes = wish.rollback or members != set(view.members) or expelled != set(view.expelled)
    if not changes or (wish.unanimous and promises.keys() != set(view.members) - expelled):
        return None
    planned = everybody and not wish.rollback
    first = _after_all(view, promises) if planned else _where_all_can_be(promises)
    # Who was taken in and cannot go back so far is taken in there once more.
    shaken = {id: promise.private for id, promise in promises.items() if first <= promise.oldest}
    entrants = {**enter, **shaken} if first else {}
    taken_in = tuple((id, _counting(entrants[id], first)) for id in _in_order(entrants.keys() & members, order))
    those, out = _in_order(members, order), _in_order(expelled, order)
    return View(view.number + 1, those, first, planned, taken_in, wish.reason, out)


def _after_all(view: View, promises: Mapping[str, Promise]) -> int:
    """The first round that nobody has begun; not before the view's own first."""
    return max(view.first, 1 + max(promise.started for promise in promises.values()))


def _where_all_can_be(promises: Mapping[str, Promise]) -> int:
    """The round after the last one to whose end all who promise can go back."""
    return min(promise.durable + 1 for promise in promises.values())


def _counting(private: int, first: int) -> int:
    """A private state that would be void in that view is none."""
    return private if private < first else -1


def _in_order(ids: Collection[str], order: Sequence[str]) -> tuple[str, ...]:
    return tuple(id for id in order if id in ids)
