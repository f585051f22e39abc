"""What a run came to, from its peers' directories, wherever and by whomever they were started.

`dfl-launch summary` sums up one run; `dfl-launch report` writes one page that shows a run or compares several, and its
tables and figures as files. `after_run` is the page that every run leaves.
"""

import argparse
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from launcher.output import Output
from launcher.page.build import differences, document_of
from launcher.page.charts import PICTURES, check_installed, look, picture, vega_script
from launcher.page.document import ReportDocument, as_csv, as_trace
from launcher.page.html import figures, page
from launcher.page.run_data import RunData
from launcher.reports import summary_json, summary_text
from launcher.reports.collected import Collected
from launcher.reports.summary import TimeSpent
from launcher.reports.summary_json import Summary
from launcher.run_files import RunFiles
from peer.errors import FailedError, InputError
from peer.files import unwritable_reason, write_atomically
from peer.spec.federation import Spec
from peer.telemetry.results import AUDIT


def summarise(collected: Collected, directories: Sequence[Path]) -> Summary:
    """The summary of the run in these directories, with the time that its launcher has counted and what taking part was
    worth, if it has said so. FailedError if no peer has finished."""
    first, *others = directories
    counted = RunFiles(first.absolute()).totals
    made = collected.summarise(None if others or not counted.exists() else TimeSpent.read(counted))
    written = None if others or made.missing else _written(first, collected.spec)
    return replace(made, worth=written.worth) if written else made


def check_out(out: Path) -> None:
    """InputError where no file can be made."""
    if out.is_dir():
        raise InputError(f"--out {out}: is a directory; give the name of a file")
    if unwritable := unwritable_reason(out.parent):
        raise InputError(f"--out {out}: {unwritable}")
    if not out.parent.exists():
        raise InputError(f"--out {out}: there is no directory {out.parent}; make it, or give another place")


TRACE = "trace.json"
PRIVATE = 0o600
"""The file's mode, as it tells what otherwise only peers' own directories hold."""


def report_command(arguments: argparse.Namespace, output: Output) -> int:
    """Write the page, and what else is wanted. InputError before anything is written."""
    directories = [run for place in arguments.directories for run in _runs_in(place)]
    also = [kind for kind in ("csv", "perfetto", *PICTURES) if getattr(arguments, kind)]
    out = arguments.out or (arguments.directories[0] if len(arguments.directories) == 1 else Path()) / "report.html"
    check_installed()
    found, left_out = _readable(directories, arguments.code, strict=directories == arguments.directories)
    document = compared(found)
    check_out(out)
    if also:
        _check_beside(out)
    write_atomically(out, page(document, vega_script()).encode(), permissions=PRIVATE)
    output.files(out, *_beside(document, out, also))
    output.say(*(f"left out: {why}" for why in left_out))
    absent = {label: [id for id in one.views.finishers if id not in one.histories] for label, one in found.items()}
    lacking = [f"{', '.join(ids)} of {label}" for label, ids in absent.items() if ids]
    output.say(*(f"not shown: {peers}, whose directories are missing" for peers in lacking))
    return 0


def _readable(
    directories: Sequence[Path], code: Path | None, *, strict: bool
) -> tuple[Mapping[str, RunData], Sequence[str]]:
    """The runs by their labels, and why others of a folder are left out: they are damaged, or judged by another figure
    than the first. strict: InputError for the first of those instead."""
    found, left_out = dict[str, RunData](), list[str]()
    for label, place in zip(labels(directories), directories, strict=True):
        try:
            one = told(place, code)
        except InputError as error:
            if strict:
                raise
            left_out.append(str(error))
            continue
        (first, known), *_ = [*found.items(), (label, one)]
        figure, other = known.headline.words, one.headline.words
        if figure == other:
            found[label] = one
        elif strict:
            raise InputError(f"{first} is judged by {figure} and {label} by {other}; compare runs of one task")
        else:
            left_out.append(f"{place} is judged by {other}, and not by {figure}")
    if not found:
        raise InputError(left_out[0])
    return found, left_out


def _runs_in(place: Path) -> Sequence[Path]:
    """The runs in a folder of runs; else the directory itself."""
    below = [] if RunFiles(place).federation.exists() else sorted(place.glob("*/federation.yaml"))
    return [one.parent for one in below] or [place]


def after_run(spec: Spec, files: RunFiles, summary: Summary | None) -> None:
    """The page of a run that a launcher has watched; InputError, or FailedError, where it cannot be."""
    check_installed()
    document = document_of(RunData.read(spec, {id: files.out(id) for id in spec.ids}, summary), files.path.name)
    write_atomically(files.report, page(document, vega_script()).encode(), permissions=PRIVATE)


def told(place: Path, code: Path | None) -> RunData:
    """The data of the run in a directory; InputError if there is none."""
    collected = Collected.find([place], code)
    summary = _written(place, collected.spec)
    if summary is None:
        with suppress(FailedError):  # no peer has finished
            summary = summarise(collected, [place])
    return RunData.read(collected.spec, collected.places, summary, collected.settings)


def _written(place: Path, spec: Spec) -> Summary | None:
    """The summary that the launcher wrote, if it is of this run, and of this length."""
    summary = summary_json.read(RunFiles(place).summary)
    if summary and (summary.name, summary.protocol, summary.seed) == (spec.name, spec.protocol.name, spec.seed):
        return summary if summary.rounds == spec.rounds or summary.stopped_early else None
    return None


def labels(directories: Sequence[Path]) -> list[str]:
    """A name for each run: its directory's, or the whole path where two have the same; InputError for one twice."""
    places = [place.resolve() for place in directories]
    for at, place in enumerate(places):
        if place in places[:at]:
            raise InputError(f"{directories[at]} is given twice; give each run once")
    names = [place.name for place in places]
    return [name if names.count(name) == 1 else str(given) for name, given in zip(names, directories, strict=True)]


def compared(found: Mapping[str, RunData]) -> ReportDocument:
    """One of all runs by their labels."""
    documents = [document_of(data, label) for label, data in found.items()]
    runs = [run for one in documents for run in one.runs]
    if len(runs) == 1:
        return documents[0]
    tables = {name: [row for one in documents for row in one.tables[name]] for name in documents[0].tables}
    differing, alike = differences([*found.values()])
    whole = alike and all(run.state == "finished" for run in runs)
    return ReportDocument(f"{len(runs)} runs compared", runs, tables, differing=differing, alike=whole)


def _beside(document: ReportDocument, out: Path, also: Collection[str]) -> Iterator[Path]:
    """What is written into the folder named like the page."""
    folder, tables = _folder(out), as_csv(document) if "csv" in also else {}
    contents = {f"{name}.csv": text.encode(errors="backslashreplace") for name, text in tables.items()}
    if "perfetto" in also:
        contents[TRACE] = as_trace(document).encode()
    for kind in [kind for kind in PICTURES if kind in also]:
        for figure in figures(document):
            contents[f"{figure.name}.{kind}"] = picture(figure.filled(document), look("light"), kind)
    if contents:
        try:
            folder.mkdir(exist_ok=True)
        except OSError as error:
            raise FailedError(f"cannot make {folder}: {error.strerror}; choose another page with --out") from None
    for name, content in contents.items():
        write_atomically(folder / name, content, permissions=PRIVATE)
        yield folder / name


def _folder(out: Path) -> Path:
    return out.with_suffix("") if out.suffix else out.with_name(f"{out.name}-files")


def _check_beside(out: Path) -> None:
    """InputError where the folder holds other files: a run's, say, or a peer's."""
    folder = _folder(out)
    kinds = {".csv", *(f".{kind}" for kind in PICTURES)}
    if folder.is_dir() and any(one.suffix not in kinds and one.name != TRACE for one in folder.glob("[!.]*")):
        raise InputError(
            f"--out {out}: tables and figures would go into {folder}, which holds other files; choose another"
        )


def summary_command(arguments: argparse.Namespace, output: Output) -> int:
    if arguments.out:
        check_out(arguments.out)
    collected = Collected.find(arguments.directories, arguments.code)
    try:
        made = summarise(collected, arguments.directories)
    except FailedError:
        data = RunData.read(collected.spec, collected.places, None)
        if arguments.json:
            output.document(data.so_far)
        else:
            summary_text.show_so_far(data.so_far, data.headline, data.proof, output.console)
        if arguments.out:
            output.say(f"{arguments.out} is not written before a peer has finished.")
        raise
    if arguments.out:
        summary_json.write(arguments.out, made)
    if arguments.json:
        output.text(summary_json.dump(made))
    elif not arguments.out:
        summary_text.report(made, collected.spec, output.console)
    if made.missing:
        named = ", ".join(f"{id} ({why})" for id, why in made.missing.items())
        raise FailedError(f"the summary covers only the peers with a result; missing: {named}")
    if unknown := made.privacy.get("unknown"):
        raise FailedError(
            f"the privacy verdict is incomplete, as {AUDIT} of {', '.join(unknown)} is missing or begins late"
        )
    return 0
