"""`dfl-launch attach`: go on watching peers whose launcher is gone."""

import asyncio
from dataclasses import replace
from pathlib import Path

from launcher.commands.run import Ended, launch
from launcher.dashboard.address import Address
from launcher.dashboard.dashboard import opened
from launcher.engines.base import Run
from launcher.output import Output
from launcher.supervision import record
from launcher.supervision.run_directory import RunDirectory
from peer.errors import InputError
from peer.spec.peer import load_spec


def attach(path: Path, output: Output, at: Address | None = None) -> Ended:
    """Takes up the peers of the run in that directory and watches them to the end; says how that was, as `run` does.

    at: where it is shown as a page, if anywhere.
    """
    if path.is_file():
        raise InputError(f"{path} is a file; give the directory of the run, such as {path.absolute().parent}")
    directory = RunDirectory(path)
    written = record.read(directory.files)
    engine = record.engine_of(written)
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
