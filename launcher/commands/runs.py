"""The runs of a directory (`dfl-launch list`), and what the peers of one have logged (`dfl-launch logs`)."""

import argparse
import re
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, closing, suppress
from datetime import datetime
from heapq import merge
from operator import itemgetter
from pathlib import Path
from typing import Any

from launcher.headline import Headline
from launcher.monitor.federation import Tail, last_lines
from launcher.output import Output
from launcher.recorded_spec import RecordedSpec
from launcher.reports import summary_json
from launcher.run_files import RunFiles
from launcher.supervision.run_directory import RunDirectory
from launcher.table import fitting
from peer.errors import InputError
from peer.files import open_plain
from peer.telemetry.events import RoundDone, read_events
from peer.telemetry.results import EVENTS
from peer.text import number, printable

POLL_SECONDS = 0.25
"""Seconds between two looks at logs that are followed."""
REACH = 1 << 18
"""Bytes at the end of a peer's events in which its last round is looked for."""
MAX_TEXT = 32
"""Letters of a cell, such as a directory's name."""
STAMP = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d")
"""How a line of a log begins, but for those that go on in a next one."""


def list_command(arguments: argparse.Namespace, output: Output) -> int:
    """List the runs in a directory, the newest last."""
    place: Path = arguments.directory
    try:
        found = [RunFiles(one.absolute()) for one in place.iterdir() if RunFiles(one).federation.is_file()]
    except OSError as error:
        raise InputError(f"{place}: {error.strerror}; give a directory that holds runs") from None
    entries = [_entry(files) for files in sorted(found, key=lambda files: files.federation.stat().st_mtime)]
    if output.as_json:
        output.document(entries)
    elif entries:
        rows = [{name: _shown(name, one[name]) for name in one} for one in entries]
        output.console.print(fitting(rows, ("began", "worst", "peers"), output.console))
    else:
        output.say(f"{place} holds no runs.")
    return 0


def _entry(files: RunFiles) -> dict[str, Any]:
    """One run: its name, what it is, how far it came, and what its peers' models are worth; null: not known."""
    keys = None
    with suppress(InputError):
        keys = RecordedSpec.read(files.federation).keys
    ids = [member.id for member in keys.ring] if keys else []
    summary = summary_json.read(files.summary)
    done = summary.rounds if summary else min(map(_last_round, map(files.out, ids)), default=0)
    works = RunDirectory(files.path).is_in_use()
    best = worst = None
    if summary and summary.worst_accuracy is not None:
        headline = Headline(test=(keys and keys.test) or "matched")
        best, worst = headline.of_means(summary.mean_accuracy), summary.worst_accuracy
    elif summary and (figures := next(iter(summary.figures.values()), None)):
        best, worst = figures["mean"], figures["worst"]
    return {
        "run": files.path.name,
        "protocol": keys and keys.protocol.name,
        "peers": len(ids) or None,
        "rounds": done,
        "of": keys and keys.rounds,
        "state": "running" if works else "finished" if summary else "incomplete" if works is False else "not readable",
        "mean": best,
        "worst": worst,
        "began": datetime.fromtimestamp(files.federation.stat().st_mtime).isoformat(" ", "minutes"),
    }


def _last_round(place: Path) -> int:
    """The last round that a peer has completed, by the end of its events."""
    told = (line.encode() for line in last_lines(place / EVENTS, REACH, REACH))
    return max((one.round for one in read_events(told) if isinstance(one, RoundDone)), default=0)


def _shown(name: str, value: Any) -> str:
    text = number(value) if name in ("mean", "worst") else printable("–" if value is None else f"{value}")
    return text if len(text) <= MAX_TEXT else f"{text[: MAX_TEXT - 1]}…"


def logs_command(arguments: argparse.Namespace, output: Output) -> int:
    """Print the logs of a run's peers, or of some, in the order of time; followed until somebody ends that."""
    files = RunFiles(arguments.run.absolute())
    known = [one.parent.name for one in sorted(files.path.glob("*/log.txt"))]
    if not known:
        raise InputError(
            f"{arguments.run} holds no peer's log, or none that you may read; give the directory of a run that was "
            "launched on this machine, as a peer that was started by hand logs to its standard error"
        )
    if unknown := [id for id in arguments.peers if id not in known]:
        raise InputError(f"{arguments.run} holds no log of {', '.join(unknown)}; it has {', '.join(known)}")
    ids = arguments.peers or known
    width = max(map(len, ids)) + 2 if len(ids) > 1 else 0
    if not arguments.follow:
        _print(width, *(_stamped(id, _whole(files.log(id))) for id in ids))
        return 0
    with ExitStack() as opened:
        tails = {id: opened.enter_context(closing(Tail(files.log(id)))) for id in ids}
        while True:
            _print(width, *(_stamped(id, tail.lines()) for id, tail in tails.items()))
            time.sleep(POLL_SECONDS)  # the standard library cannot watch a file for changes


Line = tuple[str, str, str]
"""When, which peer, and what."""


def _whole(log: Path) -> Iterator[bytes]:
    """A log from its older half on, with a last line that has no end."""
    for place in (log.with_name(f"{log.name}.1"), log):
        with suppress(OSError), open_plain(place) as file:
            yield from file


def _stamped(id: str, lines: Iterable[bytes]) -> Iterator[Line]:
    """A line without a time belongs to the one before it."""
    stamp = ""
    for line in lines:
        text = printable(line.decode(errors="replace").rstrip("\n"))
        begins = STAMP.match(text)
        stamp = begins[0] if begins else stamp
        yield stamp, printable(id), text


def _print(width: int, *logs: Iterator[Line]) -> None:
    """Written as they are: of a gigabyte, each line cannot be laid out."""
    for _, id, text in merge(*logs, key=itemgetter(0)):
        sys.stdout.write(f"{id if width else '':<{width}}{text}\n")
    sys.stdout.flush()
