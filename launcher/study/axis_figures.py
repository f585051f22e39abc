"""Of each axis of numbers, such as `peers` or `data.limit`: how the main figures go with it."""

from collections.abc import Sequence
from typing import Any

from launcher.page.figures.base import quantitative, tip, titled
from launcher.study.figures import METHOD, SIZE, Chart, faceted, headline
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
    made = {}
    for axis in axes:
        others = elsewhere(rows, [one for one in axes if one != axis], "protocol")
        for column, words in against.items():
            known = [row for row in rows if row.get(column) is not None]
            values = [
                {"protocol": row["protocol"], "seed": row["seed"], "x": row[axis], "y": row[column]}
                | {"place": place(row, others)}
                for row in known
            ]
            if axis not in ("protocol", "seed") and _numbers({row["x"] for row in values}):
                made[f"axis-{axis}-{column}"] = (
                    f"{titled(words)} against {axis}",
                    faceted(values, _lines(values, axis, words)),
                )
    return made


def _numbers(found: set[Any]) -> bool:
    return len(found) >= FEWEST and not any(isinstance(one, str) for one in found)


def _lines(values: Sequence[Row], axis: str, words: str) -> Chart:
    """A point a cell, and a line through the means over the seeds."""
    scales = {field: _scale(values, field) for field in ("x", "y")}
    ticks = {"format": ".2s"} if max(row["y"] for row in values) >= 1000 else {}
    x = quantitative("x", axis, scale=scales["x"], axis={"values": sorted({row["x"] for row in values})})
    y = quantitative("y", words, scale=scales["y"], axis=ticks)
    tips = [tip("protocol", "protocol"), tip("x", axis), tip("seed", "seed"), tip("y", words, ".4g")]
    return {
        **SIZE,
        # Zero has no logarithm: a mean over all peers leaves no divergence, and peers alone send nothing.
        "transform": [{"filter": f"datum.{field} > 0"} for field, scale in scales.items() if "type" in scale],
        "encoding": {"x": x, "color": METHOD},
        "layer": [
            {"mark": "line", "encoding": {"y": {**y, "aggregate": "mean"}}},
            {"mark": {"type": "point", "filled": True, "size": 40}, "encoding": {"y": y, "tooltip": tips}},
        ],
    }


def _scale(values: Sequence[Row], field: str) -> Chart:
    """Logarithmic where the positive values are far apart."""
    positive = [row[field] for row in values if row[field] > 0]
    wide = positive and max(positive) >= WIDE * min(positive)
    return {"type": "log", "nice": False} if wide else {"zero": False}
