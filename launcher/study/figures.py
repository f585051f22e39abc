"""The figures of a study, as Vega-Lite charts that hold their data."""

import re
from collections.abc import Container, Sequence
from itertools import chain, count
from statistics import fmean, stdev
from typing import Any

from launcher.page.figures.base import nominal, quantitative, rounds, tip, titled
from launcher.study.results import Row
from launcher.study.tables import elsewhere, place

Chart = dict[str, Any]
SIZE: Chart = {"width": 260, "height": 200}
LEGEND: Chart = {"labelLimit": 0, "columns": 1, "orient": "right", "symbolOpacity": 1}
SHOWN = ("protocol", "seed", "mean", "gini", "tensor_bytes_sent")
METHOD = nominal("protocol", sort=None, legend=LEGEND)


def figures(rows: Sequence[Row], round_rows: Sequence[Row], axes: Sequence[str]) -> dict[str, tuple[str, Chart]]:
    """By file name: the title and the chart."""
    others = elsewhere(rows, axes, "protocol")
    figure = headline(rows)
    whole = [
        {**{name: row[name] for name in SHOWN}, "place": place(row, others)}
        for row in rows
        if row.get("mean") is not None
    ]
    course = [
        {**{name: row[name] for name in ("protocol", "seed", "round", "mean")}, "place": place(row, others)}
        for row in round_rows
        if row["mean"] is not None
    ]
    made: dict[str, tuple[str, Chart]] = {}
    if course:
        made["rounds"] = f"{titled(figure)} per round", faceted(_over_seeds(course), _curves(figure))
    if any(row["gini"] is not None for row in whole):
        made["fairness"] = (
            f"{titled(figure)} against fairness",
            faceted(whole, _points(figure, "gini", "Gini coefficient")),
        )
    if any(row["tensor_bytes_sent"] for row in whole):
        made["bytes"] = (
            f"{titled(figure)} against bytes",
            faceted(whole, _points(figure, "tensor_bytes_sent", "bytes of tensors sent")),
        )
    return made


def headline(rows: Sequence[Row]) -> str:
    """What `mean` is the mean of, where that is the same everywhere."""
    found = {row["figure"] for row in rows}
    return found.pop() if len(found) == 1 else "figure"


def faceted(data: Sequence[Row], spec: Chart) -> Chart:
    """A small chart for each place in the grid but for protocol and seed."""
    places = list(dict.fromkeys(row["place"] for row in data))
    facet = {"field": "place", "type": "nominal", "title": None, "sort": places}
    return {"data": {"values": [*data]}, "facet": facet, "columns": min(3, len(places)), "spec": spec}


def file_name(words: str, taken: Container[str]) -> str:
    """Of letters that every file system takes, and not taken yet."""
    name = re.sub(r"[^A-Za-z0-9.+=_]+", "-", words).strip("-.")[:110]
    return next(one for one in chain([name], (f"{name}-{number}" for number in count(2))) if one not in taken)


def _over_seeds(course: Sequence[Row]) -> list[Row]:
    """Of each method, place and round the mean over the seeds, and what lies a standard deviation below and above."""
    found: dict[tuple[Any, ...], list[float]] = {}
    for row in course:
        found.setdefault((row["protocol"], row["place"], row["round"]), []).append(row["mean"])
    made = []
    for (protocol, where, round), values in found.items():
        mean, deviation = fmean(values), stdev(values) if len(values) > 1 else 0.0
        bounds = {"lower": mean - deviation, "upper": mean + deviation}
        made.append({"protocol": protocol, "place": where, "round": round, "mean": mean, **bounds})
    return made


def _curves(figure: str) -> Chart:
    words = f"mean {figure}"
    band = {"y": quantitative("lower", words, scale={"zero": False}), "y2": {"field": "upper"}}
    return {
        **SIZE,
        "encoding": {"x": rounds(), "color": METHOD},
        "layer": [
            {"mark": {"type": "area", "opacity": 0.15}, "encoding": band},
            {"mark": {"type": "line"}, "encoding": {"y": quantitative("mean", words)}},
        ],
    }


def _points(figure: str, field: str, words: str) -> Chart:
    """A point a cell."""
    axis = {"format": "s"} if field == "tensor_bytes_sent" else {}
    return {
        **SIZE,
        "mark": {"type": "point", "filled": True, "size": 60},
        "encoding": {
            "x": quantitative(field, words, scale={"zero": False}, axis=axis),
            "y": quantitative("mean", f"mean {figure}", scale={"zero": False}),
            "color": METHOD,
            "shape": METHOD,
            "tooltip": [tip("protocol", "protocol"), tip("seed", "seed"), tip("mean", figure, ".4f")],
        },
    }
