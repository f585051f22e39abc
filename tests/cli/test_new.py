"""What `dfl-launch new` writes passes `check`, its own test and a linter; a wrong name writes nothing."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from launcher.cli import main

HOUSE = Path(__file__).parents[2]


@pytest.mark.long
@pytest.mark.timeout(600)
@pytest.mark.parametrize("kind", ["protocol", "model", "data"])
def test_what_is_written_stands(kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    name = f"begun_{kind}"
    assert main(["new", kind, name, "--out", str(tmp_path / "own")]) == 0
    federation, test = tmp_path / "own" / f"{name}.yaml", tmp_path / "own" / f"test_{name}.py"
    printed = capsys.readouterr().out
    assert f"dfl-launch check {federation} --peers 4" in printed
    assert f"python -m pytest {test}" in printed
    environment = {**os.environ, "PYTHONPATH": str(HOUSE), "OMP_NUM_THREADS": "1"}
    for command in (
        ["launcher.cli", "check", str(federation), "--peers", "4", "--quiet"],
        ["pytest", "-q", "-p", "no:cacheprovider", str(test)],
        ["ruff", "check", "--isolated", "--no-cache", "--line-length", "120", "--select", "E,F,W,I,UP,B,PT", "."],
        ["ruff", "format", "--isolated", "--no-cache", "--line-length", "120", "--check", "."],
    ):
        done = subprocess.run(
            [sys.executable, "-m", *command], cwd=tmp_path / "own", env=environment, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("my-ring", "cannot name a module"),
        ("class", "cannot name a module"),
        ("_1", "cannot name a module"),
        ("__main__", "cannot name a module"),
        ("MyRing", "has capital letters, which some disks do not tell apart; write myring"),
        ("fibfl", "comes with this project; choose another name, such as my_fibfl"),
        ("json", "is an installed module, which would be taken for yours"),
    ],
)
def test_a_wrong_name_writes_nothing(
    name: str, sentence: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["new", "protocol", name, "--out", str(tmp_path / "own")]) == 2
    assert sentence in capsys.readouterr().err
    assert not (tmp_path / "own").exists()


@pytest.mark.parametrize(
    ("kind", "name", "defined"),
    [
        ("protocol", "share", "Share"),
        ("protocol", "class_var", "ClassVar"),
        ("protocol", "none", "None"),
        ("model", "prod", "prod"),
        ("model", "extractor", "extractor"),
        ("data", "np", "np"),
        ("data", "zip", "zip"),
    ],
)
def test_a_name_that_stands_for_something_else_writes_nothing(
    kind: str, name: str, defined: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["new", kind, name, "--out", str(tmp_path / "own")]) == 2
    assert f"`{defined}` stands for something else in what is written; choose another name" in capsys.readouterr().err
    assert not (tmp_path / "own").exists()


@pytest.mark.parametrize("there", ["mine.py", "test_mine.py", "mine.yaml"])
def test_a_file_that_is_there_is_left_as_it_is(there: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / there).write_text("mine")
    assert main(["new", "data", "mine", "--out", str(tmp_path)]) == 2
    assert f"{there} is there already, and nothing was written" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == [there]
    assert (tmp_path / there).read_text() == "mine"
