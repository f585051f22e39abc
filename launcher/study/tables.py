"""Tables of a study: a row a protocol, a column a place in the rest of the grid; mean ± deviation over the seeds.

What is measured, how the best of a column is marked, and the same tables as Markdown, as LaTeX, and as one HTML page
with the figures and the command that runs each cell again. The page has no script and needs no network.
"""

import base64
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from html import escape
from importlib.resources import files
from statistics import fmean, stdev
from typing import Any, Literal

from launcher.page.document import Row
from launcher.study.grid import axis_value
from launcher.table import quantity


@dataclass(frozen=True)
class Measure:
    """better: which values are; "" where neither is, "figure" as it is of the figure by which cells are judged. shown:
    how a mean or a deviation is written."""

    column: str
    name: str
    better: Literal["up", "down", "figure", ""]
    shown: Callable[[float], str]


four = "{:.4f}".format
MEASURES = (
    Measure("mean", "Mean", "figure", four),
    Measure("worst", "Worst peer", "figure", four),
    Measure("honest", "Mean of the peers that do not misbehave", "figure", four),
    Measure("gini", "Gini coefficient", "down", four),
    Measure("r50", "First round with a mean of at least one half (R50)", "down", "{:.1f}".format),
    Measure("plateau_sigma", "Plateau σ: deviation of the mean over the second half of the rounds", "down", four),
    Measure("mcg", "Mean collaboration gain (MCG): a peer's figure less that when alone", "up", "{:+.4f}".format),
    Measure("cgs", "Spread of the collaboration gain (CGS): its deviation over the peers", "down", four),
    Measure("least_gain", "Gain of the peer that gains least", "up", "{:+.4f}".format),
    Measure("weight_divergence", "Weight divergence between the peers' models", "", "{:.2e}".format),
    Measure("ring_saving", "Ring saving by ordering, as a share of the cost", "", four),
    Measure("tensor_bytes_sent", "Bytes of tensors sent by all peers", "down", quantity),
    Measure("seconds", "Seconds", "", "{:.1f} s".format),
)

SIGNIFICANT = 0.05
ROUNDING = 1e-9
"""Differences that differ by no larger a share of themselves are one and the same: no test of chance has a meaning."""
BEST, NOT_WORSE = "best", "not worse"


@dataclass(frozen=True)
class TableEntry:
    """The values of one method in one place, by seed. unknown: how many seeds have no value. mark: BEST, NOT_WORSE or
    empty."""

    values: Mapping[int, float]
    unknown: int = 0
    mark: str = ""

    @property
    def mean(self) -> float:
        return fmean(self.values.values())


@dataclass(frozen=True)
class MeasureTable:
    """of: the axis of which each value has a line."""

    measure: Measure
    of: str
    columns: Sequence[str]
    lines: Mapping[str, Sequence[TableEntry]]


def tables(rows: Sequence[Row], axes: Sequence[str]) -> list[MeasureTable]:
    """A table a measure of which anything is known; where cells are judged by several figures, one for each of those.
    axes: the grid's keys."""
    of = "protocol" if "protocol" in axes else next((axis for axis in axes if axis != "seed"), "protocol")
    others = other_axes(rows, axes, of)
    made = []
    for measure in MEASURES:
        for figure in dict.fromkeys(row["figure"] for row in rows) if measure.better == "figure" else [None]:
            judged = [row for row in rows if figure in (None, row["figure"])]
            if any(row.get(measure.column) is not None for row in judged):
                of_figure = {"better": judged[0]["better"], "name": f"{measure.name}, {figure}"} if figure else {}
                made.append(_measure_table(judged, of, others, replace(measure, **of_figure)))
    return made


def _measure_table(rows: Sequence[Row], of: str, others: Sequence[str], measure: Measure) -> MeasureTable:
    columns = list(dict.fromkeys(place_in_grid(row, others) for row in rows))
    names = list(dict.fromkeys(str(row[of]) for row in rows))
    marked = {}
    for column in columns:
        here = [row for row in rows if place_in_grid(row, others) == column]
        seeds = len({row["seed"] for row in here})
        entries = {name: _entry([row for row in here if str(row[of]) == name], measure, seeds) for name in names}
        marked[column] = _marked(entries, measure)
    return MeasureTable(measure, of, columns, {name: [marked[column][name] for column in columns] for name in names})


def other_axes(rows: Sequence[Row], axes: Sequence[str], of: str) -> list[str]:
    """The axes besides `of` and the seeds along which there is more than one value."""
    return [axis for axis in axes if axis not in (of, "seed") and len({row[axis] for row in rows}) > 1]


def place_in_grid(row: Row, axes: Sequence[str]) -> str:
    """A row's place in the grid, in words."""
    return ", ".join(axis_value(axis, row[axis]) for axis in axes) or "all"


def _entry(rows: Sequence[Row], measure: Measure, seeds: int) -> TableEntry:
    """seeds: how many any method has here."""
    if len({row["seed"] for row in rows}) < len(rows):
        raise ValueError("two rows of one method, place and seed")
    values = {row["seed"]: row[measure.column] for row in rows if row.get(measure.column) is not None}
    return TableEntry(values, seeds - len(values))


def _marked(entries: Mapping[str, TableEntry], measure: Measure) -> dict[str, TableEntry]:
    """The entries with marks, if there are several to choose from."""
    known = {name: entry for name, entry in entries.items() if entry.values and not entry.unknown}
    if len(known) < 2 or not measure.better:
        return {**entries}
    choose = max if measure.better == "up" else min
    best = choose(known.values(), key=lambda entry: entry.mean)
    return {**entries, **{name: replace(one, mark=mark(one, best)) for name, one in known.items()}}


def mark(entry: TableEntry, best: TableEntry) -> str:
    """Whether it is the best, or not significantly worse: by a paired t-test over at least two seeds that both have."""
    if entry.mean == best.mean:
        return BEST
    pairs = [entry.values[seed] - best.values[seed] for seed in sorted(entry.values.keys() & best.values.keys())]
    if len(pairs) < 2 or stdev(pairs) <= ROUNDING * max(map(abs, pairs)):
        return ""
    from scipy import stats

    found: Any = stats.ttest_1samp(pairs, 0.0)
    return NOT_WORSE if found.pvalue >= SIGNIFICANT else ""


def shown(entry: TableEntry, measure: Measure) -> tuple[str, str]:
    """The mean and the deviation as texts; the second is empty for one seed, both are where nothing is known."""
    if not entry.values:
        return "–", ""
    values = [*entry.values.values()]
    return measure.shown(fmean(values)), measure.shown(stdev(values)).removeprefix("+") if len(values) > 1 else ""


LEGEND = (
    "Mean ± standard deviation over the seeds. The best of a column is bold; † marks what is not significantly worse "
    "than it: by a paired t-test over the seeds that both have, 5 %. Of few seeds that says little, of one there is no "
    "test. – is not known; (n missing) tells of seeds without a value, and such a cell gets no mark."
)
LATEX_ESCAPES = {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "σ": r"$\sigma$"}
LATEX_ESCAPES |= {"±": r"$\pm$", "†": r"$^\dagger$", "–": "--"} | {one: f"\\{one}" for one in "&%$#_{}"}
LATEX_ESCAPES["["] = "{[}"  # else a length, after the end of a row


def markdown(tables: Sequence[MeasureTable], title: str) -> str:
    parts = [f"# {markdown_text(title)}\n", f"{LEGEND}\n"]
    for table in tables:
        head, *rows = [f"| {' | '.join(cells)} |" for cells in written_lines(table, markdown_text, "**{}**")]
        rule = "|---" + "|---:" * len(table.columns) + "|"
        parts.append("\n".join([f"## {markdown_text(table.measure.name)}\n", head, rule, *rows, ""]))
    return "\n".join(parts)


def latex(tables: Sequence[MeasureTable], title: str) -> str:
    """The tables in LaTeX, for `\\input` into a document that uses booktabs."""
    parts = [f"% {title.splitlines()[0]}: {LEGEND}\n"]
    for table in tables:
        head, *rows = [rf"{' & '.join(cells)} \\" for cells in written_lines(table, latex_text, r"\textbf{{{}}}")]
        lines = [r"\begin{table}", r"\centering", rf"\caption{{{latex_text(table.measure.name)}}}"]
        lines += [rf"\begin{{tabular}}{{l{'r' * len(table.columns)}}}", r"\toprule", head, r"\midrule", *rows]
        parts.append("\n".join([*lines, r"\bottomrule", r"\end{tabular}", r"\end{table}", ""]))
    return "\n".join(parts)


def written_lines(table: MeasureTable, safe: Callable[[str], str], bold: str) -> list[list[str]]:
    """The head of a table and its lines, in a language in which `safe` makes a text plain."""

    def written(entry: TableEntry) -> str:
        mean, deviation = map(safe, shown(entry, table.measure))
        text = bold.format(mean) if entry.mark == BEST else mean
        text += f" {safe('±')} {deviation}" if deviation else ""
        text += safe("†") if entry.mark == NOT_WORSE else ""
        return text + (f" ({entry.unknown} missing)" if entry.unknown and entry.values else "")

    lines = [[safe(name), *map(written, entries)] for name, entries in table.lines.items()]
    return [[*map(safe, (table.of, *table.columns))], *lines]


def markdown_text(text: str) -> str:
    """Escape a text so that Markdown and HTML show it literally."""
    html = text.replace("&", "&amp;").replace("<", "&lt;")
    return re.sub(r"([\\|*`\[\]])", r"\\\1", html)


def latex_text(text: str) -> str:
    return "".join(LATEX_ESCAPES.get(one, one) for one in text)


HEAD = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'; img-src data:">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
"""
FIRST = ("mean", "worst", "tensor_bytes_sent", "seconds")
"""The columns of what a reader looks for first."""
RANKED = (
    "Means over the whole grid. Rank: the mean of a method's places by the mean in each column of the tables below, 1 "
    "the best. How far seeds agree is in the tables."
)


def study_page(
    name: str, rows: Sequence[Row], tables: Sequence[MeasureTable], pictures: Mapping[str, tuple[str, bytes]]
) -> str:
    """What won and the curves, and folded all else. pictures: by name, a title and an SVG."""
    style = files("launcher.page").joinpath("page.css").read_text(encoding="utf-8")
    failures = [row for row in rows if row["failure"]]
    how_many = f"{len(rows)} cells" + (f"; {len(failures)} failed, as told at the end" if failures else "")
    parts = [HEAD, f"<title>{escape(name)}</title><style>{style}</style></head><body><header>"]
    parts += [f"<h1>{escape(name)}</h1><p>{how_many}</p></header><main>"]
    if won := ranking(tables):
        table = _html_table("What won", [[*map(escape, line)] for line in won])
        parts.append(f"<section>{table}<p class='muted'>{RANKED}</p></section>")
    images = {name: _image(*picture) for name, picture in pictures.items()}
    if curves := images.pop("rounds", ""):
        parts.append(f"<figure><h2>{escape(pictures['rounds'][0])}</h2>{curves}</figure>")
    parts.append(f"<p class='muted'>{escape(LEGEND)}</p>")
    parts += [
        _folded(one.measure.name, _html_table(one.measure.name, written_lines(one, escape, "<b>{}</b>")))
        for one in tables
    ]
    parts += [_folded(pictures[name][0], image) for name, image in images.items()]
    if failures:
        failed = "\n".join(f"{row['command']}\n    {row['failure']}" for row in failures)
        parts.append(f"<section><h2>Failed</h2><pre>{escape(failed)}</pre></section>")
    again = "\n".join(row["command"] for row in rows)
    return "\n".join([*parts, _folded("Each cell once more", f"<pre>{escape(again)}</pre>"), "</main></body></html>\n"])


def ranking(found: Sequence[MeasureTable]) -> list[list[str]]:
    """The head, and a line a method, best first: its mean rank, and its means over the grid; empty without figures."""
    ranks: dict[str, list[int]] = {}
    chosen = [table for table in found if table.measure.column in FIRST]
    for table in (one for one in chosen if one.measure.column == "mean"):
        for column in zip(*table.lines.values(), strict=True):
            known = {name: one.mean for name, one in zip(table.lines, column, strict=True) if one.values}
            order = sorted(known.values(), reverse=table.measure.better == "up")
            for name, mean in known.items():
                ranks.setdefault(name, []).append(1 + order.index(mean))
    lines = [[chosen[0].of, "Rank", *(table.measure.name for table in chosen)]] if ranks else []
    for name in sorted(ranks, key=lambda name: fmean(ranks[name])):
        entries = [table.lines.get(name, ()) for table in chosen]
        lines.append([name, f"{fmean(ranks[name]):.1f}", *map(_over_grid, entries, (one.measure for one in chosen))])
    return lines


def _over_grid(entries: Sequence[TableEntry], measure: Measure) -> str:
    known = [one.mean for one in entries if one.values]
    missing = f" ({len(entries) - len(known)} missing)" if known and len(known) < len(entries) else ""
    return (measure.shown(fmean(known)) if known else "–") + missing


def _html_table(title: str, lines: Sequence[Sequence[str]]) -> str:
    """lines: of HTML, the head first; the first of each line names it."""
    (first, *others), *rows = lines
    head = f"<th scope=col class=text>{first}</th>" + "".join(f"<th scope=col>{one}</th>" for one in others)
    body = ""
    for name, *cells in rows:
        body += f"<tr><th scope=row class=text>{name}</th>{''.join(f'<td>{one}</td>' for one in cells)}</tr>"
    table = f"<table><caption>{escape(title)}</caption><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
    return f"<div class=scroll role=region tabindex=0 aria-label='{escape(title)}'>{table}</div>"


def _image(title: str, svg: bytes) -> str:
    on_any_paper = svg.replace(b"<svg ", b'<svg style="color-scheme:light dark" ', 1)
    return f"<img alt='{escape(title)}' src='data:image/svg+xml;base64,{base64.b64encode(on_any_paper).decode()}'>"


def _folded(title: str, content: str) -> str:
    return f"<section><details><summary>{escape(title)}</summary>{content}</details></section>"
