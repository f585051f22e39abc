"""What a study takes for finished, and for its own."""

import json
import re
import shlex
import shutil
import subprocess
import sys
from base64 import b64decode
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
import pandas
import pytest
import small_studies
from small_studies import RAISES, SOLO

from launcher.cli import main
from launcher.study import results, worker
from launcher.study.grid import Cell, cells, read_study
from launcher.study.results import baselines
from peer.files import sole_use
from peer.spec.loading import load_spec

pytestmark = [pytest.mark.long, pytest.mark.timeout(600)]

BASE = {"rounds": 1, "peers": 2, "data": {"name": "digits", "limit": 100}}
OWN = """
from typing import Literal
from peer.protocols.rdfl import RDFL

class Own(RDFL):
    name: Literal["own_ring:Own"] = "own_ring:Own"
"""
DATA = {"name": "csv", "path": "{id}.csv"}


def written(place: Path, **keys: Any) -> Path:
    return small_studies.written(place, **{"base": BASE, "grid": {"protocol": [SOLO], "seed": [1, 2]}, **keys})


def made(file: Path) -> list[Cell]:
    settings, document = read_study(file)
    return cells(settings, document, file.parent / "out")


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("finished")
    assert main(["study", str(written(place)), "--out", str(place / "out"), "--quiet"]) == 0
    return place / "out"


@pytest.mark.parametrize("damage", [b"", b'{"rounds": [', b"{}", b"[]", None])
def test_a_cell_with_a_damaged_file_is_computed_once_more(finished: Path, tmp_path: Path, damage: bytes | None) -> None:
    shutil.copytree(finished, tmp_path / "out")
    whole, broken = made(written(tmp_path))
    if damage is None:
        broken.files.rounds.unlink()
    else:
        broken.files.rounds.write_bytes(damage)
    (tmp_path / "out" / "rounds.parquet").write_bytes(b"PAR1")
    before = whole.files.summary.stat().st_mtime_ns, broken.files.summary.stat().st_mtime_ns
    assert main(["study", str(tmp_path / "study.yaml"), "--out", str(tmp_path / "out"), "--quiet"]) == 0
    after = whole.files.summary.stat().st_mtime_ns, broken.files.summary.stat().st_mtime_ns
    assert before[0] == after[0]
    assert before[1] != after[1]
    for name in ("rounds", "results", "peers"):
        tables = [pandas.read_parquet(place / f"{name}.parquet") for place in (finished, tmp_path / "out")]
        same = [table.drop(columns=["command", "seconds", "bytes_sent"], errors="ignore") for table in tables]
        pandas.testing.assert_frame_equal(*same)


def test_the_directory_of_another_study_is_left_alone(
    finished: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file, before = written(tmp_path, name="other"), (finished / "results.csv").read_bytes()
    assert main(["study", str(file), "--out", str(finished)]) == 2
    assert f"{finished} is of the study `small`; choose another directory with --out" in capsys.readouterr().err
    assert (finished / "results.csv").read_bytes() == before


def test_two_at_once_do_not_share_a_directory(
    finished: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with sole_use(finished / "cells"):
        assert main(["study", str(written(tmp_path)), "--out", str(finished)]) == 2
    assert "another dfl-launch is at work" in capsys.readouterr().err


def test_a_study_that_is_made_smaller_keeps_what_it_has(finished: Path, tmp_path: Path) -> None:
    shutil.copytree(finished, tmp_path / "out")
    file = written(tmp_path, grid={"protocol": [SOLO], "seed": [2]})
    for name in ("ring-fibfl++.svg", "mine.svg"):
        (tmp_path / "out" / "figures" / name).write_text("<svg/>")
    assert main(["study", str(file), "--out", str(tmp_path / "out"), "--quiet"]) == 0
    assert pandas.read_csv(tmp_path / "out" / "results.csv").seed.tolist() == [2]
    assert len([*tmp_path.glob("out/cells/*/summary.json")]) == 2
    assert {file.name for file in tmp_path.glob("out/figures/*i*.svg")} == {"fairness.svg", "mine.svg"}


def test_where_every_cell_fails_the_files_say_so(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(RAISES)
    file = written(tmp_path, grid={"protocol": ["mine:Raises"], "seed": [1]})
    assert main(["study", str(file), "--out", str(tmp_path / "out"), "--quiet"]) == 1
    (failure,) = pandas.read_csv(tmp_path / "out" / "results.csv").failure
    assert "ValueError: no more" in failure
    assert "1 failed" in (tmp_path / "out" / "study.html").read_text()


def test_the_terminal_ends_with_what_won(finished: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shutil.copytree(finished, tmp_path / "out")
    assert main(["study", str(written(tmp_path)), "--out", str(tmp_path / "out")]) == 0
    said = capsys.readouterr().out
    table, files = said[said.index("Rank") :].split(str(tmp_path / "out" / "results.csv"))
    (line,) = [line.split() for line in table.splitlines() if line.split()[:1] == ["solo"]]
    mean = pandas.read_csv(tmp_path / "out" / "results.csv")["mean"].mean()
    at = line.index("1.0")
    assert float(line[at + 1]) == pytest.approx(mean, abs=1e-4)
    assert "study.html" in files


def test_other_files_make_another_cell_wherever_the_study_lies(tmp_path: Path) -> None:
    content = {"x_train": np.zeros((40, 4), np.float32), "y_train": np.arange(40) % 2}
    content |= {"x_test": content["x_train"], "y_test": content["y_train"]}
    here, there = tmp_path / "here", tmp_path / "there"
    for place in (here, there):
        place.mkdir()
        for name in ("one.npz", "two.npz"):
            np.savez(place / name, **content)
    data = [{"name": "npz", "path": f"{name}.npz"} for name in ("one", "two")]
    grid = {"protocol": ["rdfl", {"name": "solo", "like": "rdfl"}], "data": data}
    one, two = (made(written(place, base={"rounds": 1, "peers": 3}, grid=grid)) for place in (here, there))
    assert len({cell.key for cell in one}) == 4
    assert [cell.key for cell in one] == [cell.key for cell in two]
    found = baselines(one, {cell.key for cell in one})
    assert found == {one[0].key: one[2], one[1].key: one[3]}
    assert not baselines(one[:1] + one[3:], {cell.key for cell in one})


def test_gains_are_over_the_peers_alone_at_the_same_place(tmp_path: Path) -> None:
    """Own code of the protocol tells nothing of the data; what is tuned afterwards is told by the place alone."""
    (tmp_path / "own_ring.py").write_text(OWN)
    grid = {"protocol": ["own_ring:Own", {"name": "solo", "like": "rdfl"}, "fibfl"], "finetune": [None, {"epochs": 1}]}
    cells = made(written(tmp_path, base={"rounds": 1, "peers": 3}, grid=grid))
    assert baselines(cells, {cell.key for cell in cells}) == {cells[at].key: cells[at + 2] for at in (0, 1)}
    assert not baselines(cells, {cells[0].key})


def test_peers_that_standardise_together_have_a_baseline_in_those_that_each_do(tmp_path: Path) -> None:
    """`solo` cannot have `standardize: federation`."""
    (tmp_path / "one.npz").touch()
    grid = {"protocol": ["rdfl", {"name": "solo", "like": "rdfl"}], "data.standardize": ["federation", "own"]}
    left_out = [{"protocol": grid["protocol"][1], "data.standardize": "federation"}]
    base = {"rounds": 1, "peers": 3, "data": {"name": "npz", "path": "one.npz"}}
    together, each, alone = made(written(tmp_path, base=base, grid=grid, exclude=left_out))
    assert baselines([together, each, alone], {alone.key}) == {together.key: alone, each.key: alone}


def test_a_file_with_other_content_makes_another_cell(tmp_path: Path) -> None:
    def keys() -> list[str]:
        return [cell.key for cell in made(file)]

    file = written(tmp_path, base={"rounds": 1, "peers": 2}, grid={"protocol": ["mine:Raises"], "data": [DATA]})
    for name in ("mine.py", "peer0.csv", "peer1.csv"):
        (tmp_path / name).write_text(RAISES if name == "mine.py" else "x,label\n1,0\n2,1\n")
    before = keys()
    for name in ("mine.py", "peer0.csv", "peer1.csv"):
        content = (tmp_path / name).read_text()
        (tmp_path / name).write_text(f"{content}\n")
        assert keys() != before
        (tmp_path / name).write_text(content)
        assert keys() == before


def test_an_axis_of_numbers_and_words_is_written(tmp_path: Path) -> None:
    file = written(tmp_path, grid={"protocol": [SOLO], "data.limit": [100, None]})
    assert main(["study", str(file), "--out", str(tmp_path / "out"), "--quiet"]) == 0
    for name in ("rounds", "results"):
        found = pandas.read_parquet(tmp_path / "out" / f"{name}.parquet")
        assert found["data.limit"].tolist() == ["100", "null"]
        assert found["mean"].dtype == float


def test_an_axis_called_like_a_figure_keeps_its_place_in_the_grid(finished: Path, tmp_path: Path) -> None:
    shutil.copytree(finished, tmp_path / "out")
    (cell,) = made(written(tmp_path, grid={"protocol": [SOLO], "seed": [1], "rounds": [1], "peers": [2]}))
    for file, changed in ((cell.files.summary, {"rounds": 7}), (cell.files.rounds, {"rounds": [{"peers": 1}]})):
        file.write_text(json.dumps(json.loads(file.read_text()) | changed))
    (row,), (by_round,) = results.rows([cell], {}), [*results.round_rows([cell])]
    assert row["rounds"] == 1
    assert (by_round["peers"], by_round["evaluated"]) == (2, 1)


def test_the_command_of_a_cell_goes_with_a_study_that_was_moved(tmp_path: Path) -> None:
    """Nothing is computed again, and own code is found where it lies now."""
    (tmp_path / "here").mkdir()
    (tmp_path / "here" / "own_ring.py").write_text(OWN)
    grid = {"protocol": ["own_ring:Own"], "seed": [1]}
    file = written(tmp_path / "here", base={**BASE, "peers": 3}, grid=grid)
    assert main(["study", str(file), "--out", str(tmp_path / "here" / "out"), "--quiet"]) == 0
    (tmp_path / "here").rename(tmp_path / "there")
    assert (
        main(["study", str(tmp_path / "there" / "study.yaml"), "--out", str(tmp_path / "there" / "out"), "--quiet"])
        == 0
    )
    (federation,) = tmp_path.glob("there/out/cells/*/federation.yaml")
    assert load_spec(federation).code == tmp_path / "there"
    assert not [*tmp_path.glob("there/out/cells/*/run")]


def test_the_command_of_a_cell_bears_a_space_in_a_path(tmp_path: Path) -> None:
    (cell, _) = made(written(tmp_path / "my studies"))
    assert shlex.split(cell.command)[2] == str(cell.files.federation)


def test_the_page_and_its_pictures_are_on_light_paper_or_dark_as_the_reader_likes(finished: Path) -> None:
    page = (finished / "study.html").read_text()
    assert files("launcher.page").joinpath("page.css").read_text(encoding="utf-8") in page
    pictures = [b64decode(one).decode() for one in re.findall(r"image/svg\+xml;base64,([^']+)'", page)]
    assert pictures
    assert all("color-scheme:light dark" in one and "light-dark(" in one for one in pictures)
    assert not any("light-dark(" in one.read_text() for one in finished.glob("figures/*.svg"))


def test_the_page_opens_with_what_won_and_the_curves_and_folds_the_rest(finished: Path) -> None:
    page = (finished / "study.html").read_text()
    opening, *folded = page.split("<details>")
    assert opening.index("What won</caption>") < opening.index("per round</h2>")
    assert opening.count("<table") == opening.count("<figure") == 1
    assert len(folded) > 5
    assert "Plateau σ: deviation of the mean" in page
    assert page.count("<th scope=row") == page.count("<tr>") - page.count("<thead>")


def computed(cell: Cell) -> int:
    """The exit code of a process for the cell that waits for nobody."""
    patient = "import sys; from pathlib import Path; from launcher.study import worker; worker.LOCK_TIMEOUT_S = 0.0; "
    command = [sys.executable, "-c", f"{patient}worker.work(Path(sys.argv[1]), 'memory', 0, 0)", str(cell.files.path)]
    process = subprocess.Popen(command, stdin=subprocess.PIPE)
    try:
        return process.wait()
    finally:
        process.kill()
        process.communicate()


@pytest.fixture
def unfinished(finished: Path, tmp_path: Path) -> Cell:
    """With the log of a process that may still be at work."""
    shutil.copytree(finished, tmp_path / "out")
    cell, _ = made(written(tmp_path))
    cell.files.summary.unlink()
    cell.files.said.write_text("at work\n")
    return cell


def test_a_log_is_its_writers_as_long_as_that_is_at_work(unfinished: Cell) -> None:
    with sole_use(unfinished.files.path):
        assert computed(unfinished) == 1
    said = ["at work", "another process computes this cell; end it and start again"]
    assert unfinished.files.said.read_text().splitlines() == said


def test_a_cell_that_another_process_has_finished_is_not_computed_again(finished: Path, tmp_path: Path) -> None:
    shutil.copytree(finished, tmp_path / "out")
    cell, _ = made(written(tmp_path))
    before = cell.files.summary.stat().st_mtime_ns
    assert computed(cell) == 0
    assert cell.files.summary.stat().st_mtime_ns == before
    assert not cell.files.said.exists()


def test_a_cell_whose_log_was_removed_is_finished_all_the_same(unfinished: Cell) -> None:
    unfinished.files.said.unlink()
    worker.compute(unfinished.files, "memory", 0)
    assert unfinished.files.finished
