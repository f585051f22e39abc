"""The figures of a study, as Vega-Lite charts that hold their data.

Those of all cells, by round and against fairness and bytes; for each axis of numbers, such as `peers` or `data.limit`,
how the main figures go with it; and those of single cells, at their first seed: the ring before and after it was
ordered, and what the peers thought of one another.
"""

import re
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from itertools import chain, count
from typing import Any

from launcher.page.charts import Chart, heat_map, in_bytes, nominal, quantitative, rounds_axis
from launcher.page.document import Row, titled
from launcher.page.ring import UNKNOWN, lines, ring_chart, sectors
from launcher.study.grid import Cell
from launcher.study.results import cell_columns
from launcher.study.tables import other_axes, place_in_grid
from peer.text import number

SIZE: Chart = {"width": 260, "height": 200}
COLOUR_LEGEND: Chart = {"labelLimit": 0, "columns": 1, "orient": "right", "symbolOpacity": 1}
POINT_COLUMNS = ("protocol", "seed", "mean", "gini", "tensor_bytes_sent")
METHOD_COLOUR = nominal("protocol", sort=None, legend=COLOUR_LEGEND)


def main_figures(rows: Sequence[Row], round_rows: Sequence[Row], axes: Sequence[str]) -> dict[str, tuple[str, Chart]]:
    """The study's main figures, title and chart by file name."""
    others = other_axes(rows, axes, "protocol")
    figure = headline_words(rows)

    def drawn(rows: Sequence[Row], names: Sequence[str]) -> list[Row]:
        known = (row for row in rows if row.get("mean") is not None)
        return [{**{name: row[name] for name in names}, "place": place_in_grid(row, others)} for row in known]

    whole, course = drawn(rows, POINT_COLUMNS), drawn(round_rows, ("protocol", "seed", "round", "mean"))
    made: dict[str, tuple[str, Chart]] = {}
    if course:
        made["rounds"] = f"{titled(figure)} per round", faceted(course, _curves(figure))
    if any(row["gini"] is not None for row in whole):
        points = _points(figure, "gini", "Gini coefficient")
        made["fairness"] = f"{titled(figure)} against fairness", faceted(whole, points)
    if any(row["tensor_bytes_sent"] for row in whole):
        points = _points(figure, "tensor_bytes_sent", "bytes of tensors sent")
        made["bytes"] = f"{titled(figure)} against bytes", faceted(whole, points)
    return made


def headline_words(rows: Sequence[Row]) -> str:
    """What `mean` is the mean of, where that is the same everywhere."""
    found = {row["figure"] for row in rows}
    return found.pop() if len(found) == 1 else "figure"


def faceted(data: Sequence[Row], spec: Chart) -> Chart:
    """A small chart for each place in the grid but for protocol and seed."""
    places = list(dict.fromkeys(row["place"] for row in data))
    facet = {"field": "place", "type": "nominal", "title": None, "sort": places}
    return {"data": {"values": [*data]}, "facet": facet, "columns": min(3, len(places)), "spec": spec}


def file_name(words: str, taken: Container[str]) -> str:
    """A file name that is not taken yet, of characters that every file system allows."""
    name = re.sub(r"[^A-Za-z0-9.+=_]+", "-", words).strip("-.")[:110]
    return next(one for one in chain([name], (f"{name}-{number}" for number in count(2))) if one not in taken)


def _curves(figure: str) -> Chart:
    mean = quantitative("mean", f"mean {figure}", scale={"zero": False})
    return {
        **SIZE,
        "encoding": {"x": rounds_axis(), "color": METHOD_COLOUR},
        "layer": [
            {"mark": {"type": "errorband", "extent": "stdev", "opacity": 0.15}, "encoding": {"y": mean}},
            {"mark": {"type": "line"}, "encoding": {"y": {**mean, "aggregate": "mean"}}},
        ],
    }


def _points(figure: str, field: str, words: str) -> Chart:
    """A point a cell."""
    axis = {"labelExpr": in_bytes("datum.value")} if field == "tensor_bytes_sent" else {}
    return {
        **SIZE,
        "mark": {"type": "point", "filled": True, "size": 60},
        "encoding": {
            "x": quantitative(field, words, scale={"zero": False}, axis=axis),
            "y": quantitative("mean", f"mean {figure}", scale={"zero": False}),
            "color": METHOD_COLOUR,
            "shape": METHOD_COLOUR,
        },
    }


MIN_VALUES = 3
"""Values that make a course."""
LOG_RATIO = 20
"""The ratio of the largest to the smallest value from which on a scale is logarithmic."""


def axis_figures(rows: Sequence[Row], axes: Sequence[str]) -> dict[str, tuple[str, Chart]]:
    """The figures along each axis, title and chart by file name."""
    against = {
        "mean": f"mean {headline_words(rows)}",
        "weight_divergence": "weight divergence",
        "tensor_bytes_sent": "bytes of tensors sent",
    }
    methods = list(dict.fromkeys(row["protocol"] for row in rows))  # each with its colour, also where it has no point
    made: dict[str, tuple[str, Chart]] = {}
    for axis in axes:
        if axis.rpartition(".")[2] in ("protocol", "seed"):
            continue
        for column, words in against.items():
            values = _axis_values(rows, axes, axis, column)
            found = {row["x"] for row in values}
            if len(found) >= MIN_VALUES and not any(isinstance(one, str) for one in found):
                chart = faceted(values, _axis_lines(values, axis, words, counted=column != "mean"))
                chart["spec"]["encoding"]["color"] = {**METHOD_COLOUR, "scale": {"domain": methods}}
                made[file_name(f"axis-{axis}-{column}", made)] = f"{titled(words)} against {axis}", chart
    return made


def _axis_values(rows: Sequence[Row], axes: Sequence[str], axis: str, column: str) -> list[Row]:
    """A row a cell. Where nothing is sent, or no models differ, there is no point: zero is no size beside others."""
    others = other_axes(rows, [one for one in axes if one != axis], "protocol")
    shown = (row for row in rows if row.get(column) is not None and (column == "mean" or row[column] > 0))
    return [
        {name: row[name] for name in ("protocol", "seed")}
        | {"x": row[axis], "y": row[column], "place": place_in_grid(row, others)}
        for row in shown
    ]


def _axis_lines(values: Sequence[Row], axis: str, words: str, counted: bool) -> Chart:
    """A point a cell, and a line through the means over the seeds. counted: y is a size, which may be logarithmic."""
    ticks = {"labelExpr": in_bytes("datum.value")} if words.startswith("bytes") else {}
    scale = _scale([row["y"] for row in values]) if counted else {"zero": False}
    found = sorted({row["x"] for row in values})
    x = quantitative("x", axis, scale=_scale(found), axis={"values": found, "format": "~g"})
    y = quantitative("y", words, scale=scale, axis=ticks)
    return {
        **SIZE,
        "encoding": {"x": x},
        "layer": [
            {"mark": "line", "encoding": {"y": {**y, "aggregate": "mean"}}},
            {"mark": {"type": "point", "filled": True, "size": 40}, "encoding": {"y": y}},
        ],
    }


def _scale(found: Sequence[float]) -> Chart:
    """Logarithmic where all are positive and far apart."""
    apart = min(found) > 0 and max(found) >= LOG_RATIO * min(found)
    return {"type": "log", "nice": False} if apart else {"zero": False}


RING_WIDTH = 320


def ring_figure(kept: dict[str, Any]) -> Chart:
    """kept: what the cell's process has left of the ring."""
    mixes, orders = kept["mixes"], kept["orders"]
    seats = [{"when": one["when"], **row} for one in orders for row in sectors(one["order"], mixes)]
    joined = [{"when": one["when"], **row} for one in orders for row in lines(one["order"], one["lines"])]
    used = {row["class"] for row in seats}
    names = [name for name in [*next(iter(mixes.values()), {}), UNKNOWN] if name in used]
    charts = [
        {"title": f"{one['when']}: cost {number(cost)}"} | ring_chart(one["when"], names, len(one["order"]), RING_WIDTH)
        for one, cost in zip(orders, kept["cost"], strict=True)
    ]
    shared = {"resolve": {"scale": {"color": "shared"}}, "config": {"concat": {"spacing": 30}}}
    return {"datasets": {"ring": seats, "neighbours": joined}, "hconcat": charts, **shared}


NOTES = ("reputation", "opinions")
"""Names of notes with a number for each member, in the order of the spec."""
MAX_NUMBERED_STEPS = 24
"""The most peers or rounds for which numbers are written into the squares."""

Notes = Sequence[Mapping[str, Any]]


def reputations_of(told: Mapping[str, Notes]) -> tuple[str, Chart] | None:
    """What it shows, and the chart; None of a protocol without reputations. told: by id, in the order of the spec.

    Where all peers have come to the same reputations, they are shown over the rounds; otherwise each one's opinion of
    each other, after the last round.
    """
    ids = [*told]
    noted = next((name for name in NOTES if all(_noted(one, name, ids) for one in told.values())), None)
    if noted is None:
        return None
    by_peer = {id: _noted(one, noted, ids) for id, one in told.items()}
    rounds = by_peer[ids[0]]
    if all(one == rounds for one in by_peer.values()):
        rows = ((round, of, value) for round, values in rounds.items() for of, value in values.items())
        return "over the rounds, alike at all peers", _heat(rows, [*rounds], ids, ("round", "peer"))
    last = max(rounds)
    # What a peer thinks of itself is no opinion.
    opinions = ((of, by, one[max(one)][of]) for by, one in by_peer.items() for of in ids if of != by)
    return f"of each other, after round {last}", _heat(opinions, ids, ids, ("of", "in the eyes of"))


def _noted(notes: Notes, name: str, ids: Sequence[str]) -> dict[int, dict[str, float]]:
    """The noted numbers by round and member."""
    found = {note["round"]: note.get(name) for note in notes}
    whole = {round: values for round, values in found.items() if isinstance(values, list) and len(values) == len(ids)}
    return {round: dict(zip(ids, values, strict=True)) for round, values in whole.items()}


def _heat(
    told: Iterable[tuple[Any, str, float]], along: Sequence[Any], up: Sequence[str], words: tuple[str, str]
) -> Chart:
    """told: along, up, and the reputation there."""
    across, (x, y) = [*map(str, along)], words
    few = len(across) <= MAX_NUMBERED_STEPS and len(up) <= MAX_NUMBERED_STEPS
    scale = {"zero": True} if few else {"zero": True, "scheme": "viridis"}
    colour = {"field": "reputation", "scale": scale, "legend": {"title": "reputation"}}
    chart = heat_map(x, y, across, up, colour, {"field": "reputation", "format": ".2f"}, [])
    widest = max(34, min(60, 6 + 7 * max(map(len, across))))
    size = {"width": max(240, min(720, widest * len(across))), "height": max(120, min(560, 26 * len(up)))}
    rows = [{x: str(here), y: there, "reputation": value} for here, there, value in told]
    return {**chart, **size, "data": {"values": rows}, "layer": chart["layer"] if few else chart["layer"][:1]}


def cell_figures(cells: Sequence[Cell], axes: Sequence[str]) -> dict[str, tuple[str, Chart]]:
    """The figures of individual cells, title and chart by file name."""
    made: dict[str, tuple[str, Chart]] = {}
    for words, cell in _shown_cells(cells, axes).items():
        for kind, title, chart in _figures_of(cell):
            made[file_name(f"{kind}-{words}", made)] = f"{title}: {words}, seed {cell.spec.seed}", chart
    return made


def _shown_cells(cells: Sequence[Cell], axes: Sequence[str]) -> dict[str, Cell]:
    """The finished cell with the first seed in the grid, by method and place in words."""
    rows = [(cell_columns(cell), cell) for cell in cells if cell.files.finished]
    others = other_axes([row for row, _ in rows], axes, "protocol")
    found: dict[str, Cell] = {}
    for row, cell in rows:
        where = f", {place_in_grid(row, others)}" if others else ""
        found.setdefault(f"{row['protocol']}{where}", cell)
    return found


def _figures_of(cell: Cell) -> Iterator[tuple[str, str, Chart]]:
    if ring := cell.files.details.get("ring"):
        yield "ring", "The ring before and after ordering", ring_figure(ring)
    summary = cell.files.finished
    if summary and (found := reputations_of({one.id: one.notes for one in summary.per_peer})):
        said, chart = found
        yield "reputation", f"Reputations {said}", chart
