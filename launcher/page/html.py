"""The page as one file: template, style, scripts, document. It needs no network, and forbids itself any."""

import base64
import hashlib
import html
from dataclasses import dataclass
from importlib.resources import files
from string import Template
from typing import Any

from launcher.page.document import Document, as_text
from launcher.page.figures import figures
from launcher.page.figures.base import Figure
from launcher.page.figures.palette import look

SHADES = ("light", "dark")
LATE = ("time", "traffic", "timeline")
"""Figures that stand behind the words on privacy."""


@dataclass(frozen=True)
class Addition:
    """What a page has besides: markup above the figures, style, a script that runs last, and where it may connect."""

    markup: str = ""
    style: str = ""
    script: str = ""
    connect: str = "'none'"


NOTHING = Addition()


def page(document: Document | None, library: str, more: Addition = NOTHING) -> str:
    """document: None for a page that is told later what to show. library: the script that sets `vegaEmbed`."""
    parts, looks = files("launcher.page"), {shade: look(shade) for shade in SHADES}
    script = parts.joinpath("page.js").read_text(encoding="utf-8")
    return Template(parts.joinpath("page.html").read_text(encoding="utf-8")).substitute(
        title=html.escape(document.title if document else "Federation"),
        style=parts.joinpath("page.css").read_text(encoding="utf-8") + more.style,
        hashes=" ".join(map(_hash, (library, script, more.script))),
        connect=more.connect,
        document=document.thinned().dump() if document else "null",
        figures=as_text({"figures": charts(document) if document else [], "looks": looks}),
        library=library,
        script=script,
        markup=more.markup,
        more=f"<script>{more.script}</script>\n" if more.script else "",
    )


def charts(document: Document) -> list[dict[str, Any]]:
    """The document's figures as the page takes them."""
    return [*map(_shown, figures(document))]


def _shown(figure: Figure) -> dict[str, Any]:
    return {
        "name": figure.name,
        "title": figure.title,
        "caption": figure.caption,
        "tables": figure.tables,
        "chart": figure.chart,
        "wide": figure.wide,
        "late": figure.name in LATE,
    }


def _hash(script: str) -> str:
    """As a Content-Security-Policy names the one script that may run."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()}'"
