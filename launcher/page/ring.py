"""The ring of a run: who sat where before and after it was ordered, of what classes, and who talked to whom."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from math import ceil

from launcher.page.document import Row
from launcher.page.sectors import lines, neighbours, sectors
from launcher.page.told import Told

MOST_CLASSES = 20
Ordered = tuple[str, tuple[str, ...], Iterable[tuple[str, str]]]
"""When ("before", "after"), in which order, and who is joined by a line."""


def seats(told: Told) -> Iterator[Row]:
    """The rows of `sectors`, with when they held."""
    mixed = mixes(told)
    return ({"when": when, **row} for when, order, _ in orders(told) for row in sectors(order, mixed))


def joined(told: Told) -> Iterator[Row]:
    """The rows of `lines`, with when they held, and whether it was in the ring's last order."""
    for when, order, pairs in orders(told):
        for row in lines(order, pairs):
            pair = row["peer"], row["other"]
            last = when == "before" or not told.audits or {pair, pair[::-1]} & told.talked - told.earlier_edges
            yield {"when": when, "ring": "last" if last else "earlier", **row}


def mixes(told: Told) -> dict[str, Mapping[str, float]]:
    """Each peer's classes as it first held them, in the same order everywhere; of very many, neighbours together."""
    held = {id: one.data[0].classes for id, one in told.chronicles.items() if one.data}
    names = list(dict.fromkeys(name for classes in held.values() for name in classes))
    every = ceil(len(names) / MOST_CLASSES) or 1
    groups = {f"{one[0]} to {one[-1]}" if every > 1 else one[0]: one for one in _groups(names, every)}
    return {
        id: {group: sum(classes.get(name, 0.0) for name in members) for group, members in groups.items()}
        for id, classes in held.items()
    }


def _groups(names: Sequence[str], size: int) -> Iterator[Sequence[str]]:
    return (names[at : at + size] for at in range(0, len(names), size))


def orders(told: Told) -> Iterator[Ordered]:
    """Before and after; where nobody has ordered it, the one there is as "after"."""
    first, orders = told.spec.ids, told.orders
    last = told.summary.ring if told.summary else orders[-1].order if orders else first
    last = tuple(last) if sorted(last) == sorted(first) else first  # each peer tells its own, whatever it likes
    if orders:
        yield "before", first, neighbours(first)
    yield "after", last, told.talked if told.audits else neighbours(last)
