"""`--on kubernetes` with a real kubectl, against an API server whose pods are processes of this machine."""

import asyncio
import json
import shutil
import signal
import socket
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest
from kubernetes_cluster import ROOT, Cluster, missing
from launched import Launched, models, restarts
from real_peers import all_gone, until

from launcher.certificates import make_certificates
from launcher.cli import main
from launcher.engines import kubernetes_cluster
from peer.errors import FailedError
from peer.spec.document import dump_yaml
from peer.spec.loading import load_spec

pytestmark = [
    pytest.mark.skipif(bool(missing()), reason=missing() or "there can be a cluster"),
    pytest.mark.timeout(300),
]
PEERS = 3
ROUNDS = 100
LONG = 200.0


@pytest.fixture(scope="module")
def spec(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("spec") / "tiny.yaml"
    content = {
        "rounds": ROUNDS,
        "protocol": "fibfl",
        "model": "tiny:model",
        "data": {"name": "tiny:data", "partition": {"kind": "dirichlet", "alpha": 1.0}},
        "code": str(ROOT / "tests" / "faults"),
    }
    path.write_text(dump_yaml(content))
    return path


@pytest.fixture(scope="module")
def certs(spec: Path) -> Path:
    make_certificates(load_spec(spec, peers=PEERS), spec.parent / "certs", 2)
    return spec.parent / "certs"


@pytest.fixture(scope="module")
def local(spec: Path, ports: Callable[[int], list[int]]) -> dict[str, str]:
    """model_sha256 of the peers of a run on this machine."""
    out, port = spec.parent / "local", str(ports(PEERS)[0])
    launcher = Cluster.launch_in({}, "run", spec, "--peers", str(PEERS), "--port", port, "--out", out)
    said, _ = launcher.communicate(timeout=LONG)
    assert launcher.returncode == 0, said
    return models(out)


@pytest.fixture
def cluster(ports: Callable[[int], list[int]]) -> Iterator[Cluster]:
    base = Path(tempfile.mkdtemp(prefix="kubernetes-"))
    made = Cluster(base, ports(1)[0])
    made.start()
    yield made
    made.stop()
    shutil.rmtree(base)


class Launch(Launched):
    """`dfl-launch run --on kubernetes`, or `attach`, into a directory of its own."""

    patience = LONG

    def __init__(self, cluster: Cluster, spec: Path, out: Path):
        super().__init__(spec, out)
        self.cluster = cluster

    def run(self, *more: str | Path) -> None:
        where = ("--peers", str(PEERS), "--out", self.out, "--on", "kubernetes", "--option=image=dfl")
        self.launcher = self.cluster.launch("run", self.spec, *where, *(more or ("--set", "plaintext=true")))

    def attach(self) -> None:
        self.launcher = self.cluster.launch("attach", self.out)

    def discard(self) -> None:
        self.launcher = self.cluster.launch("discard", self.out)

    def logs(self) -> str:
        return self.cluster.logs()

    def says(self, words: str) -> str:
        """The first line with these words."""
        assert self.launcher.stdout
        for line in self.launcher.stdout:
            if words in line:
                return line
        raise AssertionError(f"nobody says {words}: {self.cluster.logs()}")

    def nothing_left(self) -> None:
        assert self.cluster.everything() == []
        all_gone(self.cluster.pids(), 10)
        assert not [one for one in psutil.process_iter(["cmdline"]) if f"={self.cluster.base}" in str(one.info)]


@pytest.fixture
def launch(cluster: Cluster, spec: Path, tmp_path: Path) -> Iterator[Launch]:
    made = Launch(cluster, spec, tmp_path / "run")
    yield made
    made.kill()


def test_a_job_trains_the_models_of_a_local_run_though_connections_are_cut(
    launch: Launch, local: dict[str, str]
) -> None:
    launch.run()
    launch.reaches(2)
    launch.cluster.cut()
    said = launch.ended(0)
    assert models(launch.out) == local
    assert restarts(launch.out) == 0
    assert f"round {ROUNDS}/{ROUNDS}" in said
    assert [event["round"] for event in launch.events("peer1", "round")] == [*range(1, ROUNDS + 1)]
    assert all("done" in (launch.out / f"peer{n}" / "log.txt").read_text() for n in range(PEERS))
    assert all((launch.out / f"peer{n}" / "model.safetensors").exists() for n in range(PEERS))
    launch.nothing_left()


def test_a_peer_that_is_killed_gets_a_new_pod_and_goes_on(launch: Launch, certs: Path, local: dict[str, str]) -> None:
    launch.run("--certs", certs)
    launch.reaches(3)
    launch.cluster.kill_pod(2)
    said = launch.ended(0)
    assert "was killed by SIGKILL" in said
    assert launch.events("peer2", "resumed")
    assert models(launch.out) == local
    assert restarts(launch.out) == 1
    assert (launch.out / "peer2" / "log.txt").read_text().count("--- tiny-") == 2
    launch.nothing_left()


def test_ctrl_c_leaves_checkpoints_and_nothing_else(launch: Launch, local: dict[str, str]) -> None:
    launch.run()
    launch.reaches(3)
    pids = launch.cluster.pids()
    launch.launcher.send_signal(signal.SIGINT)
    said = launch.ended(130)
    assert "the same command resumes the run" in said
    (claim,) = launch.cluster.everything()
    assert f"in the claim {claim.rpartition('/')[2]}; if" in " ".join(said.split())
    all_gone(pids, 1)
    launch.run()
    launch.ended(0)
    assert all(launch.events(f"peer{n}", "resumed") for n in range(PEERS))
    assert models(launch.out) == local
    launch.nothing_left()


def test_what_a_stopped_run_has_left_is_discarded_and_nothing_of_one_that_runs(launch: Launch) -> None:
    launch.run()
    launch.reaches(1)
    launch.launcher.kill()
    launch.launcher.communicate()
    launch.discard()
    assert "peers still run in the cluster, or what they wrote is not here yet" in launch.ended(2)
    launch.attach()
    launch.ended(0)
    launch.run("--set", "plaintext=true", "--fresh")
    launch.says("round 1/")
    launch.launcher.send_signal(signal.SIGINT)
    launch.ended(130)
    (claim,) = launch.cluster.everything()
    launch.discard()
    assert f"Removed: {claim.replace('claims/', 'claim/')}; what was copied" in " ".join(launch.ended(0).split())
    launch.nothing_left()
    launch.discard()
    assert "There is nothing to discard" in launch.ended(0)


def test_peers_go_on_without_their_launcher(launch: Launch, local: dict[str, str]) -> None:
    launch.run()
    launch.reaches(2)
    launch.launcher.kill()
    launch.launcher.communicate()
    pods = launch.cluster.named("pods")
    launch.attach()
    launch.ended(0)
    assert not set(launch.cluster.seen("pods")) - {*pods}
    assert models(launch.out) == local
    launch.nothing_left()


def test_who_waits_for_a_node_is_told_why_and_can_give_up(launch: Launch) -> None:
    launch.cluster.unplaceable = "0/3 nodes are available: 3 Insufficient cpu."
    launch.run()
    assert "waits: Unschedulable: 0/3 nodes are available: 3 Insufficient cpu." in launch.says("waits: ")
    launch.launcher.send_signal(signal.SIGINT)
    launch.ended(130)
    launch.nothing_left()


def test_an_image_that_cannot_be_pulled_ends_the_run(launch: Launch) -> None:
    launch.cluster.unpullable = 'Back-off pulling image "dfl"'
    launch.run()
    said = " ".join(launch.ended(1).split())
    assert 'cannot pull the image `dfl` (ImagePullBackOff: Back-off pulling image "dfl"); push it' in said
    launch.nothing_left()


def test_what_only_a_peer_can_find_wrong_is_no_crash(launch: Launch) -> None:
    launch.run("--set", "plaintext=true", "--device", "cuda:7", "--option=gpus=1")
    said = launch.ended(2)
    assert "cuda" in said
    assert not launch.out.exists()
    launch.nothing_left()


@pytest.mark.parametrize("unseen", [False, True])
def test_with_bypass_the_others_go_on_without_a_peer_whose_input_is_wrong(launch: Launch, unseen: bool) -> None:
    """unseen: their launcher is gone, and another hears of it when all is over."""
    bypass = ("on_loss=bypass", "absence=3", "plaintext=trusted", "protocol=fedavg")
    launch.run(*(word for setting in bypass for word in ("--set", setting)))
    launch.reaches(3)
    (name,) = launch.cluster.named("jobs")
    launch.cluster.get("configmaps", name)["data"]["2.yaml"] = "no config"
    if unseen:
        launch.launcher.kill()
        launch.launcher.communicate()
    launch.cluster.kill_pod(2)
    if unseen:
        until(lambda: "conditions" in launch.cluster.get("jobs", name).get("status", {}), LONG, "the Job is over")
        launch.attach()
    said = launch.ended(0)
    assert unseen or "peer2 will not be restarted; the others continue without it" in said
    assert [{*event["members"]} for event in launch.events("peer0", "view")] == [{"peer0", "peer1"}]
    assert {*models(launch.out)} == {"peer0", "peer1"}
    launch.discard()  # what the lost peer has, nobody else has
    launch.ended(0)
    launch.nothing_left()


def test_a_job_that_somebody_else_deletes_is_over_and_can_begin_again(launch: Launch, local: dict[str, str]) -> None:
    launch.run()
    launch.reaches(2)
    (job,) = launch.cluster.named("jobs")
    subprocess.run(["kubectl", "delete", f"job/{job}", "--wait=false"], env=launch.cluster.environment, check=True)
    assert "was deleted from outside" in launch.ended(1)
    launch.run("--set", "plaintext=true", "--fresh")
    launch.ended(0)
    assert not any(launch.events(f"peer{n}", "resumed") for n in range(PEERS))
    assert models(launch.out) == local
    launch.nothing_left()


def forbid(what: str) -> Callable[[Cluster], None]:
    return lambda cluster: cluster.forbidden.add(what)


PLAIN = ("--set", "plaintext=true")


@pytest.mark.parametrize(
    ("prepare", "options", "said"),
    [
        (lambda cluster: None, (*PLAIN, "--option=kubectl=nothing-here"), "install kubectl, or name it with --option"),
        (lambda cluster: None, (*PLAIN, "--option=namespace=lab"), "no namespace `lab`; make it with `kubectl create"),
        (lambda cluster: None, (*PLAIN, "--option=context=home"), "`kubectl config get-contexts` lists those there"),
        (lambda cluster: setattr(cluster, "minor", "28"), PLAIN, "the cluster runs Kubernetes 1.28, and only 1.29 "),
        (forbid("jobs"), PLAIN, "the cluster does not allow it (jobs is forbidden"),
        (forbid("pods/exec"), PLAIN, "does not allow to create pods/exec"),
        (lambda cluster: cluster.close(), PLAIN, "the cluster cannot be reached"),
        (lambda cluster: None, ("--option=gpus=0",), "make certificates with `dfl-launch certs`"),
        (lambda cluster: None, (*PLAIN, "--device=cuda"), "add --option gpus=1"),
        (lambda cluster: None, (*PLAIN, "--option=image="), "--on kubernetes: `image`"),
    ],
)
def test_what_is_refused_leaves_nothing(
    prepare: Callable[[Cluster], None],
    options: tuple[str, ...],
    said: str,
    cluster: Cluster,
    spec: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    prepare(cluster)
    for name in ("KUBECONFIG", "HOME"):
        monkeypatch.setenv(name, cluster.environment[name])
    out = tmp_path / "run"
    where = ("--peers", str(PEERS), "--out", str(out), "--on", "kubernetes", "--option=image=dfl")
    assert main(["run", str(spec), *where, *options]) == 2
    assert said in capsys.readouterr().err
    assert not out.exists()
    assert cluster.everything() == []


def test_a_cluster_that_does_not_answer_is_not_waited_for_for_ever(
    ports: Callable[[int], list[int]], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(kubernetes_cluster, "REQUEST_TIMEOUT_S", 1)
    monkeypatch.setattr(kubernetes_cluster, "KUBECTL_TIMEOUT_S", 5.0)
    with socket.create_server(("127.0.0.1", port := ports(1)[0])):
        monkeypatch.setenv("KUBECONFIG", str(tmp_path / "kubeconfig"))
        monkeypatch.setenv("HOME", str(tmp_path))
        (tmp_path / "kubeconfig").write_text(json.dumps(Cluster.kubeconfig(port)))
        with pytest.raises(FailedError, match="the cluster cannot be reached"):
            asyncio.run(kubernetes_cluster.Kubectl("kubectl").ask("get", "job,pod"))
