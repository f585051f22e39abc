"""Colours that people who see few of them can still tell apart (Okabe and Ito's, Tol's), and the looks of charts."""

from collections.abc import Sequence
from typing import Any

from launcher.page.sectors import UNKNOWN

CLASSES = ("#332288", "#88ccee", "#44aa99", "#117733", "#999933", "#ddcc77", "#cc6677", "#882255", "#aa4499", "#dddddd")
"""Tol's muted scheme."""
ORDERED = ("#fde725", "#a0da39", "#4ac16d", "#1fa187", "#277f8e", "#365c8d", "#46327e", "#440154")
"""For more classes than anybody can tell apart: near numbers have near colours (viridis)."""
EARLIER = [4, 3]
"""The dashes of what was used only before the ring was put in its last order."""
GREY = "#9aa0a6"
KINDS = {
    "running": GREY,
    "waits": "#e69f00",
    "not heard": "#cc79a7",
    "failure": "#d55e00",
    "recovery": "#009e73",
    "change of view": "#0072b2",
    "note": "#56b4e9",
}
SHAPES = {
    "failure": "cross",
    "recovery": "triangle-up",
    "change of view": "diamond",
    "note": "circle",
}
ACTIVITIES = {"train": "#0072b2", "communicate": "#e69f00", "evaluate": "#009e73", "other": "#b8bcc2"}
INK = {"light": "#1c2430", "dark": "#e8eaed"}
FAINT = {"light": "#d9dde3", "dark": "#3a4250"}
MUTED = {"light": "#5b6573", "dark": "#a4adba"}
PAPER = {"light": "#ffffff", "dark": "#171c24"}
HEAT = {"light": ("#3f7fb0", "#08306b"), "dark": ("#5f9bcc", "#eaf5ff")}
"""From few to many; what is written on it has the colour of the paper."""
MAIN = {"light": "#0072b2", "dark": "#56b4e9"}
RUNS = {
    "light": ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#7a5195", "#444444"),
    "dark": ("#56b4e9", "#e69f00", "#2ec4a0", "#cc79a7", "#f0e442", "#d55e00", "#b39ddb", "#cccccc"),
}


def classes(names: Sequence[str]) -> list[str]:
    """A colour a class."""
    if len(names) <= len(CLASSES):
        colours = list(CLASSES[: len(names)])
    else:
        colours = [ORDERED[at * len(ORDERED) // len(names)] for at in range(len(names))]
    return [GREY if name == UNKNOWN else colour for name, colour in zip(names, colours, strict=True)]


def look(shade: str) -> dict[str, Any]:
    """How every chart looks in "light" or "dark", as Vega-Lite's `config`."""
    ink, muted, faint, main = INK[shade], MUTED[shade], FAINT[shade], MAIN[shade]
    return {
        "background": None,
        "font": "system-ui, sans-serif",
        "view": {"stroke": None},
        "axis": {
            "labelColor": muted, "titleColor": muted, "gridColor": faint, "domainColor": faint, "tickColor": faint,
            "labelFontSize": 12, "titleFontSize": 12, "titleFontWeight": "normal",
        },
        "legend": {"labelColor": ink, "titleColor": muted, "labelFontSize": 12, "orient": "top", "title": None},
        "line": {"strokeWidth": 2.5},
        "range": {"category": list(RUNS[shade]), "heatmap": list(HEAT[shade])},
        "style": {
            "mean": {"color": main, "strokeWidth": 2.5},
            "band": {"color": main, "fillOpacity": 0.22},
            "each": {"color": muted},
            "worst": {"color": "#d55e00", "strokeWidth": 1.5, "strokeDash": [5, 4]},
            "edge": {"color": muted, "strokeWidth": 1.5},
            "earlier": {"fill": None, "stroke": ink, "strokeWidth": 1.5, "strokeDash": EARLIER},
            "sector": {"stroke": PAPER[shade], "strokeWidth": 0.5},
            "name": {"color": ink},
            "cell": {"color": PAPER[shade]},
            "change": {"color": main, "strokeWidth": 1.5, "strokeDash": [3, 3]},
        },
    }  # fmt: skip
