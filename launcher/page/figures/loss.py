"""The mean loss in training and on the test set."""

from launcher.page.document import Document
from launcher.page.figures.base import Figure, nominal, quantitative, rounds, tip

KINDS = {"train_loss": "training", "test_loss": "test"}


def loss(document: Document) -> Figure:
    return Figure(
        "loss",
        "Loss",
        "Mean over the peers: of their last training phase, and on their test sets.",
        ("rounds",),
        {
            "data": {"name": "rounds"},
            "height": 200,
            "transform": [
                {"fold": [*KINDS], "as": ["kind", "loss"]},
                {"filter": "isValid(datum.loss)"},
                {"calculate": "datum.kind === 'train_loss' ? 'training' : 'test'", "as": "measured"},
            ],
            "mark": {"type": "line", "point": True},
            "encoding": {
                "x": rounds(),
                "y": quantitative("loss", "loss"),
                "color": nominal("measured", scale={"domain": [*KINDS.values()]}),
                "strokeDash": nominal("measured", scale={"domain": [*KINDS.values()]}),
                "tooltip": [tip("round", "round"), tip("measured", "measured in"), tip("loss", "loss", ".4f")],
            },
        },
    )
