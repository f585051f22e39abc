"""What a peer says to the person who started it by hand."""

import logging
import os
import subprocess
import sys
import threading
import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from subprocess import PIPE

import pytest
from rich.console import Console

from peer.telemetry.events import (
    Awaited,
    Done,
    Event,
    LinkChanged,
    Resumed,
    RoundDone,
    Started,
    StateChanged,
    Stopped,
    StoppedEarly,
    ViewDecided,
    Waiting,
)
from peer.telemetry.operator_log import REMINDER_AFTER_S, REMINDER_EVERY_S, Identification, OperatorLog
from peer.telemetry.telemetry import Telemetry

ABOUT = Identification(
    "north",
    "clinics",
    "fibfl",
    "10.0.0.1:7700",
    peers=3,
    rounds=5,
    config=Path("my north.yaml"),
    out=Path("/runs/north"),
    model=Path("/runs/north/model.safetensors"),
)
STARTED = Started(schema=1, version="1", id="north", federation="clinics", protocol="fibfl", rounds=5)
JOINING = Waiting(cause="join", awaited=(Awaited("west", "w:1", "refused"),), sentence="waiting for west")
HERE = Waiting(cause="join", awaited=(), sentence="all neighbours are here")
LOST = LinkChanged(neighbour="west", state="down", reason="silent")


@pytest.fixture
def operator(caplog: pytest.LogCaptureFixture) -> OperatorLog:
    caplog.set_level(logging.INFO)
    return OperatorLog(ABOUT)


def at(now: float, event: Event) -> Event:
    return replace(event, time=now)


def state(now: float, name: str, round: int = 1) -> Event:
    return StateChanged(state=name, round=round, time=now)


def clock(now: float) -> str:
    return time.strftime("%H:%M:%S", time.localtime(now))


def test_the_first_line_says_who_where_and_how_much(operator: OperatorLog, caplog: pytest.LogCaptureFixture) -> None:
    operator.introduce()
    OperatorLog(replace(ABOUT, address=None)).introduce()
    assert caplog.messages == [
        "north of clinics, at 10.0.0.1:7700: fibfl, 3 peers, 5 rounds",
        "north of clinics, which only dials out: fibfl, 3 peers, 5 rounds",
    ]


def test_a_round_says_how_many_there_are_and_how_long_they_take(
    operator: OperatorLog, caplog: pytest.LogCaptureFixture
) -> None:
    for now, event in ((0.0, STARTED), (60.0, RoundDone(round=1)), (70.0, RoundDone(round=2))):
        operator.on_event(at(now, event))
    operator.on_event(at(80.0, StoppedEarly(round=3, best_round=1, figure="accuracy")))
    operator.on_event(at(80.0, RoundDone(round=3)))
    figures = "accuracy not measured, loss not measured"
    assert caplog.messages == [
        f"round 1 of 5 done: {figures}",
        f"round 2 of 5 done: {figures}, about 30 s left",
        "all peers end after round 3: the mean accuracy is no better since round 1",
        f"round 3 of 3 done: {figures}",
    ]


def test_whoever_waits_is_reminded_for_whom_and_since_when_and_then_rarely(operator: OperatorLog) -> None:
    for event in (Resumed(round=2), JOINING):
        operator.on_event(at(100.0, event))
    assert operator.reminder(100.0 + REMINDER_AFTER_S - 1) is None
    said = f"waiting for west at w:1 (refused) since {clock(100.0)}; Ctrl-C is safe: the same command resumes after"
    assert operator.reminder(100.0 + REMINDER_AFTER_S) == f"{said} round 2"
    assert operator.reminder(100.0 + REMINDER_AFTER_S + REMINDER_EVERY_S - 1) is None
    operator.on_event(at(150.0, replace(JOINING, awaited=(Awaited("west", "w:1", "no route"),))))
    again = operator.reminder(100.0 + REMINDER_AFTER_S + REMINDER_EVERY_S)
    assert again is not None
    assert again.startswith(f"waiting for west at w:1 (no route) since {clock(100.0)}; "), "it is the same wait"
    operator.on_event(at(200.0, HERE))
    assert operator.reminder(1000.0) is None


def test_a_neighbour_that_is_gone_is_waited_for_by_who_does_not_train(operator: OperatorLog) -> None:
    operator.on_event(at(100.0, LOST))
    operator.on_event(state(100.0, "training"))
    assert operator.reminder(200.0) is None
    operator.on_event(state(200.0, "communicating"))
    assert operator.reminder(201.0) == (
        f"waiting for west (silent) since {clock(100.0)}; Ctrl-C is safe: the same command starts from the beginning"
    )
    operator.on_event(at(300.0, LinkChanged(neighbour="west", state="up")))
    assert operator.reminder(1000.0) is None


def test_nobody_is_waited_for_in_a_view_without_it(operator: OperatorLog) -> None:
    operator.on_event(state(100.0, "communicating"))
    operator.on_event(at(100.0, LOST))
    members = ("north", "south")
    operator.on_event(
        ViewDecided(number=1, members=members, first=2, planned=False, entrants=(), reason="", time=120.0)
    )
    assert operator.reminder(1000.0) is None


def test_whoever_has_finished_says_why_it_stays(operator: OperatorLog) -> None:
    operator.on_event(at(90.0, RoundDone(round=5)))
    operator.on_event(state(100.0, "serving", 5))
    assert operator.reminder(100.0) is None
    assert operator.reminder(100.0 + REMINDER_AFTER_S) == (
        "all rounds are done, and the model is /runs/north/model.safetensors; its neighbours still need its last "
        "messages; Ctrl-C is safe: the same command resumes after round 5"
    )


def test_the_end_counts_earlier_starts_and_says_what_is_next(
    operator: OperatorLog, caplog: pytest.LogCaptureFixture
) -> None:
    operator.on_event(at(1000.0, replace(STARTED, restarts=1, seconds=18.0)))
    operator.on_event(at(1010.0, RoundDone(round=5)))
    caplog.clear()
    operator.on_event(at(1016.0, Done()))
    assert caplog.messages == [
        "done: 5 rounds in 34 s; the model: /runs/north/model.safetensors",
        "to see how it went: dfl-launch summary /runs/north (add the others' directories to sum up the whole run)",
    ]


def test_whoever_stops_it_is_told_how_it_goes_on(operator: OperatorLog, caplog: pytest.LogCaptureFixture) -> None:
    operator.on_event(RoundDone(round=3))
    operator.on_event(Stopped(signal="SIGINT"))
    assert (
        caplog.messages[-1]
        == "stopped by SIGINT; this command resumes after round 3: dfl-peer --config 'my north.yaml'"
    )


def test_all_else_is_as_in_any_log(operator: OperatorLog, caplog: pytest.LogCaptureFixture) -> None:
    Telemetry(operator.on_event).emit(LOST)
    Telemetry(operator.on_event).emit(StateChanged(state="training", round=1))
    assert caplog.messages == ["link to west: down (silent)"]


def test_the_live_line_says_what_it_does_or_for_whom_it_waits(operator: OperatorLog) -> None:
    def line(now: float) -> str:
        console = Console(width=100, color_system=None)
        with console.capture() as captured:
            console.print(operator.line(now))
        return captured.get()

    operator.on_event(state(1.0, "training", 3))
    for round, now in ((1, 10.0), (2, 12.0)):
        operator.on_event(at(now, RoundDone(round=round)))
    assert "north is training" in line(12.0)
    assert "round 2 of 5, about 6 s left" in line(12.0)
    operator.on_event(state(13.0, "communicating", 3))
    operator.on_event(at(13.0, LOST))
    assert "north waits for west" in line(14.0)


TERMINAL = """
import asyncio, fcntl, os, signal, sys
from contextlib import suppress
from pathlib import Path
from peer.telemetry.operator_log import Identification, OperatorLog

signal.signal(signal.SIGHUP, signal.SIG_IGN)
peer = OperatorLog(Identification("north", "clinics", "fibfl", None, 3, 5, Path(), Path(), Path()))

def full():
    flags = fcntl.fcntl(2, fcntl.F_GETFL)
    fcntl.fcntl(2, fcntl.F_SETFL, flags | os.O_NONBLOCK)
    with suppress(BlockingIOError):
        while True: os.write(2, b"x" * 100)
    fcntl.fcntl(2, fcntl.F_SETFL, flags)

async def run():
    async with peer.shown():
        if sys.argv[1] == "full": full()
        print("here", flush=True)
        sys.stdin.readline()
        await asyncio.sleep(1.2)
        print("alive", flush=True)
        sys.stdin.readline()

asyncio.run(run())
print("over", flush=True)
"""
"""Ends when it is told to; on its stderr nothing more can be written, or nobody is there any more."""


@pytest.mark.parametrize("state", ["full", "gone"])
def test_a_terminal_that_takes_nothing_stops_no_peer(state: str) -> None:
    near, far = os.openpty()
    command, env = [sys.executable, "-c", TERMINAL, state], {**os.environ, "TERM": "xterm"}
    with subprocess.Popen(command, stdin=PIPE, stdout=PIPE, stderr=far, text=True, env=env, bufsize=1) as process:
        os.close(far)
        assert process.stdin
        assert process.stdout
        assert process.stdout.readline() == "here\n"
        if state == "gone":
            os.close(near)
        process.stdin.write("\n")
        assert process.stdout.readline() == "alive\n"
        reading = threading.Thread(target=empty, args=(near,), daemon=True)
        if state == "full":
            reading.start()
        process.stdin.write("\n")
        assert process.stdout.readline() == "over\n"
    assert process.returncode == 0


def empty(terminal: int) -> None:
    with suppress(OSError):
        while os.read(terminal, 1 << 16):
            pass
