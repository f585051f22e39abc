"""How good the models are after each round: the mean, the middle half of the peers, and each peer."""

from launcher.page.document import Document
from launcher.page.figures.base import MANY, Figure, Spec, quantitative, rounds, tip, titled


def accuracy(document: Document) -> Figure:
    run = document.runs[0]
    upright = quantitative("mean", run.figure, scale={"zero": False})
    thin = {"type": "line", "style": "each", "strokeWidth": 1 if run.peers <= MANY else 0.5}
    known = [
        tip("round", "round"),
        tip("mean", "mean", ".4f"),
        tip("worst", "worst", ".4f"),
        tip("best", "best", ".4f"),
    ]
    layers: list[Spec] = [
        {
            "data": {"name": "peer_rounds"},
            "mark": thin | {"opacity": max(0.15, min(0.7, 6 / run.peers))},
            "transform": [{"filter": "isValid(datum.value)"}],
            "encoding": {
                "y": quantitative("value", None),
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
    ]
    return Figure(
        "accuracy",
        titled(f"{run.figure} per round"),
        "Thick: the mean of all peers. Shaded: the middle half of them. Dashed: the worst. Thin: each peer.",
        ("rounds", "peer_rounds"),
        {"data": {"name": "rounds"}, "height": 300, "encoding": {"x": rounds()}, "layer": layers},
        wide=True,
    )
