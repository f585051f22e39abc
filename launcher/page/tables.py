"""The document's tables as CSV, one file each, for programs and spreadsheets."""

import csv
import io
from collections.abc import Sequence
from typing import Any

from launcher.page.document import Document, Row

WRITTEN = ("rounds", "peer_rounds", "peers", "seconds", "edges", "moments")
"""The others say only where something is drawn."""
FIRST = ("run", "protocol", "seed", "peer", "from", "to", "vector", "kind", "round")
"""Columns that say what a row is of."""


def as_csv(document: Document) -> dict[str, str]:
    """The text of each table, by name; empty cells are what is not known."""
    return {name: _written([_flat(row) for row in document.tables[name]]) for name in WRITTEN}


def _written(rows: Sequence[Row]) -> str:
    names = list(dict.fromkeys(name for row in rows for name in row))
    ordered = [name for name in FIRST if name in names] + [name for name in names if name not in FIRST]
    file = io.StringIO(newline="")
    writer = csv.DictWriter(file, ordered, lineterminator="\n")
    writer.writerow({name: as_cell(name) for name in ordered})
    writer.writerows({name: as_cell(value) for name, value in row.items()} for row in rows)
    return file.getvalue()


def _flat(row: Row) -> Row:
    """With a column for each class in place of one of all."""
    shares = row.get("classes", {})
    plain = {name: value for name, value in row.items() if name != "classes"}
    return plain | {f"class {name}": share for name, share in shares.items()}


FORMULA = ("=", "+", "-", "@", "\t", "\r")
"""What begins one, or what a spreadsheet passes over before it."""


def as_cell(value: Any) -> Any:
    """A text of somebody's that a spreadsheet would take for a formula becomes a plain one."""
    return f"'{value}" if isinstance(value, str) and value.startswith(FORMULA) else value
