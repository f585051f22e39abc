"""FIRMA's Definitions 3.1 to 3.3 as questions about what was sent, each answered with a sentence of what was counted.

The order of the ring may change during a run, and so may its members; all peers announce either. What happens between
two such changes is judged as a whole: who meets another partner each round, or collects in one round and sends back in
the next, is seen in no round alone.
"""

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple, TypeVar

from launcher.formatting import quantity
from launcher.reports.flows import Carried, Edge
from launcher.reports.summary_json import Trusted
from launcher.views import Views
from peer.text import plural

K = TypeVar("K")
MOST_NAMED = 5
"""Of more peers or vectors than this the others are counted."""
HOLDS = {True: "met", False: "not met", None: "neither proven nor denied"}


class Finding(NamedTuple):
    """Whether a definition is met, as far as was counted; None: neither proven nor denied."""

    holds: bool | None
    counted: str

    def doubted(self, why: str) -> "Finding":
        """With what may not have been counted; what is denied stays so."""
        return Finding(False if self.holds is False else None, f"{self.counted}; {why}")


@dataclass(frozen=True)
class OneOrder:
    """What was sent in one view while the ring was in one order."""

    view: int
    members: Sequence[str]
    flows: Sequence[Carried]

    @cached_property
    def edges(self) -> set[Edge]:
        return {flow.edge for flow in self.flows}

    @property
    def rounds(self) -> str:
        return _rounds(flow.round for flow in self.flows)

    @property
    def groups(self) -> Iterator[tuple[Sequence[Carried], str]]:
        """Flows that may have no hub: all, those of one vector, those of one round; and what they are, in words."""
        yield self.flows, ""
        for vector, some in _by(self.flows, lambda flow: flow.vector):
            yield some, f" of `{vector}`"
        for _, some in _by(self.flows, lambda flow: flow.round):
            yield some, ""


def in_order(views: Views, flows: Iterable[Carried]) -> list[OneOrder]:
    """By view, and by order of the ring within it, the last at the end."""
    by_order = sorted(_by(flows, lambda flow: (flow.view, flow.order)), key=lambda one: one[0])
    return [OneOrder(view, views.members_of(view), some) for (view, _), some in by_order]


def no_head_left(heads: Mapping[str, int], sent: Sequence[Carried], on_trust: Sequence[Trusted], own: str) -> Finding:
    """Definition 3.1. heads: bytes of heads by vector; own: what is to be said of a user's own code, or nothing."""
    if heads:
        return Finding(False, f"{quantity(sum(heads.values()))} of heads left their peers, in {_sizes(heads)}")
    vectors, numbers = sum(flow.bytes for flow in sent), sum(flow.number_bytes for flow in sent)
    counted = f"0 B of heads in {quantity(vectors)} of vectors and {quantity(numbers)} of numbers"
    if on_trust:
        trusted = Counter[str]()
        for one in on_trust:
            trusted[one["vector"]] += one["bytes"]
        counted += f"; {quantity(trusted.total())} on trust: {_sizes(trusted)}"
    return Finding(None if on_trust else True, f"{counted}; {own}")


def no_server(orders: Sequence[OneOrder]) -> Finding:
    """Definition 3.2: members only, and nobody through whom all others talk, be it over several rounds or in one."""
    if stranger := _stranger(orders):
        return Finding(False, stranger)
    for one in orders:
        for flows, what in one.groups:
            edges = {flow.edge for flow in flows}
            if (centre := hub(edges)) is not None:
                others = plural(len(neighbourhoods(edges)) - 1, "other")
                return Finding(
                    False,
                    f"{centre} was an end of all {plural(len(edges), 'directed edge')}{what} in "
                    f"{_rounds(flow.round for flow in flows)}, so it stood between the {others}",
                )
    if not orders:
        return Finding(True, "nothing was sent")
    ends = [(sum(id in edge for edge in one.edges), len(one.edges), id) for one in orders for id in one.members]
    most, used, busiest = max(ends, key=lambda one: (one[0] / one[1], one[1]))
    return Finding(
        True,
        f"nobody stood between all others, in a round or over many: {busiest}, the busiest, was an end of {most} of "
        f"{plural(used, 'directed edge')}",
    )


def neighbours_only(orders: Sequence[OneOrder]) -> Finding:
    """Definition 3.3: what was sent between two changes of the ring fits on one ring."""
    used = _used(orders)
    for one in orders:
        if why := why_no_ring(one.edges, one.members):
            meanwhile = " while the ring stayed in one order" if len(orders) > 1 else ""
            return Finding(False, f"{why} in {one.rounds}{meanwhile}; {used}")
    if earlier_edges(orders):
        whole = max(map(len, neighbourhoods(edge for one in orders for edge in one.edges).values()))
        in_all = f" in one order of the ring, nor more than {whole} in all"
        return Finding(True, f"{used}; no peer had more than 2 partners{in_all}")
    return Finding(True, f"{used}, on one ring; no peer had more than 2 partners" if orders else "nothing was sent")


def neighbourhoods(edges: Iterable[Edge]) -> dict[str, set[str]]:
    """With whom each peer exchanged anything, in either direction."""
    found: dict[str, set[str]] = {}
    for source, target in edges:
        found.setdefault(source, set()).add(target)
        found.setdefault(target, set()).add(source)
    return found


def hub(edges: Collection[Edge]) -> str | None:
    """The one end of all edges, with three others at least, or with two that it both hears and answers; else None.

    On a ring a peer that sends to its two neighbours is none, though they may not have come to send anything.
    """
    for centre in next(iter(edges), ()):
        targets, sources = ({edge[1 - end] for edge in edges if edge[end] == centre} for end in (0, 1))
        if all(centre in edge for edge in edges) and (
            len(targets | sources) > 2 or min(len(targets), len(sources)) > 1
        ):
            return centre
    return None


def why_no_ring(edges: Iterable[Edge], members: Sequence[str]) -> str:
    """Why they are not paths of members, or the one closed ring of them all; empty if they are."""
    neighbours = neighbourhoods(edges)
    if strangers := sorted(neighbours.keys() - {*members}):
        return f"{strangers[0]}, who was no member, exchanged with {_named(sorted(neighbours[strangers[0]]))}"
    most = max(neighbours, key=lambda id: (len(neighbours[id]), -members.index(id)), default=None)
    if most is not None and len(neighbours[most]) > 2:
        others = sorted(neighbours[most], key=members.index)
        return f"{most} exchanged with {len(others)} others ({_named(others)})"
    unseen = set(neighbours)
    while unseen:
        component, front = set[str](), {unseen.pop()}
        while front:
            component |= front
            front = {one for id in front for one in neighbours[id]} - component
        unseen -= component
        closed = len(component) > 2 and all(len(neighbours[id]) == 2 for id in component)
        if closed and len(component) < len(members):
            return f"{_named(sorted(component, key=members.index))} closed a ring without the others"
    return ""


def earlier_edges(orders: Sequence[OneOrder]) -> set[Edge]:
    """Those used only before the ring's last order."""
    return {edge for one in orders[:-1] for edge in one.edges} - (orders[-1].edges if orders else set())


def _used(orders: Sequence[OneOrder]) -> str:
    """17 directed edges: 12 of the ring, 5 of the ring before it was reordered (order and proportions, 440 B each)."""
    earlier = earlier_edges(orders)
    whole = plural(len({edge for one in orders for edge in one.edges}), "directed edge")
    if not earlier:
        return whole
    bytes_of, vectors = Counter[Edge](), set[str]()
    for flow in (flow for one in orders for flow in one.flows if flow.edge in earlier):
        bytes_of[flow.edge] += flow.bytes + flow.number_bytes
        vectors.add(flow.vector)
    most = quantity(max(bytes_of.values()))
    each = f"{most} each" if len({*bytes_of.values()}) == 1 else f"at most {most} each"
    change = "it was reordered" if orders[0].view == orders[-1].view else "its members changed"
    before = f"the ring before {change}" if len(orders) == 2 else f"the {len(orders) - 1} rings before it"
    return (
        f"{whole}: {len(orders[-1].edges)} of the ring, {len(earlier)} of {before} ({_named(sorted(vectors))}, {each})"
    )


def _stranger(orders: Iterable[OneOrder]) -> str:
    found = ((id, edge) for one in orders for edge in sorted(one.edges) for id in edge if id not in one.members)
    return next((f"{id} was no member, and {edge[0]} sent to {edge[1]}" for id, edge in found), "")


def _by(flows: Iterable[Carried], key: Callable[[Carried], K]) -> Iterator[tuple[K, list[Carried]]]:
    groups: dict[K, list[Carried]] = {}
    for flow in flows:
        groups.setdefault(key(flow), []).append(flow)
    yield from groups.items()


def _rounds(rounds: Iterable[int]) -> str:
    known = {*rounds}
    return f"rounds {min(known)} to {max(known)}" if len(known) > 1 else f"round {max(known)}"


def _named(names: Sequence[str]) -> str:
    if len(names) > MOST_NAMED:
        return f"{', '.join(names[:MOST_NAMED])} and {len(names) - MOST_NAMED} more"
    return " and ".join(filter(None, [", ".join(names[:-1]), names[-1]]))


def _sizes(sizes: Mapping[str, int]) -> str:
    return _named([f"{name} ({quantity(size)})" for name, size in sorted(sizes.items())])
