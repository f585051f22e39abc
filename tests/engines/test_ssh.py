"""`dfl-launch run --on ssh` with real sshd: three hosts in network namespaces, cut off, blocked, killed, taken up."""

import asyncio
import json
import os
import re
import signal
import stat
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
from real_peers import all_gone, until
from ssh_lab import HOSTS, Lab, missing

from peer.runtime.in_process import run_in_process
from peer.spec.loading import load_spec

pytestmark = pytest.mark.skipif(bool(missing()), reason=missing())
ROUNDS = 60
IDS = [f"peer{number}" for number in range(HOSTS)]
FAULTS = Path(__file__).parents[1] / "faults"


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    lab = Lab(tmp_path_factory.mktemp("lab"))
    try:
        lab.make()
        yield lab
    finally:
        lab.remove()


@pytest.fixture(scope="module")
def spec(lab: Lab) -> Path:
    """Samples in a file of the desk's; a host that has it elsewhere would have to name it itself."""
    draw = np.random.default_rng(7)
    labels = np.tile(np.arange(3), 40)
    np.savez(lab.base / "samples.npz", x=draw.normal(labels[:, None], 1.0, (120, 4)).astype(np.float32), y=labels)
    content = {
        "name": "tiny",
        "rounds": ROUNDS,
        "protocol": {"name": "fibfl", "head_epochs": 1, "extractor_epochs": 1},
        "model": "tiny:model",
        "data": {"name": "npz", "path": str(lab.base / "samples.npz")},
        "code": str(FAULTS),
        "patience": 60,
    }
    (lab.base / "tiny.yaml").write_text(json.dumps(content))
    return lab.base / "tiny.yaml"


@pytest.fixture(scope="module")
def expected(spec: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """model_sha256 by id, of the same federation in one process."""
    runtimes = asyncio.run(run_in_process(load_spec(spec, peers=HOSTS), tmp_path_factory.mktemp("local")))
    return {id: runtime.setup.model.sha256() for id, runtime in runtimes.items()}


class Desk:
    """Launchers of one run, one after the other."""

    def __init__(self, lab: Lab, spec: Path, out: Path) -> None:
        self.lab, self.spec, self.out = lab, spec, out
        self.screen = out.with_suffix(".screen")
        self.launcher: subprocess.Popen[str] | None = None

    def hosts(self, **others: dict[str, Any]) -> Path:
        """hosts.yaml, with what is said of single hosts."""
        usual = {"python": sys.executable, "device": "cpu"}
        listed = [
            {"host": name, **usual, "directory": str(self.lab.directory(number)), **others.get(name, {})}
            for number, name in enumerate(self.lab.names)
        ]
        path = self.out.with_suffix(".hosts.yaml")
        path.write_text(json.dumps({"hosts": listed}))
        return path

    def run(self, *arguments: str, hosts: Path | None = None, peers: int = HOSTS) -> None:
        place = ["--on", "ssh", "--hosts", str(hosts or self.hosts()), "--out", str(self.out)]
        self._launch("run", str(self.spec), "--peers", str(peers), *place, *arguments)

    def discard(self) -> None:
        self._launch("discard", str(self.out))

    def attach(self) -> None:
        self._launch("attach", str(self.out))

    def _launch(self, *arguments: str) -> None:
        with self.screen.open("a") as screen:
            command = [sys.executable, "-m", "launcher.cli", *arguments]
            self.launcher = self.lab.at_desk(command, stdin=subprocess.DEVNULL, stdout=screen, stderr=screen)

    @property
    def said(self) -> str:
        return " ".join(self.screen.read_text().split())

    def code(self, seconds: float = 60) -> int:
        assert self.launcher
        try:
            return self.launcher.wait(seconds)
        except subprocess.TimeoutExpired:
            raise AssertionError(self.screen.read_text()) from None

    def signal(self, number: signal.Signals) -> None:
        """To the launcher itself: `ip netns exec` becomes it."""
        assert self.launcher
        self.launcher.send_signal(number)

    def until_round(self, id: str, round: int) -> None:
        until(lambda: self.round(id) >= round, 60, f"{id} after round {round}; {self.screen.read_text()}")

    def round(self, id: str) -> int:
        """The peer's last round, as far as it is known at the desk."""
        path = self.out / id / "events.jsonl"
        rounds = re.findall(r'"event": ?"round".*?"round": ?(\d+)', path.read_text()) if path.exists() else []
        return int(rounds[-1]) if rounds else 0

    @contextmanager
    def held(self, number: int) -> Iterator[None]:
        """One peer stands still, so that nobody finishes meanwhile."""
        pid = self.pid(number)
        os.kill(pid, signal.SIGSTOP)
        try:
            yield
        finally:
            os.kill(pid, signal.SIGCONT)

    def pid(self, number: int) -> int:
        """The pid of the peer that runs on a host."""
        return int((self.lab.directory(number) / self.out.name / f".peer{number}.lock").read_text())

    def digests(self) -> dict[str, str]:
        summary = json.loads((self.out / "summary.json").read_text())
        return {peer["id"]: peer["model_sha256"] for peer in summary["per_peer"]}

    def nothing_created(self) -> bool:
        """Neither here nor on the hosts."""
        there = [self.lab.directory(number) / self.out.name for number in range(HOSTS)]
        return not any(path.exists() for path in (self.out, *there))

    def end(self) -> None:
        if self.launcher and self.launcher.poll() is None:
            self.launcher.kill()
            self.launcher.wait()
        for pid in self.lab.pids():
            with suppress(psutil.NoSuchProcess):  # one ends with its keeper
                psutil.Process(pid).kill()


@pytest.fixture
def desk(lab: Lab, spec: Path, request: pytest.FixtureRequest) -> Iterator[Desk]:
    name = re.sub(r"\W", "-", request.node.name)[:40]
    desk = Desk(lab, spec, lab.home / name)
    yield desk
    try:
        print(desk.screen.read_text())  # pytest shows it when the test has failed
    finally:
        desk.end()


def certificates(desk: Desk) -> Path:
    made = desk.out.with_suffix(".certs")
    command = [sys.executable, "-m", "launcher.cli", "certs", str(desk.spec), "--peers", str(HOSTS), "--out", str(made)]
    assert desk.lab.at_desk(command, stdout=subprocess.DEVNULL).wait(60) == 0
    return made


def test_the_models_are_those_of_a_local_run(desk: Desk, expected: dict[str, str]) -> None:
    """With a peer killed on its host, and the launcher's connection to another cut, in the middle of it."""
    desk.run("--certs", str(certificates(desk)))
    desk.until_round("peer0", 2)
    os.kill(desk.pid(0), signal.SIGKILL)
    until(lambda: "peer0: restarting" in desk.said, 20, "peer0 starts again")
    with desk.held(2), desk.lab.shut(1):
        until(lambda: "lab1 unreachable: " in desk.said, 40, "the desk tells that it cannot reach lab1")
    assert desk.code() == 0
    assert "lab1 reachable again" in desk.said
    assert desk.digests() == expected
    assert json.loads((desk.out / "summary.json").read_text())["restarts"] == 1
    for number, id in enumerate(IDS):
        there = desk.lab.directory(number) / desk.out.name
        assert brought(desk.out / id) == brought(there / id)
        shipped = {path.name for path in there.iterdir() if not path.name.startswith(".")}
        assert shipped == {"federation.yaml", f"{id}.yaml", "ca.pem", f"{id}.pem", f"{id}.key", id}
        assert stat.S_IMODE((there / f"{id}.key").stat().st_mode) == 0o600
    assert not (desk.out / "peer0" / "checkpoint").exists()
    assert not desk.lab.pids()


def brought(out: Path) -> dict[str, bytes]:
    names = ("audit.jsonl", "events.jsonl", "log.txt", "model.safetensors", "result.json")
    return {name: (out / name).read_bytes() for name in names}


def test_the_peers_go_on_without_a_launcher(desk: Desk, expected: dict[str, str]) -> None:
    """One whose terminal is closed, one that is killed, one that finds them all done. A host is reached by IPv6."""
    desk.run("--set", "plaintext=true", hosts=desk.hosts(lab2={"host": "root@[fd77::3]"}))
    desk.until_round("peer1", 2)
    with desk.held(0):
        desk.signal(signal.SIGHUP)
        assert desk.code() == 129
        pids, reached = desk.lab.pids(), desk.round("peer0")
        desk.attach()
        until(lambda: desk.said.count("fibfl, 3 peers") == 2, 60, "another launcher is there")
        assert desk.lab.pids() == pids
    desk.until_round("peer0", reached + 1)
    desk.signal(signal.SIGKILL)
    desk.code()
    all_gone(pids, 60)
    desk.attach()
    assert desk.code() == 0
    assert desk.digests() == expected
    assert json.loads((desk.out / "summary.json").read_text())["restarts"] == 0


def test_ctrl_c_while_a_host_cannot_be_reached(desk: Desk, expected: dict[str, str]) -> None:
    """Its peer ends, too, as soon as it can be; the same command resumes the run."""
    desk.run("--set", "plaintext=true")
    desk.until_round("peer1", 2)
    with desk.lab.cut(2):
        with desk.held(0):
            until(lambda: "lab2 unreachable: " in desk.said, 60, "the desk tells that it cannot reach lab2")
            desk.signal(signal.SIGINT)
            until(lambda: not desk.lab.pids(1), 20, "a peer on another host ends")
        assert desk.lab.pids(2)
    assert desk.code() == 130
    assert not desk.lab.pids()
    desk.run("--set", "plaintext=true")
    assert desk.code() == 0
    assert desk.digests() == expected
    assert desk.said.count("resumed") == HOSTS


def test_fresh_leaves_nothing_on_a_host_that_has_left_the_list(desk: Desk) -> None:
    """Neither a process nor a key; while it cannot be reached it is named, and nobody is ended."""
    desk.run("--certs", str(certificates(desk)))
    desk.until_round("peer1", 1)
    hosts = desk.hosts()
    fewer = desk.out.with_suffix(".fewer.yaml")
    fewer.write_text(json.dumps({"hosts": json.loads(hosts.read_text())["hosts"][:2]}))
    again = ["--certs", str(desk.out.with_suffix(".certs")), "--set", "rounds=2", "--fresh"]
    with desk.held(0):
        desk.signal(signal.SIGHUP)
        assert desk.code() == 129
        pids = desk.lab.pids()
        with desk.lab.cut(2):
            desk.run(*again, hosts=fewer)
            assert desk.code() == 1
            assert "lab2 cannot be reached (timed out), and peer2 of the earlier run may still be there" in desk.said
        assert desk.lab.pids() == pids
    desk.run(*again, hosts=fewer)
    assert desk.code() == 0
    assert not (desk.lab.directory(2) / desk.out.name).exists()
    assert not desk.lab.pids()


@pytest.mark.timeout(240)
def test_discard_removes_what_an_ended_run_has_left_on_its_hosts(desk: Desk) -> None:
    """Not while peers run, and not while a host cannot be reached. What was copied here stays."""
    desk.run("--certs", str(certificates(desk)), "--set", "rounds=15")
    desk.until_round("peer1", 1)
    with desk.held(0):
        desk.signal(signal.SIGHUP)
        assert desk.code() == 129
        pids = desk.lab.pids()
        desk.discard()
        assert desk.code() == 2
        assert "lab0: peer0 still running; `dfl-launch attach" in desk.said
        assert desk.lab.pids() == pids
    all_gone(pids, 60)
    desk.discard()
    assert desk.code() == 2
    assert "lab1: the results of peer1 are not here yet; `dfl-launch attach" in desk.said
    desk.attach()
    assert desk.code() == 0
    models = desk.digests()
    with desk.lab.cut(2):
        desk.discard()
        assert desk.code() == 1
    assert "lab2 cannot be reached (timed out), and peer2 of the earlier run may still be there: nothing" in desk.said
    there = [desk.lab.directory(number) / desk.out.name for number in range(HOSTS)]
    assert all((path / f"peer{number}.key").exists() for number, path in enumerate(there))
    desk.discard()
    assert desk.code() == 0
    assert "Removed: keys, checkpoints and models on lab0, lab1, lab2; what was copied to" in desk.said
    assert not any(path.exists() for path in there)
    assert desk.digests() == models
    assert (desk.out / "peer0" / "model.safetensors").exists()
    desk.discard()
    assert desk.code() == 0
    assert "There is nothing to discard: `--on ssh` has left nothing outside" in desk.said


def test_what_cannot_be_written_at_the_desk_ends_the_run(desk: Desk) -> None:
    """With everybody ended, and one sentence that names the file."""
    desk.run("--set", "plaintext=true")
    desk.until_round("peer1", 1)
    with desk.held(0):
        (desk.out / "peer1").rename(desk.out / "aside")
    assert desk.code() == 1
    last = desk.screen.read_text().splitlines()[-1]
    assert re.search(r"cannot write \S*/peer1/(events.jsonl|log.txt): No such file or directory; mend that and", last)
    assert not desk.lab.pids()


def test_a_host_without_sshd_is_told_of_its_port(desk: Desk) -> None:
    with desk.lab.shut(1):
        desk.run("--set", "plaintext=true")
        assert desk.code() == 2
    assert "lab1: SSH refused the connection at its port 22: start sshd there, or write the port at which" in desk.said
    assert desk.nothing_created()


def test_what_is_wrong_is_named_at_once_and_nothing_is_created(desk: Desk) -> None:
    """A firewall that blocks one direction, a wrong address and a device that is not there."""
    hosts = desk.hosts(lab0={"address": "10.77.0.99"}, lab2={"device": "cuda:7"})
    with desk.lab.hosts.rule(1, f"-s {desk.lab.addresses[2]} -p tcp --dport 7700"):
        desk.run("--set", "plaintext=true", hosts=hosts)
        assert desk.code() == 2
    for caller in (1, 2):
        assert f"peer{caller} on lab{caller} cannot reach peer0 on lab0 at 10.77.0.99:7700 (" in desk.said
    assert "peer2 on lab2 cannot reach peer1 on lab1 at 10.77.0.2:7700 (timed out): open port 7700 of lab1" in desk.said
    assert "lab2: device `cuda:7`" in desk.said
    assert desk.said.count("cannot reach") == 3
    assert desk.nothing_created()


def test_hosts_that_cannot_be_used_are_named_at_once(desk: Desk) -> None:
    """Without a key that fits, without that Python, with a host key that nobody knows."""
    known = desk.lab.home / ".ssh" / "known_hosts"
    lines = known.read_text()
    known.write_text("".join(lines.splitlines(keepends=True)[:2]))
    try:
        desk.run(hosts=desk.hosts(lab0={"host": "nobody@lab0"}, lab1={"python": "/nowhere/python"}))
        assert desk.code() == 2
        assert "`peer0` has no `tls`" in desk.said  # of this machine's side, which comes first
        hosts = desk.hosts(lab0={"host": "nobody@lab0"}, lab1={"python": "/nowhere/python"})
        desk.run("--set", "plaintext=true", hosts=hosts)
        assert desk.code() == 2
    finally:
        known.write_text(lines)
    assert "nobody@lab0: it accepts none of your keys; see that `ssh nobody@lab0` works" in desk.said
    assert "lab1: `/nowhere/python` does not run there (" in desk.said
    shown = fingerprint(desk.lab.directory(2) / "host_key.pub")
    assert f"lab2: its host key {shown} is not known here; connect once by `ssh lab2`" in desk.said
    starts = [line[:20] for line in desk.screen.read_text().splitlines()[-3:]]
    assert starts == ["dfl-launch: nobody@l", "dfl-launch: lab1: `/", "dfl-launch: lab2: it"]
    assert desk.nothing_created()


def fingerprint(key: Path) -> str:
    listed = subprocess.run(["ssh-keygen", "-l", "-f", str(key)], capture_output=True, text=True, check=True).stdout
    return listed.split()[1]


def test_a_host_key_that_has_changed_is_told_from_one_that_nobody_knows(desk: Desk) -> None:
    known = desk.lab.home / ".ssh" / "known_hosts"
    lines = known.read_text().splitlines()
    other = " ".join(lines[1].split()[1:])  # lab0 is known by the key of lab1
    known.write_text("\n".join([f"{lines[0].split()[0]} {other}", *lines[1:]]) + "\n")
    try:
        desk.run("--set", "plaintext=true")
        assert desk.code() == 2
    finally:
        known.write_text("\n".join(lines) + "\n")
    shown, expected = (fingerprint(desk.lab.directory(number) / "host_key.pub") for number in (0, 1))
    assert f"lab0: its host key has changed: {expected} is known here, and it shows {shown}; ask who" in desk.said
    assert "`ssh-keygen -R 10.77.0.1`" in desk.said
    assert desk.nothing_created()


def test_a_key_with_a_passphrase_that_no_agent_holds_is_named(desk: Desk) -> None:
    key = desk.lab.home / ".ssh" / "id_ed25519"
    change = ["ssh-keygen", "-q", "-p", "-f", str(key)]
    subprocess.run([*change, "-P", "", "-N", "secret"], check=True)
    try:
        desk.run("--set", "plaintext=true")
        assert desk.code() == 2
    finally:
        subprocess.run([*change, "-P", "secret", "-N", ""], check=True)
    assert f"lab0: it accepts none of your keys that can be used; {key} needs a passphrase, and no agent" in desk.said
    assert desk.nothing_created()


def test_a_port_that_is_taken_and_a_host_that_is_not_there(desk: Desk) -> None:
    hosts = desk.hosts(lab0={"host": "10.77.0.77"}, lab1={"host": "[fd77::2]", "port": 22})
    desk.run("--set", "plaintext=true", hosts=hosts)
    assert desk.code() == 2
    assert "10.77.0.77: no route to host" in desk.said
    assert "peer1 cannot listen at [::]:22 of [fd77::2]: address already in use" in desk.said
    assert desk.nothing_created()


def test_install_makes_an_environment_and_says_so(desk: Desk) -> None:
    hosts = desk.hosts()
    home = desk.lab.directory(0) / "home"
    only = {**json.loads(hosts.read_text())["hosts"][0], "directory": str(home)}
    hosts.write_text(json.dumps({"hosts": [only]}))
    desk.run("--install", "--set", "protocol=solo", "--set", "plaintext=true", hosts=hosts, peers=1)
    assert desk.code(100) == 0
    assert f"lab0: makes a Python environment in {home}/.venv with dfl" in desk.said
    assert [*home.glob(".venv/lib/*/site-packages/peer/cli.py")]


def test_another_torch_on_a_host_is_reported(desk: Desk) -> None:
    """That of lab2 only claims to be another."""
    (info := desk.lab.base / "other" / "torch-9.9+cu99.dist-info").mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: torch\nVersion: 9.9+cu99\n")
    python = info.parent / "python"
    python.write_text(f'#!/bin/sh\nPYTHONPATH={info.parent}:$PYTHONPATH exec {sys.executable} "$@"\n')
    python.chmod(0o755)
    desk.run("--set", "plaintext=true", "--set", "rounds=2", hosts=desk.hosts(lab2={"python": str(python)}))
    assert desk.code() == 0
    machine = os.uname().machine
    assert f"({machine}) on lab0 and lab1 and this machine, 9.9+cu99 ({machine}) on lab2); another build" in desk.said
