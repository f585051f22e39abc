"""What a figure is: a Vega-Lite chart, its title, and what the reader sees in it."""

from dataclasses import dataclass
from typing import Any

from launcher.page.document import Document

Spec = dict[str, Any]
"""A chart, or a part of one, in Vega-Lite's own words."""
MANY = 24
"""Of more peers than that not each is named."""
NAMES: Spec = {"labelOverlap": "greedy", "labelSeparation": 6, "labelAngle": 0, "ticks": False, "grid": False}
"""An axis of peers' names, as many of them as there is room for."""


@dataclass(frozen=True)
class Figure:
    """tables: from which it draws; it is left out where the first is empty. wide: takes a whole row of the page."""

    name: str
    title: str
    caption: str
    tables: tuple[str, ...]
    chart: Spec
    wide: bool = False

    def filled(self, document: Document) -> Spec:
        """The chart with its data, whole, for a file."""
        return {**self.chart, "datasets": {name: document.tables[name] for name in self.tables}}


def titled(words: str) -> str:
    """With a capital letter; the others stay as they are."""
    return f"{words[:1].upper()}{words[1:]}"


def quantitative(field: str, title: str | None, **more: Any) -> Spec:
    return {"field": field, "type": "quantitative", "title": title, **more}


def nominal(field: str, title: str | None = None, **more: Any) -> Spec:
    return {"field": field, "type": "nominal", "title": title, **more}


def rounds() -> Spec:
    """The axis of rounds: whole numbers."""
    whole = "datum.value % 1 ? '' : format(datum.value, 'd')"
    return quantitative("round", "round", axis={"labelExpr": whole, "grid": False}, scale={"nice": False})


def tip(field: str, title: str, form: str | None = None) -> Spec:
    """One line of what is shown at a point."""
    shown = {"field": field, "title": title, "type": "quantitative" if form else "nominal"}
    return {**shown, "format": form} if form else shown
