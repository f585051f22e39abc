"""How evenly good the models are after each round."""

from launcher.page.document import Document
from launcher.page.figures.base import Figure, quantitative, rounds, tip


def fairness(document: Document) -> Figure:
    run = document.runs[0]
    has_gini = any(row["gini"] is not None for row in document.tables["rounds"])
    measure, words = ("gini", "Gini coefficient") if has_gini else ("deviation", "standard deviation")
    return Figure(
        "fairness",
        "Fairness",
        f"The {words} of the peers' {run.figure}: 0 if all are equally good.",
        ("rounds",),
        {
            "data": {"name": "rounds"},
            "height": 200,
            "mark": {"type": "line", "style": "mean", "point": {"style": "mean"}},
            "encoding": {
                "x": rounds(),
                "y": quantitative(measure, words),
                "tooltip": [tip("round", "round"), tip(measure, words, ".4f"), tip("worst", "worst peer", ".4f")],
            },
        },
    )
