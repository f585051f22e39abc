"""`dfl-launch run` with real peers: to the end and again, other specs, Ctrl-C, and a launcher that is killed."""

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import psutil
import pytest
from interpreter import Command, Commands
from real_peers import Nursery, RunningPeer, all_gone

from launcher.cli import main
from launcher.engines.base import Process
from launcher.engines.local import LocalEngine
from peer.runtime.in_process import run_in_process
from peer.spec.loading import load_spec

pytestmark = pytest.mark.long

Ports = Callable[[int], list[int]]
SUMMARY = {
    *("name", "protocol", "task", "peers", "rounds", "seed", "ring", "wall_seconds", "figures"),
    *("mean_accuracy", "worst_accuracy"),
    *("gini", "r50", "plateau_sigma", "ring_cost", "restarts", "history", "per_peer", "privacy"),
}
PER_PEER = {
    *("id", "samples", "accuracy", "figures", "balanced", "test_loss", "model_sha256", "seconds"),
    *("bytes_sent", "bytes_received", "tensor_bytes_sent", "sent_to", "notes"),
}


class Lent:
    """The session's fork server in place of the launcher's own, which costs seconds to start."""

    nursery: Nursery

    def __init__(self) -> None:
        self._peers: list[RunningPeer] = []

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert not any(peer.running for peer in self._peers)

    async def start(self, argv: list[str], log: Path) -> "LentPeer":
        peer = await asyncio.to_thread(self.nursery.start, argv, log)
        self._peers.append(peer)
        return LentPeer(peer)


class LentPeer(Process):
    """What a supervisor asks of a process."""

    def __init__(self, peer: RunningPeer) -> None:
        self._peer = peer

    async def wait(self) -> int:
        return await asyncio.wrap_future(self._peer.ended)

    def signal(self, number: int) -> None:
        self._peer.signal(number)


@pytest.fixture
def lent(fork_server: Nursery, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Lent, "nursery", fork_server, raising=False)
    monkeypatch.setattr(LocalEngine, "fork_server", lambda _engine, _run: Lent())


def write(directory: Path, ports: list[int], **spec: Any) -> Path:
    """A federation file for those ports."""
    ring = [{"id": f"peer{i}", "address": f"127.0.0.1:{port}"} for i, port in enumerate(ports)]
    content = {
        "name": "tiny",
        "rounds": 3,
        "protocol": {"name": "fibfl++", "head_epochs": 1, "extractor_epochs": 1, "tau": 0.05},
        "data": {"name": "digits", "limit": 300},
        "ring": ring,
        **spec,
    }
    file = directory / "small.yaml"
    file.write_text(json.dumps(content))
    return file


@pytest.fixture
def small(tmp_path: Path, ports: Ports, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return write(tmp_path, ports(4))


def summary(directory: Path) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((directory / "summary.json").read_text())
    return content


def test_peers_that_are_forks_of_the_command(small: Path) -> None:
    command = [sys.executable, "-m", "launcher.cli", "run", str(small), "--out", "out", "--quiet", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=90)
    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads(done.stdout)["rounds"] == 3


def test_to_the_end_and_again(small: Path, lent: None, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", str(small)]) == 0
    text = capsys.readouterr().out
    assert re.search(r"^fibfl\+\+, 4 peers, in .*runs/tiny$", text, re.M)
    assert re.search(r"^round 3/3, mean matched accuracy 0\.\d{4}, loss", text, re.M)
    assert "\x1b" not in text  # no terminal, no colours
    assert re.search(r"0 B of heads sent, \d+ directed edges used, no violation", text)

    directory = tmp_path / "runs" / "tiny"
    first = summary(directory)
    assert set(first) == SUMMARY
    assert set(first["mean_accuracy"]) == {"matched", "global", "paper"}
    assert set(first["ring_cost"]) == {"before", "after"}
    assert [one["round"] for one in first["history"]] == [1, 2, 3]
    assert set(first["privacy"]) >= {"head_bytes_sent", "edges_used", "violations"}
    assert first["privacy"]["violations"] == []
    assert [one["id"] for one in first["per_peer"]] == [f"peer{i}" for i in range(4)]
    for one in first["per_peer"]:
        assert set(one) == PER_PEER
        assert set(one["accuracy"]) >= {"matched", "global", "paper"}
        assert set(one["seconds"]) == {"train", "communicate", "evaluate"}
        assert sum(one["sent_to"].values()) == one["bytes_sent"]
    for id in first["ring"]:
        there = {path.name for path in (directory / id).iterdir()}
        assert there >= {"pid", "events.jsonl", "log.txt", "model.safetensors", "checkpoint"}
        assert (directory / f"{id}.yaml").exists()

    assert main(["run", str(small)]) == 0
    assert "This run is complete; use --fresh to run it again." in capsys.readouterr().out
    assert main(["run", str(directory / "federation.yaml"), "--out", str(directory)]) == 0  # as resolved
    assert main(["run", str(small), "--seed", "43"]) == 2
    assert re.search("holds another run.*`seed`", capsys.readouterr().err)
    assert main(["run", str(small), "--set", "protocol.gamma_start=0.3"]) == 2
    assert "`protocol`" in capsys.readouterr().err
    assert summary(directory) == first

    assert main(["run", str(small), "--fresh"]) == 0
    again = summary(directory)
    assert digests(again) == digests(first)
    other = tmp_path / "elsewhere" / "deep"
    arguments = ["--out", str(other), "--seed", "43", "--set", "rounds=1", "--set", "protocol={name: rdfl, epochs: 1}"]
    assert main(["run", str(small), *arguments]) == 0
    third = summary(other)
    assert (third["seed"], third["rounds"], third["protocol"]) == (43, 1, "rdfl")
    assert digests(third) != digests(first)


def digests(summary: dict[str, Any]) -> list[str]:
    return [one["model_sha256"] for one in summary["per_peer"]]


@contextmanager
def launched(commands: Commands, file: Path, out: Path) -> Iterator[tuple[Command, list[int]]]:
    """A launcher in a process and a session of its own, and the ids of all under it once round 1 is over."""
    with commands.command(["-m", "launcher.cli", "run", str(file), "--out", str(out)]) as process:
        assert process.stdout is not None
        while "round 1/" not in (line := process.stdout.readline()):
            assert line, "the launcher ended before round 1"
        yield process, [child.pid for child in psutil.Process(process.pid).children(recursive=True)]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_no_orphan_and_nothing_lost(
    number: signal.Signals,
    tmp_path: Path,
    ports: Ports,
    lent: None,
    commands: Commands,
    capsys: pytest.CaptureFixture[str],
) -> None:
    file, out = write(tmp_path, ports(3), rounds=40, protocol={"name": "rdfl", "epochs": 1}), tmp_path / "out"
    with launched(commands, file, out) as (launcher, pids):
        assert len(pids) == 4  # the fork server and three peers
        if number == signal.SIGINT:
            os.killpg(launcher.pid, number)  # as a terminal does: the peers have sessions of their own
        else:
            launcher.send_signal(number)
        assert launcher.wait(15) == (130 if number == signal.SIGINT else -number)
        all_gone(pids, 0 if number == signal.SIGINT else 8)
    assert not [path for path in out.rglob("*") if path.name.endswith((".part", ".tmp"))]
    assert not (out / "summary.json").exists()
    for id in ("peer0", "peer1", "peer2"):
        assert '"event": "stopped"' in (out / id / "events.jsonl").read_text()
    if number == signal.SIGKILL:  # it goes on at other addresses, as if somebody had taken these
        write(tmp_path, ports(3), rounds=40, protocol={"name": "rdfl", "epochs": 1})
    assert main(["run", str(file), "--out", str(out)]) == 0
    assert "peer0 resumed after round" in capsys.readouterr().out
    spec = load_spec(file)
    runtimes = asyncio.run(run_in_process(spec, tmp_path / "memory"))
    assert digests(summary(out)) == [runtimes[id].setup.model.sha256() for id in spec.ids]
