"""The closer look at the last models (`final_evaluation`): how sure each figure is, and which class is taken for which.

Tables `final` (a row a peer and figure) and `confusion` (a row a pair of classes), and their two figures.
"""

from collections.abc import Iterator

from launcher.page.charts import MAX_NAMED_PEERS, NAMES_AXIS, Chart, ReportFigure, heat_map, nominal, quantitative, tip
from launcher.page.document import ReportDocument, Row
from launcher.page.run_data import RunData


def final_rows(data: RunData) -> Iterator[Row]:
    """Each figure of each peer with its interval; of each class, too, where they are told one by one."""
    for peer in data.summary.per_peer if data.summary else ():
        if peer.final is None:
            continue
        for name, interval in peer.final.intervals.items():
            low, high = interval or (None, None)
            yield {"peer": peer.id, "figure": name, "value": peer.figures.get(name), "low": low, "high": high}
        for class_name, figures in peer.final.classes.items():
            for name, value in figures.items():
                yield {"peer": peer.id, "figure": name, "class": class_name, "value": value}


def confusion_rows(data: RunData) -> Iterator[Row]:
    """How many test samples of a class peers take for a class, added up over the peers, which may have the same
    samples; share: of the class's own."""
    told = [peer.final for peer in data.summary.per_peer if peer.final] if data.summary else []
    named = [one for one in told if one.classes and len(one.classes) == len(one.confusion)]
    for true in dict.fromkeys(name for one in named for name in one.classes):
        counts: dict[str, int] = {}
        for one in named:
            rows = dict(zip(one.classes, one.confusion, strict=True))
            for taken, count in zip(one.classes, rows.get(true, ()), strict=False):
                counts[taken] = counts.get(taken, 0) + count
        whole = sum(counts.values())
        for taken, count in counts.items():
            yield {"class": true, "taken for": taken, "samples": count, "share": count / whole if whole else None}


def intervals_figure(document: ReportDocument) -> ReportFigure:
    figure = next((row["figure"] for row in document.tables["final"]), "")
    seen = [tip("peer", "peer"), tip("value", figure, ".4f"), tip("low", "from", ".4f"), tip("high", "to", ".4f")]
    axis = NAMES_AXIS | {"labels": document.runs[0].peers <= MAX_NAMED_PEERS}
    upright = quantitative("low", figure, scale={"zero": False})
    span: Chart = {
        "mark": {"type": "rule", "style": "mean", "strokeWidth": 2},
        "encoding": {"y": upright, "y2": {"field": "high"}, "tooltip": seen},
    }
    point: Chart = {
        "mark": {"type": "point", "style": "mean", "filled": True, "size": 60},
        "encoding": {"y": quantitative("value", None, scale={"zero": False}), "tooltip": seen},
    }
    return ReportFigure(
        "intervals",
        f"How sure: {figure}",
        "Each peer's last model on its test samples, with the 95 % interval over resamples of these.",
        ("final",),
        {
            "data": {"name": "final"},
            "height": 200,
            "transform": [{"filter": {"field": "figure", "equal": figure}}, {"filter": "!isValid(datum.class)"}],
            "encoding": {"x": nominal("peer", axis=axis)},
            "layer": [span, point],
        },
    )


def confusion_figure(document: ReportDocument) -> ReportFigure:
    seen = [tip("class", "class"), tip("taken for", "taken for"), tip("samples", "samples", "d")]
    legend = {"title": "share of the class", "format": ".0%"}
    colour = {"field": "share", "scale": {"domain": [0, 1]}, "legend": legend}
    classes = list(dict.fromkeys(row["class"] for row in document.tables["confusion"]))
    chart = heat_map("taken for", "class", classes, colour, {"field": "samples", "format": "d"}, seen)
    return ReportFigure(
        "confusion",
        "Which class is taken for which",
        "How often a peer's last model takes a test sample of the class at the left for the class at the bottom, added "
        "up over the peers, which may be tested on the same samples.",
        ("confusion",),
        {**chart, "data": {"name": "confusion"}, "transform": [{"filter": "datum.samples > 0"}]},
    )
