"""The closer look at the last models (`final_evaluation`): how sure each figure is, and which class is taken for which.

Tables `final` (a row a peer and figure) and `confusion` (a row a pair of classes), and their two figures.
"""

from collections import Counter
from collections.abc import Iterator
from math import inf
from statistics import fmean

from launcher.page.charts import MAX_NAMED_PEERS, NAMES_AXIS, Chart, ReportFigure, heat_map, nominal, quantitative, tip
from launcher.page.document import ReportDocument, Row
from launcher.page.run_data import RunData
from launcher.reports.summary_json import Summary
from launcher.reports.summary_text import direction

MAX_CLASSES = 20
"""Drawn one by one; tables have all."""


def final_rows(data: RunData) -> Iterator[Row]:
    """Each figure of each peer with its interval; of each class, too, where they are told one by one."""
    for peer in data.summary.per_peer if data.summary else ():
        if peer.final is None:
            continue
        for name, interval in peer.final.intervals.items():
            low, high = interval or (None, None)
            yield {"peer": peer.id, "figure": name, "value": peer.figures.get(name), "low": low, "high": high}
        for class_name, figures in peer.final.classes.items():
            intervals = peer.final.class_intervals.get(class_name, {})
            for name, value in figures.items():
                low, high = intervals.get(name) or (None, None)
                row = {"peer": peer.id, "figure": name, "class": class_name, "value": value}
                yield row | ({"low": low, "high": high} if intervals else {})


def confusion_rows(data: RunData) -> Iterator[Row]:
    """How many test samples of a class peers take for a class, added up over the peers, which may have the same
    samples; share: of the class's own."""
    told = [peer.final for peer in data.summary.per_peer if peer.final] if data.summary else []
    named = [one for one in told if one.classes and len(one.classes) == len(one.confusion)]
    for true in dict.fromkeys(name for one in named for name in one.classes):
        counts = Counter[str]()
        for one in named:
            rows = dict(zip(one.classes, one.confusion, strict=True))
            counts.update(dict(zip(one.classes, rows.get(true, ()), strict=False)))
        whole = counts.total()
        for taken, count in counts.items():
            yield {"class": true, "taken for": taken, "samples": count, "share": count / whole if whole else None}


def judged_classes(summary: Summary) -> list[str]:
    """The classes that are drawn, in order: of very many those whose first figure is the worst, on average over the
    peers that have one."""
    told = [of_class for peer in summary.per_peer if peer.final for of_class in peer.final.classes.items()]
    values: dict[str, list[float]] = {name: [] for name, _ in told}
    for name, figures in told:
        values[name] += [value for value in [*figures.values()][:1] if value is not None]
    sign = direction(summary, next((name for _, figures in told for name in figures), ""))
    worst = {*sorted(values, key=lambda name: sign * fmean(values[name]) if values[name] else inf)[:MAX_CLASSES]}
    return [name for name in values if name in worst]


def interval_figures(document: ReportDocument) -> list[ReportFigure]:
    """How sure each peer's first figure is, and its first figure of each class, where there are any."""
    rows, few = document.tables["final"], document.runs[0].peers <= MAX_NAMED_PEERS
    words = "Each peer's last model on its test samples"
    first = next((row["figure"] for row in rows), "")
    x = {"x": nominal("peer", axis=NAMES_AXIS | {"labels": few})}
    resampled = f"{words}, with the 95 % interval over resamples of these."
    made = [ReportFigure("intervals", f"How sure: {first}", resampled, ("final",), _spans(first, x, "peer"))]
    of_class = next((row["figure"] for row in rows if "class" in row), None)
    if of_class and few:
        x = {"x": nominal("class", axis=NAMES_AXIS), "xOffset": nominal("peer")}
        told = f"{words}, class by class, with the 95 % interval.{_left_out(document, 'final')}"
        chart = _spans(of_class, x, "class", "peer")
        made.append(ReportFigure("classes", f"Each class: {of_class}", told, ("final",), chart))
    return made


def _left_out(document: ReportDocument, table: str) -> str:
    """How many classes of a table are not drawn, in a sentence; empty if all are."""
    drawn = document.runs[0].judged_classes
    more = len({row["class"] for row in document.tables[table] if "class" in row}) - len(drawn)
    return f" These are the {len(drawn)} worst classes; {more} more are in summary.json." if more > 0 else ""


def _spans(figure: str, across: Chart, *places: str) -> Chart:
    """A point and an interval for each row of the figure. places: the columns by which they stand side by side."""
    seen = [*(tip(place, place) for place in places), tip("value", figure, ".4f")]
    seen += [tip("low", "from", ".4f"), tip("high", "to", ".4f")]
    upright = quantitative("low", figure, scale={"zero": False})
    span: Chart = {
        "mark": {"type": "rule", "style": "mean", "strokeWidth": 2},
        "encoding": {"y": upright, "y2": {"field": "high"}, "tooltip": seen},
    }
    point: Chart = {
        "mark": {"type": "point", "style": "mean", "filled": True, "size": 60},
        "encoding": {"y": quantitative("value", None, scale={"zero": False}), "tooltip": seen},
    }
    told = f"{'' if 'class' in places else '!'}isValid(datum.class)"
    return {
        "height": 200,
        "transform": [{"filter": {"field": "figure", "equal": figure}}, {"filter": told}],
        "encoding": across,
        "layer": [span, point],
    }


def confusion_figure(document: ReportDocument) -> ReportFigure:
    seen = [tip("class", "class"), tip("taken for", "taken for"), tip("samples", "samples", "d")]
    legend = {"title": "share of the class", "format": ".0%"}
    colour = {"field": "share", "scale": {"domain": [0, 1]}, "legend": legend}
    classes = document.runs[0].judged_classes
    chart = heat_map("taken for", "class", classes, classes, colour, {"field": "samples", "format": "d"}, seen)
    return ReportFigure(
        "confusion",
        "Which class is taken for which",
        "How often a peer's last model takes a test sample of the class at the left for the class at the bottom, added "
        f"up over the peers, which may be tested on the same samples.{_left_out(document, 'confusion')}",
        ("confusion",),
        chart | {"transform": [{"filter": "datum.samples > 0"}]},
    )
