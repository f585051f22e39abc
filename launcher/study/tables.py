"""Tables of a study: a row a protocol, a column a place in the rest of the grid; mean ± deviation over the seeds."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean, stdev
from typing import Any

from launcher.study.cell import called
from launcher.study.measures import MEASURES, Measure
from launcher.study.results import Row

SIGNIFICANT = 0.05
ROUNDING = 1e-9
"""Differences that differ by no larger a share of themselves are one and the same: no test of chance has a meaning."""
BEST, NOT_WORSE = "best", "not worse"


@dataclass(frozen=True)
class Entry:
    """Of the seeds of one method in one place. unknown: how many seeds have no value. mark: BEST, NOT_WORSE or
    nothing."""

    values: Mapping[int, float]
    unknown: int = 0
    mark: str = ""

    @property
    def mean(self) -> float:
        return fmean(self.values.values())


@dataclass(frozen=True)
class Table:
    """of: the axis of which each value has a line."""

    measure: Measure
    of: str
    columns: Sequence[str]
    lines: Mapping[str, Sequence[Entry]]


def tables(rows: Sequence[Row], axes: Sequence[str]) -> list[Table]:
    """A table a measure of which anything is known; where cells are judged by several figures, one for each of those.
    axes: the grid's keys."""
    of = "protocol" if "protocol" in axes else next((axis for axis in axes if axis != "seed"), "protocol")
    others = elsewhere(rows, axes, of)
    made = []
    for measure in MEASURES:
        for figure in dict.fromkeys(row["figure"] for row in rows) if measure.better == "figure" else [None]:
            judged = [row for row in rows if figure in (None, row["figure"])]
            if any(row.get(measure.column) is not None for row in judged):
                made.append(_table(judged, of, others, _directed(measure, judged[0])))
    return made


def _directed(measure: Measure, row: Row) -> Measure:
    if measure.better != "figure":
        return measure
    return replace(measure, better=row["better"], name=f"{measure.name}, {row['figure']}")


def _table(rows: Sequence[Row], of: str, others: Sequence[str], measure: Measure) -> Table:
    columns = list(dict.fromkeys(place(row, others) for row in rows))
    names = list(dict.fromkeys(str(row[of]) for row in rows))
    marked = {}
    for column in columns:
        here = [row for row in rows if place(row, others) == column]
        seeds = len({row["seed"] for row in here})
        entries = {name: _entry([row for row in here if str(row[of]) == name], measure, seeds) for name in names}
        marked[column] = _marked(entries, measure)
    return Table(measure, of, columns, {name: [marked[column][name] for column in columns] for name in names})


def elsewhere(rows: Sequence[Row], axes: Sequence[str], of: str) -> list[str]:
    """The axes besides `of` and the seeds along which there is more than one value."""
    return [axis for axis in axes if axis not in (of, "seed") and len({row[axis] for row in rows}) > 1]


def place(row: Row, axes: Sequence[str]) -> str:
    """Where in the grid a row lies, in words."""
    return ", ".join(called(axis, row[axis]) for axis in axes) or "all"


def _entry(rows: Sequence[Row], measure: Measure, seeds: int) -> Entry:
    """seeds: how many any method has here."""
    if len({row["seed"] for row in rows}) < len(rows):
        raise ValueError("two rows of one method, place and seed")
    values = {row["seed"]: row[measure.column] for row in rows if row.get(measure.column) is not None}
    return Entry(values, seeds - len(values))


def _marked(entries: Mapping[str, Entry], measure: Measure) -> dict[str, Entry]:
    """With marks, where there are several to choose from."""
    known = {name: entry for name, entry in entries.items() if entry.values and not entry.unknown}
    if len(known) < 2 or not measure.better:
        return {**entries}
    choose = max if measure.better == "up" else min
    best = choose(known.values(), key=lambda entry: entry.mean)
    marks = {name: mark(entry, best) for name, entry in known.items()}
    return {name: Entry(one.values, one.unknown, marks.get(name, "")) for name, one in entries.items()}


def mark(entry: Entry, best: Entry) -> str:
    """Whether it is the best, or not significantly worse: by a paired t-test over at least two seeds that both have."""
    if entry.mean == best.mean:
        return BEST
    pairs = [entry.values[seed] - best.values[seed] for seed in sorted(entry.values.keys() & best.values.keys())]
    if len(pairs) < 2 or stdev(pairs) <= ROUNDING * max(map(abs, pairs)):
        return ""
    from scipy import stats

    found: Any = stats.ttest_1samp(pairs, 0.0)
    return NOT_WORSE if found.pvalue >= SIGNIFICANT else ""


def shown(entry: Entry, measure: Measure) -> tuple[str, str]:
    """The mean and the deviation as texts; the second is empty for one seed, both are where nothing is known."""
    if not entry.values:
        return "–", ""
    values = [*entry.values.values()]
    return measure.shown(fmean(values)), measure.shown(stdev(values)).removeprefix("+") if len(values) > 1 else ""
