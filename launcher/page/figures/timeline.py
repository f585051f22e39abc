"""When each peer ran, for whom it waited, what failed and what mended; a dashed line is a change of view."""

from launcher.page.document import Document
from launcher.page.figures.base import NAMES, Figure, Spec, nominal, quantitative, tip
from launcher.page.figures.palette import KINDS, SHAPES
from launcher.page.timeline import EVERYBODY

LASTING = ("waits", "not heard")


def timeline(document: Document) -> Figure:
    order = [row["peer"] for row in document.tables["peers"]]
    height = min(720, max(120, 26 * len(order)))
    happened = {row["kind"] for row in document.tables["moments"]}
    shown = [kind for kind in KINDS if kind in happened]
    colour = nominal("kind", scale={"domain": shown, "range": [KINDS[kind] for kind in shown]}, legend={"columns": 3})
    known = [tip("peer", "peer"), tip("text", "what"), tip("begin", "from second", ".1f"), tip("end", "to", ".1f")]
    row: Spec = nominal("peer", scale={"domain": order, "paddingInner": 0.3}, axis=NAMES | {"labelSeparation": 0})
    along = quantitative("begin", "seconds", scale={"nice": False}, axis={"grid": False})

    def bar(kinds: tuple[str, ...], thickness: float) -> Spec:
        return {
            "transform": [{"filter": {"field": "kind", "oneOf": [*kinds]}}],
            "mark": {"type": "bar", "height": {"band": thickness}, "minBandSize": 2},
            "encoding": {"y": row, "x": along, "x2": {"field": "end"}, "color": colour, "tooltip": known},
        }

    points: Spec = {
        "transform": [{"filter": {"field": "kind", "oneOf": [*SHAPES]}}, {"filter": f"datum.peer !== '{EVERYBODY}'"}],
        "mark": {"type": "point", "filled": True, "size": 90 if len(order) <= 40 else 40, "opacity": 1},
        "encoding": {
            "y": row,
            "x": along,
            "color": colour,
            "shape": nominal("kind", scale={"domain": [*SHAPES], "range": [*SHAPES.values()]}, legend=None),
            "tooltip": known,
        },
    }
    changes: Spec = {
        "transform": [{"filter": f"datum.peer === '{EVERYBODY}'"}],
        "mark": {"type": "rule", "style": "change"},
        "encoding": {"x": along, "tooltip": known[1:3]},
    }
    return Figure(
        "timeline",
        "What happened when",
        "Grey: the peer runs. A gap: it did not. Dashed line: another view, or the run was started again. Times when "
        "no peer ran are left out.",
        ("moments",),
        {
            "data": {"name": "moments"},
            "height": height,
            "layer": [bar(("running",), 0.4), bar(LASTING, 0.9), changes, points],
        },
        wide=True,
    )
