"""Bytes along each edge: a square for each two peers of whom one sent to the other."""

from launcher.page.document import Document
from launcher.page.figures.base import NAMES, Figure, Spec, nominal, tip

NAMED = 12
"""Of more peers no number is written into the squares."""


def traffic(document: Document) -> Figure:
    seated = [row["peer"] for row in document.tables["ring"] if row["when"] == "after"]
    peers = list(dict.fromkeys([*seated, *(row["peer"] for row in document.tables["peers"])]))
    axis = NAMES | {"domain": False}
    known = [tip("from", "from"), tip("to", "to"), tip("sent", "bytes", ".4s"), tip("ring", "ring")]
    square: Spec = {
        "mark": {"type": "rect", "cornerRadius": 2},
        "encoding": {
            "color": {
                "field": "sent",
                "type": "quantitative",
                "scale": {"zero": True},
                "legend": {"title": "bytes", "format": "~s", "orient": "top", "gradientThickness": 8},
            },
            "tooltip": known,
        },
    }
    written: Spec = {
        "mark": {"type": "text", "style": "cell", "fontSize": 10},
        "encoding": {
            "text": {"field": "sent", "type": "quantitative", "format": ".2s"},
            "tooltip": known,
        },
    }
    earlier: Spec = {
        "transform": [{"filter": "datum.ring === 'earlier'"}],
        "mark": {"type": "rect", "style": "earlier", "cornerRadius": 2},
        "encoding": {"tooltip": known},
    }
    dashed = " Dashed: used only before the ring was put in its last order."
    said = "From the peer at the left to the peer at the bottom, in the order of the ring. Empty: nothing was sent."
    return Figure(
        "traffic",
        "Bytes along each edge",
        said + (dashed if any(row["ring"] == "earlier" for row in document.tables["edges"]) else ""),
        ("edges",),
        {
            "data": {"name": "edges"},
            "height": 320,
            "transform": [
                {"calculate": "datum.bytes + datum.number_bytes", "as": "size"},
                {"aggregate": [{"op": "sum", "field": "size", "as": "sent"}], "groupby": ["from", "to", "ring"]},
            ],
            "encoding": {
                "x": nominal("to", "to", scale={"domain": peers, "paddingInner": 0.06}, axis=axis),
                "y": nominal("from", "from", scale={"domain": peers, "paddingInner": 0.06}, axis=axis),
            },
            "layer": [square, earlier, written] if len(peers) <= NAMED else [square, earlier],
        },
    )
