"""`dfl-launch run`: a whole federation of real peers, on this machine or wherever an engine can start them. And
`dfl-launch attach`: go on watching peers whose launcher is gone. And `dfl-launch discard`: remove what they have left
elsewhere.

    run        nothing is created where the input is wrong: all checks come before the directory is touched
    launch     starts the peers, or takes up those that run already, and shows them as a page, if that is wanted
    finish     what is left to do when the peers have ended: nothing of a run that was refused, else a way to go on,
               a report, a summary
"""

import argparse
import asyncio
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from launcher.certificates import Credentials
from launcher.dashboard.server import Dashboard, beside, opened
from launcher.engines.base import Engine, Run, engine
from launcher.monitor.federation import Federation
from launcher.output import Output
from launcher.reports import summary_json, summary_text
from launcher.reports.summary import summarise
from launcher.reports.summary_json import Summary
from launcher.reports.worth import solo_directory, solo_spec, with_worth
from launcher.supervision.run_directory import LaunchRecord, RunDirectory
from launcher.supervision.supervisor import Supervised, supervise
from peer.errors import FailedError, InputError
from peer.process import REFUSED
from peer.spec.federation import Spec


@dataclass(frozen=True)
class RunOptions:
    """What the command line asks for."""

    spec: Spec
    out: Path | None = None
    fresh: bool = False
    device: str | None = None
    certs: Path | None = None
    engine: Engine[Any] = field(default_factory=lambda: engine("local", {}))
    dashboard: str | None = None
    """HOST:PORT of the live page, if there is to be one."""
    beside: bool = False
    """Whether the same peers train alone, too, before they do so together."""


@dataclass(frozen=True)
class RunOutcome:
    """How a run ended: its exit code, and its summary if it has come to its end, or else why not."""

    code: int
    summary: Summary | None = None
    why: str = ""

    def report(self, output: Output) -> int:
        """Return the exit code; print the summary as data, and the reason where no screen has shown it."""
        if self.summary and output.as_json:
            output.text(summary_json.dump(self.summary))
        elif self.why and (output.as_json or output.quiet):
            output.failure(self.code, self.why)
        return self.code


def run(options: RunOptions, output: Output) -> RunOutcome:
    """Run the federation. Nothing is created where the exit code is one of REFUSED, or InputError is raised."""
    spec = options.engine.with_addresses(options.spec)
    with closing(RunDirectory.chosen(spec, options.out)) as directory:
        spec = directory.named(spec, options.fresh)
        replaces = options.fresh and directory.is_run()
        run = Run(spec, directory.files, options.device or "auto", options.certs, replaces, say=output.say)
        with opened(options.dashboard) as dashboard:
            finished = prepare(directory, run, options)
            if options.beside and (ended := train_alone(options, directory, output)).code:
                return ended
            if finished:
                summary = conclude(run, finished, output, is_written=True)
                output.say("This run is complete; use --fresh to run it again.")
                return RunOutcome(0, summary)
            return asyncio.run(launch(options.engine, run, directory, output, dashboard))


def train_alone(options: RunOptions, directory: RunDirectory, output: Output) -> RunOutcome:
    """The run of `solo` beside that in `directory`, of which nothing is left where its peers refuse to start."""
    out = solo_directory(directory.path)
    try:
        spec = solo_spec(options.spec)
        output.say(f"first each peer alone, in {out}")
        ended = run(replace(options, spec=spec, out=out, dashboard=None, beside=False), output)
    except InputError:
        directory.withdraw()
        raise
    if ended.code in REFUSED:
        directory.withdraw()
    elif not ended.code:
        output.say("now all together")
    return ended


def prepare(directory: RunDirectory, run: Run, options: RunOptions) -> Summary | None:
    """Make the directory ready for the peers; return the summary if the run there is finished already."""
    spec = run.spec
    directory.check()
    if directory.is_run():
        directory.claim()
        if not options.fresh:
            directory.compare(spec)
            if finished := directory.finished(spec):
                return finished
        directory.check_engine(options.engine, options.fresh)
    options.engine.check(run)
    directory.claim()
    if options.fresh:
        begun_by = LaunchRecord.read(run.files).engine if run.files.engine.exists() else options.engine
        begun_by.discard(run, running=True)
        directory.discard()
    directory.write(spec, {id: options.engine.config(run, id) for id in spec.ids})
    LaunchRecord.write(options.engine, run)
    return None


async def launch(
    engine: Engine[Any], run: Run, directory: RunDirectory, output: Output, dashboard: Dashboard | None = None
) -> RunOutcome:
    """Start the peers, or take up those that run; watch over them to the end, and finish the run."""
    run = replace(run, lock=directory.peers_lock)
    federation = Federation.from_spec(run.spec, run.files.path)
    chain = Credentials(run.certs).any() if dashboard else None
    async with beside(dashboard, output.say, run.spec, federation, chain, run.files) as feed:
        federation.forget_past()
        ended = finish(await supervise(engine, run, federation, output.console), run, directory, output)
        if feed:
            feed.conclude(ended.why or "The run has finished.", ended.summary)
    return ended


def finish(ended: Supervised, run: Run, directory: RunDirectory, output: Output) -> RunOutcome:
    if ended.refused:
        directory.withdraw()  # what is wrong only a peer could find
        return RunOutcome(min({*ended.peers.codes.values()} & {*REFUSED}), why=ended.peers.why)
    run.files.report.unlink(missing_ok=True)  # of an earlier end; there may be none of this one
    ended.spent.write(run.files.totals)
    if ended.stop.asked.is_set():
        hint = "Stopped; the same command resumes the run."
        if ended.stop.detach:
            hint = f"The peers keep running; reattach with `dfl-launch attach {run.files.path}`."
        output.say(hint)
        return RunOutcome(ended.stop.code, why=hint)
    if ended.peers.failed and not ended.peers.finished:
        write_report(run, None, output)
        return RunOutcome(1, why=ended.peers.why)
    return RunOutcome(0, conclude(run, summarise(run.spec, run.files.path, ended.spent), output))


def conclude(run: Run, summary: Summary, output: Output, *, is_written: bool = False) -> Summary:
    """Write the summary, with what taking part was worth, and show it; of one that is written, only what is new."""
    judged = with_worth(summary, run.spec, run.files.path)
    is_new = not is_written or judged != summary
    if is_new:
        summary_json.write(run.files.summary, judged)
    summary_text.show(judged, run.spec, run.files.path, output.console)
    if is_new:
        write_report(run, judged, output)
    return judged


def write_report(run: Run, summary: Summary | None, output: Output) -> None:
    """Write report.html; a run is none the worse where that cannot be."""
    from launcher.commands.report import after_run  # or every start would wait for it

    try:
        after_run(run.spec, run.files, summary)
    except (InputError, FailedError) as error:
        output.say(f"no report: {error}")
    else:
        output.say(f"report: {run.files.report}")


def attach(path: Path, output: Output, at: str | None = None) -> RunOutcome:
    """Take up the peers of the run in that directory and watch them to the end; return how that was, as `run` does.

    at: HOST:PORT where it is shown as a page, if anywhere.
    """
    directory, record = begun(path)
    engine, finished = record.engine, None
    if not engine.outlives_launcher and directory.files.summary.exists():
        finished = directory.finished(record.run(directory.files).spec)
    if not (engine.outlives_launcher or finished):
        raise InputError(
            f"peers started by `--on {record.on}` end with their launcher; `dfl-launch run` with --out {path} resumes "
            "the run"
        )
    run = record.run(directory.files)
    if finished:
        summary_text.show(finished, run.spec, run.files.path, output.console)
        output.say(f"This run has finished; `dfl-launch report {path}` writes the page that shows it.")
        return RunOutcome(0, finished)
    with closing(directory), opened(at) as dashboard:
        directory.claim()
        output.say(*Federation.from_spec(run.spec, run.files.path).last_refusals())
        return asyncio.run(launch(engine, run, directory, output, dashboard))


def discard_command(arguments: argparse.Namespace, output: Output) -> int:
    """Remove what the run's peers have left outside its directory, if they have ended."""
    directory, record = begun(arguments.run)
    run = record.run(directory.files)
    with closing(directory):
        directory.claim()
        removed = record.engine.discard(run)
        run.files.place.unlink(missing_ok=True)
    output.say(
        f"Removed: {removed}; what was copied to {run.files.path} stays."
        if removed
        else f"There is nothing to discard: `--on {record.on}` has left nothing outside {run.files.path}."
    )
    return 0


def begun(path: Path) -> tuple[RunDirectory, LaunchRecord]:
    """Return the directory, not claimed yet, and how a launcher began the run in it. InputError if none did."""
    if path.is_file():
        raise InputError(f"{path} is a file; give the directory of the run, such as {path.absolute().parent}")
    directory = RunDirectory(path)
    return directory, LaunchRecord.read(directory.files)
