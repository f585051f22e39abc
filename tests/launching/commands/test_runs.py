"""`dfl-launch list` and `dfl-launch logs`: the runs of a directory, and what the peers of one have logged."""

import fcntl
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from report_pages import federate
from rich.console import Console

from launcher.cli import main
from peer.spec.loading import load_spec

Printed = pytest.CaptureFixture[str]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run, one that was interrupted, a damaged one, and what is no run."""
    place = tmp_path_factory.mktemp("runs")
    for made in (federate(place / "whole"), cut := federate(place / "cut", "fedavg", rounds=2)):
        resolved = load_spec(made / "federation.yaml", peers=4).dump()
        (made / "federation.yaml").write_text(resolved)
    (cut / "summary.json").unlink()
    events = cut / "peer1" / "events.jsonl"
    events.write_text("".join(line for line in events.read_text().splitlines(True) if '"round": 2' not in line))
    (place / "damaged").mkdir()
    (place / "damaged" / "federation.yaml").write_text("ring: [1, {")
    (place / "notes").mkdir()
    for at, name in enumerate(("cut", "whole", "damaged")):
        os.utime(place / name / "federation.yaml", (at, at))
    return place


def test_the_runs_of_a_directory(runs: Path, capsys: Printed) -> None:
    assert main(["list", str(runs), "--json"]) == 0
    cut, whole, damaged = json.loads(capsys.readouterr().out)
    summary = json.loads((runs / "whole" / "summary.json").read_text())
    assert (whole["run"], whole["protocol"], whole["peers"], whole["state"]) == ("whole", "fibfl++", 4, "finished")
    assert (whole["rounds"], whole["of"]) == (3, 3)
    assert (whole["mean"], whole["worst"]) == (summary["mean_accuracy"]["matched"], summary["worst_accuracy"])
    assert (cut["run"], cut["state"], cut["rounds"], cut["of"], cut["mean"]) == ("cut", "incomplete", 1, 2, None)
    assert (damaged["run"], damaged["protocol"], damaged["state"]) == ("damaged", None, "incomplete")


def test_a_run_that_is_at_work(runs: Path, capsys: Printed) -> None:
    with (runs / "cut" / ".peers").open("a") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        assert main(["list", str(runs), "--json"]) == 0
    assert [one["state"] for one in json.loads(capsys.readouterr().out)] == ["running", "finished", "incomplete"]


def test_the_table_fits_a_narrow_screen(runs: Path, capsys: Printed, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Console, "width", 50)
    assert main(["list", str(runs)]) == 0
    shown = capsys.readouterr().out
    assert all(len(line.rstrip()) <= 50 for line in shown.splitlines())
    assert all(name in shown for name in ("cut", "whole", "damaged", "fibfl++", "finished", "incomplete"))


def test_a_long_name_leaves_room_for_the_rest(runs: Path, tmp_path: Path, capsys: Printed) -> None:
    (tmp_path / ("n" * 200)).symlink_to(runs / "whole")
    assert main(["list", str(tmp_path)]) == 0
    shown = capsys.readouterr().out
    assert all(name in shown for name in ("n" * 31 + "…", "fibfl++", "finished"))


def test_no_runs(tmp_path: Path, capsys: Printed) -> None:
    assert main(["list", str(tmp_path)]) == 0
    assert capsys.readouterr().out == f"{tmp_path} holds no runs.\n"
    assert main(["list", str(tmp_path / "none")]) == 2
    assert "No such file or directory; give a directory that holds runs" in capsys.readouterr().err


@pytest.fixture
def logged(tmp_path: Path) -> Path:
    for id, lines in {
        "a": "2026-01-01 10:00:01 one\n2026-01-01 10:00:03 three\n  and more\n",
        "peer1": "2026-01-01 10:00:02 two \x1b[31m\n2026-01-01 10:00:04 fo",
    }.items():
        (tmp_path / id).mkdir()
        (tmp_path / id / "log.txt").write_text(lines)
    return tmp_path


def test_logs_of_all_in_the_order_of_time(logged: Path, capsys: Printed) -> None:
    assert main(["logs", str(logged)]) == 0
    shown = capsys.readouterr().out
    assert [line.split()[0] for line in shown.splitlines()] == ["a", "peer1", "a", "a", "peer1"]
    assert [line.split()[-1] for line in shown.splitlines()] == ["one", "?[31m", "three", "more", "fo"]
    assert shown.splitlines()[3] == "a        and more"
    assert "\x1b" not in shown
    assert main(["logs", str(logged), "a"]) == 0
    assert capsys.readouterr().out.splitlines()[0] == "2026-01-01 10:00:01 one"
    (logged / "a" / "log.txt.1").write_text("2026-01-01 09:00:00 the older half\n")
    assert main(["logs", str(logged)]) == 0
    assert "the older half" in capsys.readouterr().out.splitlines()[0]


@pytest.mark.parametrize(
    ("wrong", "told"), [(["b"], "no log of b; it has a, peer1"), ([], "a peer that was started by hand logs to")]
)
def test_logs_that_are_not_there(wrong: list[str], told: str, logged: Path, capsys: Printed) -> None:
    place = logged if wrong else logged / "a"
    assert main(["logs", str(place), *wrong]) == 2
    assert told in capsys.readouterr().err


def test_logs_are_followed_until_somebody_ends_that(logged: Path) -> None:
    command = [sys.executable, "-m", "launcher.cli", "logs", str(logged), "peer1", "--follow"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as following:
        assert following.stdout
        assert "two" in following.stdout.readline()
        with (logged / "peer1" / "log.txt").open("a") as file:
            file.write("ur\n")
        assert following.stdout.readline() == "2026-01-01 10:00:04 four\n"
        following.send_signal(signal.SIGINT)
        assert following.wait(20) == 130
