"""Which engine runs the peers, what it is told, and taking up peers whose launcher is gone."""

import asyncio
import json
import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from unheard import Unheard

from launcher.cli import main
from launcher.engines import ENGINES
from launcher.engines.base import Deployment, Engine, FollowedProcess, Process, Run
from peer.settings import Settings

RUNNING = dict[str, Unheard]()
"""The peers of the engine below, whoever has started them."""
DISCARDED = list[tuple[str, int]]()
"""The engines that were to remove what peers have left, with their hosts."""


class Elsewhere(Deployment):
    async def start(self, id: str) -> Process:
        return RUNNING.setdefault(id, Unheard())


class ElsewhereSettings(Settings):
    hosts: int = 1
    """How many there are."""


class ElsewhereEngine(Engine[ElsewhereSettings]):
    name = "elsewhere"
    Settings = ElsewhereSettings
    outlives_launcher = True

    def check(self, run: Run) -> None:
        pass

    def discard(self, run: Run, running: bool = False) -> str:
        DISCARDED.append((self.name, self.settings.hosts))
        return ""

    @asynccontextmanager
    async def deploy(self, run: Run) -> AsyncIterator[Deployment]:
        asyncio.get_running_loop().call_later(0.3, hang_up)
        yield Elsewhere()


class FurtherEngine(ElsewhereEngine):
    """One that must know at the next launch what an earlier one has written."""

    name = "further"

    def check(self, run: Run) -> None:
        run.read_place()


def hang_up() -> None:
    os.kill(os.getpid(), signal.SIGHUP)


@pytest.fixture
def federation(tmp_path: Path) -> Path:
    file = tmp_path / "small.yaml"
    file.write_text("name: small\nprotocol: {name: fibfl}\ndata: {name: digits}\n")
    return file


@pytest.fixture
def elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(ENGINES, "elsewhere", f"{__name__}:ElsewhereEngine")
    monkeypatch.setitem(ENGINES, "further", f"{__name__}:FurtherEngine")
    RUNNING.clear()
    DISCARDED.clear()


def test_a_closed_terminal_leaves_peers_that_can_go_on(
    elsewhere: None, federation: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    arguments = ["run", str(federation), "--peers", "3", "--out", str(out), "--on", "elsewhere", "--option", "hosts=2"]
    assert main(arguments) == 129
    assert f"reattach with `dfl-launch attach {out}`" in capsys.readouterr().out
    begun = {id: peer.signals for id, peer in RUNNING.items()}
    assert begun == {"peer0": [], "peer1": [], "peer2": []}
    assert main(["attach", str(out)]) == 129
    assert {id: peer.signals for id, peer in RUNNING.items()} == begun


def test_a_refusal_of_before_is_told_to_who_attaches(
    elsewhere: None, federation: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A peer says once for whom it waits, and here nobody heard it."""
    out = tmp_path / "out"
    assert main(["run", str(federation), "--peers", "3", "--out", str(out), "--on", "elsewhere"]) == 129
    reason = "refused: its data has 3 columns, and this peer's 2 columns; make the two alike"
    for id, other in (("peer0", "peer1"), ("peer1", "peer0")):
        awaited = [{"id": other, "address": "h:1", "reason": reason}]
        waiting = {"event": "waiting", "cause": "join", "for": awaited, "sentence": "waiting"}
        events = [{"event": "state", "state": "joining", "round": 0}, waiting]
        lines = (json.dumps({"time": 1.0} | event) + "\n" for event in events)
        (out / id / "events.jsonl").write_text("".join(lines))
    capsys.readouterr()
    assert main(["attach", str(out)]) == 129
    assert f"peer0 was last heard of waiting for peer1 at h:1 ({reason})" in " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize("fresh", [[], ["--fresh"]])
def test_another_engine_does_not_begin_beside_peers_that_may_run(
    elsewhere: None,
    fresh: list[str],
    federation: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    out = tmp_path / "out"
    arguments = ["run", str(federation), "--peers", "3", "--out", str(out)]
    assert main([*arguments, "--on", "elsewhere"]) == 129
    (tmp_path / "link").symlink_to(out)
    assert main([*arguments[:-1], str(tmp_path / "link"), *fresh]) == 2
    assert "was begun by `--on elsewhere`, whose peers may still run" in capsys.readouterr().err
    assert len(RUNNING) == 3
    monkeypatch.setitem(ENGINES, "elsewhere", "a_library_that_is_not_there:Engine")
    assert main([*arguments, *fresh]) == 2
    assert "was begun by `--on elsewhere`, whose peers may still run" in capsys.readouterr().err


def test_what_the_engine_of_the_earlier_run_has_left_is_removed_whatever_engine_is_next(
    elsewhere: None, federation: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    arguments = ["run", str(federation), "--peers", "3", "--out", str(out)]
    assert main([*arguments, "--on", "elsewhere", "--option", "hosts=2"]) == 129
    (out / "summary.json").touch()  # it has come to its end
    assert main([*arguments, "--on", "further", "--fresh"]) == 129
    assert main([*arguments, "--on", "further", "--fresh"]) == 129
    assert DISCARDED == [("elsewhere", 2), ("further", 1)]


def test_what_an_ended_run_has_left_elsewhere_is_not_forgotten(
    elsewhere: None, federation: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """With more rounds it goes on; the next engine would know nothing of the earlier one's places."""
    out = tmp_path / "out"
    arguments = ["run", str(federation), "--peers", "3", "--out", str(out)]
    assert main([*arguments, "--on", "elsewhere", "--option", "hosts=2"]) == 129
    (out / "summary.json").touch()  # it has come to its end
    (out / ".place.json").write_text("{}")
    assert main([*arguments, "--on", "further"]) == 2
    assert f"go on there, or remove them by `dfl-launch discard {out}`" in capsys.readouterr().err
    assert main([*arguments, "--on", "elsewhere", "--option", "hosts=2"]) == 129
    (out / "summary.json").touch()
    assert main(["discard", str(out)]) == 0
    assert DISCARDED == [("elsewhere", 2)]
    assert main([*arguments, "--on", "further"]) == 129


@pytest.mark.parametrize("fresh", [[], ["--fresh"]])
@pytest.mark.parametrize("name", [".engine.json", ".place.json"])
def test_a_damaged_record_is_named_with_what_to_do(
    elsewhere: None, name: str, fresh: list[str], federation: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["run", str(federation), "--peers", "3", "--out", str(tmp_path / "out"), "--on", "further"]
    assert main(arguments) == 129
    (tmp_path / "out" / name).write_text('{"on": "fur')
    assert main([*arguments, *fresh]) == 2
    [line] = capsys.readouterr().err.splitlines()
    assert line.startswith(f"dfl-launch: {tmp_path}/out/{name}: cannot be read (")
    assert "remove it" in line
    (tmp_path / "out" / name).unlink()
    assert main([*arguments, *fresh]) == 129


class Unprepared(ElsewhereEngine):
    @asynccontextmanager
    async def deploy(self, run: Run) -> AsyncIterator[Deployment]:
        await interrupted()
        yield Elsewhere()


async def interrupted() -> None:
    """Take long enough for Ctrl-C to be heard."""
    signal.raise_signal(signal.SIGINT)
    await asyncio.wait_for(asyncio.Event().wait(), 10)


def test_ctrl_c_while_the_place_is_prepared_starts_no_peer(
    elsewhere: None,
    federation: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setitem(ENGINES, "elsewhere", f"{__name__}:Unprepared")
    out = tmp_path / "out"
    assert main(["run", str(federation), "--peers", "3", "--out", str(out), "--on", "elsewhere"]) == 130
    assert not RUNNING
    said = capsys.readouterr().out
    assert "no peer was started; any that ran before go on\nStopped; the same command resumes the run.\n" in said


class Unfetched(Elsewhere):
    """With peers that end when they are asked to, or have ended already."""

    ended = False

    async def start(self, id: str) -> Process:
        process = FollowedProcess(lambda _: process.end(130))
        if self.ended:
            process.end(0)
        elif id == "peer2":
            signal.raise_signal(signal.SIGINT)
        return process

    async def collect(self) -> None:
        await interrupted()


class UnfetchedEngine(ElsewhereEngine):
    @asynccontextmanager
    async def deploy(self, run: Run) -> AsyncIterator[Deployment]:
        yield Unfetched()


@pytest.mark.parametrize("ended", [True, False])
def test_the_next_ctrl_c_ends_the_fetching_of_files(
    elsewhere: None,
    ended: bool,
    federation: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The first one where the peers have ended by themselves, else the second."""
    monkeypatch.setitem(ENGINES, "elsewhere", f"{__name__}:UnfetchedEngine")
    monkeypatch.setattr(Unfetched, "ended", ended)
    out = tmp_path / "out"
    assert main(["run", str(federation), "--peers", "3", "--out", str(out), "--on", "elsewhere"]) == 130
    assert "Stopped; the same command resumes the run.\n" in capsys.readouterr().out
    assert (out / "federation.yaml").exists()


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (["hots=2"], "--on elsewhere: unknown key `hots`; did you mean `hosts`?"),
        (["hosts=two"], '--on elsewhere: `hosts`: input should be a valid integer (given: "two")'),
        (["hosts"], "--option hosts: write key=value"),
    ],
)
def test_a_wrong_setting_is_told_before_anything_is_made(
    elsewhere: None,
    options: list[str],
    sentence: str,
    federation: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    given = [word for option in options for word in ("--option", option)]
    out = tmp_path / "out"
    assert main(["run", str(federation), "--peers", "3", "--out", str(out), "--on", "elsewhere", *given]) == 2
    assert sentence in capsys.readouterr().err
    assert not out.exists()


def test_a_file_is_no_run(federation: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["attach", str(federation)]) == 2
    told = f"{federation} is a file; give the directory of the run, such as {federation.parent}\n"
    assert capsys.readouterr().err == f"dfl-launch: {told}"


def test_what_cannot_be_taken_up_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """No run, a record that is none, and peers that end with their launcher. Nothing is created."""
    assert main(["attach", str(tmp_path)]) == 2
    assert "holds no run that a launcher began" in capsys.readouterr().err
    assert not [*tmp_path.iterdir()]
    (tmp_path / ".engine.json").write_text("[]")
    assert main(["attach", str(tmp_path)]) == 2
    assert ".engine.json: cannot be read" in capsys.readouterr().err
    (tmp_path / ".engine.json").write_text('{"on": "local", "settings": {}, "device": "auto", "certs": null}')
    assert main(["attach", str(tmp_path)]) == 2
    assert "`dfl-launch run` with --out" in capsys.readouterr().err
    (tmp_path / ".engine.json").write_text('{"on": "locla", "settings": {}, "device": "auto", "certs": null}')
    assert main(["attach", str(tmp_path)]) == 2
    assert "unknown engine `locla`" in capsys.readouterr().err


def test_where_nothing_is_left_elsewhere_there_is_nothing_to_discard(
    elsewhere: None, federation: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["discard", str(tmp_path)]) == 2
    assert "holds no run that a launcher began" in capsys.readouterr().err
    out = tmp_path / "out"
    assert main(["run", str(federation), "--peers", "3", "--out", str(out), "--on", "elsewhere"]) == 129
    assert main(["discard", str(out)]) == 0
    assert "There is nothing to discard: `--on elsewhere` has left nothing" in capsys.readouterr().out
