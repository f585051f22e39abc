"""Ctrl-C before anything runs: while Python still imports, both commands end at once and complain of nothing."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

SLOW = """
import signal
print("importing", flush=True)
try:
    signal.pause()
except BaseException:  # as extension modules do
    raise ImportError("interrupted") from None
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
