"""`run --json` and `--quiet`: one document for programs, nothing for those who want nothing, and never both mixed."""

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from fake_runs import HERE

from launcher.cli import main
from launcher.engines import ENGINES
from launcher.supervision.supervisor import RestartPolicy

Launch = Callable[..., int]


@pytest.fixture
def launch(small: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Launch:
    """Runs three fake peers by the command line; returns its exit code."""
    monkeypatch.setitem(ENGINES, "local", "fake_runs:FakeEngine")
    monkeypatch.setenv("PYTHONPATH", str(HERE), prepend=os.pathsep)
    monkeypatch.setattr(
        RestartPolicy, "from_spec", lambda *_, **__: RestartPolicy(limit=1, first_delay=0.01, grace=1.0)
    )

    def launch(*arguments: str, **behaviours: str) -> int:
        monkeypatch.setenv("FAKE_PEERS", json.dumps(behaviours))
        return main(["run", str(small), "--peers", "3", "--out", str(tmp_path / "out"), *arguments])

    return launch


def test_the_summary_has_stdout_to_itself(launch: Launch, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert launch("--json") == 0
    printed = capfd.readouterr()
    assert printed.out == (tmp_path / "out" / "summary.json").read_text()
    assert "round 3/3, mean matched accuracy" in printed.err
    assert launch("--json", "--quiet") == 0, "it is finished"
    assert capfd.readouterr() == (printed.out, "")


def test_a_failure_is_told_once(launch: Launch, capfd: pytest.CaptureFixture[str]) -> None:
    assert launch("--json", "--quiet", peer1="gives up", peer2="hangs") == 1
    printed = capfd.readouterr()
    assert json.loads(printed.out) == {"error": "peer1 ended with exit code 1: peer0 never came", "exit_code": 1}
    assert printed.err == "dfl-launch: peer1 ended with exit code 1: peer0 never came\n"


def test_what_only_a_peer_finds_wrong_is_told_too(launch: Launch, capfd: pytest.CaptureFixture[str]) -> None:
    assert launch("--quiet", peer1="wrong", peer2="hangs") == 2
    printed = capfd.readouterr()
    assert printed.out == ""
    assert "peer1: " in printed.err
    assert "the data file is truncated" in printed.err


def test_a_run_that_goes_well_is_silent(launch: Launch, capfd: pytest.CaptureFixture[str]) -> None:
    assert launch("--quiet") == 0
    assert capfd.readouterr() == ("", "")
