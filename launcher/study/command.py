"""`dfl-launch study`: every cell of a grid, and the tables and figures of all."""

from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from launcher.output import Output
from launcher.study.cell import Cell
from launcher.study.checks import STUDY, check_data, check_directory, check_packages
from launcher.study.grid import cells, read
from launcher.study.pool import Ended, check_port, computed, room
from launcher.study.progress import Shown
from launcher.study.stopping import Stopping
from launcher.study.written import write
from peer.errors import FailedError, InputError
from peer.files import sole_use, write_atomically
from peer.spec.peer import FIRST_PORT
from peer.text import plural


@dataclass(frozen=True)
class StudyOptions:
    """What the command line asks for."""

    file: Path
    out: Path | None = None
    at_once: int | None = None
    port: int = FIRST_PORT
    dask: str | None = None
    """The address of a scheduler."""


def study(options: StudyOptions, output: Output) -> int:
    """Computes what is missing and writes the results; the exit code. Nothing is created where InputError is raised."""
    check_packages("dask" if options.dask else "study")
    if options.at_once is not None and options.at_once < 1:
        raise InputError(f"--at-once {options.at_once}: give a number from 1 on")
    settings, document = read(options.file)
    directory = options.out or Path("studies") / settings.name
    made = cells(settings, document, directory)
    check_directory(directory, settings.name)
    missing_cells = [cell for cell in made if not cell.finished]
    check_data(missing_cells)
    with place(options, missing_cells, output) as where, alone_in(directory):
        write_atomically(directory / STUDY, options.file.read_bytes())
        return carried_out(made, missing_cells, where, output)


@dataclass(frozen=True)
class Place:
    """Where cells are computed, in words, and what computes them."""

    words: str
    computed: Callable[[Stopping], Generator[Ended, None, None]]


@contextmanager
def place(options: StudyOptions, cells: Sequence[Cell], output: Output) -> Iterator[Place]:
    check_port(cells, options.port)
    if not options.dask or not cells:
        at_once = options.at_once or room(cells)
        yield Place(f"{at_once} at once", partial(computed, cells, at_once, options.port))
        return
    from launcher.study.cluster import Cluster
    from launcher.study.handed_out import HandedOut

    with Cluster.connected(options.dask) as cluster:
        handed_out = HandedOut(cluster, options.port, output.say)
        at_once = options.at_once or sum(cluster.look().values())
        words = f"{at_once} at once by the Dask scheduler at {options.dask}"
        yield Place(words, partial(handed_out.computed, cells, options.at_once))


def carried_out(made: Sequence[Cell], missing: Sequence[Cell], where: Place, output: Output) -> int:
    kept, failures = len(made) - len(missing), dict[str, str]()
    directory = made[0].directory
    output.say(f"{plural(len(made), 'cell')}, {kept} of them finished already, {where.words}, in {directory}")
    with Stopping.listening() as stopping:
        everything = closing(where.computed(stopping))
        with Shown.on(output, len(made), kept) as shown, everything as computing:
            for ended in computing:
                shown.tell(ended)
                if ended.failure:
                    failures[ended.cell.key] = ended.failure
        if stopping.code:
            output.say("Stopped; the same command goes on. The finished cells are kept.")
            return stopping.code
    for cell in made:
        cell.prepare()  # where it was computed the study, or its own code, may have lain elsewhere
    write(made, failures)
    output.say(*(str(directory / name) for name in ("results.csv", "tables.md", "study.html")))
    if failures:
        how_many = f"{len(failures)} of {plural(len(made), 'cell')} failed"
        raise FailedError(f"{how_many}; results.csv says why, and the same command tries again")
    return 0


@contextmanager
def alone_in(directory: Path) -> Iterator[None]:
    (directory / "cells").mkdir(parents=True, exist_ok=True)
    with ExitStack() as held:
        try:
            held.enter_context(sole_use(directory / "cells"))
        except InputError:
            way_out = "wait for it or choose another --out"
            raise InputError(f"another dfl-launch is at work in {directory}; {way_out}") from None
        yield
