"""What a proposer would have, and the view that comes of it by what the members have promised."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from peer.views.messages import Promise
from peer.views.view import View


@dataclass(frozen=True)
class Wish:
    """Who shall leave and who shall be taken in; who does not promise leaves anyway."""

    leave: frozenset[str] = frozenset()
    enter: Mapping[str, int] = field(default_factory=dict)
    """Each with the round after which the private state stands that it brings, or -1. Of a member that promises and
    has a durable round, nothing comes of it: what it says itself is newer."""
    at_least: int = 1
    """Fewer members are never proposed."""
    rollback: bool = False
    """All go back even if everybody promises: the rounds that have begun cannot be finished, because one that is no
    member any more was lost, or one that has no checkpoint yet has forgotten them."""
    reason: str = ""


def next_view(view: View, promises: Mapping[str, Promise], wish: Wish, order: Sequence[str]) -> View | None:
    """The view to propose after `view`, by those promises; None if nothing is to change.

    `order`: all ids of the spec, as it orders them.
    """
    enter = {id: private for id, private in wish.enter.items() if id not in promises or not _has_a_place(promises[id])}
    members = (promises.keys() - wish.leave) | enter.keys()
    if not wish.rollback and not enter and members == set(view.members):
        return None
    shaken = {id: promise.private for id, promise in promises.items() if not _has_a_place(promise)}
    entrants = {**enter, **shaken}
    planned = _all_go_on(view, promises, wish)
    first = _after_all(view, promises) if planned else _where_all_can_be(promises)
    taken_in = () if first is None else tuple((id, entrants[id]) for id in _in_order(entrants.keys() & members, order))
    return View(view.number + 1, _in_order(members, order), first or 0, planned, taken_in, wish.reason)


def _has_a_place(promise: Promise) -> bool:
    return promise.durable is not None


def _all_go_on(view: View, promises: Mapping[str, Promise], wish: Wish) -> bool:
    """Whether the rounds that have begun can be played to their end by all who play them."""
    return not wish.rollback and promises.keys() == set(view.members) and all(map(_has_a_place, promises.values()))


def _after_all(view: View, promises: Mapping[str, Promise]) -> int:
    """The first round that nobody has begun; not before the view's own first."""
    return max(view.first, 1 + max(promise.started for promise in promises.values()))


def _where_all_can_be(promises: Mapping[str, Promise]) -> int | None:
    """The round after the last one to whose end all who promise can go back; None if none of them can."""
    return min((promise.durable + 1 for promise in promises.values() if promise.durable is not None), default=None)


def _in_order(ids: Collection[str], order: Sequence[str]) -> tuple[str, ...]:
    return tuple(id for id in order if id in ids)
