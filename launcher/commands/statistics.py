"""`dfl-launch statistics`: what each site has, as the peers of a run of `statistics` told one another.

A table on the screen, and all of it as `statistics.csv` in the run's directory: a line for each class, and for each
column, of each site.
"""

import argparse
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from rich.table import Table

from extras.statistics import FEW, HIDDEN, VOXELS, Statistics
from launcher.output import Output
from launcher.page.document import csv_text
from launcher.table import listing
from peer.errors import InputError
from peer.files import write_atomically
from peer.learning.export import read_header
from peer.plugins import reference
from peer.spec.document import Document
from peer.telemetry.results import MODEL, read_result
from peer.text import number, plural

PROTOCOL = reference(Statistics)
COLUMNS = ("site", "samples", "class", "column", "missing", "mean", "deviation", "histogram", "bounds")
BARS = " ▁▂▃▄▅▆▇█"
MOST_SHOWN = 60


def run_line(arguments: argparse.Namespace) -> tuple[Path, list[str]]:
    """Where the federation's statistics go, and what follows `run` to have its peers tell them; none for a run's
    directory."""
    if arguments.federation.is_dir():
        return arguments.federation, []
    content = Document.read(arguments.federation).content
    out = arguments.out or Path("runs") / f"{content.get('name', arguments.federation.stem)}-statistics"
    sets = ["rounds=1", *(f"{key}=null" for key in ("stop_early", "finetune", "final_evaluation", "rewinds"))]
    sets += [] if content.get("hold_back") == "given" else ["hold_back=null"]
    if isinstance(training := content.get("training"), dict) and "patience" in training:
        sets.append("training.patience=null")
    data, flagged = content.get("data"), False
    if isinstance(data, dict):
        flagged = data.get("name") in ("csv", "parquet") and not data.get("stream")
        sets += ["data.standardize=null", *(["data.impute=category"] if flagged else [])]
    protocol = f"protocol={{name: '{PROTOCOL}', flagged: {str(flagged).lower()}}}"
    peers = ["--peers", str(arguments.peers)] if arguments.peers else []
    changes = (f"--set={one}" for one in (protocol, *sets, *arguments.overrides))
    return out, [str(arguments.federation), *peers, *changes]


def show(run: Path, output: Output) -> int:
    """Print the statistics in a run's directory; InputError where there are none."""
    found = [*statistics(run)]
    if output.as_json:
        output.document(found)
        return 0
    lists: dict[str, Callable[[Any], str]] = {"histogram": whole, "bounds": str}
    written = [one | {key: " ".join(map(word, one.get(key) or ())) for key, word in lists.items()} for one in found]
    write_atomically(run / "statistics.csv", csv_text(COLUMNS, written).encode())
    for kind in ("class", "column"):
        rows = [one for one in found if kind in one]
        if rows:
            output.console.print(table(rows[:MOST_SHOWN], kind))
        if len(rows) > MOST_SHOWN:
            output.say(f"and {plural(len(rows) - MOST_SHOWN, 'more line')} of this table")
    output.say(f"{run / 'statistics.csv'}: all of it; what speaks of very few samples is not told (–)")
    return 0


def table(rows: Sequence[dict[str, Any]], kind: str) -> Table:
    headings = (kind, "site", "samples") if kind == "class" else (kind, "site", "mean", "deviation", "missing", "")
    return listing(headings, (cells(one, kind) for one in rows), ("samples", "mean", "deviation", "missing"))


def cells(one: dict[str, Any], kind: str) -> list[str]:
    named = [one[kind], one["site"]]
    if kind == "class":
        return [*named, whole(one["samples"])]
    return [*named, number(one["mean"]), number(one["deviation"]), whole(one["missing"]), bars(one["histogram"])]


def whole(count: int | None) -> str:
    return "–" if count is None else str(count)


def bars(histogram: Sequence[int | None] | None) -> str:
    """A histogram in a word: a bar for each bin, a dash where it is hidden."""
    top = max((one for one in histogram or () if one), default=0)
    return "".join("–" if one is None else BARS[-(-8 * one // top) if top else 0] for one in histogram or ())


def statistics(run: Path) -> Iterator[dict[str, Any]]:
    """{site, samples} of each class and {site, missing, mean, deviation, histogram, bounds} of each column, by site;
    None for what was hidden. bounds: where the bins meet. InputError where the run told none."""
    peers = sorted(place for place in run.iterdir() if place.is_dir()) if run.is_dir() else []
    told = {place: sites for place in peers if (sites := sites_of(place))}
    if not told:
        raise InputError(
            f"{run}: holds no statistics; give the directory of a run of `statistics`, or a federation.yaml"
        )
    first, *others = told
    if differing := [place.name for place in others if told[place] != told[first]]:
        raise InputError(
            f"{run}: {first.name} and {', '.join(differing)} report different statistics, so one of them lies; ask "
            "their operators"
        )
    for site, numbers in told[first].items():
        yield from of_site(site, *numbers, first)


def sites_of(place: Path) -> dict[str, tuple[list[float], list[float], list[float]]]:
    """What a peer noted of each site, counts, histograms and edges as `extras.statistics` has them; none if it noted
    other."""
    result = read_result(place)
    notes = result.notes[0] if result and result.notes else {}
    found = {}
    for name, counts in notes.items():
        if name.startswith(COUNTS):
            site = name.removeprefix(COUNTS)
            histograms = notes.get(f"histograms of {site}", [])
            edges = notes.get("edges", [])
            numbers = all(map(are_numbers, (counts, histograms, edges)))
            if not numbers or not counts[1:] or not 0 <= counts[1] <= len(counts) - 2:
                return {}
            found[site] = counts, histograms, edges
    return found


COUNTS = "counts of "


def are_numbers(given: Any) -> bool:
    return isinstance(given, list) and all(isinstance(one, float | int) for one in given)


def of_site(
    site: str, counts: list[float], histograms: list[float], edges: list[float], place: Path
) -> Iterator[dict[str, Any]]:
    classes = int(counts[1])
    columns = (len(counts) - 2 - classes) // 3
    of_classes, of_columns = names_of(place, classes, columns)
    yield {"site": site, "class": "all", "samples": shown(counts[0])}
    for name, count in zip(of_classes, counts[2 : 2 + classes], strict=True):
        yield {"site": site, "class": name, "samples": shown(count)}
    bins = len(histograms) // columns if histograms and columns else 0
    bounded = bins > 0 and len(edges) == (bins - 1) * columns
    for at, name in enumerate(of_columns):
        missing, mean, deviation = counts[2 + classes + 3 * at : 5 + classes + 3 * at]
        few = missing == FEW
        yield {
            "site": site,
            "column": name,
            "missing": None if few else shown(missing),
            "mean": None if few else mean,
            "deviation": None if few else deviation,
            "histogram": [*map(shown, histograms[at * bins : (at + 1) * bins])] if bins else None,
            "bounds": edges[at::columns] if bounded else None,
        }


def shown(count: float) -> int | None:
    return None if count in (HIDDEN, FEW) else int(count)


def names_of(place: Path, classes: int, columns: int) -> tuple[Sequence[str], Sequence[str]]:
    """So many names of classes and of columns, as a peer's model has them; numbers where it has none."""
    result = read_result(place)
    voxels = VOXELS[:columns] if result and result.notes and "volumes" in result.notes[0] else ()
    columns -= len(voxels)
    inputs, of_classes = [f"column {at}" for at in range(columns)], tuple(map(str, range(classes)))
    with suppress(InputError):
        told = read_header(place / MODEL)
        shape = told.one_shape or ()
        if len(shape) > 1:
            inputs = [f"channel {at}, {what}" for at in range(shape[0]) for what in ("mean", "deviation")]
        elif shape:
            inputs = [*told.names.raw] or inputs[: shape[0]]
        of_classes = told.names.classes if len(told.names.classes) == classes else of_classes
    inputs += [f"target {at}" for at in range(columns - len(inputs))]
    return of_classes, [*inputs[:columns], *voxels]
