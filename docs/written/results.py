"""The tables of docs/results, of the results of examples/studies."""

import csv
import re
from collections.abc import Iterator
from pathlib import Path

from launcher.study.grid import read_study
from launcher.study.tables import markdown
from launcher.study.tables import tables as study_tables

STUDIES = Path(__file__).parents[2] / "examples" / "studies"
EMPTY = re.compile(r"\| [^|]+ \|( – \|)+")
"""A row without any figure, such as the gain of training alone over itself."""


def measured(page: Path) -> Iterator[tuple[str, str]]:
    """The tables that a page has of studies' results, by what is written of their source: `data/x.csv: mean`."""
    for source, file, column in re.findall(r"<!-- from ((data/\S+): (\w+)), by", page.read_text(encoding="utf-8")):
        with (page.parent / file).open(encoding="utf-8", newline="") as lines:
            rows = [{key: plain(value) for key, value in row.items()} for row in csv.DictReader(lines)]
        study, _ = read_study(STUDIES / f"{Path(file).stem}.yaml")
        found = next(one for one in study_tables(rows, [*study.grid]) if one.measure.column == column)
        lines = markdown([found], "").replace(" ± ", "±").splitlines()
        rows_with_values = (line for line in lines if line.startswith("|") and not EMPTY.fullmatch(line))
        yield source, "".join(f"{line}\n" for line in rows_with_values)


def plain(value: str) -> int | float | str | None:
    """A field of a study's CSV: a number where it is one; None where it is empty."""
    for kind in (int, float):
        try:
            return kind(value)
        except ValueError:
            continue
    return value or None
