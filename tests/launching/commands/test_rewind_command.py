"""`dfl-launch rewind`: the newest round that all hold gets into the file, and nothing else in it changes."""

import asyncio
import shutil
from pathlib import Path

import pytest

from launcher.cli import main
from peer.runtime.in_process import run_in_process
from peer.spec.loading import load_spec

TEXT = """\
# Three hospitals.
rounds: 7   # so many
protocol: rdfl
data: {name: digits, limit: 200}
keep: {every: 2, last: 2}
model: mlp
"""


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of a run that is over."""
    place = tmp_path_factory.mktemp("run")
    (place / "hospitals.yaml").write_text(TEXT)
    asyncio.run(run_in_process(load_spec(place / "hospitals.yaml", peers=3), place))
    return place


def rewind(place: Path, capsys: pytest.CaptureFixture[str], *more: str) -> tuple[int, str]:
    """The exit code of the command, and what it says."""
    code = main(["rewind", str(place / "hospitals.yaml"), "--peers", "3", "--out", str(place), *more])
    said = capsys.readouterr()
    return code, said.out + said.err


def test_the_newest_round_of_all_is_written_and_the_rest_of_the_file_stays(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    place = tmp_path / "run"
    shutil.copytree(run, place)
    for newest in (7, 6):
        for name in (f"round-000{newest}.json", f"round-000{newest}.safetensors"):
            (place / "peer1" / "checkpoint" / name).unlink()
    code, said = rewind(place, capsys)
    assert code == 0
    assert "all peers go back to round 4" in said or "all peers go back to round 5" in said
    written = (place / "hospitals.yaml").read_text()
    assert written.startswith(TEXT + "rewinds: [")
    code, said = rewind(place, capsys, "--to", "2")
    assert code == 0
    assert (place / "hospitals.yaml").read_text().endswith(", 2]\n"), "one after the other"


def test_who_lacks_the_round_is_named_and_the_file_stays(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    place = tmp_path / "run"
    shutil.copytree(run, place)
    code, said = rewind(place, capsys, "--to", "3")
    assert code == 2
    assert "round 3 is not held by all peers that played it: peer0 holds rounds 2, 4" in said
    shutil.copytree(place / "peer0", place / "other")
    shutil.rmtree(place / "peer2")
    (place / "other").rename(place / "peer2")
    code, said = rewind(place, capsys)
    assert code == 2
    assert "peer2: belongs to peer `peer0`; put the directory of `peer2` in its place" in said
    shutil.rmtree(place / "peer2")
    code, said = rewind(place, capsys)
    assert code == 2
    assert "peer2 holds no round" in said
    assert (place / "hospitals.yaml").read_text() == TEXT


def test_where_no_peer_is_here_the_operators_write_it_themselves(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "hospitals.yaml").write_text(TEXT)
    code, said = rewind(tmp_path, capsys)
    assert code == 2
    assert "has no <id>/run.json of a peer" in said
