"""`dfl-launch study`: every cell of a grid, and the tables and figures of all."""

import os
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from launcher.formatting import plural
from launcher.output import Output
from launcher.page.figures.palette import look
from launcher.page.library import picture
from launcher.plan import plan
from launcher.study import results
from launcher.study.cell import Cell
from launcher.study.figures import figures
from launcher.study.grid import cells, read
from launcher.study.page import page
from launcher.study.pool import computed, ports, room
from launcher.study.progress import Shown
from launcher.study.stopping import Stopping
from launcher.study.tables import tables
from launcher.study.written_tables import latex, markdown
from peer.errors import FailedError, InputError
from peer.files import lock, why_unwritable, write_atomically
from peer.spec.agreement import sha256
from peer.spec.peer import FIRST_PORT

NEEDED = ("pandas", "pyarrow", "scipy", "vl_convert")


@dataclass(frozen=True)
class StudyOptions:
    """What the command line asks for."""

    file: Path
    out: Path | None = None
    at_once: int | None = None
    port: int = FIRST_PORT


def study(options: StudyOptions, output: Output) -> int:
    """Computes what is missing and writes the results; the exit code. Nothing is created where InputError is raised."""
    if missing := [name for name in NEEDED if find_spec(name) is None]:
        way_out = "install them with: pip install -c constraints.txt 'dfl[study]'"
        raise InputError(f"studies need packages that are missing here ({', '.join(missing)}); {way_out}")
    if options.at_once is not None and options.at_once < 1:
        raise InputError(f"--at-once {options.at_once}: give a number from 1 on")
    settings, document = read(options.file)
    directory = options.out or Path("studies") / settings.name
    made = cells(settings, document, directory)
    check_directory(directory)
    missing_cells = [cell for cell in made if not cell.finished]
    check_data(missing_cells)
    at_once = options.at_once or room(missing_cells)
    places = ports(missing_cells, at_once, options.port)
    with sole_use(directory):
        write_atomically(directory / "study.yaml", options.file.read_bytes())
        return carried_out(made, missing_cells, places, output)


def carried_out(made: Sequence[Cell], missing: Sequence[Cell], places: Sequence[int], output: Output) -> int:
    kept, failures = len(made) - len(missing), dict[str, str]()
    directory = made[0].directory
    output.say(f"{plural(len(made), 'cell')}, {kept} of them finished already, {len(places)} at once, in {directory}")
    with Stopping.listening() as stopping:
        everything = closing(computed(missing, places, stopping))
        with Shown.on(output, len(made), kept) as shown, everything as computing:
            for ended in computing:
                shown.tell(ended)
                if ended.failure:
                    failures[ended.cell.key] = ended.failure
        if stopping.code:
            output.say("Stopped; the same command goes on. The finished cells are kept.")
            return stopping.code
    write(made, failures)
    output.say(*(str(directory / name) for name in ("results.csv", "tables.md", "study.html")))
    if failures:
        how_many = f"{len(failures)} of {plural(len(made), 'cell')} failed and are in no table"
        raise FailedError(f"{how_many}; results.csv says why, and the same command tries them again")
    return 0


def write(made: Sequence[Cell], failures: dict[str, str]) -> None:
    """All files of the results."""
    directory, name, axes = made[0].directory, made[0].spec.name, [*made[0].labels]
    rows, by_round = results.rows(made, failures), [*results.round_rows(made)]
    found = tables(rows, axes)
    (directory / "figures").mkdir(exist_ok=True)
    pictures = {}
    for file, (title, chart) in figures(rows, by_round, axes).items():
        pictures[file] = title, picture(chart, look("light"), "svg")
        write_atomically(directory / "figures" / f"{file}.svg", pictures[file][1])
        write_atomically(directory / "figures" / f"{file}.png", picture(chart, look("light"), "png"))
    for file, text in {
        "results.csv": results.as_csv(rows),
        "tables.md": markdown(found, name),
        "tables.tex": latex(found, name),
        "study.html": page(name, rows, found, pictures),
    }.items():
        write_atomically(directory / file, text.encode())
    write_atomically(directory / "results.parquet", results.as_parquet(rows))
    write_atomically(directory / "rounds.parquet", results.as_parquet(by_round))


def check_directory(directory: Path) -> None:
    if why := why_unwritable(directory):
        raise InputError(f"{why}; choose another directory with --out")
    if directory.exists() and any(directory.iterdir()) and not (directory / "cells").is_dir():
        raise InputError(f"{directory} holds files that are no study's; choose another directory with --out")


def check_data(cells: Sequence[Cell]) -> None:
    """Opens the data of one cell of each kind and builds its model; InputError where its peers would refuse them."""
    kinds = {}
    for cell in cells:
        spec = cell.spec.canonical()
        kinds[sha256([spec[key] for key in ("data", "model", "task", "ring")])] = cell
    for cell in kinds.values():
        try:
            plan(cell.spec)
        except InputError as error:
            raise InputError(f"{error} (in the cell {cell.name})") from None


@contextmanager
def sole_use(directory: Path) -> Iterator[None]:
    (directory / "cells").mkdir(parents=True, exist_ok=True)
    held = os.open(directory / "cells", os.O_RDONLY)
    try:
        if not lock(held):
            raise InputError(f"another dfl-launch is at work in {directory}; wait for it or choose another --out")
        yield
    finally:
        os.close(held)
