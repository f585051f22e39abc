"""Ctrl-C before anything runs: while Python still imports, both commands end at once and complain of nothing; so does
`run` while it checks, and its fork server with it."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest
from real_peers import all_gone

SLOW = """
import signal
print("importing", flush=True)
try:
    signal.pause()
except BaseException:  # as extension modules do
    raise ImportError("interrupted") from None
"""
USER_CODE = """
import signal
print("checking", flush=True)
signal.pause()
"""
FEDERATION = "name: f\nrounds: 1\nprotocol: {name: solo, like: fibfl}\ndata: {name: digits}\n"
PEER = "federation: fed.yaml\nid: peer0\nout: out\n"
COMMANDS = {
    "check": ("launcher.cli", "check", "fed.yaml", "--peers", "1"),
    "run": ("launcher.cli", "run", "fed.yaml", "--peers", "1", "--out", "out"),
    "dfl-peer": ("peer.cli", "--config", "peer.yaml"),
}


@pytest.mark.parametrize("command", COMMANDS)
def test_ctrl_c_in_the_midst_of_an_import(command: str, tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text(SLOW)
    (tmp_path / "fed.yaml").write_text(FEDERATION)
    (tmp_path / "peer.yaml").write_text(PEER)
    process = subprocess.Popen(
        [sys.executable, "-m", *COMMANDS[command]],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": f"{tmp_path}{os.pathsep}{Path(__file__).parents[2]}"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout
    if command == "run":  # what is to run is told before torch is there
        assert process.stdout.readline() == f"solo, 1 peer, in {tmp_path / 'out'}\n"
    assert process.stdout.readline() == "importing\n"
    process.send_signal(signal.SIGINT)
    said, complained = process.communicate(timeout=60)
    assert (process.returncode, said, complained) == (130, "", "")
    assert not (tmp_path / "out").exists()


SLOW_TRACKER = """
import time

def track(event):
    print(event.name, flush=True)
    if event.name == "stopped":
        time.sleep(1)
"""


def test_a_second_ctrl_c_while_a_tracker_finishes(tmp_path: Path, ports: Callable[[int], list[int]]) -> None:
    (tmp_path / "slow.py").write_text(SLOW_TRACKER)
    (port,) = ports(1)
    ring = f"ring: [{{id: peer0, address: '127.0.0.1:{port}'}}]\n"
    (tmp_path / "fed.yaml").write_text(FEDERATION.replace("rounds: 1", "rounds: 1000") + f"tracker: slow:track\n{ring}")
    (tmp_path / "peer.yaml").write_text(PEER)
    command = [sys.executable, "-m", *COMMANDS["dfl-peer"], "--quiet"]
    process = subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout
    for awaited in ("round", "stopped"):
        while (said := process.stdout.readline()) != f"{awaited}\n":
            assert said, "the peer has ended"
        process.send_signal(signal.SIGINT)
    _, complained = process.communicate(timeout=60)
    assert (process.returncode, complained.splitlines()[-1][-18:]) == (130, " stopped by SIGINT")


def test_ctrl_c_in_the_midst_of_a_check(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(USER_CODE)
    (tmp_path / "fed.yaml").write_text("name: f\nrounds: 1\nprotocol: mine:Own\n")
    command = [sys.executable, "-m", *COMMANDS["run"]]
    process = subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout
    assert process.stdout.readline() == f"mine:Own, 1 peer, in {tmp_path / 'out'}\n"
    assert process.stdout.readline() == "checking\n"
    launcher = psutil.Process(process.pid)
    (fork_server,) = launcher.children()
    assert fork_server.cmdline() == launcher.cmdline()  # a fork of it
    process.send_signal(signal.SIGINT)
    said, complained = process.communicate(timeout=60)
    assert (process.returncode, said, complained) == (130, "", "")
    all_gone([fork_server.pid], seconds=30)
    assert not (tmp_path / "out").exists()
