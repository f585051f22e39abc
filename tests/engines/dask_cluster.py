"""A Dask scheduler and workers as processes of this machine."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import psutil
from real_peers import all_gone, until

ROOT = Path(__file__).parents[2]
SECONDS = 180.0
STARTS = "import runpy, sys; sys.argv = ['dask', *sys.argv[1:]]; {}; runpy.run_module('dask', run_name='__main__')"
QUICK = {"DASK_DISTRIBUTED__SCHEDULER__ALLOWED_FAILURES": "1", "PYTHONPATH": str(ROOT)}


@dataclass
class DaskCluster:
    """place: for its logs, and for what its workers write. address: the scheduler's."""

    place: Path
    address: str = ""
    started: list["subprocess.Popen[bytes]"] = field(default_factory=list)

    def start(self, *words: str, before: str = "pass", path: Path = ROOT) -> "subprocess.Popen[bytes]":
        """`dask` with these words. before: a statement that its process runs first; path: where it has dfl from."""
        command = [sys.executable, "-c", STARTS.format(before), *words]
        with (self.place / "dask.log").open("ab") as log:
            process = subprocess.Popen(
                command, stdout=log, stderr=log, env=os.environ | QUICK | {"PYTHONPATH": str(path)}, cwd=self.place
            )
        self.started.append(process)
        return process

    def start_scheduler(self, *words: str, before: str = "pass") -> "subprocess.Popen[bytes]":
        file = self.place / f"scheduler-{len(self.started)}.json"
        process = self.start(
            "scheduler", "--host", "127.0.0.1", "--port", "0", "--no-dashboard", "--scheduler-file", str(file), *words,
            before=before,
        )  # fmt: skip
        self.address = until(lambda: file.exists() and told(file), SECONDS, "the scheduler says its address")
        return process

    def start_worker(
        self, name: str, *words: str, before: str = "pass", path: Path = ROOT
    ) -> "subprocess.Popen[bytes]":
        """A thread in a process; what its cells write is in `place`/name."""
        where = ("--local-directory", str(self.place / name), "--nthreads", "1", "--no-dashboard")
        return self.start("worker", self.address, "--name", name, *where, *words, before=before, path=path)

    def cells(self, name: str = "*") -> list[Path]:
        """The events of peers of cells that are being computed by a worker."""
        return [*self.place.glob(f"{name}/dask-scratch-space/*/dfl-cell-*/run/*/events.jsonl")]


def told(file: Path) -> str:
    try:
        address: str = json.loads(file.read_text())["address"]
    except ValueError:  # half of it is written
        return ""
    return address


@contextmanager
def dask_cluster(place: Path, workers: Sequence[str] = (), *words: str) -> Iterator[DaskCluster]:
    """With workers of these names, and these words for the scheduler. All processes have ended after the block."""
    place.mkdir(parents=True, exist_ok=True)
    cluster = DaskCluster(place)
    try:
        cluster.start_scheduler(*words)
        for name in workers:
            cluster.start_worker(name)
        yield cluster
    finally:
        family = [one for process in cluster.started if process.poll() is None for one in descendants(process.pid)]
        # One after the other: a worker that is told to end just as its scheduler goes may never do so.
        for process in reversed(cluster.started):
            process.terminate()
            try:
                process.wait(SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        all_gone([one.pid for one in family], SECONDS)


def descendants(pid: int) -> list[psutil.Process]:
    return psutil.Process(pid).children(recursive=True)
