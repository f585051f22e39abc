"""`dfl-launch study`: every cell of a grid, and the tables and figures of all.

What is looked at before anything is written or computed, the files of the results, and the command.
"""

import argparse
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, nullcontext
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from launcher.output import Output
from launcher.page.charts import PICTURES, look, picture
from launcher.plan import plan
from launcher.study import results
from launcher.study.figures import axis_figures, cell_figures, main_figures
from launcher.study.grid import Cell, cells, read_study
from launcher.study.pool import CellOutcome, StopSignal, check_port, compute_cells, max_parallel_cells
from launcher.study.tables import latex, markdown, ranking, study_page, tables
from launcher.table import listing
from peer.errors import FailedError, InputError
from peer.files import sole_use, unwritable_reason, write_atomically
from peer.spec.agreement import sha256
from peer.spec.loading import FIRST_PORT
from peer.text import plural, printable

NEEDED_PACKAGES = ("pandas", "pyarrow", "scipy", "vl_convert")
STUDY_FILE = "study.yaml"
"""The study's file, beside its results."""


def check_packages(extra: str) -> None:
    needed = (*NEEDED_PACKAGES, "distributed") if extra == "dask" else NEEDED_PACKAGES
    if missing := [name for name in needed if find_spec(name) is None]:
        hint = f"install them with: pip install -c constraints.txt 'dfl[{extra}]'"
        raise InputError(f"studies need packages that are missing here ({', '.join(missing)}); {hint}")


def check_directory(directory: Path, name: str) -> None:
    if why := unwritable_reason(directory):
        raise InputError(f"{why}; choose another directory with --out")
    if directory.exists() and any(directory.iterdir()) and not (directory / "cells").is_dir():
        raise InputError(f"{directory} holds files that are no study's; choose another directory with --out")
    try:
        there = read_study(directory / STUDY_FILE)[0].name
    except InputError:  # none is there, or none that can be read
        return
    if there != name:
        raise InputError(f"{directory} is of the study `{there}`; choose another directory with --out")


def check_data(cells: Sequence[Cell]) -> None:
    """Open the data of one cell of each kind and build its model; InputError where its peers would refuse them."""
    kinds = {}
    for cell in cells:
        # Whole, as it has the places of files, which the peers need not agree on.
        spec = cell.spec.model_dump(mode="json")
        kinds[sha256([spec[key] for key in ("data", "model", "task", "ring")])] = cell
    for cell in kinds.values():
        try:
            plan(cell.spec)
        except InputError as error:
            raise InputError(f"{error} (in the cell {cell.name})") from None


FIGURE_KINDS = ("rounds", "fairness", "bytes", "axis", "ring", "reputation")
"""The beginnings of figures' names."""


def write_results(made: Sequence[Cell], failures: Mapping[str, str]) -> list[list[str]]:
    """All of them, the tidy tables first: whatever becomes of the figures, those are there. Return the ranking."""
    directory, name, axes = made[0].directory, made[0].spec.name, [*made[0].labels]
    rows, by_round = results.write(made, failures)
    found = tables(rows, axes)
    write_atomically(directory / "tables.md", markdown(found, name).encode())
    write_atomically(directory / "tables.tex", latex(found, name).encode())
    charts = main_figures(rows, by_round, axes) | axis_figures(rows, axes) | cell_figures(made, axes)
    pictures = _draw_figures(directory / "figures", charts)
    write_atomically(directory / "study.html", study_page(name, rows, found, pictures).encode())
    return ranking(found)


def _draw_figures(place: Path, charts: Mapping[str, tuple[str, Any]]) -> dict[str, tuple[str, bytes]]:
    """Draw the figures; return titles and SVGs for the page by name. Figures of an earlier grid are removed."""
    place.mkdir(exist_ok=True)
    drawn = {}
    for file, (title, chart) in charts.items():
        drawn[file] = title, picture(chart, look("any"), "svg")
        for kind in PICTURES:
            write_atomically(place / f"{file}.{kind}", picture(chart, look("light"), kind))
    for old in place.iterdir():
        if old.suffix in (".svg", ".png") and old.stem not in drawn and old.stem.partition("-")[0] in FIGURE_KINDS:
            old.unlink()
    return drawn


def study_command(arguments: argparse.Namespace, output: Output) -> int:
    """Compute what is missing and write the results; return the exit code. InputError before anything is created."""
    check_packages("dask" if arguments.dask else "study")
    if arguments.at_once is not None and arguments.at_once < 1:
        raise InputError(f"--at-once {arguments.at_once}: give a number from 1 on")
    settings, document = read_study(arguments.file)
    directory = arguments.out or Path("studies") / settings.name
    made = cells(settings, document, directory)
    check_directory(directory, settings.name)
    missing_cells = [cell for cell in made if not cell.files.finished]
    check_data(missing_cells)
    taken = f"another dfl-launch is at work in {directory}; wait for it or choose another --out"
    with backend(arguments, missing_cells, output) as (where, computed):
        (directory / "cells").mkdir(parents=True, exist_ok=True)
        with sole_use(directory / "cells", taken):
            write_atomically(directory / STUDY_FILE, arguments.file.read_bytes())
            kept = len(made) - len(missing_cells)
            output.say(f"{plural(len(made), 'cell')}, {kept} of them finished already, {where}, in {directory}")
            return run_cells(made, kept, computed, output)


Computed = Callable[[StopSignal], Generator[CellOutcome, None, None]]


@contextmanager
def backend(arguments: argparse.Namespace, cells: Sequence[Cell], output: Output) -> Iterator[tuple[str, Computed]]:
    """Where cells are computed, in words, and what computes them."""
    port = FIRST_PORT if arguments.port is None else arguments.port
    check_port(cells, port)
    if not arguments.dask or not cells:
        at_once = arguments.at_once or max_parallel_cells(cells)
        yield f"{at_once} at once", partial(compute_cells, cells, at_once, port)
        return
    from launcher.study.dask_pool import DaskPool

    with DaskPool.connected(arguments.dask, port, output.say) as pool:
        at_once = arguments.at_once or sum(pool.look().values())
        words = f"{at_once} at once by the Dask scheduler at {arguments.dask}"
        yield words, partial(pool.computed, cells, arguments.at_once)


def run_cells(made: Sequence[Cell], kept: int, computed: Computed, output: Output) -> int:
    failures, directory = dict[str, str](), made[0].directory
    with StopSignal.listening() as stopping:
        columns = TextColumn("cells"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TextColumn("left:")
        bar = Progress(*columns, TimeRemainingColumn(), console=output.console, redirect_stdout=False)
        task, on_screen = bar.add_task("cells", total=len(made), completed=kept), output.console.is_terminal
        with bar if on_screen else nullcontext(), closing(computed(stopping)) as computing:
            for done, (cell, failure) in enumerate(computing, kept + 1):
                bar.advance(task)
                if failure:
                    failures[cell.key] = failure
                    output.say(printable(f"failed: {cell.name}: {failure}"))
                elif not on_screen:
                    output.say(printable(f"{done} of {len(made)}: {cell.name}"))
        if stopping.code:
            output.say("Stopped; the same command goes on. The finished cells are kept.")
            return stopping.code
    for cell in made:
        cell.prepare()  # where it was computed the study, or its own code, may have lain elsewhere
    if won := write_results(made, failures):
        output.console.print(listing(won[0], won[1:], won[0][1:]))
    output.files(*(directory / name for name in ("results.csv", "tables.md", "study.html")))
    if failures:
        how_many = f"{len(failures)} of {plural(len(made), 'cell')} failed"
        raise FailedError(f"{how_many}; results.csv says why, and the same command tries again")
    return 0
