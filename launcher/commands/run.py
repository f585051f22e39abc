"""`dfl-launch run`: a whole federation of real peers, on this machine or wherever an engine can start them. And
`dfl-launch attach`: go on watching peers whose launcher is gone.

    run        nothing is created where the input is wrong: all checks come before the directory is touched
    launch     starts the peers, or takes up those that run already; shows them as a page, if that is wanted
    supervise  watches over them to the end and sums up
"""

import asyncio
import time
from collections.abc import Callable
from contextlib import closing, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from launcher.dashboard.server import Address, Dashboard, opened
from launcher.engines.base import Engine, Run, engine
from launcher.headline import Headline
from launcher.monitor.federation import Federation
from launcher.monitor.live_table import Display, display
from launcher.output import Output
from launcher.reports import summary_json
from launcher.reports import summary_text as recap
from launcher.reports.summary import summarise
from launcher.reports.summary_json import Summary
from launcher.reports.worth import solo_directory, solo_spec, with_worth
from launcher.run_files import RunFiles, default_directory
from launcher.supervision import run_directory
from launcher.supervision.run_directory import RunDirectory, Totals
from launcher.supervision.supervisor import LossTolerance, RestartPolicy, Stop, Supervisor
from peer.errors import FailedError, InputError
from peer.process import STOPPED, WRONG_INPUT
from peer.spec.blocks import describe_behaviours
from peer.spec.federation import Spec
from peer.spec.loading import load_spec
from peer.tasks import background, in_thread
from peer.telemetry.events import Misbehaving

POLL_SECONDS = 0.25
"""Seconds between two looks at the peers' files."""
TOTALS_SECONDS = 2.0
"""Seconds of a launch that are forgotten at most when it is killed."""


@dataclass(frozen=True)
class RunOptions:
    """What the command line asks for."""

    spec: Spec
    out: Path | None = None
    fresh: bool = False
    device: str | None = None
    certs: Path | None = None
    engine: Engine[Any] = field(default_factory=lambda: engine("local", {}))
    dashboard: Address | None = None
    beside: bool = False
    """Whether the same peers train alone, too, before they do so together."""


@dataclass(frozen=True)
class RunOutcome:
    """How a run ended: its exit code, and its summary if it has come to its end, or else why not."""

    code: int
    summary: Summary | None = None
    why: str = ""

    def told(self, output: Output) -> int:
        """The exit code. The summary is told as data, and the reason to those who have not seen it on a screen."""
        if self.summary and output.as_json:
            output.text(summary_json.dump(self.summary))
        elif self.why and (output.as_json or output.quiet):
            output.failure(self.why, self.code)
        return self.code


def run(options: RunOptions, output: Output) -> RunOutcome:
    """Runs the federation. Nothing is created where the exit code is 2, or InputError is raised."""
    spec = options.engine.place(options.spec)
    directory = RunDirectory(options.out or _default_directory(spec))
    try:
        spec = directory.named(spec, options.fresh)
        run = Run(spec, directory.files, options.device or "auto", options.certs)
        with opened(options.dashboard) as dashboard:
            finished = prepare(directory, run, options)
            if options.beside and (ended := train_alone(options, directory, output)).code:
                return ended
            if finished:
                if finished != (finished := with_worth(finished, spec, directory.path)):
                    summary_json.write(directory.files.summary, finished)
                    report_on(spec, directory.files, finished, output)
                recap.show(finished, spec, directory.path, output.console)
                output.say("This run is finished; --fresh runs it again.")
                return RunOutcome(0, finished)
            run = replace(run, lock=directory.peers_lock)
            return asyncio.run(launch(options.engine, run, directory, output, dashboard))
    finally:
        directory.release()


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
    if ended.code == WRONG_INPUT:
        directory.withdraw()
    elif not ended.code:
        output.say("now all together")
    return ended


def _default_directory(spec: Spec) -> Path:
    if (found := default_directory(spec.name)) is None:
        raise InputError(f"the name `{spec.name}` cannot name a directory; choose another or give --out")
    return found


def prepare(directory: RunDirectory, run: Run, options: RunOptions) -> Summary | None:
    """Makes the directory ready for the peers; the summary if the run there is finished already."""
    spec = run.spec
    directory.check()
    if directory.is_run():
        directory.claim()
        run_directory.check_record(directory.files, options.engine)
        if not options.fresh:
            directory.compare(spec)
            if finished := directory.finished(spec.rounds):
                return finished
    options.engine.check(run)
    directory.claim()
    if options.fresh:
        options.engine.clear(run)
        directory.discard()
    directory.write(spec, {id: options.engine.config(run, id) for id in spec.ids})
    run_directory.write_record(options.engine, run)
    return None


async def launch(
    engine: Engine[Any], run: Run, directory: RunDirectory, output: Output, dashboard: Dashboard | None = None
) -> RunOutcome:
    """Starts the peers, or takes up those that run, watches over them to the end and sums up."""
    spec, files = run.spec, run.files
    federation = Federation(files.path, spec.ids, spec.rounds, Headline.of(spec))
    if dashboard is None:
        federation.forget_past()
        return await supervise(engine, run, directory, output, federation)
    from launcher.dashboard.feed import (
        Feed,
        final_document,  # or every start would wait for it
    )

    output.say(f"dashboard: {dashboard.url}")
    async with dashboard.showing(Feed(spec, federation), output.say) as feed:
        federation.forget_past()
        ended = await supervise(engine, run, directory, output, federation)
        feed.end(
            ended.why or "The run has finished.",
            final_document(spec, files, ended.summary) if feed.is_watched else None,
        )
    return ended


async def supervise(
    engine: Engine[Any], run: Run, directory: RunDirectory, output: Output, federation: Federation
) -> RunOutcome:
    """What `launch` says, of a federation that has heard of the past."""
    begun, spec, files = time.monotonic(), run.spec, run.files
    earlier = Totals.read(files.totals)
    stop = Stop(engine.outlives_launcher)
    with closing(federation), stop.listening(), display(output.console) as screen:
        introduce(spec, screen)
        async with engine.deploy(replace(run, say=screen.say)) as deployment:
            policy = RestartPolicy.of(spec, limit=0 if engine.restarts_peers else RestartPolicy.limit)
            bearable = LossTolerance.of(spec, run.certs is not None)
            supervisor = Supervisor(deployment, files, federation, screen.say, policy, bearable)

            def totals() -> Totals:
                return earlier.plus(time.monotonic() - begun, supervisor.restarts)

            async with background() as tasks:
                # A display that breaks ends the peers: they must not go on unseen.
                tasks.create_task(watch(federation, screen))
                tasks.create_task(keep(totals, files.totals))
                await supervisor.run(spec.ids, stop)
            ended = stop.asked.is_set()
            if not stop.leaves:
                await deployment.collect()
        show(federation, screen)
    codes = [code for code in supervisor.codes.values() if code not in (0, *STOPPED)]
    if WRONG_INPUT in codes and not supervisor.restarts and not ended:
        directory.withdraw()  # what is wrong only a peer could find
        return RunOutcome(WRONG_INPUT, why=supervisor.why)
    spent = totals()
    spent.write(files.totals)
    if ended:
        way_on = f"The peers go on: `dfl-launch attach {files.path}` takes them up." if stop.leaves else RESUME
        output.say(way_on)
        return RunOutcome(stop.code, why=way_on)
    if codes and not supervisor.finished:
        report_on(spec, files, None, output)
        return RunOutcome(1, why=supervisor.why)
    summary = summarise(spec, files.path, wall_seconds=spent.wall_seconds, restarts=spent.restarts)
    summary = with_worth(summary, spec, files.path)
    summary_json.write(files.summary, summary)
    recap.show(summary, spec, files.path, output.console)
    report_on(spec, files, summary, output)
    return RunOutcome(0, summary)


RESUME = "Stopped; the same command resumes the run."


def introduce(spec: Spec, screen: Display) -> None:
    for drift in spec.data.drift:
        screen.say(f"the data drift: {drift}")
    if spec.behaviour:
        screen.say(str(Misbehaving(peers=describe_behaviours(spec.behaviour))))


def report_on(spec: Spec, files: RunFiles, summary: Summary | None, output: Output) -> None:
    """Writes report.html; a run is none the worse where that cannot be."""
    from launcher.commands.report import after_run  # or every start would wait for it

    try:
        after_run(spec, files, summary)
    except (InputError, FailedError) as error:
        output.say(f"no report: {error}")
    else:
        output.say(f"report: {files.report}")


async def watch(federation: Federation, screen: Display) -> None:
    while True:
        show(federation, screen)
        await asyncio.sleep(POLL_SECONDS)


async def keep(totals: Callable[[], Totals], path: Path) -> None:
    """Writes them down again and again, for a launcher that is killed at some time."""
    while True:
        await asyncio.sleep(TOTALS_SECONDS)
        with suppress(OSError):  # on a full disk the peers go on, and so does who watches them
            await in_thread(totals().write, path)


def show(federation: Federation, screen: Display) -> None:
    for line in federation.look(time.time()):
        screen.say(line)
    screen.show(federation)


def attach(path: Path, output: Output, at: Address | None = None) -> RunOutcome:
    """Takes up the peers of the run in that directory and watches them to the end; says how that was, as `run` does.

    at: where it is shown as a page, if anywhere.
    """
    if path.is_file():
        raise InputError(f"{path} is a file; give the directory of the run, such as {path.absolute().parent}")
    directory = RunDirectory(path)
    written = run_directory.read_record(directory.files)
    engine = run_directory.engine_of(written)
    if not engine.outlives_launcher:
        raise InputError(
            f"peers started by `--on {written.on}` end with their launcher; `dfl-launch run` with --out {path} resumes "
            "the run"
        )
    run = Run(load_spec(directory.files.federation), directory.files, written.device, written.certs)
    try:
        with opened(at) as dashboard:
            directory.claim()
            return asyncio.run(launch(engine, replace(run, lock=directory.peers_lock), directory, output, dashboard))
    finally:
        directory.release()
