"""`dfl-launch study --dask` on the clusters that docs/studies.md has Dask start: on Slurm, and on hosts by SSH."""

import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pandas
import pytest
import slurm_cluster
import ssh_lab
from dask_cluster import ROOT
from small_studies import OF_THIS_COMPUTATION, results, written

pytest.importorskip("distributed")
pytestmark = pytest.mark.timeout(600)
PIPES = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
Start = Callable[[list[str]], "subprocess.Popen[str]"]
"""Starts a command, with `PIPES`, where the cluster can be reached."""


@contextmanager
def documented(place: Path, kind: str, here: dict[str, str], start: Start) -> Iterator[str]:
    """The cluster that the documentation's lines start; its address. here: what differs on this machine."""
    text = (ROOT / "docs" / "studies.md").read_text(encoding="utf-8")
    (lines,) = (block for block in re.findall(r"```python\n(.*?)```", text, re.DOTALL) if f"{kind}(" in block)
    for theirs, ours in here.items():
        assert theirs in lines
        lines = lines.replace(theirs, ours)
    (place / "cluster.py").write_text(lines)
    with start([sys.executable, "-u", str(place / "cluster.py")]) as process:
        assert process.stdout is not None
        try:
            yield process.stdout.readline().strip()
            process.communicate("\n")
            assert process.returncode == 0
        finally:
            process.kill()


def check_same(place: Path, address: str, start: Start) -> None:
    """Check that a study on the cluster ends in the same table as in one process."""
    assert address.startswith("tcp://")
    file = written(place)
    for name, more in (("here", []), ("there", ["--dask", address])):
        command = [sys.executable, "-m", "launcher.cli", "study", str(file), "--out", str(place / name), *more]
        with start(command) as process:
            said, _ = process.communicate()
        assert process.returncode == 0, said
    here, there = (results(place / name).drop(columns=OF_THIS_COMPUTATION) for name in ("here", "there"))
    pandas.testing.assert_frame_equal(here, there)


@pytest.mark.skipif(bool(slurm_cluster.missing()), reason=slurm_cluster.missing() or "there is a Slurm")
def test_on_slurm(ports: Callable[[int], list[int]], tmp_path: Path) -> None:
    pytest.importorskip("dask_jobqueue")
    base = Path(tempfile.mkdtemp(prefix="slurm-"))
    slurm = slurm_cluster.Cluster(base, ports)

    def start(command: list[str]) -> "subprocess.Popen[str]":
        return subprocess.Popen(command, text=True, env=slurm.environment, cwd=tmp_path, **PIPES)  # type: ignore[call-overload, no-any-return]

    here = {"cores=8": "cores=1", "16GB": "2GB", "jobs=4": "jobs=2"}
    try:
        slurm.start()
        with documented(tmp_path, "SLURMCluster", here, start) as address:
            check_same(tmp_path, address, start)
            assert len(slurm.jobs()) == 2
    finally:
        slurm.stop()
        shutil.rmtree(base)


@pytest.mark.skipif(bool(ssh_lab.missing()), reason=ssh_lab.missing() or "there are hosts")
def test_on_hosts_by_ssh(tmp_path: Path) -> None:
    lab = ssh_lab.Lab(tmp_path)

    def start(command: list[str]) -> "subprocess.Popen[str]":
        return lab.at_desk(command, cwd=tmp_path, **PIPES)

    # Without a route to the Internet, Dask's scheduler takes 127.0.0.1 for its host's address.
    known = f'scheduler_options={{"host": "{lab.addresses[0]}"}}, worker_options'
    here = {
        "worker_options": known,
        "host0": "lab0",
        "host1": "lab1",
        '"nthreads": 8': '"nthreads": 1',
        "/opt/dfl/bin/python": sys.executable,
    }
    try:
        lab.make()
        with documented(tmp_path, "SSHCluster", here, start) as address:
            check_same(tmp_path, address, start)
    finally:
        lab.remove()
