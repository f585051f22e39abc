"""`--on slurm` with a real Slurm: the same models as on this machine, whatever happens to peers, job and launcher."""

import os
import shutil
import signal
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest
from launched import Launched, models, restarts
from real_peers import all_gone, until
from slurm_cluster import ROOT, Cluster, missing

from peer.spec.document import dump_yaml

pytestmark = [
    pytest.mark.skipif(bool(missing()), reason=missing() or "there is a Slurm"),
    pytest.mark.timeout(300),
]
PEERS = 3
"""More than nodes that they take: two share one."""
ROUNDS = 150


@pytest.fixture(scope="module")
def cluster(ports: Callable[[int], list[int]]) -> Iterator[Cluster]:
    base = Path(tempfile.mkdtemp(prefix="slurm-"))
    made = Cluster(base, ports)
    made.start()
    yield made
    made.stop()
    shutil.rmtree(base)


@pytest.fixture(scope="module")
def spec(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("spec") / "tiny.yaml"
    content = {
        "rounds": ROUNDS,
        "plaintext": True,
        "protocol": "fibfl",
        "model": "tiny:model",
        "data": {"name": "tiny:data", "partition": {"kind": "dirichlet", "alpha": 1.0}},
        "code": str(ROOT / "tests" / "faults"),
    }
    path.write_text(dump_yaml(content))
    return path


@pytest.fixture(scope="module")
def local(cluster: Cluster, spec: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """model_sha256 of the peers of a run on this machine."""
    out = tmp_path_factory.mktemp("local") / "run"
    port = cluster.ports(1)[0]
    launcher = cluster.launch("run", spec, "--peers", str(PEERS), "--port", str(port), "--out", out)
    said, _ = launcher.communicate(timeout=Launched.patience)
    assert launcher.returncode == 0, said
    return models(out)


class Launch(Launched):
    """`dfl-launch run --on slurm`, or `attach`, into a directory of its own."""

    def __init__(self, cluster: Cluster, spec: Path, out: Path):
        super().__init__(spec, out)
        self.cluster = cluster

    def run(self, *more: str) -> None:
        port = self.cluster.ports(1)[0]
        options = [f"--option={option}" for option in (f"port={port}", "poll=0.3")]
        self.launcher = self.cluster.launch(
            *("run", self.spec, "--peers", str(PEERS), "--out", self.out, "--on", "slurm", *options, *more)
        )

    def hears(self, words: str) -> str:
        """The launcher's next line with these words."""
        assert self.launcher.stdout
        return next(line for line in self.launcher.stdout if words in line)

    def attach(self) -> None:
        self.launcher = self.cluster.launch("attach", self.out)

    def pid(self, id: str) -> int:
        return int((self.out / id / "pid").read_text())

    def signal_peer(self, id: str, number: signal.Signals) -> None:
        os.kill(self.pid(id), number)

    def pids(self) -> list[int]:
        """The pids of all processes in the job, which name the run's directory."""
        return [
            process.pid
            for process in psutil.process_iter(["cmdline"])
            if any(str(self.out) in word for word in process.info["cmdline"] or [])
            and process.pid not in (os.getpid(), self.launcher.pid)
        ]

    def nothing_left(self) -> None:
        until(lambda: not self.cluster.jobs(), 30, "no job is left")
        all_gone(self.pids(), 10)


@pytest.fixture
def launch(cluster: Cluster, spec: Path, tmp_path: Path) -> Iterator[Launch]:
    made = Launch(cluster, spec, tmp_path / "run")
    yield made
    made.kill()
    cluster.ask("scancel", "--quiet", "--user=root")
    until(lambda: not cluster.jobs(), 40, "no job is left")


def test_a_job_trains_the_models_of_a_local_run(launch: Launch, local: dict[str, str]) -> None:
    launch.run()
    said = launch.ended(0)
    assert models(launch.out) == local
    assert restarts(launch.out) == 0
    assert f"round {ROUNDS}/{ROUNDS}" in said
    launch.nothing_left()
    launch.attach()  # everybody is done: there is nothing to queue for
    assert "All peers are done." in launch.ended(0)


def test_a_peer_that_is_killed_is_restarted_within_the_job(launch: Launch, local: dict[str, str]) -> None:
    launch.run()
    launch.reaches(3)
    launch.signal_peer("peer2", signal.SIGKILL)
    said = launch.ended(0)
    assert "peer2 was killed by SIGKILL; restarted in the job (1 of 3 in a row)" in said
    assert "queued again" not in said
    assert models(launch.out) == local
    assert restarts(launch.out) == 1
    launch.nothing_left()


def test_a_peer_that_keeps_crashing_brings_the_job_into_the_queue_again(launch: Launch, local: dict[str, str]) -> None:
    launch.run("--option=restarts=1")
    launch.reaches(3)
    launch.signal_peer("peer1", signal.SIGSTOP)  # so that no round is completed meanwhile
    first = launch.pid("peer2")
    launch.signal_peer("peer2", signal.SIGKILL)
    until(lambda: launch.pid("peer2") != first, 30, "peer2 is started again")
    launch.signal_peer("peer2", signal.SIGKILL)
    launch.signal_peer("peer1", signal.SIGCONT)
    said = launch.ended(0)
    assert "peer2 was killed by SIGKILL; restarted in the job (1 of 1 in a row)" in said
    assert "peer2 was killed by SIGKILL; queued again (1 of 5 in a row)" in said
    assert "is pending (" in said
    assert models(launch.out) == local
    assert restarts(launch.out) == PEERS + 1
    launch.nothing_left()


def test_a_job_is_queued_again_only_so_often(launch: Launch) -> None:
    launch.run("--option=restarts=0", "--option=requeues=0")
    launch.reaches(2)
    launch.signal_peer("peer0", signal.SIGKILL)
    said = launch.ended(1)
    assert "not queued again: 0 times in a row are enough" in said
    assert "peer0 was killed by SIGKILL" in said
    launch.nothing_left()


def test_with_bypass_the_others_go_on_without_a_peer_that_keeps_crashing(launch: Launch) -> None:
    launch.run(
        "--option=restarts=0",
        "--set",
        "protocol=fedavg",
        "--set",
        "on_loss=bypass",
        "--set",
        "absence=3",
        "--set",
        "plaintext=trusted",
    )
    launch.reaches(3)
    launch.signal_peer("peer2", signal.SIGKILL)
    said = launch.ended(0)
    assert "peer2 was killed by SIGKILL" in said
    assert "queued again" not in said
    assert [{*event["members"]} for event in launch.events("peer0", "view")] == [{"peer0", "peer1"}]
    launch.nothing_left()


def test_a_job_that_somebody_else_cancels_is_over(launch: Launch) -> None:
    launch.run()
    launch.reaches(2)
    launch.cluster.ask("scancel", *launch.cluster.jobs())
    assert "(CANCELLED)" in launch.ended(1)
    launch.nothing_left()


def test_a_job_goes_on_without_its_launcher_and_through_a_requeue(launch: Launch, local: dict[str, str]) -> None:
    launch.run()
    launch.reaches(2)
    launch.signal_peer("peer2", signal.SIGSTOP)  # so that it is not done before it is attached to
    launch.launcher.kill()
    launch.launcher.communicate()
    job = launch.cluster.jobs()
    launch.run()  # not a second job in the same directory
    assert f"Slurm job {job[0]} is running, and it runs this federation" in launch.ended(2)
    assert launch.cluster.ask("scontrol", "requeue", *job) == ""
    launch.attach()
    launch.ended(0)
    assert models(launch.out) == local
    launch.nothing_left()


def test_ctrl_c_leaves_checkpoints_and_nothing_else(launch: Launch, local: dict[str, str]) -> None:
    launch.run()
    launch.reaches(2)
    pids = launch.pids()
    launch.launcher.send_signal(signal.SIGINT)
    assert "the same command resumes the run" in launch.ended(130)
    assert not launch.cluster.jobs()
    all_gone(pids, 1)
    assert all(launch.events(f"peer{n}", "stopped") for n in range(PEERS))
    launch.run()
    launch.ended(0)
    assert all(launch.events(f"peer{n}", "resumed") for n in range(PEERS))
    assert models(launch.out) == local


def test_who_waits_in_the_queue_is_told_why_and_can_give_up(launch: Launch) -> None:
    launch.run("--option=sbatch=--begin=now+1hour")
    assert "(BeginTime)" in launch.hears("is pending (")
    launch.launcher.kill()
    launch.launcher.communicate()
    launch.attach()
    assert "(BeginTime)" in launch.hears("is pending (")
    launch.launcher.send_signal(signal.SIGINT)
    assert "scancel" not in launch.ended(130)
    assert not launch.cluster.jobs()


def test_what_slurm_refuses_leaves_nothing(launch: Launch) -> None:
    launch.run("--option=partition=nowhere")
    assert "Slurm would not take the job" in launch.ended(2)
    assert not launch.out.exists()


def test_a_partition_whose_default_limit_ends_with_the_warning_is_refused(launch: Launch) -> None:
    launch.run("--option=partition=brief")
    assert "the partition's default time limit is 1 minute" in launch.ended(2)
    assert not launch.out.exists()


def test_what_only_a_peer_can_find_wrong_is_no_crash(launch: Launch) -> None:
    launch.run("--device", "cuda:7")
    said = launch.ended(2)
    assert "cuda" in said
    assert "queued again" not in said
    assert not launch.out.exists()
    launch.nothing_left()
