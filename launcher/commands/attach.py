"""`dfl-launch attach`: go on watching peers whose launcher is gone."""

import asyncio
from dataclasses import replace
from pathlib import Path

from rich.console import Console

from launcher.commands.run import launch
from launcher.engines.base import Run
from launcher.supervision import record
from launcher.supervision.run_directory import RunDirectory
from peer.errors import InputError
from peer.spec.peer import load_spec


def attach(path: Path, console: Console) -> int:
    """Takes up the peers of the run in that directory and watches them to the end; the exit code as `run` has it."""
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
        directory.claim()
        return asyncio.run(launch(engine, replace(run, lock=directory.peers_lock), directory, console))
    finally:
        directory.release()
