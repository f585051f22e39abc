"""One HTML page of a study: its tables and figures, and how each cell is run again. No script, no network."""

import base64
from collections.abc import Mapping, Sequence
from html import escape
from importlib.resources import files

from launcher.study.results import Row
from launcher.study.tables import Table
from launcher.study.written_tables import LEGEND, cells

# The colours of a picture are those of a light page: `light` keeps page.css from its dark ones.
HEAD = """<!doctype html>
<html lang="en" class="light">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'; img-src data:">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light">
"""
STYLE = """
:root { color-scheme: light; }
img { max-width: 100%; height: auto; }
td, th { text-align: right; white-space: nowrap; padding: 2px 10px; }
td:first-child, th:first-child { text-align: left; }
pre { overflow-x: auto; }
"""


def page(name: str, rows: Sequence[Row], tables: Sequence[Table], pictures: Mapping[str, tuple[str, bytes]]) -> str:
    """pictures: by name, a title and an SVG."""
    style = files("launcher.page").joinpath("page.css").read_text(encoding="utf-8")
    parts = [HEAD, f"<title>{escape(name)}</title><style>{style}{STYLE}</style></head><body><header>"]
    parts += [f"<h1>{escape(name)}</h1><p>{_told(rows)}</p><p class='muted'>{escape(LEGEND)}</p></header><main>"]
    parts += [_table(table) for table in tables]
    for title, svg in pictures.values():
        source = f"data:image/svg+xml;base64,{base64.b64encode(svg).decode()}"
        parts.append(f"<figure><h2>{escape(title)}</h2><img alt='{escape(title)}' src='{source}'></figure>")
    failed = "\n".join(f"{row['command']}\n    {row['failure']}" for row in rows if row["failure"])
    if failed:
        parts.append(f"<section><h2>Failed</h2><pre>{escape(failed)}</pre></section>")
    again = "\n".join(row["command"] for row in rows)
    parts.append(
        f"<section><details><summary>Each cell once more</summary><pre>{escape(again)}</pre></details></section>"
    )
    return "\n".join([*parts, "</main></body></html>\n"])


def _told(rows: Sequence[Row]) -> str:
    failed = [row for row in rows if row["failure"]]
    said = f"{len(rows)} cells"
    return said if not failed else f"{said}; {len(failed)} failed, as told at the end"


def _table(table: Table) -> str:
    head = "".join(f"<th>{escape(column)}</th>" for column in (table.of, *table.columns))
    lines = []
    for name, entries in table.lines.items():
        written = "".join(f"<td>{text}</td>" for text in cells(table, entries, escape, "<b>{}</b>"))
        lines.append(f"<tr><td>{escape(name)}</td>{written}</tr>")
    body = f"<table><thead><tr>{head}</tr></thead><tbody>{''.join(lines)}</tbody></table>"
    return f"<section><h2>{escape(table.measure.name)}</h2><div class='scroll'>{body}</div></section>"
