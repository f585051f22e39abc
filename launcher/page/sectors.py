"""The ring as it is drawn: for each peer a sector, in it its classes from the inside out; and who is next to whom.

Angles in radians, clockwise from the top; the ring goes from radius `INNER` to 1, and the middle is at (0, 0).
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import accumulate, pairwise
from math import ceil, cos, pi, sin

from launcher.page.document import Row

INNER, OUTER = 0.46, 0.86
LABEL = 0.92
"""Where the names stand."""
MOST_LABELS = 24
UNKNOWN = "not told"
"""In place of a class, where a peer has not told of its data, or a task has no classes."""


def sectors(order: Sequence[str], mixes: Mapping[str, Mapping[str, float]]) -> Iterator[Row]:
    """A row a peer and class. label: the peer's name, where there is room for it, on one row each."""
    width, every = 2 * pi / len(order), ceil(len(order) / MOST_LABELS)
    gap = min(0.02, 0.1 * width)
    for seat, id in enumerate(order):
        shares = {name: share for name, share in mixes.get(id, {}).items() if share > 0} or {UNKNOWN: 1.0}
        edges = [0.0, *accumulate(shares.values())]
        for at, ((name, share), (begin, end)) in enumerate(zip(shares.items(), pairwise(edges), strict=True)):
            yield {
                "peer": id,
                "class": name,
                "share": share,
                "begin": seat * width + gap,
                "end": (seat + 1) * width - gap,
                "middle": (seat + 0.5) * width,
                "inner": _radius(begin / edges[-1]),
                "outer": _radius(end / edges[-1]),
                "label": id if at == 0 and seat % every == 0 else "",
            }


def lines(order: Sequence[str], pairs: Iterable[tuple[str, str]]) -> Iterator[Row]:
    """A line between each two, from the inner rim to the inner rim."""
    place = {id: (seat + 0.5) * 2 * pi / len(order) for seat, id in enumerate(order)}
    for one, other in sorted({(min(pair), max(pair)) for pair in pairs if place.keys() >= {*pair}}):
        x, y = _point(place[one])
        x2, y2 = _point(place[other])
        yield {"peer": one, "other": other, "x": x, "y": y, "x2": x2, "y2": y2}


def neighbours(order: Sequence[str]) -> list[tuple[str, str]]:
    """Who sits next to whom."""
    return [*pairwise(order), (order[-1], order[0])] if len(order) > 1 else []


def _radius(part: float) -> float:
    return round(INNER + (OUTER - INNER) * part, 5)


def _point(angle: float) -> tuple[float, float]:
    return round((INNER - 0.02) * sin(angle), 5), round((INNER - 0.02) * cos(angle), 5)
