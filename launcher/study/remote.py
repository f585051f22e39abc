"""What a Dask worker does for a cell: a process of its own, in a directory that goes with it.

Dask finds these functions by their names and sends what they take and give: texts and numbers, no objects of dfl. So
that a worker begins at once, nothing here loads torch; the cell's process does.
"""

import os
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, TypedDict

from launcher.study.code import code, differing

SAID = "log.txt"
BROUGHT = (SAID, "rounds.json", "summary.json")
"""The last one says that the cell is finished, so it is to be written last."""
MOST_SAID = 1 << 20
"""Characters of a log that are brought."""
LOOK, PATIENCE = 1.0, 20.0
"""Seconds between two looks at whether the cell is still wanted; and for its process to end when it is told to."""


class Task(TypedDict):
    """spec: federation.yaml. port: the first that peers may take. code: of the machine that asks."""

    spec: str
    network: str
    port: int
    code: Mapping[str, str]


class Answer(TypedDict):
    """worker: its address. refused: why it computes none, or nothing. code: with which the cell's process has ended.
    files: their texts by name."""

    worker: str
    refused: str
    code: int
    files: dict[str, str]


@cache
def who() -> dict[str, str]:
    """The code of this machine, as it was when it was first asked for."""
    return code()


def compute(task: Task) -> Answer:
    """A cell, on this worker; one that has other code computes none."""
    from distributed import get_worker

    worker = get_worker()
    if other := differing(task["code"], code()):
        return {"worker": worker.address, "refused": other, "code": 1, "files": {}}
    # What a worker that is killed leaves in that directory the next one removes.
    with TemporaryDirectory(prefix="dfl-cell-", dir=worker.local_directory) as made:
        place = Path(made).resolve()
        (place / "federation.yaml").write_text(task["spec"], encoding="utf-8")
        ended = _process(worker, [str(place), task["network"], str(task["port"])])
        found = {name: _text(place / name) for name in BROUGHT}
        return {
            "worker": worker.address,
            "refused": "",
            "code": ended,
            "files": {name: text for name, text in found.items() if text is not None},
        }


def _text(file: Path) -> str | None:
    with suppress(FileNotFoundError):
        text = file.read_text("utf-8", "replace")
        return text[-MOST_SAID:] if file.name == SAID else text
    return None


def _process(worker: Any, arguments: list[str]) -> int:
    """The exit code of the cell's process, which hears by its stdin that this worker is gone."""
    # Not by multiprocessing: a worker's process is a daemon in its sense, which may have no children.
    command = [sys.executable, "-P", "-m", "launcher.study.worker", *arguments]
    where = os.pathsep.join(path for path in sys.path if path)
    with subprocess.Popen(command, stdin=subprocess.PIPE, env=os.environ | {"PYTHONPATH": where}) as process:
        while True:
            with suppress(subprocess.TimeoutExpired):
                return process.wait(LOOK)
            if not _wanted(worker):
                _end(process)


def _wanted(worker: Any) -> bool:
    """Whether somebody still waits for the task of this thread: Dask ends no thread, and tells it nothing."""
    task = worker.state.tasks.get(worker.get_current_task())
    return task is not None and task.state != "cancelled"


def _end(process: "subprocess.Popen[bytes]") -> None:
    process.terminate()
    try:
        process.wait(PATIENCE)
    except subprocess.TimeoutExpired:
        process.kill()
