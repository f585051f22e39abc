"""What a Dask worker does for a cell: a process of its own, in a directory that goes with it.

It computes nothing unless its code is that of the study's machine: Python, torch, numpy, Dask and dfl's own files must
be alike on two machines so that they come to the same bits.

Dask finds these functions by their names and sends what they take and give: texts and numbers, no objects of dfl. So
that a worker begins at once, nothing here loads torch; the cell's process does.
"""

import hashlib
import os
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from functools import cache
from importlib import metadata
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

HERE = Path(__file__).parent
GIT_TIMEOUT_S = 10.0
"""Seconds for git to answer."""


def commit() -> str | None:
    """The checkout's commit, with `-dirty` where files differ from it; None where this is no checkout."""
    try:
        _git("ls-files", "--error-unmatch", Path(__file__).name)  # or it is some other repository's folder
        dirty = _git("status", "--porcelain", "--untracked-files=no")
        return _git("rev-parse", "HEAD") + ("-dirty" if dirty else "")
    except (OSError, subprocess.SubprocessError):
        return None


def _git(*words: str) -> str:
    done = subprocess.run(
        ["git", "-C", str(HERE), *words], capture_output=True, text=True, check=True, timeout=GIT_TIMEOUT_S
    )
    return done.stdout.strip()


ROOT = Path(__file__).parents[2]
"""The directory of the packages `peer` and `launcher`."""
PACKAGES = ("torch", "numpy", "distributed")
OWN = "dfl"


def code() -> dict[str, str]:
    """Versions by name; of dfl a digest of its own files, as a checkout and an installed one may be the same."""
    found = {"Python": ".".join(map(str, sys.version_info[:2]))}
    for name in PACKAGES:
        with suppress(metadata.PackageNotFoundError):
            found[name] = metadata.version(name)
    return found | {OWN: _digest(), "commit": commit() or ""}


def differing(here: Mapping[str, str], there: Mapping[str, str]) -> str:
    """What another machine has that this one has not, in words; empty where all is alike."""
    said = [
        f"{name} {there.get(name) or 'missing'} where this machine has {here.get(name, 'none')}"
        for name in ("Python", *PACKAGES)
        if here.get(name) != there.get(name)
    ]
    if here[OWN] != there.get(OWN):
        commits = [one.get("commit") or "unknown" for one in (there, here)]
        said.append(f"other code of {OWN} (commit {commits[0]}, and here {commits[1]})")
    return ", ".join(said)


def _digest() -> str:
    found = hashlib.sha256()
    for file in sorted(file for top in ("launcher", "peer") for file in (ROOT / top).rglob("*.py")):
        found.update(file.relative_to(ROOT).as_posix().encode() + b"\0" + file.read_bytes() + b"\0")
    return found.hexdigest()


LOG = "log.txt"
RESULT_FILES = (LOG, "rounds.json", "summary.json")
"""The last one says that the cell is finished, so it is to be written last."""
MAX_LOG = 1 << 20
"""Characters of a log that are brought."""
POLL_INTERVAL_S, END_TIMEOUT_S = 1.0, 20.0
"""Seconds between two looks at whether the cell is still wanted; and for its process to end when it is told to."""


CellAnswer = tuple[str, str, int, dict[str, str]]
"""The worker's address; why it computes none, or nothing; the code with which the cell's process has ended; the texts
of its files by name."""


@cache
def who() -> dict[str, str]:
    """The code of this machine, as it was when it was first asked for."""
    return code()


def compute(spec: str, network: str, port: int, wanted: Mapping[str, str]) -> CellAnswer:
    """A cell, on this worker; one that has other code than is wanted computes none.

    spec: federation.yaml. port: the first that peers may take.
    """
    from distributed import get_worker

    worker = get_worker()
    if other := differing(wanted, code()):
        return worker.address, other, 1, {}
    # What a worker that is killed leaves in that directory the next one removes.
    with TemporaryDirectory(prefix="dfl-cell-", dir=worker.local_directory) as made:
        place = Path(made).resolve()
        (place / "federation.yaml").write_text(spec, encoding="utf-8")
        ended = _run_process(worker, [str(place), network, str(port)])
        files = {name: (place / name).read_text("utf-8", "replace") for name in RESULT_FILES if (place / name).exists()}
        if LOG in files:
            files[LOG] = files[LOG][-MAX_LOG:]
        return worker.address, "", ended, files


def _run_process(worker: Any, arguments: list[str]) -> int:
    """The exit code of the cell's process, which hears by its stdin that this worker is gone."""
    # Not by multiprocessing: a worker's process is a daemon in its sense, which may have no children.
    command = [sys.executable, "-P", "-m", "launcher.study.worker", *arguments]
    where = os.pathsep.join(path for path in sys.path if path)
    with subprocess.Popen(command, stdin=subprocess.PIPE, env=os.environ | {"PYTHONPATH": where}) as process:
        while True:
            with suppress(subprocess.TimeoutExpired):
                return process.wait(POLL_INTERVAL_S)
            if not _wanted(worker):
                process.terminate()
                with suppress(subprocess.TimeoutExpired):
                    return process.wait(END_TIMEOUT_S)
                process.kill()


def _wanted(worker: Any) -> bool:
    """Whether the task of this thread is still wanted: Dask ends no thread, and tells it nothing."""
    task = worker.state.tasks.get(worker.get_current_task())
    return task is not None and task.state != "cancelled"
