"""What a host does with orders that come while a peer begins or ends; no connection is needed for it."""

import fcntl
import json
import os
import signal
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from launcher.engines.programs.ssh_host import RemotePeerFiles
from launcher.engines.ssh import KEEPER

OBEY = "from launcher.engines.programs.ssh_host import main; main()"


def test_a_signal_reaches_a_peer_that_begins(tmp_path: Path) -> None:
    """Its keeper stands still before it starts the peer, until all orders are given."""
    gate = tmp_path / "gate"
    os.mkfifo(gate)
    held = f"import sys; open({str(gate)!r}).read(); sys.argv[4:] = ['sleep', '60']\n{KEEPER}"
    peer = {"directory": str(tmp_path / "run"), "id": "peer0"}
    (tmp_path / "run").mkdir()
    orders = [
        ("start", {**peer, "keeper": held}),
        ("follow", {**peer, "offsets": {"events.jsonl": 0, "log.txt": 0}}),
        ("send", {**peer, "number": signal.SIGKILL}),
        ("awake", {}),
    ]
    with (
        subprocess.Popen([sys.executable, "-c", OBEY], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as host,
        ExitStack() as end,
    ):
        end.callback(host.kill)
        assert host.stdin
        assert host.stdout
        for number, (do, given) in enumerate(orders):
            host.stdin.write(json.dumps({"order": number, "do": do, "given": given}).encode() + b"\n")
        host.stdin.flush()
        said = [json.loads(line) for line in (host.stdout.readline(), host.stdout.readline())]
        assert said[1] == {"answer": 3, "result": None}  # the others wait
        gate.write_text("")
        said = [json.loads(host.stdout.readline()) for _ in range(4)]
        host.stdin.close()
    assert [one for one in said if "answer" in one] == [
        {"answer": 0, "result": None},
        {"answer": 1, "result": None},
        {"answer": 2, "result": True},
    ]
    assert {"peer": "peer0", "ended": -signal.SIGKILL} in said


def obeyed(do: str, **given: Any) -> Any:
    """The result of one order, by a process of its own."""
    with (
        subprocess.Popen([sys.executable, "-c", OBEY], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as host,
        ExitStack() as end,
    ):
        end.callback(host.kill)
        assert host.stdin
        assert host.stdout
        host.stdin.write(json.dumps({"order": 0, "do": do, "given": given}).encode() + b"\n")
        host.stdin.flush()
        _, answer = json.loads(host.stdout.readline()), json.loads(host.stdout.readline())
        host.stdin.close()
    return answer["result"]


def test_a_signal_reaches_a_peer_whose_keeper_was_killed_when_it_began(tmp_path: Path) -> None:
    killed = """
import os, subprocess, sys
sys.argv[4:] = ["sleep", "60"]
popen = subprocess.Popen
subprocess.Popen = lambda *given, **named: (popen(*given, **named), os.kill(os.getpid(), 9))
"""
    peer = {"directory": str(tmp_path), "id": "peer0"}
    obeyed("start", **peer, keeper=killed + KEEPER)
    there = RemotePeerFiles(str(tmp_path), "peer0")
    assert there.runs()
    assert obeyed("send", **peer, number=signal.SIGKILL)
    with open(there.lock) as lock:
        fcntl.flock(lock, fcntl.LOCK_SH)  # until it has ended
    assert not obeyed("send", **peer, number=signal.SIGKILL)
    assert there.code() == -signal.SIGKILL


RUN = {"owner": "me@desk:/runs/mine", "token": "1"}
SLEEPS = f"import sys; sys.argv[4:] = ['sleep', '60']\n{KEEPER}"
BOTH = ["peer0", "peer1"]


@pytest.fixture
def placed(tmp_path: Path) -> Path:
    """A run's directory on a host with two peers, of which one runs, and their keys."""
    root = tmp_path / "dfl" / "mine"
    names = ["federation.yaml", "ca.pem", *(f"{id}.{kind}" for id in BOTH for kind in ("yaml", "pem", "key"))]
    files = dict.fromkeys(names, "text")
    obeyed("place", directory=str(root), run=RUN, ids=BOTH, files=files)
    obeyed("start", directory=str(root), id="peer1", keeper=SLEEPS)
    return root


def test_nothing_stays_of_what_is_discarded(placed: Path) -> None:
    """What peers share goes with the last of them."""
    obeyed("discard", directory=str(placed), run=RUN, ids=["peer1"])
    assert not RemotePeerFiles(str(placed), "peer1").runs()
    left = {"federation.yaml", "ca.pem", "peer0.yaml", "peer0.pem", "peer0.key", ".peer0.run"}
    assert {path.name for path in placed.iterdir()} == left
    obeyed("discard", directory=str(placed), run=RUN, ids=BOTH)
    assert not placed.exists()
    obeyed("discard", directory=str(placed), run=RUN, ids=BOTH)


def test_what_is_another_runs_stays(placed: Path) -> None:
    before = {path.name for path in placed.iterdir()}
    obeyed("discard", directory=str(placed), run={"owner": "you@desk:/runs/mine", "token": "2"}, ids=BOTH)
    assert {path.name for path in placed.iterdir()} == before
    assert RemotePeerFiles(str(placed), "peer1").runs()
    obeyed("discard", directory=str(placed), run=RUN, ids=BOTH)


def test_a_peer_of_an_earlier_run_that_is_no_longer_placed_there_ends(placed: Path) -> None:
    files = {"federation.yaml": "other"}
    obeyed("place", directory=str(placed), run={**RUN, "token": "2"}, ids=["peer0"], files=files)
    assert not RemotePeerFiles(str(placed), "peer1").runs()
    assert {path.name for path in placed.iterdir()} == {"federation.yaml", "ca.pem", ".peer0.run"}
