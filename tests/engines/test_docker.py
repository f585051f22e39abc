"""`dfl-launch run --on docker`: real containers, ended, cut off and limited; the bits are those of a local run."""

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from docker_images import ROOT, peer_image
from real_peers import until

from launcher.certificates import make_certificates
from launcher.cli import main
from launcher.engines.docker_container import connect
from peer.errors import InputError
from peer.runtime.in_process import run_in_process
from peer.spec.federation import Spec
from peer.spec.loading import load_spec

pytestmark = pytest.mark.timeout(600)
SPEC = "rounds: {rounds}\nprotocol: {{name: fibfl++}}\ndata: {{name: digits, limit: 300}}\npatience: 300\n"
MINUTES = 300.0


@pytest.fixture(scope="module")
def client() -> Iterator[Any]:
    pytest.importorskip("docker")
    try:
        client = connect()
    except InputError as error:
        pytest.skip(str(error))
    yield client
    client.close()


@pytest.fixture(scope="module")
def image(client: Any) -> str:
    return peer_image()


class Launch:
    """A `dfl-launch` on its way, in a directory of its own."""

    def __init__(self, place: Path, image: str, client: Any) -> None:
        self.place, self.out, self.image, self.client = place, place / "out", image, client
        self._screen = (place / "screen").open("a")
        self.process: subprocess.Popen[bytes]

    def start(self, *words: str) -> "Launch":
        command = [sys.executable, "-m", "launcher.cli", *words]
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        self.process = subprocess.Popen(
            command, cwd=self.place, env=environment, stdout=self._screen, stderr=subprocess.STDOUT
        )
        return self

    def run(self, *words: str) -> "Launch":
        options = ("--on", "docker", "--option", f"image={self.image}")
        return self.start("run", "fed.yaml", "--out", str(self.out), *options, *words)

    def end(self) -> int:
        return self.process.wait(MINUTES)

    def close(self) -> None:
        self._screen.close()

    @property
    def screen(self) -> str:
        return (self.place / "screen").read_text()

    def containers(self) -> dict[str, Any]:
        """By id; also those that have ended."""
        found = self.client.containers.list(all=True, filters={"label": f"dfl.run={self.out}"}, ignore_removed=True)
        return {container.labels["dfl.peer"]: container for container in found}

    def made(self) -> set[str]:
        return {container.id for container in self.containers().values()}

    def networks(self) -> list[Any]:
        networks: list[Any] = self.client.networks.list(filters={"label": f"dfl.run={self.out}"})
        return networks

    def rounds(self, id: str) -> int:
        """How many the peer has behind it."""
        path = self.out / id / "events.jsonl"
        return path.read_text().count('"event": "round"') if path.exists() else 0

    def await_round(self, round: int, *ids: str) -> None:
        def there() -> bool:
            assert self.process.poll() is None or self.process.returncode < 0, self.screen
            return all(self.rounds(id) >= round for id in ids)

        until(there, MINUTES, f"round {round} of {ids}; {self.screen}")


@pytest.fixture
def launch(tmp_path: Path, image: str, client: Any) -> Iterator[Launch]:
    one = Launch(tmp_path, image, client)
    yield one
    if one.process.poll() is None:
        one.process.kill()
        one.process.wait()
    for container in one.containers().values():
        container.remove(force=True, v=True)
    for network in one.networks():
        network.remove()
    one.close()


def local_digests(spec: Spec, out: Path) -> dict[str, str]:
    """model_sha256 by id of the same federation without containers."""
    asyncio.run(run_in_process(spec, out))
    return {id: json.loads((out / id / "result.json").read_text())["model_sha256"] for id in spec.ids}


def digests(summary: dict[str, Any]) -> dict[str, str]:
    return {peer["id"]: peer["model_sha256"] for peer in summary["per_peer"]}


def test_containers_that_are_hurt_end_in_the_bits_of_a_local_run(launch: Launch) -> None:
    """Killed from outside and from inside, paused, disconnected, limited; the launcher killed and another attached."""
    place = launch.place
    (place / "fed.yaml").write_text(SPEC.format(rounds=20))
    spec = load_spec(place / "fed.yaml", peers=5)
    make_certificates(spec, place / "certs", days=1)
    launch.run("--peers", "5", "--certs", str(place / "certs"))
    launch.await_round(1, *spec.ids)
    containers, network = launch.containers(), launch.networks()[0]
    look_inside(containers["peer3"], "peer3")

    containers["peer0"].kill()
    containers["peer4"].update(cpu_period=100_000, cpu_quota=20_000, mem_limit="1g", memswap_limit="1g")
    containers["peer1"].pause()
    launch.await_round(2, "peer0")
    launch.process.kill()
    launch.process.wait()
    network.disconnect(containers["peer2"])
    containers["peer1"].unpause()
    containers["peer3"].reload()
    os.kill(containers["peer3"].attrs["State"]["Pid"], signal.SIGKILL)  # a crash, as the engine sees it
    until(lambda: restarts(containers["peer3"]) == 1, MINUTES, "the engine starts peer3 again")
    network.connect(containers["peer2"], aliases=["peer2"])
    containers["peer4"].update(cpu_period=100_000, cpu_quota=200_000)

    launch.start("attach", str(launch.out))
    assert launch.end() == 0, launch.screen
    summary = json.loads((launch.out / "summary.json").read_text())
    assert digests(summary) == local_digests(spec, place / "local")
    assert summary["restarts"] >= 1
    assert summary["privacy"]["violations"] == []
    assert not launch.containers()
    assert not launch.networks()
    assert {path.stat().st_uid for path in launch.out.rglob("*")} == {os.getuid()}


def restarts(container: Any) -> int:
    container.reload()
    return int(container.attrs["RestartCount"])


def look_inside(container: Any, id: str) -> None:
    """It sees of the run what concerns its peer, can change its own directory, and has no right."""
    container.reload()
    host = container.attrs["HostConfig"]
    assert host["ReadonlyRootfs"]
    assert host["CapDrop"] == ["ALL"]
    assert host["SecurityOpt"] == ["no-new-privileges:true"]
    assert host["PidsLimit"] == 512
    assert container.attrs["Config"]["User"] == f"{os.getuid()}:{os.getgid()}"
    seen = container.exec_run(["ls", "/dfl"]).output.decode().split()
    assert seen == sorted(["ca.pem", "federation.yaml", id, f"{id}.key", f"{id}.pem", f"{id}.yaml"])
    assert container.exec_run(["cp", "/dfl/federation.yaml", "/dfl/other.yaml"]).exit_code
    assert container.exec_run(["cp", "/dfl/federation.yaml", f"/dfl/{id}.yaml"]).exit_code
    status = container.exec_run(["cat", "/proc/1/status"]).output.decode()
    assert re.search(r"^CapEff:\s+0+$", status, re.MULTILINE)
    assert container.exec_run(["/opt/dfl/.venv/bin/python", "/opt/dfl/health.py"]).output == b"SERVING\n"


def test_what_a_launcher_has_left_is_taken_up_or_ended(launch: Launch) -> None:
    """By the same command; with --fresh nothing of it is used. After Ctrl-C nothing is left."""
    (launch.place / "fed.yaml").write_text(SPEC.format(rounds=40_000))
    launch.run("--peers", "3")
    launch.await_round(1, "peer0", "peer1", "peer2")
    begun = launch.made()
    launch.process.send_signal(signal.SIGHUP)
    assert launch.end() == 129, launch.screen
    assert "dfl-launch attach" in launch.screen

    launch.run("--peers", "3")
    until(lambda: launch.screen.count("fibfl++, 3 peers, in") == 2, MINUTES, "the second launcher watches")
    assert launch.made() == begun
    launch.process.kill()
    launch.process.wait()

    launch.run("--peers", "3", "--fresh")
    until(lambda: len(launch.made()) == 3 and not launch.made() & begun, MINUTES, "other containers are made")
    launch.await_round(1, "peer0", "peer1", "peer2")
    launch.process.send_signal(signal.SIGINT)
    assert launch.end() == 130, launch.screen
    assert "the same command resumes the run" in launch.screen
    assert not launch.containers()
    assert not launch.networks()
    assert (launch.out / "peer1" / "checkpoint").is_dir()


USER_DATA = """
from pathlib import Path
import numpy as np

def load(root=None):
    if Path("/dfl").exists():
        raise ValueError("no digits in a container")
    inputs, labels = np.random.default_rng(1).random((60, 4), np.float32), np.arange(60) % 2
    return inputs, labels, inputs, labels
"""


def test_wrong_input_that_only_a_peer_finds_is_tried_once(launch: Launch) -> None:
    """The engine would start a peer with exit code 2 again and again."""
    (launch.place / "mine.py").write_text(USER_DATA)
    (launch.place / "fed.yaml").write_text("rounds: 2\nprotocol: fibfl\ndata: {name: 'mine:load'}\n")
    launch.run("--peers", "3")
    assert launch.end() == 2, launch.screen
    assert "no digits in a container" in launch.screen
    assert not launch.containers()
    assert not launch.out.exists()


@pytest.mark.parametrize(
    ("option", "told"),
    [
        ("image=nowhere/none", "build it with `docker build -f deploy/Dockerfile"),
        ("network=nowhere", "has no network `nowhere`"),
        ("subnet={docker0}", "the run's network cannot be made: Pool overlaps"),
        ("subnet=10.99.0.0/33", "`subnet` wants a network's first address and its bits"),
    ],
)
def test_what_the_engine_lacks_is_said(
    client: Any, image: str, option: str, told: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "fed.yaml").write_text(SPEC.format(rounds=2))
    docker0 = client.networks.get("bridge").attrs["IPAM"]["Config"][0]["Subnet"]
    options = [f"--option=image={image}", f"--option={option.format(docker0=docker0)}"]
    words = ["run", str(tmp_path / "fed.yaml"), "--peers", "3", "--out", str(tmp_path / "out"), "--on", "docker"]
    assert main([*words, *options]) in (1, 2)
    assert told in capsys.readouterr().err
    assert not client.containers.list(all=True, filters={"label": f"dfl.run={tmp_path / 'out'}"})


CONNECT = """
import os, sys
from launcher.engines.docker_container import connect, docker_sdk
docker_sdk()
import requests.adapters, docker.transport, encodings.idna
user = int(sys.argv[1])
os.setgroups([]) if user else None
os.setgid(user), os.setuid(user)
connect()
"""


@pytest.mark.skipif(os.getuid() != 0, reason="only root can become somebody else")
@pytest.mark.parametrize(
    ("user", "host", "told"),
    [
        (0, "unix:///nowhere.sock", "no Docker engine answers here (no such file or directory)"),
        (0, "tcp://127.0.0.1:9", "no Docker engine answers here (connection refused)"),
        (70_001, "", "you may not use the Docker engine"),
    ],
)
def test_why_an_engine_cannot_be_used_is_said(client: Any, user: int, host: str, told: str) -> None:
    environment = {**os.environ, "PYTHONPATH": str(ROOT), **({"DOCKER_HOST": host} if host else {})}
    command = [sys.executable, "-c", CONNECT, str(user)]
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert f"InputError: {told}" in done.stderr


def test_an_image_holds_what_a_peer_needs_and_no_more(client: Any, image: str) -> None:
    """No compiler, no pip, no root; without base and PyTorch, and what PyTorch needs, less than 150 MB."""
    measure = (ROOT / "tests" / "engines" / "docker_contents.py").read_text()
    python = ["/opt/dfl/.venv/bin/python", "-c", measure]
    told = client.containers.run(image, [], entrypoint=python, remove=True, network_mode="none")
    found = json.loads(told)
    assert found["rest"] < 150e6, found
    assert found["user"] != 0
    assert found["unwanted"] == []
