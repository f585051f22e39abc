"""`dfl-launch study`: whole, killed again and again, with cells that fail, and refused."""

import asyncio
import json
import os
import random
import shlex
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pandas
import pytest
from small_studies import BASE, OF_THIS_COMPUTATION, RAISES, SOLO, results, written

from launcher.cli import main, parser
from launcher.study.pool import StopSignal
from peer.runtime.in_process import run_in_process
from peer.spec.loading import load_spec

pytestmark = [pytest.mark.long, pytest.mark.timeout(600)]

BROKEN = f"""{RAISES}
class Dies(Raises):
    name: Literal["mine:Dies"] = "mine:Dies"
    async def round(self, peer):
        os.kill(os.getpid(), 9)
"""


@contextmanager
def running(file: Path, out: Path, *more: str, start_new_session: bool = False) -> Iterator["subprocess.Popen[bytes]"]:
    """A study that does not outlive the block; what it says goes to said.txt beside its directory."""
    command = [sys.executable, "-m", "launcher.cli", "study", str(file), "--out", str(out), "--at-once", "2", *more]
    with out.with_name("said.txt").open("wb") as said:
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=said, start_new_session=start_new_session)
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def finished(out: Path) -> dict[Path, int]:
    return {file: file.stat().st_mtime_ns for file in out.glob("cells/*/summary.json")}


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("undisturbed")
    with running(written(place), place / "out") as process:
        assert process.wait() == 0
    return place / "out"


def test_every_cell_is_a_tidy_row(undisturbed: Path) -> None:
    found = results(undisturbed)
    assert [*zip(found.protocol, found.seed, strict=True)] == [
        (protocol, seed) for protocol in ("rdfl epochs=1", "solo like=rdfl settings=(epochs=1)") for seed in (1, 2)
    ]
    assert found[["spec", "network", "command", "mean", "worst", "gini", "model_sha256"]].notna().all(axis=None)
    assert found.failure.isna().all()
    assert found.mcg.notna().tolist() == [True, True, False, False]
    assert (found.least_gain.dropna() <= found.mcg.dropna()).all()
    assert (found.weight_divergence > 0).all()
    assert found.honest.isna().all()
    same = pandas.read_parquet(undisturbed / "results.parquet")
    assert [*same] == [*found]
    pandas.testing.assert_series_equal(same["mean"], found["mean"], check_exact=True)
    rounds = pandas.read_parquet(undisturbed / "rounds.parquet")
    last = rounds[rounds["round"] == 2].set_index("spec")["mean"]
    assert last.to_dict() == found.set_index("spec")["mean"].to_dict()
    peers = pandas.read_csv(undisturbed / "peers.csv")
    judged = peers[peers.figure == "matched accuracy"].groupby("spec")["value"].mean()
    assert judged.to_dict() == pytest.approx(found.set_index("spec")["mean"].to_dict())
    sure = peers[peers.figure == "accuracy"]
    assert ((sure.low < sure.value) & (sure.value < sure.high)).all()
    assert len(sure) == found.peers.sum()
    assert {file.name for file in (undisturbed / "figures").iterdir()} == {
        f"{name}.{kind}" for name in ("rounds", "fairness", "bytes") for kind in ("svg", "png")
    }


def test_gains_are_over_the_same_peers_alone(undisturbed: Path) -> None:
    ours, alone = (group.set_index("seed")["mean"] for _, group in results(undisturbed).groupby("protocol"))
    gains = results(undisturbed).set_index("seed").mcg.dropna()
    assert (ours - alone).to_dict() == pytest.approx(gains.to_dict())


def test_the_tables_follow_from_the_tidy_file(undisturbed: Path) -> None:
    of = results(undisturbed).groupby("protocol")["worst"].agg(["mean", "std"])
    text = (undisturbed / "tables.md").read_text()
    table = text.split("## Worst peer")[1].split("##")[0].replace("*", "").replace("†", "")
    for protocol, row in of.iterrows():
        assert f"| {protocol} | {row['mean']:.4f} ± {row['std']:.4f} |" in table
    assert of["mean"].idxmax() in next(line for line in text.split("## Worst peer")[1].splitlines() if "**" in line)


def test_a_cell_alone_ends_in_the_same_bits(undisturbed: Path, tmp_path: Path) -> None:
    row = results(undisturbed).iloc[0]
    arguments = parser().parse_args(shlex.split(row.command)[1:])
    runtimes = asyncio.run(run_in_process(load_spec(arguments.federation), tmp_path))
    ended = {id: json.loads((tmp_path / id / "result.json").read_text())["model_sha256"] for id in runtimes}
    assert ended == json.loads(row.model_sha256)


def test_a_study_killed_again_and_again_ends_in_the_same_results(undisturbed: Path, tmp_path: Path) -> None:
    file, out, chance = written(tmp_path), tmp_path / "out", random.Random(5)
    for cells, number in ((1, signal.SIGKILL), (2, signal.SIGTERM)):
        with running(file, out) as process:
            while process.poll() is None and len(finished(out)) < cells:
                time.sleep(0.02)  # the moment is to be in the middle of a cell
            time.sleep(chance.random() / 2)  # and the kill anywhere in it
            process.send_signal(number)
            process.wait()
    kept = finished(out)
    with running(file, out) as process:
        assert process.wait() == 0
    assert kept.items() <= finished(out).items()
    assert len(kept) >= 2
    ended, expected = (results(place).drop(columns=OF_THIS_COMPUTATION) for place in (out, undisturbed))
    pandas.testing.assert_frame_equal(ended, expected)
    tables, same = ((place / "tables.md").read_text().split("## Seconds")[0] for place in (out, undisturbed))
    assert tables == same
    assert not [*out.glob("cells/*/run")]


def test_a_cell_of_real_peers_that_was_killed_begins_anew(tmp_path: Path, ports: Callable[[int], list[int]]) -> None:
    file = written(tmp_path, network="grpc", base={**BASE, "rounds": 30}, grid={"protocol": ["rdfl"], "seed": [1]})
    out, port = tmp_path / "out", ("--at-once", "1", "--port", str(min(ports(5))))
    with running(file, out, *port) as process:
        while not [*out.glob("cells/*/run/peer0/checkpoint*")]:
            assert process.poll() is None
            time.sleep(0.02)  # files of other processes tell nobody that they have come
    (spec,) = out.glob("cells/*/run/federation.yaml")
    spec.write_text(spec.read_text().replace("rounds: 30", "rounds: 40"))  # `run` would not take this one up
    with running(file, out, *port) as process:
        assert process.wait() == 0, (tmp_path / "said.txt").read_text()
    assert results(out).rounds.tolist() == [30]


def test_real_peers_go_round_a_port_that_is_taken(tmp_path: Path, ports: Callable[[int], list[int]]) -> None:
    port, *_ = ports(8)
    with socket.create_server(("127.0.0.1", port)):
        file = written(tmp_path, network="grpc", grid={"protocol": ["rdfl"], "seed": [1]})
        assert main(["study", str(file), "--out", str(tmp_path / "out"), "--port", str(port), "--quiet"]) == 0


@pytest.mark.parametrize("port", [0, -5, 65535, 70000])
def test_ports_that_are_none_are_refused(port: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = written(tmp_path, network="grpc")
    assert main(["study", str(file), "--out", str(tmp_path / "out"), "--port", str(port)]) == 2
    assert "for 3 peers; give one from 1 to 65533" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_ctrl_c_ends_the_study_and_its_cells(tmp_path: Path) -> None:
    with running(written(tmp_path, base={**BASE, "rounds": 5000}), tmp_path / "out") as process:
        while not [*tmp_path.glob("out/cells/*/run/*/events.jsonl")]:
            assert process.poll() is None
            time.sleep(0.02)  # files of other processes tell nobody that they have come
        process.send_signal(signal.SIGINT)
        assert process.wait() == 130
    for cell in (tmp_path / "out" / "cells").iterdir():
        files = [*cell.rglob("events.jsonl")]
        sizes = [file.stat().st_size for file in files]
        time.sleep(0.1)  # how long nothing may be written, not for how long something is awaited
        assert [file.stat().st_size for file in files] == sizes


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGHUP, 129), (signal.SIGTERM, 143)])
def test_what_a_terminal_sends_to_all_ends_it_quietly_from_the_first_moment(
    tmp_path: Path, number: int, code: int
) -> None:
    """While the first process for cells still loads PyTorch."""
    with running(written(tmp_path), tmp_path / "out", start_new_session=True) as process:
        while not [*tmp_path.glob("out/cells/*/federation.yaml")]:
            assert process.poll() is None
            time.sleep(0.02)  # files of other processes tell nobody that they have come
        os.killpg(process.pid, number)
        assert process.wait() == code
    assert not (tmp_path / "said.txt").read_text(), "no traceback of any process"


def test_a_closed_terminal_does_not_end_what_nohup_has_started() -> None:
    former = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with StopSignal.listening() as stop:
            os.kill(os.getpid(), signal.SIGHUP)
            assert not stop.code
            os.kill(os.getpid(), signal.SIGTERM)
            assert stop.code == 143
        assert signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, former)


def test_a_cell_that_fails_is_told_and_stops_no_other(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(BROKEN)
    file = written(tmp_path, grid={"protocol": [SOLO, "mine:Raises", "mine:Dies"], "seed": [1]})
    with running(file, tmp_path / "out") as process:
        assert process.wait() == 1
    assert "2 of 3 cells failed" in (tmp_path / "said.txt").read_text()
    found = results(tmp_path / "out").set_index("protocol")
    assert "ValueError: no more" in found.failure["mine:Raises"]
    assert "signal 9" in found.failure["mine:Dies"]
    assert found["mean"].notna().tolist() == [True, False, False]
    assert "mine:Dies | –" in (tmp_path / "out" / "tables.md").read_text()


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ({"gird": {}}, "unknown key `gird`; did you mean `grid`?"),
        ({"grid": {}}, "`grid`"),
        ({"grid": {"seed": []}}, "`grid.seed`"),
        ({"network": "carrier-pigeon"}, "`network`"),
        ({"name": "../other"}, "`name`"),
        ({"grid": {"protocol": ["fibfl"], "ring": [[]]}}, "`ring` cannot be in `grid`"),
        ({"base": {}, "grid": {"protocol": ["fibfl"]}}, "`peers` is missing"),
        ({"grid": {"protocol": ["fibfl"], "peers": [5, "six"]}}, '(given: "six")'),
        ({"grid": {"protocol": ["fibfl", {"name": "fibfl", "gama": 0.3}]}}, "did you mean `gamma`?"),
        ({"grid": {"protocol": ["fibfl", {"name": "fibfl", "gamma": 0.5}]}}, "are the same"),
        ({"grid": {"protocol": ["fibfl", "fibfl"]}}, "study.yaml:1: `grid` has protocol fibfl twice"),
        ({"grid": {"protocol": ["fibfl"], "seed": [0, 0]}}, "study.yaml:1: `grid` has seed 0 twice"),
        ({"base": {**BASE, "data": {"name": "npz", "path": "none.npz"}}}, "none.npz"),
    ],
)
def test_wrong_keys_are_refused_before_anything_is_made(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], keys: dict[str, Any], said: str
) -> None:
    file = written(tmp_path, **keys)
    assert main(["study", str(file), "--out", str(tmp_path / "out")]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert said in line
    assert os.listdir(tmp_path) == [file.name]


def test_a_directory_of_something_else_is_left_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = written(tmp_path)
    assert main(["study", str(file), "--out", str(tmp_path)]) == 2
    assert "holds files that are no study's" in capsys.readouterr().err
    assert os.listdir(tmp_path) == [file.name]
