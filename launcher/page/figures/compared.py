"""Several runs over each other: mean figure, fairness and loss per round, a colour a run."""

from launcher.page.document import Document
from launcher.page.figures.base import Figure, Spec, nominal, quantitative, rounds, tip, titled


def compared(document: Document) -> list[Figure]:
    """Those of which anything is known."""
    figure = document.runs[0].figure
    measures = {
        "mean": f"mean {figure}",
        "worst": f"{figure} of the worst peer",
        "gini": "Gini coefficient",
        "test_loss": "mean test loss",
    }
    rows = document.tables["rounds"]
    known = [name for name in measures if any(row[name] is not None for row in rows)]
    return [_curves(document, name, measures[name]) for name in known]


def _curves(document: Document, field: str, words: str) -> Figure:
    protocols = {run.protocol for run in document.runs}
    by = "protocol" if len(protocols) < len(document.runs) and len(protocols) > 1 else "run"
    chart: Spec = {
        "data": {"name": "rounds"},
        "height": 320 if field == "mean" else 220,
        "transform": [{"filter": f"isValid(datum.{field})"}],
        "mark": {"type": "line", "point": {"size": 30}},
        "encoding": {
            "x": rounds(),
            "y": quantitative(field, words, scale={"zero": field != "mean"}),
            "color": nominal(by, scale={"domain": list(dict.fromkeys(row[by] for row in document.tables["rounds"]))}),
            "detail": {"field": "run", "type": "nominal"},
            "tooltip": [tip("run", "run"), tip("round", "round"), tip(field, words, ".4f")],
        },
    }
    caption = f"A line a run; a colour a {by}."
    return Figure(f"compared-{field}", titled(words), caption, ("rounds",), chart, wide=field in ("mean", "test_loss"))
