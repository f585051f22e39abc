"""A study's tables in Markdown and in LaTeX."""

import re
from collections.abc import Callable, Sequence

from launcher.study.tables import BEST, NOT_WORSE, Entry, Table, shown

LEGEND = (
    "Mean ± standard deviation over the seeds. The best of a column is bold; † marks what is not significantly worse "
    "than it: by a paired t-test over the seeds that both have, 5 %. Of few seeds that says little, of one there is no "
    "test. – is not known; (n missing) tells of seeds without a value, and such a cell gets no mark."
)
SPECIAL = {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "σ": r"$\sigma$"}
SPECIAL |= {"±": r"$\pm$", "†": r"$^\dagger$", "–": "--"} | {one: f"\\{one}" for one in "&%$#_{}"}
SPECIAL["["] = "{[}"  # else a length, after the end of a row


def markdown(tables: Sequence[Table], title: str) -> str:
    parts = [f"# {plain(title)}\n", f"{LEGEND}\n"]
    for table in tables:
        lines = [_line([plain(table.of), *map(plain, table.columns)]), "|---" + "|---:" * len(table.columns) + "|"]
        lines += [
            _line([plain(name), *cells(table, entries, plain, "**{}**")]) for name, entries in table.lines.items()
        ]
        parts.append("\n".join([f"## {plain(table.measure.name)}\n", *lines, ""]))
    return "\n".join(parts)


def latex(tables: Sequence[Table], title: str) -> str:
    """For `\\input` into a document that uses booktabs."""
    parts = [f"% {title.splitlines()[0]}: {LEGEND}\n"]
    for table in tables:
        lines = [r"\begin{table}", r"\centering", rf"\caption{{{escaped(table.measure.name)}}}"]
        lines += [rf"\begin{{tabular}}{{l{'r' * len(table.columns)}}}", r"\toprule"]
        lines += [_row([escaped(table.of), *map(escaped, table.columns)]), r"\midrule"]
        for name, entries in table.lines.items():
            lines.append(_row([escaped(name), *cells(table, entries, escaped, r"\textbf{{{}}}")]))
        parts.append("\n".join([*lines, r"\bottomrule", r"\end{tabular}", r"\end{table}", ""]))
    return "\n".join(parts)


def cells(table: Table, entries: Sequence[Entry], safe: Callable[[str], str], bold: str) -> list[str]:
    made = []
    for entry in entries:
        mean, deviation = map(safe, shown(entry, table.measure))
        text = bold.format(mean) if entry.mark == BEST else mean
        text += f" {safe('±')} {deviation}" if deviation else ""
        text += safe("†") if entry.mark == NOT_WORSE else ""
        made.append(text + (f" ({entry.unknown} missing)" if entry.unknown and entry.values else ""))
    return made


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _row(cells: Sequence[str]) -> str:
    return rf"{' & '.join(cells)} \\"


def plain(text: str) -> str:
    """As Markdown, and as HTML, takes it for text."""
    html = text.replace("&", "&amp;").replace("<", "&lt;")
    return re.sub(r"([\\|*`\[\]])", r"\\\1", html)


def escaped(text: str) -> str:
    return "".join(SPECIAL.get(one, one) for one in text)
