"""How good the models were after each round, how evenly, and what each peer did for it: the tables and their figures.

Tables `rounds` (a row a round) and `peer_rounds` (a row a peer and round); the figures of one run (headline figure,
fairness, loss), and those that lay several runs over each other.
"""

from collections.abc import Iterator

import numpy as np

from launcher.headline import Headline, mean
from launcher.history import ACTIVITIES
from launcher.page.charts import (
    MAX_NAMED_PEERS,
    ZOOM,
    ZOOM_HINT,
    Chart,
    ReportFigure,
    nominal,
    quantitative,
    rounds_axis,
    tip,
)
from launcher.page.document import ReportDocument, Row, titled
from launcher.page.run_data import RunData
from launcher.page.timeline import clock_of
from launcher.reports.summary import TESTS, evaluated_rounds
from peer.learning.training import metrics


def round_rows(data: RunData) -> Iterator[Row]:
    """A row for every round after which all its members that count were evaluated, as in summary.json."""
    counted = [one.id for one in data.summary.per_peer] if data.summary else data.spec.ids
    by_peer = {id: history.rounds for id, history in data.histories.items() if id in counted}
    for number, done in evaluated_rounds(by_peer, data.views):
        yield {
            "round": number,
            **spread([value for one in done if (value := data.headline.value(one)) is not None], data.headline),
            "train_loss": mean(one.loss for one in done),
            "test_loss": mean(one.test_loss for one in done),
            "peers": len(done),
        }


def spread(values: list[float], headline: Headline) -> Row:
    """The mean, the middle half, the extremes and how uneven they are; None of what is not known."""
    if not values:
        return dict.fromkeys(("mean", "lower", "upper", "worst", "best", "gini", "deviation"))
    lower, upper = np.quantile(values, [0.25, 0.75])
    worst = headline.figure.worst(values)
    return {
        "mean": mean(values),
        "lower": float(lower),
        "upper": float(upper),
        "worst": worst,
        "best": max(values) if worst == min(values) else min(values),
        "gini": metrics.gini(values) if headline.test else None,
        "deviation": float(np.std(values)),
    }


def peer_round_rows(data: RunData) -> Iterator[Row]:
    """A row a peer and round. time: when it ended, in seconds of the run. Other seconds are of the round, bytes of all
    rounds so far.

    A figure of the task is in a column of its name, unless that is taken. stretch: counts up where rounds of a peer
    are missing, so that no line is drawn across them.
    """
    clock = clock_of(data.histories)
    for id, history in data.histories.items():
        stretch, before = 0, 0
        for number, done in sorted(history.rounds.items()):
            stretch, before = stretch + (number > before + 1), number
            yield {
                **done.figures,
                **{name: done.accuracy.get(name) for name in (*TESTS, "local") if name in done.accuracy},
                "peer": id,
                "round": number,
                "stretch": stretch,
                "time": clock.seconds(done.time),
                "value": data.headline.value(done) if done.evaluated else None,
                "train_loss": done.loss,
                "test_loss": done.test_loss,
                **{f"{name}_seconds": done.seconds.get(name, 0.0) for name in ACTIVITIES},
                "bytes_sent": done.bytes_sent,
                "bytes_received": done.bytes_received,
            }


NAME = 0.05
"""The height of a peer's name at the end of its line, of that of the curves."""
CHOSEN = "datum.peer === chosen"
"""Whether a row is of the peer that somebody has clicked on, as an expression of Vega's."""


def accuracy_figure(document: ReportDocument) -> ReportFigure:
    run = document.runs[0]
    upright = quantitative("mean", run.figure, scale={"zero": False})
    thin = 1 if run.peers <= MAX_NAMED_PEERS else 0.5
    worst_first = "ascending" if run.better == "up" else "descending"
    faint = max(0.15, min(0.7, 6 / run.peers))
    known = [tip("round", "round"), *(tip(name, name, ".4f") for name in ("mean", "worst", "best"))]
    layers: list[Chart] = [
        {
            "data": {"name": "peer_rounds"},
            "params": [ZOOM],
            "mark": {"type": "line", "style": "each"},
            "transform": [{"filter": "isValid(datum.value)"}],
            "encoding": {
                "y": quantitative("value", None),
                "opacity": {"value": faint, "condition": {"test": CHOSEN, "value": 1}},
                "strokeWidth": {"value": thin, "condition": {"test": CHOSEN, "value": 3}},
                "detail": [{"field": "peer", "type": "nominal"}, {"field": "stretch", "type": "nominal"}],
                "tooltip": [tip("peer", "peer"), tip("round", "round"), tip("value", run.figure, ".4f")],
            },
        },
        {
            "mark": {"type": "area", "style": "band"},
            "encoding": {"y": quantitative("lower", None), "y2": {"field": "upper"}},
        },
        {"mark": {"type": "line", "style": "worst"}, "encoding": {"y": quantitative("worst", None)}},
        {"mark": {"type": "line", "style": "mean"}, "encoding": {"y": upright}},
        {
            "mark": {"type": "point", "style": "mean", "filled": True, "size": 40},
            "encoding": {"y": quantitative("mean", None), "tooltip": known},
        },
        {
            "data": {"name": "peer_rounds"},
            "transform": [
                {"filter": "isValid(datum.value)"},
                {"joinaggregate": [{"op": op, "field": "value", "as": op} for op in ("min", "max")]},
                {"joinaggregate": [{"op": "max", "field": "round", "as": "newest"}]},
                {"joinaggregate": [{"op": "max", "field": "round", "as": "last"}], "groupby": ["peer"]},
                # In a live run some are a round ahead; the line of a peer that was lost ends elsewhere.
                {"filter": "datum.round === datum.last && datum.last >= datum.newest - 1"},
                {
                    "window": [{"op": "lag", "field": "value", "as": "worse"}],
                    "sort": [{"field": "value", "order": worst_first}],
                },
                {"calculate": "abs(datum.value - datum.worse) / (datum.max - datum.min)", "as": "room"},
                {"filter": f"!isValid(datum.worse) || datum.room > {NAME}"},
            ],
            "mark": {"type": "text", "style": "name", "align": "left", "dx": 6, "clip": False, "limit": 90},
            "encoding": {
                "x": {"value": "width"},  # a round that somebody has moved out of sight would take all the room
                "y": quantitative("value", None),
                "text": {"field": "peer"},
                "opacity": {"value": 1, "condition": {"test": "domain('x')[1] < datum.last", "value": 0}},
            },
        },
    ]
    chosen = [{"name": "chosen", "value": ""}]
    return ReportFigure(
        "accuracy",
        titled(f"{run.figure} per round"),
        "Thick: the mean of all peers. Shaded: the middle half of them. Dashed: the worst. Thin: each peer, named "
        f"where there is room; a click marks one. {ZOOM_HINT}",
        ("rounds", "peer_rounds"),
        {"params": chosen, "height": 300, "encoding": {"x": rounds_axis()}, "layer": layers},
        wide=True,
    )


def fairness_figure(document: ReportDocument) -> ReportFigure:
    run = document.runs[0]
    has_gini = any(row["gini"] is not None for row in document.tables["rounds"])
    measure, words = ("gini", "Gini coefficient") if has_gini else ("deviation", "standard deviation")
    said = f"The {words} of the peers' {run.figure}: 0 if all are equally good."
    chart: Chart = {
        "height": 200,
        "mark": {"type": "line", "style": "mean", "point": {"style": "mean"}},
        "encoding": {
            "x": rounds_axis(),
            "y": quantitative(measure, words),
            "tooltip": [tip("round", "round"), tip(measure, words, ".4f"), tip("worst", "worst peer", ".4f")],
        },
    }
    return ReportFigure("fairness", "Fairness", said, ("rounds",), chart)


LOSSES = {"train_loss": "training", "test_loss": "test"}


def loss_figure(document: ReportDocument) -> ReportFigure:
    said = "Mean over the peers. Training: on their own samples, in the last training phase; test: on all test samples."
    if document.runs[0].figure == "matched accuracy":
        said += " Of these a peer's matched accuracy weighs each class as its own data do, but the loss all alike: it "
        said += "may rise beside a high accuracy, as a model grows sure of wrong answers for classes it hardly has."
    chart: Chart = {
        "height": 200,
        "transform": [
            {"fold": [*LOSSES], "as": ["kind", "loss"]},
            {"filter": "isValid(datum.loss)"},
            {"calculate": "datum.kind === 'train_loss' ? 'training' : 'test'", "as": "measured"},
        ],
        "mark": {"type": "line", "point": True},
        "encoding": {
            "x": rounds_axis(),
            "y": quantitative("loss", "loss"),
            "color": nominal("measured", scale={"domain": [*LOSSES.values()]}),
            "strokeDash": nominal("measured", scale={"domain": [*LOSSES.values()]}),
            "tooltip": [tip("round", "round"), tip("measured", "measured in"), tip("loss", "loss", ".4f")],
        },
    }
    return ReportFigure("loss", "Loss", said, ("rounds",), chart)


def compared_figures(document: ReportDocument) -> list[ReportFigure]:
    """The figures that compare runs, for all measures with data."""
    figure = document.runs[0].figure
    measures = {
        "mean": f"mean {figure}",
        "worst": f"{figure} of the worst peer",
        "gini": "Gini coefficient",
        "test_loss": "mean test loss",
    }
    rows = document.tables["rounds"]
    known = [name for name in measures if any(row[name] is not None for row in rows)]
    return [_compared_curves(document, name, measures[name]) for name in known]


def _compared_curves(document: ReportDocument, field: str, words: str) -> ReportFigure:
    protocols = {run.protocol for run in document.runs}
    by = "protocol" if len(protocols) < len(document.runs) and len(protocols) > 1 else "run"
    chart: Chart = {
        "height": 320 if field == "mean" else 220,
        "params": [ZOOM],
        "transform": [{"filter": f"isValid(datum.{field})"}],
        "mark": {"type": "line", "point": {"size": 30}},
        "encoding": {
            "x": rounds_axis(),
            "y": quantitative(field, words, scale={"zero": field != "mean"}),
            "color": nominal(by, scale={"domain": list(dict.fromkeys(row[by] for row in document.tables["rounds"]))}),
            "detail": {"field": "run", "type": "nominal"},
            "tooltip": [tip("run", "run"), tip("round", "round"), tip(field, words, ".4f")],
        },
    }
    caption = f"A line a run; a colour a {by}. {ZOOM_HINT}"
    return ReportFigure(
        f"compared-{field}", titled(words), caption, ("rounds",), chart, wide=field in ("mean", "test_loss")
    )
