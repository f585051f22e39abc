"""Of each axis of numbers, such as `peers` or `data.limit`: how the main figures go with it."""

from collections.abc import Sequence
from typing import Any

from launcher.page.figures.base import quantitative, tip, titled
from launcher.study.figures import METHOD, SIZE, Chart, faceted, file_name, headline
from launcher.study.results import Row
from launcher.study.tables import elsewhere, place

FEWEST = 3
"""Values that make a course."""
WIDE = 20
"""From this ratio of the largest to the smallest on, a scale is logarithmic."""


def axis_figures(rows: Sequence[Row], axes: Sequence[str]) -> dict[str, tuple[str, Chart]]:
    """By file name: the title and the chart."""
    against = {
        "mean": f"mean {headline(rows)}",
        "weight_divergence": "weight divergence between the peers' models",
        "tensor_bytes_sent": "bytes of tensors sent by all peers",
    }
    methods = list(dict.fromkeys(row["protocol"] for row in rows))  # each with its colour, also where it has no point
    made: dict[str, tuple[str, Chart]] = {}
    for axis in axes:
        if axis.rpartition(".")[2] in ("protocol", "seed"):
            continue
        for column, words in against.items():
            values = _values(rows, axes, axis, column)
            if _course({row["x"] for row in values}):
                chart = faceted(values, _lines(values, axis, words, counted=column != "mean"))
                chart["spec"]["encoding"]["color"] = {**METHOD, "scale": {"domain": methods}}
                made[file_name(f"axis-{axis}-{column}", made)] = f"{titled(words)} against {axis}", chart
    return made


def _values(rows: Sequence[Row], axes: Sequence[str], axis: str, column: str) -> list[Row]:
    """A row a cell. Where nothing is sent, or no models differ, there is no point: zero is no size beside others."""
    others = elsewhere(rows, [one for one in axes if one != axis], "protocol")
    return [
        {
            "protocol": row["protocol"],
            "seed": row["seed"],
            "x": row[axis],
            "y": row[column],
            "place": place(row, others),
        }
        for row in rows
        if row.get(column) is not None and (column == "mean" or row[column] > 0)
    ]


def _course(found: set[Any]) -> bool:
    return len(found) >= FEWEST and not any(isinstance(one, str) for one in found)


def _lines(values: Sequence[Row], axis: str, words: str, counted: bool) -> Chart:
    """A point a cell, and a line through the means over the seeds. counted: y is a size, which may be logarithmic."""
    ticks = {"format": ".2s"} if max(row["y"] for row in values) >= 1000 else {}
    scale = _scale([row["y"] for row in values]) if counted else {"zero": False}
    found = sorted({row["x"] for row in values})
    x = quantitative("x", axis, scale=_scale(found), axis={"values": found, "format": "~g"})
    y = quantitative("y", words, scale=scale, axis=ticks)
    tips = [tip("protocol", "protocol"), tip("x", axis), tip("seed", "seed"), tip("y", words, ".4g")]
    return {
        **SIZE,
        "encoding": {"x": x},
        "layer": [
            {"mark": "line", "encoding": {"y": {**y, "aggregate": "mean"}}},
            {"mark": {"type": "point", "filled": True, "size": 40}, "encoding": {"y": y, "tooltip": tips}},
        ],
    }


def _scale(found: Sequence[float]) -> Chart:
    """Logarithmic where all are positive and far apart."""
    return {"type": "log", "nice": False} if min(found) > 0 and max(found) >= WIDE * min(found) else {"zero": False}
