"""Ids stay readable on a narrow screen; what is printed comes out on terminals and pipes of any encoding."""

import io
import json
import os
import pty
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from subprocess import PIPE
from typing import Any, cast

import pytest
from interpreter import Commands
from rich.console import Console

from launcher.dashboard.feed import LiveSnapshot
from launcher.headline import Headline
from launcher.monitor.federation import Federation
from launcher.monitor.live_table import display, render, row
from launcher.table import fitting
from peer.learning.tasks import RESERVED_FIGURE_NAMES
from peer.telemetry.events import Awaited, Failed, RoundDone, StateChanged, Waiting
from peer.text import MAX_MESSAGE_CHARACTERS

MATCHED = Headline(test="matched")

FAKE_PEERS = Path(__file__).parents[1] / "commands"


def busy(directory: Path, ids: list[str]) -> Federation:
    """Every cell of the table is as wide as it gets: each waits for two others, and was restarted."""
    federation = Federation(directory, ids, rounds=100, headline=MATCHED)
    seconds = {"train": 1.0, "communicate": 1.0, "evaluate": 1.0}
    for peer in federation.peers.values():
        peer.restarts = 2
        peer.apply(RoundDone(round=99, accuracy={"matched": 0.5}, loss=0.5, seconds=seconds, bytes_sent=123_456_000))
        peer.apply(StateChanged(state="communicating", round=100))
        awaited = tuple(Awaited(id, f"{id}:1", "refused") for id in ids if id != peer.id)
        peer.apply(Waiting(cause="join", awaited=awaited, sentence=""))
    return federation


def drawn(federation: Federation, width: int) -> str:
    screen = io.StringIO()
    console = Console(file=screen, width=width, height=24)
    console.print(render(federation, console))
    return screen.getvalue()


def test_of_a_long_text_no_more_is_shown_than_anybody_reads(tmp_path: Path) -> None:
    """Of what peers elsewhere write: a line of 16 MB would hold a terminal up for a minute, and a page for seconds."""
    ids, long = ["peer0", "peer1", "peer2"], "z " * 50_000
    federation = Federation(tmp_path, ids, rounds=3, headline=MATCHED)
    awaits = Waiting(time=1.0, cause="join", awaited=(Awaited(long, None, long),), sentence="")
    news = [("peer0", StateChanged(state=long, round=1)), ("peer1", awaits), ("peer2", Failed(message=long))]
    told = federation.update(news, now=100.0)
    assert {line.partition(" ")[0] for line in told} >= {"peer1", "peer2"}
    assert max(map(len, told)) <= MAX_MESSAGE_CHARACTERS + 1
    assert len(drawn(federation, 100)) < 3 * MAX_MESSAGE_CHARACTERS
    now = LiveSnapshot.from_federation(federation, tuple(ids), 100.0)
    assert len(json.dumps(now.since(LiveSnapshot()))) < 6 * MAX_MESSAGE_CHARACTERS


@pytest.mark.parametrize("width", [50, 60, 80, 100, 160])
@pytest.mark.parametrize("stem", ["peer", "hospital-north-"])
def test_ids_are_readable_at_every_usual_width(tmp_path: Path, stem: str, width: int) -> None:
    ids = [f"{stem}{n}" for n in range(12)]
    lines = drawn(busy(tmp_path, ids), width).splitlines()
    assert all(len(line) <= width for line in lines)
    words = [re.split("[ ,…]+", line.strip()) for line in lines if " communicating " in line]
    assert [row[0] for row in words] == ids
    if "waits for" in lines[1]:
        assert all(awaited in row[1:] for row, awaited in zip(words, [ids[1], *[ids[0]] * 11], strict=True))


class Asked(dict[int, RoundDone]):
    """Rounds that know how many of them were asked for."""

    count = 0

    def get(self, *key: Any) -> Any:
        self.count += 1
        return super().get(*key)

    def __getitem__(self, key: int) -> RoundDone:
        return cast(RoundDone, self.get(key))

    def __iter__(self) -> Iterator[int]:
        self.count += len(self)
        return super().__iter__()

    def values(self) -> Any:
        self.count += len(self)
        return super().values()


@pytest.mark.parametrize("rounds", [range(1, 2001), [2000]], ids=["all", "only the last heard of"])
def test_a_picture_looks_at_few_rounds_however_many_there_are(tmp_path: Path, rounds: Sequence[int]) -> None:
    federation = Federation(tmp_path, ["peer0"], rounds=2001, headline=MATCHED)
    (peer,) = federation.peers.values()
    for number in rounds:
        peer.apply(RoundDone(round=number, accuracy={"matched": 0.5} if number == 2000 else {}, seconds={"train": 1.0}))
    drawn(federation, 160)
    peer.history.rounds = asked = Asked(peer.history.rounds)
    peer.apply(RoundDone(round=2001, accuracy={"matched": 0.5}, seconds={"train": 1.0}))
    drawn(federation, 160)
    LiveSnapshot.from_federation(federation, ("peer0",), 0.0)
    assert asked.count < 50


@pytest.mark.parametrize("width", [40, 60, 80])
def test_the_longest_ids_are_never_cut(tmp_path: Path, width: int) -> None:
    """Where there is no room in the line they go on in the next."""
    ids = [letter * 64 for letter in "xzq"]
    text = drawn(busy(tmp_path, ids), width)
    assert all(len(line) <= width for line in text.splitlines())
    assert [text.count(letter) for letter in "xzq"] == [64, 64, 64]


@pytest.mark.parametrize("encoding", ["latin-1", "ascii"])
def test_the_live_table_is_shown_on_a_console_of_any_encoding(tmp_path: Path, encoding: str) -> None:
    screen = io.TextIOWrapper(io.BytesIO(), encoding=encoding)
    with display(Console(file=screen, force_terminal=True, width=80, height=24, _environ={})) as shown:
        shown.show(busy(tmp_path, ["peer0", "peer1"]))
        shown.say("α = 0.618…")
    screen.flush()
    text = screen.buffer.getvalue().decode(encoding)  # type: ignore[attr-defined]
    assert "peer1" in text
    assert "? = 0.618." in text


def test_a_wide_screen_has_every_column(tmp_path: Path) -> None:
    heading = drawn(busy(tmp_path, ["peer0", "peer1"]), 160).splitlines()[1]
    named = ["peer", "state", "restarts", "round", "accuracy", "curve"]
    named += ["loss", "sent", "train/comm/eval", "waits", "for"]
    assert heading.split() == named


def test_no_column_is_called_as_a_task_may_call_its_figure(tmp_path: Path) -> None:
    federation = busy(tmp_path, ["peer0"])
    assert {*row(federation, federation.peers["peer0"])} - {federation.headline.figure.name} <= RESERVED_FIGURE_NAMES


def test_columns_go_in_the_order_given() -> None:
    row = {"peer": "a" * 10, "one": "b" * 10, "two": "c" * 10, "three": "d" * 10}
    kept = [
        [str(column.header) for column in fitting([row], ["two", "one"], Console(width=width)).columns]
        for width in (80, 40, 30, 20)
    ]
    assert kept == [["peer", "one", "two", "three"], ["peer", "one", "three"], ["peer", "three"], ["peer", "three"]]


def screen(encoding: str) -> dict[str, str]:
    """The environment of a terminal with that encoding."""
    paths = os.pathsep.join([str(FAKE_PEERS), os.environ.get("PYTHONPATH", "")])
    return os.environ | {"PYTHONIOENCODING": encoding, "PYTHONPATH": paths, "COLUMNS": "80", "TERM": "xterm"}


@pytest.mark.parametrize("encoding", ["latin-1", "ascii"])
def test_a_run_is_shown_on_a_terminal_of_any_encoding(tmp_path: Path, commands: Commands, encoding: str) -> None:
    """On a real pseudo-terminal, so with the live table."""
    federation = tmp_path / "small.yaml"
    federation.write_text("name: small\nrounds: 2\nprotocol: {name: fibfl}\ndata: {name: digits}\n")
    script = "from test_run import LAUNCH; exec(LAUNCH)"
    arguments = ["-c", script, str(federation), str(tmp_path / "out"), str(FAKE_PEERS)]
    environment = screen(encoding) | {"FAKE_PEERS": json.dumps({"peer1": "crashes once"})}
    terminal, end = pty.openpty()
    with commands.command(arguments, end, end, end, environment) as process:
        os.close(end)
        text = everything(terminal).decode(encoding)
        assert process.wait(30) == 0, text
    assert "Traceback" not in text
    assert "waits for" in text
    assert "peer1: restarting in 0.5 s" in text
    assert "fibfl, 3 peers, 2 rounds" in text


def everything(terminal: int) -> bytes:
    """What is written to a pseudo-terminal until all its writers are gone."""
    found = b""
    try:
        while chunk := os.read(terminal, 4096):
            found += chunk
    except OSError:  # how Linux tells the end
        pass
    finally:
        os.close(terminal)
    return found


@pytest.mark.parametrize("command", ["protocols", "certs", "wrong", "peer"])
def test_a_command_says_all_it_has_to_say_into_a_pipe_of_plain_letters(
    tmp_path: Path, commands: Commands, command: str
) -> None:
    federation = tmp_path / "small.yaml"
    federation.write_text("rounds: 2\nprotocol: {name: fibfl}\ndata: {name: digits}\n")
    given = {
        "protocols": ("launcher.cli", "protocols"),
        "certs": ("launcher.cli", "certs", str(federation), "--peers", "3", "--out", str(tmp_path / "κλίμα")),
        "wrong": ("launcher.cli", "check", str(tmp_path / "κλίμα.yaml")),
        "peer": ("peer.cli", "--config", str(tmp_path / "κλίμα.yaml")),
    }
    ended = commands.run(["-m", *given[command]], stderr=PIPE, env=screen("ascii"))
    said = ended.stdout + ended.stderr
    assert said.isascii()
    assert ended.returncode == (2 if command in ("wrong", "peer") else 0), said
    assert "Traceback" not in said
    assert {"protocols": "FIRMA", "certs": "keep keys secret", "wrong": "no such file", "peer": "no such file"}[
        command
    ].lower() in said.lower()
