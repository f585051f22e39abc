"""The unit for peers that belong to a machine, as systemd itself reads it. Nothing is started."""

import shutil
import signal
import subprocess
from pathlib import Path

import pytest

from peer.process import NOT_NOW, WRONG_INPUT

UNIT = Path(__file__).parents[2] / "deploy" / "systemd" / "dfl-peer@.service"
needs_systemd = pytest.mark.skipif(
    shutil.which("systemd-analyze") is None, reason="needs systemd-analyze (Debian's package systemd)"
)


def analyze(verb: str, unit: Path) -> "subprocess.CompletedProcess[str]":
    command = ["systemd-analyze", verb, *(["--offline=yes"] if verb == "security" else []), str(unit)]
    return subprocess.run(command, capture_output=True, text=True, timeout=60)


@pytest.fixture
def unit(tmp_path: Path) -> Path:
    """The unit for north.yaml, with a program in its place that is there."""
    made = tmp_path / "dfl-peer@north.service"
    made.write_text(UNIT.read_text().replace("/opt/dfl/bin/dfl-peer", "/bin/true"))
    return made


@needs_systemd
def test_systemd_has_nothing_to_say_against_it(unit: Path) -> None:
    """It tells of unknown and misspelt settings without another exit status: there must be no word."""
    verified = analyze("verify", unit)
    assert (verified.returncode, verified.stdout, verified.stderr) == (0, "", "")
    unit.write_text(unit.read_text() + "Restarts=yes\n")
    assert "Restarts" in analyze("verify", unit).stderr


@needs_systemd
def test_what_it_exposes_is_little(unit: Path) -> None:
    told = analyze("security", unit)
    if "unrecognized option" in told.stderr:
        pytest.skip("this systemd-analyze cannot judge a unit that is not loaded")
    level = float(told.stdout.rpartition(": ")[2].split()[0])
    assert level < 3, told.stdout


def test_the_exit_statuses_are_those_of_the_peer() -> None:
    settings = dict(line.split("=", 1) for line in UNIT.read_text().splitlines() if "=" in line and line[0] != "#")
    assert [int(code) for code in settings["RestartPreventExitStatus"].split()] == [WRONG_INPUT]
    assert str(NOT_NOW) not in settings["SuccessExitStatus"], "it is started again"
    assert settings["Restart"] == "on-failure"
    assert "time-sync.target" in settings["After"]
    assert int(settings["SuccessExitStatus"]) == 128 + signal.SIGTERM
    assert settings["ExecStart"].split()[1:] == ["--config", "/etc/dfl/%i.yaml"]
