"""`dfl-launch study --dask`: on real schedulers and workers, which are killed, missing, or not as they should be."""

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pandas
import pytest
from dask_cluster import ROOT, SECONDS, DaskCluster, dask_cluster
from real_peers import until
from small_studies import BASE, OF_THIS_COMPUTATION, RAISES, SOLO, results, written

from launcher.cli import main
from launcher.study import dask_pool
from launcher.study.dask_pool import DaskPool
from launcher.study.worker import free_ports

pytest.importorskip("distributed")
pytestmark = pytest.mark.timeout(600)

OLD = (
    "from importlib import metadata; told = metadata.version; "
    "metadata.version = lambda name: '2020.1.0' if name == 'distributed' else told(name)"
)
"""Says to be an older one."""
SLOW = (
    "import time; from launcher.study import dask_worker as remote; "
    "told = remote.code; remote.code = lambda: time.sleep(3) or told()"
)
BROKEN = f"""{RAISES}
class Kills(Solo):
    name: Literal["mine:Kills"] = "mine:Kills"
    async def round(self, peer):
        os.kill(os.getppid(), 9)
        time.sleep(3600)  # its process is ended as its parent is gone
"""


def comparable(out: Path) -> pandas.DataFrame:
    return results(out).drop(columns=OF_THIS_COMPUTATION)


def start(file: Path, out: Path, *more: str) -> "subprocess.Popen[str]":
    command = [sys.executable, "-m", "launcher.cli", "study", str(file), "--out", str(out), *more]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


@contextmanager
def running(file: Path, out: Path, address: str) -> Iterator["subprocess.Popen[str]"]:
    """A study by Dask that does not outlive the block."""
    process = start(file, out, "--dask", address)
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def said(process: "subprocess.Popen[str]", code: int) -> str:
    """All that it says until it ends, which it does with that code; it does not outlive this."""
    try:
        told, wrong = process.communicate()
    finally:
        process.kill()
    assert process.returncode == code, told + wrong
    return told + wrong


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DaskCluster]:
    with dask_cluster(tmp_path_factory.mktemp("dask"), ["one", "two"]) as made:
        yield made


@pytest.mark.parametrize("network", ["memory", "grpc"])
def test_the_same_study_by_dask_and_in_one_process_is_the_same(
    cluster: DaskCluster, tmp_path: Path, network: str
) -> None:
    file = written(tmp_path, network=network, grid={"protocol": ["rdfl"], "seed": [1, 2]})
    for name, more in (("here", ()), ("there", ("--dask", cluster.address))):
        said(start(file, tmp_path / name, *more), 0)
    pandas.testing.assert_frame_equal(comparable(tmp_path / "here"), comparable(tmp_path / "there"))
    texts = [(tmp_path / name / "tables.md").read_text().split("## Seconds")[0] for name in ("here", "there")]
    assert texts[0] == texts[1]
    left = {file.name for file in (tmp_path / "there").glob("cells/*/*")}
    assert left == {"federation.yaml", "rounds.json", "summary.json"}
    assert not [*cluster.place.glob("*/dask-scratch-space/*/dfl-cell-*")]


def test_what_a_lost_worker_had_is_computed_elsewhere(tmp_path: Path) -> None:
    file = written(tmp_path, base={**BASE, "rounds": 15})
    with dask_cluster(tmp_path / "dask") as cluster:
        first = cluster.start_worker("first", "--no-nanny")
        with running(file, tmp_path / "out", cluster.address) as process:
            until(lambda: cluster.cells("first"), SECONDS, "a cell is being computed")
            first.kill()
            cluster.start_worker("second")
            assert "4 of 4" in said(process, 0)
        kept = {one: one.stat().st_mtime_ns for one in tmp_path.glob("out/cells/*/summary.json")}
        said(start(file, tmp_path / "out", "--dask", cluster.address), 0)
        assert kept == {one: one.stat().st_mtime_ns for one in tmp_path.glob("out/cells/*/summary.json")}
    said(start(file, tmp_path / "here"), 0)
    pandas.testing.assert_frame_equal(comparable(tmp_path / "out"), comparable(tmp_path / "here"))


def test_a_cell_that_kills_its_workers_has_failed_and_stops_no_other(cluster: DaskCluster, tmp_path: Path) -> None:
    file = written(tmp_path, grid={"protocol": ["mine:Kills", SOLO, "mine:Raises"], "seed": [1]})
    (tmp_path / "mine.py").write_text(BROKEN)
    told = said(start(file, tmp_path / "out", "--dask", cluster.address, "--at-once", "1"), 1)
    assert "2 of 3 cells failed" in told
    found = pandas.read_csv(tmp_path / "out" / "results.csv").set_index("protocol")
    assert "died, one after the other" in found.failure["mine:Kills"]
    assert "ValueError: no more" in found.failure["mine:Raises"]
    assert found["mean"].notna().tolist() == [False, True, False]


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGKILL, -9)])
def test_no_cell_outlives_its_launcher(cluster: DaskCluster, tmp_path: Path, number: int, code: int) -> None:
    file = written(tmp_path, base={**BASE, "rounds": 5000})
    with running(file, tmp_path / "out", cluster.address) as process:
        until(lambda: cluster.cells("one") and cluster.cells("two"), SECONDS, "both workers have a cell")
        process.send_signal(number)
        said(process, code)
    until(lambda: not cluster.cells(), SECONDS, "no cell is left on a worker")


def test_a_scheduler_that_dies_is_told(tmp_path: Path) -> None:
    file = written(tmp_path, base={**BASE, "rounds": 5000})
    with dask_cluster(tmp_path / "dask", ["one"]) as cluster:
        with running(file, tmp_path / "out", cluster.address) as process:
            until(cluster.cells, SECONDS, "a cell is being computed")
            cluster.started[0].kill()
            assert "is gone; the finished cells are kept" in said(process, 1)
        until(lambda: not cluster.cells(), SECONDS, "no cell is left on the worker")


def test_it_goes_by_tls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = written(tmp_path, grid={"protocol": [SOLO], "seed": [1]})
    spec = {"name": "dask", "protocol": "solo", "data": {"name": "digits"}}
    (tmp_path / "federation.yaml").write_text(json.dumps(spec))
    certs = tmp_path / "certs"
    assert main(["certs", str(tmp_path / "federation.yaml"), "--peers", "1", "--out", str(certs)]) == 0
    monkeypatch.setenv("DASK_DISTRIBUTED__COMM__TLS__CA_FILE", str(certs / "ca.pem"))
    for role in ("SCHEDULER", "WORKER", "CLIENT"):
        monkeypatch.setenv(f"DASK_DISTRIBUTED__COMM__TLS__{role}__CERT", str(certs / "peer0.pem"))
        monkeypatch.setenv(f"DASK_DISTRIBUTED__COMM__TLS__{role}__KEY", str(certs / "peer0.key"))
    with dask_cluster(tmp_path / "dask", ["one"], "--protocol", "tls") as cluster:
        assert cluster.address.startswith("tls://")
        said(start(file, tmp_path / "out", "--dask", cluster.address), 0)
        assert comparable(tmp_path / "out")["mean"].notna().all()
        monkeypatch.delenv("DASK_DISTRIBUTED__COMM__TLS__CLIENT__CERT")
        wrong = said(start(written(tmp_path), tmp_path / "not", "--dask", cluster.address), 2)
        assert "no Dask scheduler answers there" in wrong


def refused(capsys: pytest.CaptureFixture[str], place: Path, address: str) -> str:
    """The one line; nothing is written."""
    file = written(place)
    assert main(["study", str(file), "--out", str(place / "out"), "--dask", address]) == 2
    assert not (place / "out").exists()
    (line,) = capsys.readouterr().err.splitlines()
    return line


def test_what_is_no_scheduler_is_refused(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    for address in ("nonsense", "foo://here:8786", "tcp://127.0.0.1:1"):
        line = refused(capsys, tmp_path, address)
        assert line.startswith(f"dfl-launch: --dask {address}: no Dask scheduler answers there (")
        assert "tcp://host:8786" in line


def test_ports_that_are_none_are_refused(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    arguments = [str(written(tmp_path, network="grpc")), "--out", str(tmp_path / "out"), "--dask", "tcp://127.0.0.1:1"]
    assert main(["study", *arguments, "--port", "65535"]) == 2
    assert "for 3 peers; give one from 1 to 65533" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_a_worker_that_is_slow_to_answer_holds_nobody_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dask_pool, "ANSWER_TIMEOUT_S", 0.2)
    with dask_cluster(tmp_path / "dask", ["one"]) as made, DaskPool.connected(made.address, 0, print) as cluster:
        (first,) = until(cluster.look, SECONDS, "the first worker has answered")
        made.start_worker("two", "--no-nanny", before=SLOW)
        until(lambda: len(cluster.client.nthreads()) == 2, SECONDS, "the second worker is there")
        assert [*cluster.look()] == [first]
        both = until(lambda: len(found := cluster.look()) == 2 and found, SECONDS, "the second has answered, too")
        cluster.judge(first, "other code")
        assert [*cluster.look()] == [one for one in both if one != first]


def test_a_scheduler_without_workers_is_refused(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dask_pool, "WORKER_TIMEOUT_S", 0.1)
    with dask_cluster(tmp_path / "dask") as cluster:
        line = refused(capsys, tmp_path, cluster.address)
    assert f"no worker is connected to the scheduler at {cluster.address}; start one" in line
    assert f"dask worker {cluster.address}" in line


def test_another_version_of_dask_is_refused(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    with dask_cluster(tmp_path / "dask") as cluster:
        cluster.start_worker("one", "--no-nanny", before=OLD)
        line = refused(capsys, tmp_path, cluster.address)
        assert "the worker tcp://" in line
        assert "has distributed 2020.1.0 where this machine has 20" in line
        cluster.start_scheduler(before=OLD)
        line = refused(capsys, tmp_path, cluster.address)
        assert f"the scheduler at {cluster.address} has Dask 2020.1.0 and this machine has 20" in line
        assert "install one version on all" in line


def test_a_worker_without_dfl_is_refused(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    with dask_cluster(tmp_path / "dask") as cluster:
        cluster.start_worker("one", "--no-nanny", before="sys.modules['launcher'] = None")
        line = refused(capsys, tmp_path, cluster.address)
    assert "cannot load dfl" in line
    assert "install the same there" in line


@pytest.fixture
def other_code(tmp_path: Path) -> Path:
    """A copy of dfl that differs in a comment."""
    for room in ("launcher", "peer"):
        shutil.copytree(ROOT / room, tmp_path / "other" / room, ignore=shutil.ignore_patterns("__pycache__"))
    with (tmp_path / "other" / "peer" / "text.py").open("a") as file:
        file.write("# changed\n")
    return tmp_path / "other"


def test_a_worker_with_other_code_is_refused(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, other_code: Path
) -> None:
    with dask_cluster(tmp_path / "dask") as cluster:
        cluster.start_worker("one", "--no-nanny", path=other_code)
        line = refused(capsys, tmp_path, cluster.address)
    assert "has other code of dfl (commit unknown, and here " in line
    assert "install the same there" in line


def test_a_worker_with_other_code_that_comes_later_is_given_no_cell(tmp_path: Path, other_code: Path) -> None:
    file = written(tmp_path, base={**BASE, "rounds": 15})
    with (
        dask_cluster(tmp_path / "dask", ["one"]) as cluster,
        running(file, tmp_path / "out", cluster.address) as process,
    ):
        until(cluster.cells, SECONDS, "a cell is being computed")
        cluster.start_worker("two", "--no-nanny", path=other_code)
        told = said(process, 0)
    assert told.count("it is given no cell") == 1
    assert comparable(tmp_path / "out").failure.isna().all()


def test_cells_of_one_machine_take_ports_of_their_own() -> None:
    with free_ports(20_000, 3) as first, free_ports(20_000, 2) as second, free_ports(first, 1) as third:
        taken = [range(first, first + 3), range(second, second + 2), range(third, third + 1)]
    assert len({port for ports in taken for port in ports}) == 6


def test_without_dask_studies_go_on(tmp_path: Path) -> None:
    hidden = (
        "import sys; sys.modules['dask'] = sys.modules['distributed'] = None; from launcher.cli import main; main()"
    )
    command = [sys.executable, "-c", hidden, "study", str(written(tmp_path)), "--out", str(tmp_path / "out")]
    assert subprocess.run(command, env=os.environ, check=False).returncode == 0
