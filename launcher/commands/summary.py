"""`dfl-launch summary`: what a run came to, from its peers' directories, wherever and by whomever they were started."""

from collections.abc import Sequence
from pathlib import Path

from launcher.output import Output
from launcher.reports import console as recap
from launcher.reports import summary_json
from launcher.reports.collected import Collected
from launcher.reports.summary import Spent
from launcher.reports.summary_json import Summary
from launcher.run_files import RunFiles
from launcher.supervision.totals import Totals
from peer.errors import InputError
from peer.files import why_unwritable


def summarise(directories: Sequence[Path], code: Path | None) -> tuple[Collected, Summary]:
    """The run of which these are the peers, and its summary. InputError, or FailedError if nobody has finished."""
    collected = Collected.find(directories, code)
    return collected, collected.summarise(_spent(directories))


def show(collected: Collected, summary: Summary, output: Output) -> None:
    if output.as_json:
        output.text(summary_json.dump(summary))
    else:
        recap.report(summary, collected.spec, output.console)


def check_out(out: Path) -> None:
    """InputError where no file can be made."""
    if out.is_dir():
        raise InputError(f"--out {out}: is a directory; give the name of a file")
    if unwritable := why_unwritable(out.parent):
        raise InputError(f"--out {out}: {unwritable}")
    if not out.parent.exists():
        raise InputError(f"--out {out}: there is no directory {out.parent}; make it, or give another place")


def write(summary: Summary, out: Path) -> None:
    summary_json.write(out, summary)


def _spent(directories: Sequence[Path]) -> Spent | None:
    """As a launcher has counted it, of a run's directory; None where only the peers have."""
    (first, *others) = directories
    counted = RunFiles(first.absolute()).totals
    if others or not counted.exists():
        return None
    totals = Totals.read(counted)
    return Spent(totals.wall_seconds, totals.restarts)
