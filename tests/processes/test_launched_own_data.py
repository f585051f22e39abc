"""`dfl-launch run` where peers have data of their own: who opens them, and what becomes of a mistake in one's.

Each launcher has a fork server of its own, as only its end is that of a peer which is just being started.
"""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from test_launch import Ports, write

from launcher.cli import main

pytestmark = pytest.mark.long

READER = """
import os
import numpy as np

def read(root):
    with open(root.parent / "opened", "a") as file:
        file.write(f"{root.name} {os.getpid()}\\n")
    return np.random.default_rng(1).normal(size=(20, 4)).astype("f4"), np.arange(20) % 2
"""


def test_the_launcher_opens_one_peers_data(ports: Ports, tmp_path: Path) -> None:
    (tmp_path / "opened_by.py").write_text(READER)
    data = {"name": "opened_by:read", "root": str(tmp_path / "{id}")}
    small = write(tmp_path, ports(3), data=data, code=str(tmp_path), protocol="fibfl", rounds=1)
    assert main(["run", str(small), "--out", str(tmp_path / "out")]) == 0
    opened = [line.split() for line in (tmp_path / "opened").read_text().splitlines()]
    assert {id for id, process in opened if int(process) == os.getpid()} == {"peer0"}
    others = [(id, process) for id, process in opened if int(process) != os.getpid()]
    assert {id for id, _ in others} == {"peer0", "peer1", "peer2"}
    assert len({process for _, process in others}) == 3, "each by itself"


def table(
    path: Path, columns: str = "ab", value: Callable[[int, str], str] = lambda row, _: f"{row * 7 % 5}.5"
) -> None:
    """20 rows of two classes."""
    rows = [",".join([*(value(row, name) for name in columns), str(row % 2)]) for row in range(20)]
    path.write_text("\n".join([",".join([*columns, "label"]), *rows]) + "\n")


def no_file(directory: Path) -> None:
    (directory / "peer2.csv").unlink()


def a_gap(directory: Path) -> None:
    table(directory / "peer2.csv", value=lambda row, _: "nan" if row == 3 else "0.5")


def another_class(directory: Path) -> None:
    path = directory / "peer2.csv"
    path.write_text(path.read_text() + "1,2,7\n")


def other_columns(directory: Path) -> None:
    table(directory / "peer2.csv", "ba")


def too_few(directory: Path) -> None:
    (directory / "peer2.csv").write_text("a,b,label\n1,2,0\n2,1,1\n")


def empty_at_one(directory: Path) -> None:
    table(directory / "peer2.csv", value=lambda row, name: "" if name == "a" else f"{row}")


def empty_at_all(directory: Path) -> None:
    for number in range(4):
        table(directory / f"peer{number}.csv", value=lambda row, name: "" if name == "a" else f"{row}")


FILE = "the data of peer2: {}/peer2.csv: "
EMPTY = "column `a` has no value in any training sample to impute by; name the other columns in `columns`"


@pytest.mark.parametrize(
    ("mistake", "of_data", "of_spec", "said"),
    [
        (no_file, {}, {}, "the data of peer2: there is no file {}/peer2.csv"),
        (a_gap, {}, {}, FILE + "column 'a' has no value in line 5; fill it in"),
        (another_class, {}, {}, FILE + "column 'label' holds 7 in line 22, which is not in class_names"),
        (
            too_few,
            {},
            {"hold_back": 0.5},
            "the data of peer2: `hold_back: 0.5` leaves none of peer2's 1 ",
        ),
        (other_columns, {}, {}, "the data of peer"),
        (empty_at_one, {"impute": {"a": "mean"}, "standardize": "own"}, {}, f"peer2: {EMPTY}"),
        (empty_at_all, {"impute": {"a": "mean"}, "standardize": "federation"}, {}, EMPTY),
    ],
    ids=lambda given: getattr(given, "__name__", ""),
)
def test_what_only_a_later_peer_can_find_leaves_nothing(
    mistake: Callable[[Path], None],
    of_data: dict[str, Any],
    of_spec: dict[str, Any],
    said: str,
    ports: Ports,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    for number in range(4):
        table(tmp_path / f"peer{number}.csv")
    mistake(tmp_path)
    data = {"name": "csv", "path": str(tmp_path / "{id}.csv"), "class_names": ["0", "1"], **of_data}
    small = write(tmp_path, ports(4), data=data, patience=3600, protocol="fibfl", **of_spec)
    assert main(["run", str(small), "--out", str(tmp_path / "runs" / "out"), "--quiet"]) == 2
    told = capsys.readouterr().err
    assert said.format(tmp_path) in told
    assert told.count("\n") == 1
    assert not (tmp_path / "runs").exists()


def test_every_faulty_file_is_named_and_every_pair_that_differs(
    ports: Ports, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for number, columns in enumerate(("ab", "ac", "ad", "ab")):
        table(tmp_path / f"peer{number}.csv", columns)
    data = {"name": "csv", "path": str(tmp_path / "{id}.csv"), "class_names": ["0", "1"]}
    small = write(tmp_path, ports(4), data=data, patience=3600, protocol="fibfl")
    run = ["run", str(small), "--out", str(tmp_path / "runs" / "out"), "--quiet"]
    assert main(run) == 2
    told = capsys.readouterr().err
    assert told.count("make the two alike") == 3, "those with peer0 and peer3, and with each other"
    assert all(f"column 2 `{name}`" in told for name in "bcd")
    for number in (1, 2):
        table(tmp_path / f"peer{number}.csv", value=lambda row, _: "nan" if row == 3 else "0.5")
    assert main(run) == 2
    told = capsys.readouterr().err
    assert all(f"peer{number}.csv: column 'a' has no value in line 5" in told for number in (1, 2))


def test_a_mistake_at_a_later_start_leaves_the_run_as_it_is(
    ports: Ports, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for number in range(3):
        table(tmp_path / f"peer{number}.csv")
    out, data = tmp_path / "out", {"name": "csv", "path": str(tmp_path / "{id}.csv")}
    small, more = write(tmp_path, ports(3), data=data, patience=3600, protocol="fibfl", rounds=1), "--set=rounds=2"
    assert main(["run", str(small), "--out", str(out)]) == 0
    other_columns(tmp_path)
    assert main(["run", str(small), "--out", str(out), "--quiet", more]) == 2
    assert "the data of peer" in capsys.readouterr().err
    assert main(["run", str(small), "--out", str(out), "--quiet", "--fresh"]) == 2
    assert (out / "peer0" / "model.safetensors").exists(), "a mistake at any peer costs no finished run"
    table(tmp_path / "peer2.csv")
    assert main(["run", str(small), "--out", str(out), more]) == 0
    assert "peer2 resumed after round 1" in capsys.readouterr().out
