"""The files of a study's results."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from launcher.page.figures.palette import look
from launcher.page.library import picture
from launcher.study import results
from launcher.study.axis_figures import axis_figures
from launcher.study.cell import Cell
from launcher.study.cell_figures import cell_figures
from launcher.study.figures import figures
from launcher.study.page import page
from launcher.study.tables import tables
from launcher.study.written_tables import latex, markdown
from peer.files import write_atomically

KINDS = ("rounds", "fairness", "bytes", "axis", "ring", "reputation")
"""With which the names of figures begin."""


def write(made: Sequence[Cell], failures: Mapping[str, str]) -> None:
    """All of them, the tidy tables first: whatever becomes of the figures, those are there."""
    directory, name, axes = made[0].directory, made[0].spec.name, [*made[0].labels]
    rows, by_round = results.rows(made, failures), [*results.round_rows(made)]
    write_atomically(directory / "results.csv", results.as_csv(rows).encode())
    write_atomically(directory / "results.parquet", results.as_parquet(rows))
    write_atomically(directory / "rounds.parquet", results.as_parquet(by_round))
    found = tables(rows, axes)
    write_atomically(directory / "tables.md", markdown(found, name).encode())
    write_atomically(directory / "tables.tex", latex(found, name).encode())
    charts = figures(rows, by_round, axes) | axis_figures(rows, axes) | cell_figures(made, axes)
    pictures = _draw(directory / "figures", charts)
    write_atomically(directory / "study.html", page(name, rows, found, pictures).encode())


def _draw(place: Path, charts: Mapping[str, tuple[str, Any]]) -> dict[str, tuple[str, bytes]]:
    """By name, titles and SVGs. Figures of an earlier grid go."""
    place.mkdir(exist_ok=True)
    drawn = {}
    for file, (title, chart) in charts.items():
        drawn[file] = title, picture(chart, look("light"), "svg")
        write_atomically(place / f"{file}.svg", drawn[file][1])
        write_atomically(place / f"{file}.png", picture(chart, look("light"), "png"))
    for old in place.iterdir():
        if old.suffix in (".svg", ".png") and old.stem not in drawn and old.stem.partition("-")[0] in KINDS:
            old.unlink()
    return drawn
