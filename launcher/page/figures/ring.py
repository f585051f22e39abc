"""The ring before and after it was ordered: a sector a peer, coloured by its classes, and lines between who talked."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from launcher.page.document import Document
from launcher.page.figures.base import MANY, Figure, Spec, nominal, tip
from launcher.page.figures.palette import EARLIER, classes
from launcher.page.sectors import LABEL, UNKNOWN
from peer.text import number

HEIGHT = 300
SIDE = "sin(datum.middle) > 0.2 ? 'left' : sin(datum.middle) < -0.2 ? 'right' : 'center'"
"""Names begin, or end, at the ring."""


def rings(document: Document) -> list[Figure]:
    """Before and after; one alone where nobody has ordered it."""
    kinds = {row["when"] for row in document.tables["ring"]}
    before, after = document.runs[0].ring_cost
    lines = "who sent to whom" if document.tables["edges"] else "neighbours"
    if "before" not in kinds:
        said = f"Each sector is a peer, its colours are its classes. Lines: {lines}."
        return [replace(_ring("after", "The ring", said, document), wide=True)]
    said = "Each sector is a peer, its colours are its classes. Cost {}: the less alike the neighbours, the lower."
    return [
        _ring("before", "The ring before ordering", said.format(number(before)), document),
        _ring("after", "The ring after ordering", f"Cost {number(after)}. Lines: {lines}.", document),
    ]


def _ring(when: str, title: str, caption: str, document: Document) -> Figure:
    used = {row["class"] for row in document.tables["ring"]}
    names = [name for name in [*document.runs[0].classes, UNKNOWN] if name in used]
    return Figure(
        f"ring-{when}", title, caption, ("ring", "neighbours"), ring_chart(when, names, document.runs[0].peers)
    )


def ring_chart(when: str, names: Sequence[str], peers: int, width: int | None = None) -> Spec:
    """Of the tables `ring` and `neighbours`. names: of the classes, in order. width: None for as much as there is."""
    here: Spec = {"filter": f"datum.when === '{when}'"}
    layers: list[Spec] = [
        {
            "data": {"name": "neighbours"},
            "transform": [here],
            "mark": {"type": "rule", "style": "edge"},
            "encoding": {
                "x": _place("x", width),
                "y": _place("y", width),
                "x2": {"field": "x2"},
                "y2": {"field": "y2"},
                "strokeDash": {"condition": {"test": "datum.ring === 'earlier'", "value": EARLIER}, "value": [1, 0]},
                "tooltip": [tip("peer", "between"), tip("other", "and")],
            },
        },
        {
            "data": {"name": "ring"},
            "transform": [here],
            "mark": {"type": "arc", "style": "sector"},
            "encoding": {
                **_angles("begin", "end"),
                "radius": _radius("outer", width),
                "radius2": {"field": "inner"},
                "color": _colours(names),
                "tooltip": [tip("peer", "peer"), tip("class", "class"), tip("share", "share", ".1%")],
            },
        },
        {
            "data": {"name": "ring"},
            "transform": [here, {"filter": "datum.label !== ''"}, {"calculate": str(LABEL), "as": "rim"}],
            "mark": {"type": "text", "style": "name", "fontSize": 12 if peers <= MANY else 10}
            | {"align": {"expr": SIDE}, "limit": 90},
            "encoding": {**_angles("middle"), "radius": _radius("rim", width), "text": nominal("label")},
        },
    ]
    return {"width": width or "container", "height": HEIGHT, "layer": layers, "view": {"stroke": None}}


def _colours(names: Sequence[str]) -> Spec:
    few = len(names) <= 10 and [*names] != [UNKNOWN]
    legend: dict[str, Any] | None = {"orient": "bottom", "columns": 5, "symbolType": "square"} if few else None
    scale = {"domain": [*names], "range": classes(names)}
    return nominal("class", "class" if few else None, scale=scale, legend=legend)


def _place(field: str, width: int | None) -> Spec:
    """In the largest square in the middle, where the sectors are."""
    wide, high = (width, HEIGHT) if width else ("width", "height")
    side, sign = (wide, 1) if field == "x" else (high, -1)
    rim = [{"expr": f"({side} - {one} * min({wide}, {high})) / 2"} for one in (sign, -sign)]
    scale = {"domain": [-1, 1], "nice": False, "range": rim}
    return {"field": field, "type": "quantitative", "scale": scale, "axis": None}


def _angles(begin: str, end: str | None = None) -> Spec:
    from_here: Spec = {"theta": {"field": begin, "type": "quantitative", "scale": None, "stack": None}}
    return {**from_here, "theta2": {"field": end}} if end else from_here


def _radius(field: str, width: int | None) -> Spec:
    scale = {"type": "linear", "domain": [0, 1], "nice": False, "zero": True}
    fixed = {"range": [0, min(width, HEIGHT) / 2]} if width else {}  # beside others Vega-Lite takes no chart's own size
    return {"field": field, "type": "quantitative", "scale": scale | fixed, "stack": None}
