"""Charts: what a figure is, how it looks, and the library that draws it.

A figure is a Vega-Lite chart of named tables of the document, without the data themselves. Colours are those that
people with colour-vision deficiency can still tell apart (Okabe and Ito's, Tol's).

Vega, Vega-Lite and their interpreter are one script that a page holds. vl-convert makes it, in some seconds, and it is
kept in the user's cache with its digest. vl-convert also makes pictures of charts; it is loaded only then.
"""

import json
import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from hashlib import sha256
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from secrets import token_hex
from typing import Any, Literal

from launcher.page.document import ReportDocument
from peer.errors import FailedError, InputError
from peer.files import MAX_RECORDS_BYTES, read_plain, write_atomically
from peer.text import one_line

Chart = dict[str, Any]
"""A chart, or a part of one, in Vega-Lite's own words."""
MAX_NAMED_PEERS = 24
"""The most peers of which each is named."""
NAMES_AXIS: Chart = {"labelOverlap": "greedy", "labelSeparation": 6, "labelAngle": 0, "ticks": False, "grid": False}
"""An axis of peers' names, as many of them as there is room for."""


@dataclass(frozen=True)
class ReportFigure:
    """tables: from which it draws, the first where the chart names no other; it is left out where that is empty. wide:
    takes a whole row of the page."""

    name: str
    title: str
    caption: str
    tables: tuple[str, ...]
    chart: Chart
    wide: bool = False

    def filled(self, document: ReportDocument) -> Chart:
        """The chart with its data, whole, for a file."""
        tables = {name: document.tables[name] for name in self.tables}
        return {"data": {"name": self.tables[0]}, **self.chart, "datasets": tables}


def quantitative(field: str, title: str | None, **more: Any) -> Chart:
    return {"field": field, "type": "quantitative", "title": title, **more}


def nominal(field: str, title: str | None = None, **more: Any) -> Chart:
    return {"field": field, "type": "nominal", "title": title, **more}


def in_bytes(value: str) -> str:
    """Vega's expression of a number of bytes in words, as 13.3 MB."""
    return f"replace(format({value}, '.3~s'), regexp('[kMGT]?$'), ' $&B')"


def rounds_axis() -> Chart:
    """The axis of rounds: whole numbers, also where somebody looks closely."""
    axis = {"tickMinStep": 1, "labelExpr": "datum.value % 1 ? '' : datum.value", "grid": False}
    return quantitative("round", "round", axis=axis, scale={"nice": False})


ZOOM: Chart = {
    "name": "zoom",
    "select": {"type": "interval", "encodings": ["x"], "zoom": "wheel![event.shiftKey]"},
    "bind": "scales",
}
"""The wheel alone scrolls the page."""
ZOOM_HINT = "Shift and the wheel zoom, dragging moves, a double click shows all."


def tip(field: str, title: str, form: str | None = None) -> Chart:
    """One line of what is shown at a point."""
    shown = {"field": field, "title": title, "type": "quantitative" if form else "nominal"}
    return {**shown, "format": form} if form else shown


def heat_map(
    x: str, y: str, along: Sequence[str], up: Sequence[str], colour: Chart, written: Chart, seen: list[Chart]
) -> Chart:
    """A square for each pair of names that has a number, which gives its colour, and one written on it.

    colour: its field, scale and legend; written: its field and format. The layers are the squares and what is written.
    """
    scale, axis = {"paddingInner": 0.06}, NAMES_AXIS | {"domain": False}
    legend = colour["legend"] | {"orient": "top", "gradientThickness": 8}
    square: Chart = {
        "mark": {"type": "rect", "cornerRadius": 2},
        "encoding": {"color": {**colour, "type": "quantitative", "legend": legend}, "tooltip": seen},
    }
    text: Chart = {
        "mark": {"type": "text", "style": "cell", "fontSize": 10},
        "encoding": {"text": {"type": "quantitative", **written}, "tooltip": seen},
    }
    names = {"x": (x, along), "y": (y, up)}
    place = {way: nominal(one, one, scale=scale | {"domain": [*all]}, axis=axis) for way, (one, all) in names.items()}
    return {"height": 320, "encoding": place, "layer": [square, text]}


EARLIER_DASHES = [4, 3]
"""The dashes of what was used only before the ring was put in its last order."""
GREY = "#9aa0a6"
INK, FAINT, MUTED, PAPER = "#1c2430/#e8eaed", "#d9dde3/#3a4250", "#5b6573/#a4adba", "#ffffff/#171c24"
"""Colours on light paper and on dark."""
HEAT = ["#3f7fb0", "#a03d8f"]
"""The scale from few to many, which stands out from either paper, as does white on it."""
RUN_COLOURS = (
    *("#0072b2/#56b4e9", "#d55e00/#e69f00", "#009e73/#2ec4a0", "#cc79a7/#cc79a7", "#e69f00/#f0e442"),
    *("#56b4e9/#d55e00", "#7a5195/#b39ddb", "#444444/#cccccc"),
)


def look(paper: Literal["light", "any"]) -> dict[str, Any]:
    """How every chart looks, as Vega-Lite's `config`; "any": on light paper or dark, as the browser chooses."""

    def on(pair: str) -> str:
        light, dark = pair.split("/")
        return light if paper == "light" else f"light-dark({light}, {dark})"

    ink, faint, muted, back = map(on, (INK, FAINT, MUTED, PAPER))
    first, *others = map(on, RUN_COLOURS)
    return {
        "background": None,
        "font": "system-ui, sans-serif",
        "view": {"stroke": None},
        "axis": {
            "labelColor": muted, "titleColor": muted, "gridColor": faint, "domainColor": faint, "tickColor": faint,
            "labelFontSize": 12, "titleFontSize": 12, "titleFontWeight": "normal",
        },
        "legend": {"labelColor": ink, "titleColor": muted, "labelFontSize": 12, "orient": "top", "title": None},
        "header": {"labelColor": ink, "titleColor": ink},
        "title": {"color": ink},
        "mark": {"aria": False},  # a chart describes itself, and its numbers are in a table beside it
        "range": {"category": [first, *others], "heatmap": HEAT},
        "style": {
            "mean": {"color": first, "strokeWidth": 2.5},
            "band": {"color": first, "fillOpacity": 0.22},
            "each": {"color": muted},
            "worst": {"color": "#d55e00", "strokeWidth": 1.5, "strokeDash": [5, 4]},
            "edge": {"color": muted, "strokeWidth": 1.5},
            "earlier": {"fill": None, "stroke": ink, "strokeWidth": 1.5, "strokeDash": EARLIER_DASHES},
            "sector": {"stroke": back, "strokeWidth": 0.5},
            "name": {"color": ink},
            "cell": {"color": "#ffffff"},
            "change": {"color": first, "strokeWidth": 1.5, "strokeDash": [3, 3]},
        },
    }  # fmt: skip


PICTURES = ("png", "svg")
FIT, ROOM = {"type": "fit", "contains": "padding"}, {"left": 8, "top": 8, "right": 70, "bottom": 8}
"""The room is for letters wider than those with which the chart was laid out."""
SCALE = 2.0
"""Pixels of a PNG for each of a chart's."""
INSTALL_HINT = "the report's charts need vl-convert; install it with: pip install -c constraints.txt 'dfl[report]'"


def check_installed() -> None:
    """InputError where the package is missing that makes the charts."""
    try:
        version("vl-convert-python")
    except PackageNotFoundError:
        raise InputError(INSTALL_HINT) from None


def vega_script() -> str:
    """Vega as a JavaScript module that sets `window.vegaEmbed`; InputError if it cannot be made."""
    check_installed()
    kept = _cache_directory() / f"drawing-{version('vl-convert-python')}.js"
    with suppress(OSError, UnicodeDecodeError):
        digest, _, script = read_plain(kept, MAX_RECORDS_BYTES).partition(b"\n")
        if digest == _digest(script):
            return script.decode()
    import vl_convert

    text = vl_convert.javascript_bundle("window.vegaEmbed = vegaEmbed;").replace("</script", "<\\/script")
    with suppress(OSError, FailedError):  # no home, or none that can be written to: then it is made again
        kept.parent.mkdir(parents=True, exist_ok=True)
        own = kept.with_name(f"{kept.name}.{token_hex(8)}")  # two may make it at once
        write_atomically(own, _digest(text.encode()) + b"\n" + text.encode())
        own.replace(kept)
    return text


def _digest(script: bytes) -> bytes:
    return sha256(script).hexdigest().encode()


def _cache_directory() -> Path:
    with suppress(RuntimeError):
        return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "dfl"
    return Path("/nonexistent")


def picture(chart: Mapping[str, Any], look: Mapping[str, Any], kind: str) -> bytes:
    """A chart as "png" or "svg"; FailedError where it cannot be one."""
    import vl_convert

    size = {} if {"facet", "hconcat", "width"} & chart.keys() else {"autosize": FIT, "width": 640}
    content = json.dumps({"padding": ROOM, **size, **chart}, ensure_ascii=False)
    text = content.encode(errors="replace").decode()  # half of a surrogate pair is no text
    try:
        if kind == "svg":
            return vl_convert.vegalite_to_svg(text, config=dict(look)).encode()
        return vl_convert.vegalite_to_png(text, config=dict(look), scale=SCALE)
    except ValueError as error:
        raise FailedError(f"a chart cannot be made a picture: {one_line(error)}") from error
