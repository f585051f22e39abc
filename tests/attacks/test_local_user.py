"""What somebody with an account on a peer's machine can do, or somebody whose files are looked at."""

import json
import os
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from left_runs import left_run, peer_summary, summary
from real_peers import Build
from rich.console import Console

from launcher.cli import main as launch
from launcher.engines.base import Run
from launcher.engines.local import LocalEngine, LocalSettings
from launcher.headline import Headline
from launcher.monitor.federation import Federation, Tail, last_lines
from launcher.monitor.live_table import render
from launcher.reports import summary_json, summary_text
from launcher.reports.peer_files import audits
from launcher.supervision.run_directory import RunDirectory
from peer.cli import main as peer
from peer.errors import InputError
from peer.files import PEER_FILES, lines, open_plain
from peer.runtime.checkpoints import Checkpoints, Journal, Snapshot
from peer.runtime.in_process import run_in_process
from peer.spec.federation import Spec
from peer.spec.loading import load_spec

MATCHED = Headline(test="matched")

ESCAPE, FORGED = "\x1b[2J\x9b31m\u202e", "\r\ndfl-peer: all is well"
EVIL = "from pathlib import Path\nPath(__file__).with_name('owned').touch()\nclass P: pass\n"


@pytest.fixture
def spec(tmp_path: Path) -> Spec:
    (tmp_path / "fed.yaml").write_text("name: left\nrounds: 2\nprotocol: fibfl\ninit: shared\n")
    return load_spec(tmp_path / "fed.yaml", peers=3)


def open_to_others(directory: Path) -> list[str]:
    """What lies there and can be read or entered by another user."""
    return [str(path) for path in (directory, *directory.rglob("*")) if path.stat().st_mode & 0o077]


def configs(spec: Spec, directory: RunDirectory) -> dict[str, Mapping[str, object]]:
    run = Run(spec, directory.files)
    return {id: LocalEngine(LocalSettings()).config(run, id) for id in spec.ids}


def test_what_a_peer_writes_only_its_user_reads(federation: Build) -> None:
    """Models, heads, checkpoints, journals and audits; also what an earlier run had left open."""
    made = federation({"name": "solo"}, peers=1, rounds=2, trace=True, tensorboard=True)
    made.run()
    out = made.directory / "peer0"
    written = {path.name for path in out.iterdir()}
    assert (
        {"model.safetensors", "checkpoint", "trace", "tensorboard", "audit.jsonl", "events.jsonl", "run.json"}
        <= written
        <= {*PEER_FILES}
    )
    assert open_to_others(out) == []
    for path in (out, *out.rglob("*")):
        path.chmod(0o755 if path.is_dir() else 0o644)
    made.run()
    assert open_to_others(out) == []


def test_of_a_run_others_see_the_spec_and_the_summary(tmp_path: Path, spec: Spec) -> None:
    """And cannot hold the locks: whoever may open a file may lock it."""
    former = os.umask(0o022)
    try:
        directory = RunDirectory(tmp_path / "run")
        directory.claim()
        directory.write(spec, configs(spec, directory))
        directory.close()
    finally:
        os.umask(former)
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in (tmp_path / "run").iterdir()}
    assert modes == {
        **dict.fromkeys((".lock", ".peers"), 0o600),
        **dict.fromkeys(spec.ids, 0o700),
        **dict.fromkeys(("federation.yaml", *(f"{id}.yaml" for id in spec.ids)), 0o644),
    }


@pytest.fixture(params=[0o000, 0o002, 0o077], ids=oct)
def umask(request: pytest.FixtureRequest) -> Iterator[int]:
    former = os.umask(request.param)
    yield request.param
    os.umask(former)


def test_certificates_nobody_else_can_exchange(tmp_path: Path, spec: Spec, umask: int) -> None:
    """Whoever could write ca.pem, or move it away, would decide who is a member. At their renewal, too."""
    command = ["certs", str(tmp_path / "fed.yaml"), "--peers", "3", "--out", str(tmp_path / "new" / "certs")]
    for _ in range(2):
        assert launch(command) == 0
        made = [tmp_path / "new", *(tmp_path / "new").rglob("*")]
        assert len(made) == 2 + 1 + 2 * len(spec.ids)
        for path in made:
            usual = 0o777 if path.is_dir() else 0o600 if path.suffix == ".key" else 0o666
            assert stat.S_IMODE(path.stat().st_mode) == usual & ~umask & ~0o022


def test_where_others_can_write_no_certificates_are_made(
    tmp_path: Path, spec: Spec, capsys: pytest.CaptureFixture[str]
) -> None:
    certs = tmp_path / "certs"
    certs.mkdir()
    certs.chmod(0o775)
    command = ["certs", str(tmp_path / "fed.yaml"), "--peers", "3", "--out", str(certs)]
    assert launch(command) == 2
    said = "other users may write there, and so exchange the CA; close it by `chmod go-w`, or choose another directory"
    assert said in capsys.readouterr().err
    assert not [*certs.iterdir()]
    certs.chmod(0o755)
    assert launch(command) == 0


def a_link(path: Path, target: Path) -> None:
    path.symlink_to(target)


def a_pipe(path: Path, _target: Path) -> None:
    os.mkfifo(path)


@pytest.mark.parametrize("made", [a_link, a_pipe])
@pytest.mark.parametrize(
    "name", [*PEER_FILES, "checkpoint/.round-0001.json.part", "checkpoint/.spare-round.safetensors"]
)
def test_nothing_leads_out_of_a_peers_directory(
    name: str, made: Callable[[Path, Path], None], tmp_path: Path, spec: Spec, capfd: pytest.CaptureFixture[str]
) -> None:
    """A peer would write through the link, or wait for the pipe. Both commands refuse and change nothing."""
    (tmp_path / "mine").write_text("mine")
    (tmp_path / "fed.yaml").write_text(spec.dump())
    (tmp_path / "peer.yaml").write_text("federation: fed.yaml\nid: peer0\nout: run/peer0\n")
    path = tmp_path / "run" / "peer0" / name
    path.parent.mkdir(parents=True)
    made(path, tmp_path / "mine")
    assert peer(["--config", str(tmp_path / "peer.yaml")]) == 2
    assert f"{path}: is a link or not a plain file" in capfd.readouterr().err
    (tmp_path / "run" / ".lock").touch()
    directory = RunDirectory(tmp_path / "run")
    with pytest.raises(InputError, match="is a link or not a plain file"):
        directory.write(spec, configs(spec, directory))
    assert (tmp_path / "mine").read_text() == "mine"
    assert path.is_symlink() or path.is_fifo()


@pytest.mark.parametrize("where", ["protocol", "model", "data"])
def test_to_look_at_a_run_imports_nothing_of_it(
    where: str, tmp_path: Path, spec: Spec, capsys: pytest.CaptureFixture[str]
) -> None:
    """Whatever its federation.yaml names, and wherever it says that code lies."""
    (tmp_path / "evilmod.py").write_text(EVIL)
    named = {"protocol": {"name": "fibfl"}, where: {"name": "evilmod:P"}, "code": str(tmp_path)}
    alone = {**named, "protocol": {"name": "solo", "like": "fibfl"}}
    theirs, solo = left_run(tmp_path / "theirs", **named), left_run(tmp_path / "solo", **alone)
    assert launch(["compare", str(theirs), str(solo)]) == 0
    said = capsys.readouterr().out
    assert "mean collaboration gain (MCG)" in said
    assert ("evilmod:P is code of your own, which is not imported here" in said) == (where == "protocol")
    (theirs / ".lock").touch()
    assert launch(["run", str(tmp_path / "fed.yaml"), "--peers", "3", "--out", str(theirs)]) == 2
    said = capsys.readouterr().err
    assert "holds another run: it differs in" in said
    assert f"`{where}`" in said
    assert "evilmod" not in sys.modules
    assert not (tmp_path / "owned").exists()


def test_beside_a_spec_that_names_no_code_nothing_is_imported(tmp_path: Path) -> None:
    """A file there may have the name of a library that is needed only later."""
    (tmp_path / "pandas.py").write_text(EVIL)
    (tmp_path / "t.csv").write_text("a,label\n" + "1,0\n2,1\n" * 20)
    (tmp_path / "fed.yaml").write_text("protocol: solo\ndata: {name: csv, path: t.csv}\n")
    command = [sys.executable, "-P", "-m", "launcher.cli", "check", "fed.yaml", "--peers", "1"]
    there = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    done = subprocess.run(command, cwd=tmp_path, env=there, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert not (tmp_path / "owned").exists()


def test_a_lock_that_is_a_link_makes_nothing_elsewhere(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / ".peers").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(InputError, match=r"cannot be written to .*; choose another directory with --out"):
        RunDirectory(tmp_path / "run").claim()
    assert not (tmp_path / "elsewhere").exists()


DEEP = "[" * 100_000
SPOILT: dict[str, Any] = {
    "deep": DEEP,
    "another id": summary(per_peer=[peer_summary(id) for id in ("../..", "peer1", "peer2")]),
    "an id twice": summary(per_peer=[peer_summary("peer0")] * 3),
    "nobody": summary(per_peer=[], peers=0),
    "endless seconds": summary(wall_seconds=float("inf")),
    "no verdict": summary(privacy={}),
    "half a verdict": summary(privacy=summary()["privacy"] | {"violations": [{"round": 1}]}),
    "numbers as texts": summary(gini="x"),
}


@pytest.mark.parametrize("case", SPOILT)
def test_a_spoilt_summary_is_none(case: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], spec: Spec) -> None:
    run = left_run(tmp_path / "run", {"name": "solo", "like": "fibfl"})
    told = SPOILT[case]
    (run / "summary.json").write_text(told if isinstance(told, str) else json.dumps(told))
    assert launch(["compare", str(run), str(run)]) == 2
    assert "holds no finished run" in capsys.readouterr().err
    if case not in ("another id", "an id twice"):  # shown, those do no harm
        assert summary_json.read(run / "summary.json") is None


@pytest.mark.parametrize(
    ("key", "value"),
    [("ring", 3), ("ring", [{"id": "../x", "address": "a:1"}]), ("protocol", "fibfl"), ("data", None), ("rounds", "x")],
)
def test_a_spoilt_spec_is_told_in_a_sentence(
    key: str, value: Any, tmp_path: Path, spec: Spec, capsys: pytest.CaptureFixture[str]
) -> None:
    run = left_run(tmp_path / "run", **({"protocol": {"name": "solo"}} | {key: value}))
    (run / ".lock").touch()
    for command in (
        ["compare", str(run), str(run)],
        ["run", str(tmp_path / "fed.yaml"), "--peers", "3", "--out", str(run)],
    ):
        assert launch(command) == 2
        said = capsys.readouterr().err
        assert f"federation.yaml: `{key}" in said
        assert said.count("\n") == 1


@pytest.mark.parametrize("name", ["federation.yaml", "summary.json", "peer0/model.safetensors"])
@pytest.mark.parametrize("kind", ["pipe", "endless"])
def test_a_run_that_would_be_read_for_ever(
    name: str, kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = left_run(tmp_path / "run", {"name": "solo", "like": "fibfl"})
    (run / name).unlink()
    if kind == "pipe":
        os.mkfifo(run / name)
    else:
        (run / name).symlink_to("/dev/zero")
    assert launch(["compare", str(run), str(run)]) == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_a_line_without_end_is_left_out_and_the_next_is_read(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    path.write_bytes(b"one\n" + b"x" * 1000 + b"\ntwo\n" + b"half")
    with open_plain(path) as file:
        assert [*lines(file, longest=100)] == [b"one", b"two"]
        with path.open("ab") as more:
            more.write(b" a line\n")
        assert [*lines(file, longest=100)] == [b"half a line"]


def test_files_of_a_peer_that_are_pipes_keep_nobody_waiting(tmp_path: Path) -> None:
    (tmp_path / "peer0").mkdir()
    for name in ("events.jsonl", "audit.jsonl", "log.txt"):
        os.mkfifo(tmp_path / "peer0" / name)
    assert [*Tail(tmp_path / "peer0" / "events.jsonl").lines()] == []
    assert last_lines(tmp_path / "peer0" / "log.txt", 5) == []
    assert audits({"peer0": tmp_path / "peer0"}) == {}


def test_errors_reach_a_terminal_as_one_plain_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What they quote, others may have chosen: keys, names of files, what a neighbour answered."""
    text = json.dumps({"protocol": {"name": "fibfl", ESCAPE + FORGED: 1}, "x" * 1_000_000: 2})
    (tmp_path / "fed.yaml").write_text(text)
    (tmp_path / "peer.yaml").write_text("federation: fed.yaml\nid: peer0\n")
    for command, argv in (
        (launch, ["check", str(tmp_path / "fed.yaml"), "--peers", "3"]),
        (peer, ["--config", str(tmp_path / f"{ESCAPE}{FORGED}.yaml")]),
        (launch, ["check", str(tmp_path / f"{ESCAPE}{FORGED}.yaml")]),
    ):
        assert command(argv) == 2
        said = capsys.readouterr().err
        assert said.endswith("\n")
        assert said[:-1].isprintable()
        assert len(said) < 5000


def test_screens_show_no_escapes_and_no_markup(tmp_path: Path, spec: Spec) -> None:
    """Neither the live table, whose cells come from events.jsonl, nor the summary, nor the end of a log."""
    awaited = dict.fromkeys(("id", "address", "reason"), ESCAPE + FORGED)
    events = [
        {"event": "state", "time": 0, "state": ESCAPE + "[link=file:///etc]", "round": 1},
        {"event": "waiting", "time": 0, "cause": "join", "sentence": "", "for": [awaited]},
        {"event": "failed", "time": 0, "message": ESCAPE + FORGED},
    ]
    for id in spec.ids:
        (tmp_path / id).mkdir()
        (tmp_path / id / "events.jsonl").write_text("".join(json.dumps(event) + "\n" for event in events[:2]))
    federation = Federation(tmp_path, spec.ids, 2, MATCHED)
    federation.look(0.0)
    told = summary(per_peer=[peer_summary(f"[bold]{ESCAPE}{FORGED}")], name=ESCAPE + FORGED)
    (tmp_path / "summary.json").write_text(json.dumps(told))
    (tmp_path / "log.txt").write_text(f"{ESCAPE}\none\x0btwo\n")
    with (tmp_path / "screen").open("w+") as screen:
        console = Console(file=screen, width=200, force_terminal=True, color_system=None)
        console.print(render(federation, console))
        shown = summary_json.read(tmp_path / "summary.json")
        assert shown
        summary_text.show(shown, spec, tmp_path, console)
        screen.seek(0)
        said = screen.read()
    assert all(line.isprintable() for line in said.split("\n"))
    assert not any(line.startswith("dfl-peer") for line in said.split("\n"))
    assert "[link=" in said
    assert "[bold]" in said
    with (tmp_path / "peer0" / "events.jsonl").open("a") as file:
        file.write(json.dumps(events[2]) + "\n")
    assert all(line.isprintable() for line in federation.look(0.0))
    assert all(line.isprintable() for line in last_lines(tmp_path / "log.txt", 5))
    federation.close()


@pytest.mark.parametrize("content", ["", "[]", "3", '{"content": 3, "digest": []}', DEEP, '{"content": {}}'])
def test_a_spoilt_seal_is_damage(content: str, tmp_path: Path) -> None:
    (tmp_path / "round-0003.json").write_text(content)
    (tmp_path / "round-0003.safetensors").write_bytes(b"")
    (tmp_path / "messages-0003.safetensors").write_bytes(b"")
    checkpoints = Checkpoints(tmp_path)
    assert "cannot be read" in str(checkpoints.verify(3))
    assert "the messages of round 3 are damaged" in checkpoints.verify_messages(4)[3]


async def test_a_whole_checkpoint_of_something_else_ends_a_peer_in_a_sentence(tmp_path: Path) -> None:
    """And nothing is deleted: a copy of the right one may be put in its place."""
    (tmp_path / "fed.yaml").write_text("rounds: 1\nprotocol: solo\ndata: {name: digits, limit: 100}\n")
    spec = load_spec(tmp_path / "fed.yaml", peers=1)
    await run_in_process(spec, tmp_path)
    checkpoints = Checkpoints(tmp_path / "peer0" / "checkpoint")
    snapshot, _ = checkpoints.load(1)
    for tensors, facts in (({}, snapshot.facts), ({"model": torch.zeros(3)}, snapshot.facts)):
        checkpoints.save(Snapshot(1, tensors, facts), [])
        before = sorted((tmp_path / "peer0" / "checkpoint").iterdir())
        with pytest.raises(ExceptionGroup) as told:
            await run_in_process(spec, tmp_path)
        assert "the checkpoint of round 1 is not of this model and protocol" in str(told.value.exceptions[0])
        assert sorted((tmp_path / "peer0" / "checkpoint").iterdir()) == before


def test_what_lies_beside_a_peers_values_is_left_alone(tmp_path: Path) -> None:
    journal = Journal(tmp_path)
    journal.write(3, 0, torch.ones(2))
    strangers = [tmp_path / name for name in ("round-x.safetensors", "round--1.safetensors", "round-1.safetensors")]
    for path in strangers:
        path.touch()
    journal.prune(before=10)
    assert sorted(tmp_path.iterdir()) == sorted(strangers)
