"""FIRMA's Definitions 3.2 and 3.3 as questions about the edges that were used."""

from collections.abc import Iterable, Sequence

Edge = tuple[str, str]
"""Sender and receiver."""


def neighbourhoods(edges: Iterable[Edge]) -> dict[str, set[str]]:
    """With whom each peer exchanged anything, in either direction."""
    found: dict[str, set[str]] = {}
    for source, target in edges:
        found.setdefault(source, set()).add(target)
        found.setdefault(target, set()).add(source)
    return found


def server_free(edges: Iterable[Edge], members: Sequence[str]) -> bool:
    """Definition 3.2 for one round's edges: members only, and not a star with three or more rays."""
    neighbours = neighbourhoods(edges)
    star = len(neighbours) > 3 and any(
        len(around) == len(neighbours) - 1 and all(neighbours[one] == {centre} for one in around)
        for centre, around in neighbours.items()
    )
    return neighbours.keys() <= set(members) and not star


def fit_on_a_ring(edges: Iterable[Edge], members: Sequence[str]) -> bool:
    """Definition 3.3 for one round's edges: paths of members, or the one closed ring of them all."""
    neighbours = neighbourhoods(edges)
    if not neighbours.keys() <= set(members) or any(len(around) > 2 for around in neighbours.values()):
        return False
    unseen = set(neighbours)
    while unseen:
        component, front = set(), {unseen.pop()}
        while front:
            component |= front
            front = {one for id in front for one in neighbours[id]} - component
        unseen -= component
        closed = len(component) > 2 and all(len(neighbours[id]) == 2 for id in component)
        if closed and len(component) < len(members):
            return False
    return True
