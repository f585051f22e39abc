"""The tables of docs/results, of the results of examples/studies."""

import csv
import re
from collections.abc import Collection, Iterator
from dataclasses import replace
from pathlib import Path

from launcher.study.grid import read_study
from launcher.study.tables import MeasureTable, markdown
from launcher.study.tables import tables as study_tables

STUDIES = Path(__file__).parents[2] / "examples" / "studies"


def measured(page: Path) -> Iterator[tuple[str, str]]:
    """The tables that a page has of studies' results, by what is written of their source: `data/x.csv: mean`."""
    for source, file, column in re.findall(r"<!-- from ((data/\S+): (\w+)), by", page.read_text(encoding="utf-8")):
        with (page.parent / file).open(encoding="utf-8", newline="") as lines:
            rows = [{key: plain(value) for key, value in row.items()} for row in csv.DictReader(lines)]
        study, _ = read_study(STUDIES / f"{Path(file).stem}.yaml")
        found = next(one for one in study_tables(rows, [*study.grid]) if one.measure.column == column)
        lines = markdown([short(found)], "").replace(" ± ", "±").splitlines()
        yield source, "".join(f"{line}\n" for line in lines if line.startswith("|"))


def short(table: MeasureTable) -> MeasureTable:
    """The table without rows and columns that have no figure, such as the gain of training alone over itself."""
    kept = {name: line for name, line in table.lines.items() if any(one.values for one in line)}
    places = [at for at in range(len(table.columns)) if any(line[at].values for line in kept.values())]
    lines = {name: [line[at] for at in places] for name, line in kept.items()}
    named = dict(zip(told_apart(lines), lines.values(), strict=True))
    return replace(table, columns=[table.columns[at] for at in places], lines=named)


def told_apart(names: Collection[str]) -> Iterator[str]:
    """The rows' names without the settings that all rows of the protocol share; the study's file has these."""
    for name in names:
        protocol, *settings = name.split()
        shared = set[str].intersection(*({*other.split()} for other in names if other.split()[0] == protocol))
        yield " ".join([protocol, *(setting for setting in settings if setting not in shared)])


def plain(value: str) -> int | float | str | None:
    """A field of a study's CSV: a number where it is one; None where it is empty."""
    for kind in (int, float):
        try:
            return kind(value)
        except ValueError:
            continue
    return value or None
