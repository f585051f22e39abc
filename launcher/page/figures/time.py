"""Where each peer's time went."""

from launcher.page.document import Document
from launcher.page.figures.base import NAMES, Figure, nominal, quantitative, tip
from launcher.page.figures.palette import ACTIVITIES


def time(document: Document) -> Figure:
    order = [row["peer"] for row in document.tables["peers"]]
    return Figure(
        "time",
        "Where the time went",
        "Communicate: sending, and waiting for what neighbours send. Other: starting, waiting for a round, saving.",
        ("seconds",),
        {
            "data": {"name": "seconds"},
            "height": 330,
            "mark": {"type": "bar", "cornerRadius": 1},
            "encoding": {
                "x": nominal(
                    "peer",
                    sort=order,
                    axis=NAMES,
                ),
                "y": quantitative("seconds", "seconds"),
                "color": nominal(
                    "activity", scale={"domain": [*ACTIVITIES], "range": [*ACTIVITIES.values()]}, sort=None
                ),
                "order": {"field": "activity_order", "type": "quantitative"},
                "tooltip": [tip("peer", "peer"), tip("activity", "activity"), tip("seconds", "seconds", ".1f")],
            },
            "transform": [{"calculate": f"indexof({[*ACTIVITIES]}, datum.activity)", "as": "activity_order"}],
        },
    )
