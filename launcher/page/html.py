"""The page as one file: template, style, scripts, document and figures. It needs no network, and blocks its use."""

import base64
import hashlib
import html
from importlib.resources import files
from string import Template
from typing import Any

from launcher.page.charts import ReportFigure, look
from launcher.page.document import ReportDocument, as_text
from launcher.page.final_evaluation import confusion_figure, interval_figures
from launcher.page.learning_curves import accuracy_figure, compared_figures, fairness_figure, loss_figure
from launcher.page.ring import ring_figures, traffic_figure
from launcher.page.timeline import time_figure, timeline_figure


def figures(document: ReportDocument) -> list[ReportFigure]:
    """The figures of one run, or those that compare several runs. Figures without data are left out."""
    if len(document.runs) > 1:
        made = compared_figures(document)
    else:
        made = [
            maker(document)
            for maker in (accuracy_figure, fairness_figure, loss_figure, time_figure, traffic_figure, timeline_figure)
        ]
        made[3:3] = [*interval_figures(document), confusion_figure(document), *ring_figures(document)]
    return [figure for figure in made if document.tables[figure.tables[0]]]


LATE_FIGURES = ("time", "traffic", "timeline")
"""The figures that follow the section on privacy."""


def page(
    document: ReportDocument | None,
    library: str,
    markup: str = "",
    style: str = "",
    more: str = "",
    connect: str = "'none'",
) -> str:
    """The page's HTML. document: None if the page gets it later. library: the script that sets `vegaEmbed`. markup:
    above the figures; more: a script that runs last; connect: where it may connect."""
    parts = files("launcher.page")
    script = parts.joinpath("page.js").read_text(encoding="utf-8")
    return Template(parts.joinpath("page.html").read_text(encoding="utf-8")).substitute(
        title=html.escape(document.title if document else "Federation"),
        style=parts.joinpath("page.css").read_text(encoding="utf-8") + style,
        hashes=" ".join(map(_hash, (library, script, more))),
        connect=connect,
        document=document.thinned().dump() if document else "null",
        figures=as_text({"figures": figures_for_page(document) if document else [], "look": look("any")}),
        library=library,
        script=script,
        markup=markup,
        more=f"<script>{more}</script>\n" if more else "",
    )


def figures_for_page(document: ReportDocument) -> list[dict[str, Any]]:
    """The document's figures in the form that the page's script takes."""
    return [vars(figure) | {"late": figure.name in LATE_FIGURES} for figure in figures(document)]


def _hash(script: str) -> str:
    """A script's hash as in a Content-Security-Policy, so that only this script may run."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()}'"
