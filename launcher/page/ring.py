"""The ring: its order before and after ordering, the peers' classes, and the bytes along each edge.

Tables `ring`, `neighbours` and `edges`, and their figures: the ring as it is drawn, with a sector for each peer and in
it its classes from the inside out, and a heat map of the bytes along each edge.

Angles are in radians, clockwise from the top; the ring goes from radius `INNER` to 1, and the middle is at (0, 0).
What each peer sent to whom comes from the audits: from its sender's, or its receiver's where that was lost before it
could write the round down.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import accumulate, pairwise
from math import ceil, cos, pi, sin
from typing import Any

from launcher.page.charts import (
    EARLIER_DASHES,
    GREY,
    MAX_NAMED_PEERS,
    Chart,
    ReportFigure,
    heat_map,
    in_bytes,
    nominal,
    quantitative,
    tip,
)
from launcher.page.document import ReportDocument, Row
from launcher.page.run_data import RunData
from peer.text import number

INNER, OUTER = 0.46, 0.86
LABEL_RADIUS = 0.92
"""The radius at which names are written."""
UNKNOWN = "not told"
"""Stands for a class if a peer has not reported its data, or a task has no classes."""


def sectors(order: Sequence[str], mixes: Mapping[str, Mapping[str, float]]) -> Iterator[Row]:
    """A row a peer and class. label: the peer's name, where there is room for it, on one row each."""
    width, every = 2 * pi / len(order), ceil(len(order) / MAX_NAMED_PEERS)
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
                "inner": _sector_radius(begin / edges[-1]),
                "outer": _sector_radius(end / edges[-1]),
                "label": id if at == 0 and seat % every == 0 else "",
            }


def lines(order: Sequence[str], pairs: Iterable[tuple[str, str]]) -> Iterator[Row]:
    """A line between each two, from the inner rim to the inner rim."""
    place = {id: (seat + 0.5) * 2 * pi / len(order) for seat, id in enumerate(order)}
    for one, other in sorted({(min(pair), max(pair)) for pair in pairs if place.keys() >= {*pair}}):
        (x, y), (x2, y2) = _point_on_rim(place[one]), _point_on_rim(place[other])
        yield {"peer": one, "other": other, "x": x, "y": y, "x2": x2, "y2": y2}


def neighbours(order: Sequence[str]) -> list[tuple[str, str]]:
    """The pairs that are next to each other."""
    return [*pairwise(order), (order[-1], order[0])] if len(order) > 1 else []


def _sector_radius(part: float) -> float:
    return round(INNER + (OUTER - INNER) * part, 5)


def _point_on_rim(angle: float) -> tuple[float, float]:
    return round((INNER - 0.02) * sin(angle), 5), round((INNER - 0.02) * cos(angle), 5)


MAX_CLASSES = 20


def sector_rows(data: RunData) -> Iterator[Row]:
    """The rows of `sectors`, with when they held."""
    mixed = mixes(data)
    return ({"when": when, **row} for when, order, _ in orders(data) for row in sectors(order, mixed))


def line_rows(data: RunData) -> Iterator[Row]:
    """The rows of `lines`, with when they held, and whether it was in the ring's last order."""
    for when, order, pairs in orders(data):
        for row in lines(order, pairs):
            pair = row["peer"], row["other"]
            last = when == "before" or not data.audits or {pair, pair[::-1]} & data.used_edges - data.earlier_edges
            yield {"when": when, "ring": "last" if last else "earlier", **row}


def mixes(data: RunData) -> dict[str, Mapping[str, float]]:
    """Each peer's classes as it first held them, in the same order everywhere; of very many, neighbours together."""
    held = {id: one.data[0].classes for id, one in data.histories.items() if one.data}
    names = list(dict.fromkeys(name for classes in held.values() for name in classes))
    every = ceil(len(names) / MAX_CLASSES) or 1
    groups = [names[at : at + every] for at in range(0, len(names), every)]
    called = {f"{one[0]} to {one[-1]}" if every > 1 else one[0]: one for one in groups}
    return {
        id: {group: sum(classes.get(name, 0.0) for name in members) for group, members in called.items()}
        for id, classes in held.items()
    }


def orders(data: RunData) -> Iterator[tuple[str, tuple[str, ...], Iterable[tuple[str, str]]]]:
    """When ("before" or "after" ordering), in which order, and the pairs joined by a line; "after" alone if it was not
    ordered."""
    first, orders = data.spec.ids, data.orders
    last = data.summary.ring if data.summary else orders[-1].order if orders else first
    last = tuple(last) if sorted(last) == sorted(first) else first  # each peer tells its own, whatever it likes
    if orders:
        yield "before", first, neighbours(first)
    yield "after", last, data.used_edges if data.audits else neighbours(last)


def edge_rows(data: RunData) -> Iterator[Row]:
    """A row for every vector along every edge, as its sender wrote down, or its receiver where that was lost before.

    bytes: of the vector; number_bytes: of the numbers beside it, or in a record; ring: "last", or "earlier" of an edge
    that was used in earlier orders of the ring only.
    """
    sizes: dict[tuple[str, str, str], tuple[int, int]] = {}
    for one in data.sent_vectors:
        size, beside = sizes.get(known := (*one.edge, one.vector), (0, 0))
        sizes[known] = size + one.bytes, beside + one.number_bytes
    place = {id: at for at, id in enumerate(data.views.ids)}
    for source, target, vector in sorted(
        sizes, key=lambda edge: (place.get(edge[0], -1), place.get(edge[1], -1), edge[2])
    ):
        size, beside = sizes[source, target, vector]
        edge = {"from": source, "to": target, "ring": "earlier" if (source, target) in data.earlier_edges else "last"}
        yield {**edge, "vector": vector, "bytes": size, "number_bytes": beside}


CLASS_COLOURS = ["#332288", "#88ccee", "#44aa99", "#117733", "#999933"]
CLASS_COLOURS += ["#ddcc77", "#cc6677", "#882255", "#aa4499", "#dddddd"]
"""Tol's muted scheme."""
ORDERED_COLOURS = ("#fde725", "#a0da39", "#4ac16d", "#1fa187", "#277f8e", "#365c8d", "#46327e", "#440154")
"""Colours for more classes than can be told apart: near numbers have near colours (viridis)."""


def class_colours(names: Sequence[str]) -> list[str]:
    """A colour a class."""
    many = [ORDERED_COLOURS[at * len(ORDERED_COLOURS) // len(names)] for at in range(len(names))]
    colours = CLASS_COLOURS if len(names) <= len(CLASS_COLOURS) else many
    return [GREY if name == UNKNOWN else colour for name, colour in zip(names, colours, strict=False)]


HEIGHT = 300
SIDE = "sin(datum.middle) > 0.2 ? 'left' : sin(datum.middle) < -0.2 ? 'right' : 'center'"
"""Names begin, or end, at the ring."""


def ring_figures(document: ReportDocument) -> list[ReportFigure]:
    """The figures of the ring before and after ordering; only one if it was not ordered."""
    kinds = {row["when"] for row in document.tables["ring"]}
    before, after = document.runs[0].ring_cost
    lines = "who sent to whom" if document.tables["edges"] else "neighbours"
    if "before" not in kinds:
        said = f"Each sector is a peer, coloured by its class mix. Lines: {lines}."
        return [replace(_ring_figure("after", "The ring", said, document), wide=True)]
    said = "Each sector is a peer, coloured by its class mix. Cost {}; lower means more dissimilar neighbours."
    return [
        _ring_figure("before", "The ring before ordering", said.format(number(before)), document),
        _ring_figure("after", "The ring after ordering", f"Cost {number(after)}. Lines: {lines}.", document),
    ]


def _ring_figure(when: str, title: str, caption: str, document: ReportDocument) -> ReportFigure:
    used = {row["class"] for row in document.tables["ring"]}
    names = [name for name in [*document.runs[0].classes, UNKNOWN] if name in used]
    chart = ring_chart(when, names, document.runs[0].peers)
    return ReportFigure(f"ring-{when}", title, caption, ("ring", "neighbours"), chart)


def ring_chart(when: str, names: Sequence[str], peers: int, width: int | None = None) -> Chart:
    """The chart of the tables `ring` and `neighbours`. names: the classes, in order. width: None for all there is."""
    here: Chart = {"filter": f"datum.when === '{when}'"}
    layers: list[Chart] = [
        {
            "data": {"name": "neighbours"},
            "transform": [here],
            "mark": {"type": "rule", "style": "edge"},
            "encoding": {
                "x": _position_channel("x", width),
                "y": _position_channel("y", width),
                "x2": {"field": "x2"},
                "y2": {"field": "y2"},
                "strokeDash": {
                    "condition": {"test": "datum.ring === 'earlier'", "value": EARLIER_DASHES},
                    "value": [1, 0],
                },
                "tooltip": [tip("peer", "between"), tip("other", "and")],
            },
        },
        {
            "data": {"name": "ring"},
            "transform": [here],
            "mark": {"type": "arc", "style": "sector"},
            "encoding": {
                "theta": quantitative("begin", None, scale=None, stack=None),
                "theta2": {"field": "end"},
                "radius": _radius_channel("outer", width),
                "radius2": {"field": "inner"},
                "color": _colour_channel(names),
                "tooltip": [tip("peer", "peer"), tip("class", "class"), tip("share", "share", ".1%")],
            },
        },
        {
            "data": {"name": "ring"},
            "transform": [here, {"filter": "datum.label !== ''"}, {"calculate": str(LABEL_RADIUS), "as": "rim"}],
            "mark": {"type": "text", "style": "name", "fontSize": 12 if peers <= MAX_NAMED_PEERS else 10}
            | {"align": {"expr": SIDE}, "limit": 90},
            "encoding": {
                "theta": quantitative("middle", None, scale=None, stack=None),
                "radius": _radius_channel("rim", width),
                "text": nominal("label"),
            },
        },
    ]
    return {**({"width": width} if width else {}), "height": HEIGHT, "layer": layers, "view": {"stroke": None}}


def _colour_channel(names: Sequence[str]) -> Chart:
    few = len(names) <= 10 and [*names] != [UNKNOWN]
    legend: dict[str, Any] | None = {"orient": "bottom", "columns": 5, "symbolType": "square"} if few else None
    scale = {"domain": [*names], "range": class_colours(names)}
    return nominal("class", "class" if few else None, scale=scale, legend=legend)


def _position_channel(field: str, width: int | None) -> Chart:
    """The channel of a position in the largest square in the middle, where the sectors are."""
    wide, high = (width, HEIGHT) if width else ("width", "height")
    side, sign = (wide, 1) if field == "x" else (high, -1)
    rim = [{"expr": f"({side} - {one} * min({wide}, {high})) / 2"} for one in (sign, -sign)]
    scale = {"domain": [-1, 1], "nice": False, "range": rim}
    return {"field": field, "type": "quantitative", "scale": scale, "axis": None}


def _radius_channel(field: str, width: int | None) -> Chart:
    scale = {"type": "linear", "domain": [0, 1], "nice": False, "zero": True}
    fixed = {"range": [0, min(width, HEIGHT) / 2]} if width else {}  # beside others Vega-Lite takes no chart's own size
    return {"field": field, "type": "quantitative", "scale": scale | fixed, "stack": None}


MAX_NUMBERED_PEERS = 12
"""The most peers for which numbers are written into the squares."""


def traffic_figure(document: ReportDocument) -> ReportFigure:
    seated = [row["peer"] for row in document.tables["ring"] if row["when"] == "after"]
    peers = list(dict.fromkeys([*seated, *(row["peer"] for row in document.tables["peers"])]))
    known = [tip("from", "from"), tip("to", "to"), tip("told", "sent"), tip("ring", "ring")]
    colour = {"field": "sent", "scale": {"zero": True}, "legend": {"title": None, "labelExpr": in_bytes("datum.value")}}
    chart = heat_map("to", "from", peers, peers, colour, {"field": "told", "type": "nominal"}, known)
    square, written = chart["layer"]
    earlier: Chart = {
        "transform": [{"filter": "datum.ring === 'earlier'"}],
        "mark": {"type": "rect", "style": "earlier", "cornerRadius": 2},
        "encoding": {"tooltip": known},
    }
    said = "From the peer at the left to the peer at the bottom, in the order of the ring. Empty: nothing was sent."
    if any(row["ring"] == "earlier" for row in document.tables["edges"]):
        said += " Dashed: used only before the ring was put in its last order."
    chart |= {
        "transform": [
            {"calculate": "datum.bytes + datum.number_bytes", "as": "size"},
            {"aggregate": [{"op": "sum", "field": "size", "as": "sent"}], "groupby": ["from", "to", "ring"]},
            {"calculate": in_bytes("datum.sent"), "as": "told"},
        ],
        "layer": [square, earlier, written] if len(peers) <= MAX_NUMBERED_PEERS else [square, earlier],
    }
    return ReportFigure("traffic", "Bytes along each edge", said, ("edges",), chart)
