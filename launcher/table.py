"""Tables of peers that fit the screen: rather fewer columns than names cut short. Sizes in them as a person reads them;
what is unknown is a dash.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence

from rich import box
from rich.console import Console, ConsoleOptions
from rich.table import Table
from rich.text import Text

from peer.text import printable


def quantity(size: float | None) -> str:
    """Bytes with a decimal unit."""
    if size is None:
        return "–"
    for unit in ("B", "kB", "MB", "GB"):
        if abs(size) < 1000:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1000
    return f"{size:.1f} TB"


def named(ids: Sequence[str], most: int = 8) -> str:
    """The first of these ids, and how many more there are."""
    more = len(ids) - most
    return ", ".join(ids[:most]) + (f" and {more} more" if more > 0 else "")


BARS = "▁▂▃▄▅▆▇█"


def curve(values: Iterable[float | None]) -> str:
    """The course of a figure, a letter for each that is known, between the lowest and the highest."""
    known = [value for value in values if value is not None]
    low, high = min(known, default=0.0), max(known, default=0.0)
    return "".join(BARS[round(7 * (one - low) / (high - low))] if high > low else BARS[0] for one in known)


Row = Mapping[str, str | Text]
"""A cell for each column, by the column's name."""
TEXTS = ("run", "protocol", "peer", "state", "curve", "waits for")
"""Columns that begin at the left; the others hold numbers."""
NEVER_CUT = "peer"
"""The column that is never cut: where there is no room at all, it goes on in a next line."""
UNBOUNDED = 10_000


class Head(box.Box):
    """A line below the heading and nothing else, of letters where the console knows no lines."""

    def substitute(self, options: ConsoleOptions, safe: bool = True) -> box.Box:
        return PLAIN_HEAD if options.ascii_only else self


HEAD = Head(str(box.SIMPLE_HEAD))
PLAIN_HEAD = box.Box(str(box.SIMPLE_HEAD).replace("─", "-"), ascii=True)


def listing(headings: Sequence[str], rows: Iterable[Sequence[str | Text]], numbers: Collection[str] = ()) -> Table:
    """A table as wide as it comes, of texts; the columns of `numbers` end at the right."""
    made = Table(box=HEAD, pad_edge=False)
    for heading in headings:
        made.add_column(_shown(heading), justify="right" if heading in numbers else "left")
    for row in rows:
        made.add_row(*map(_shown, row))
    return made


def fitting(rows: Sequence[Row], expendable: Sequence[str], console: Console, elastic: str | None = None) -> Table:
    """A table as wide as `console` at most; while it is too wide, the columns in `expendable` are left out in order.

    elastic: a column of lists that takes what room there is, and is cut off there, behind the first of each at least.
    """
    for gone in range(len(expendable) + 1):
        kept = [name for name in rows[0] if name not in expendable[:gone]]
        made = _table(rows, kept, elastic)
        spare = console.width - console.measure(made, options=console.options.update(width=UNBOUNDED)).maximum
        if spare >= 0:
            break
    for column in made.columns:
        if column.max_width:
            column.max_width += max(spare, 0)
    return made


def _table(rows: Sequence[Row], names: Sequence[str], elastic: str | None) -> Table:
    made = listing(names, ([row[name] for name in names] for row in rows), {*names} - {*TEXTS})
    for name, column in zip(names, made.columns, strict=True):
        column.no_wrap = name != NEVER_CUT
        column.overflow = "ellipsis" if column.no_wrap else "fold"
        if name == elastic:
            column.max_width = max(len(name), *(len(_first(row[name])) for row in rows))
    return made


def _shown(cell: str | Text) -> Text:
    """What a peer's files say may hold markup, and what moves the cursor."""
    shown = cell.copy() if isinstance(cell, Text) else Text(cell)
    shown.plain = printable(shown.plain)
    return shown


def _first(cell: str | Text) -> str:
    """The first of a list, with the sign that more follows."""
    first, comma, _ = str(cell).partition(",")
    return f"{first},…" if comma else first
