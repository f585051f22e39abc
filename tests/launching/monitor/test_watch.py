"""What the launcher makes of event files: torn, replaced and cut ones too."""

import io
import json
import time
import tracemalloc
from collections.abc import Iterator
from dataclasses import replace
from errno import EIO, ESTALE
from pathlib import Path
from typing import Any, BinaryIO, NoReturn

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from launcher.headline import Headline
from launcher.monitor import federation
from launcher.monitor.federation import Federation, PeerView, Tail, last_lines
from launcher.monitor.live_table import Lines, choose, display, render
from launcher.supervision.supervisor import show
from peer.files import lines
from peer.telemetry.events import (
    SCHEMA,
    Event,
    RoundDone,
    Started,
    StateChanged,
    SubscriberDropped,
    objects,
    read_event,
)
from peer.telemetry.results import history

MATCHED = Headline(test="matched")


def test_lines_appear_when_they_are_whole(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    tail = Tail(path)
    assert [*tail.lines()] == []
    with path.open("wb", buffering=0) as file:
        file.write(b"one\ntw")
        assert [*tail.lines()] == [b"one"]
        assert [*tail.lines()] == []
        file.write(b"o\n\nthree\n")
        assert [*tail.lines()] == [b"two", b"", b"three"]
    tail.close()


def test_events_of_a_newer_version_are_shown_as_far_as_they_are_known() -> None:
    peer = PeerView("peer0")
    started = Started(schema=SCHEMA, version="1.0", id="peer0", federation="f", protocol="fibfl", rounds=3)
    assert peer.apply(started) is None
    newer = f"peer0 tells events of version {SCHEMA + 1}, newer than {SCHEMA}: some are not shown"
    assert peer.apply(replace(started, schema=SCHEMA + 1)) == newer


def test_a_person_is_told_that_a_tracker_has_failed() -> None:
    assert PeerView("peer0").apply(SubscriberDropped(sentence="metrics failed")) == "peer0: metrics failed"


def test_rotated_file_is_read_to_its_end_first(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    path.write_text("one\n")
    tail = Tail(path)
    assert [*tail.lines()] == [b"one"]
    with path.open("a") as file:
        file.write("two\n")
    path.rename(tmp_path / "events.jsonl.1")
    path.write_text("three\n")
    assert [*tail.lines()] == [b"two", b"three"]
    tail.close()


def test_truncated_file_is_read_from_its_start(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    path.write_text("one\ntwo\nthr")
    tail = Tail(path)
    assert [*tail.lines()] == [b"one", b"two"]
    path.write_text("new\n")
    assert [*tail.lines()] == [b"new"]
    tail.close()


def test_removed_file_is_awaited(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    path.write_text("one\n")
    tail = Tail(path)
    assert [*tail.lines()] == [b"one"]
    path.unlink()
    assert [*tail.lines()] == []
    path.write_text("again\n")
    assert [*tail.lines()] == [b"again"]
    tail.close()


@pytest.mark.parametrize("errno", [ESTALE, EIO])
@pytest.mark.parametrize("fails", ["stat", "open", "read"])
def test_a_file_that_a_network_file_system_loses_for_a_while_is_read_on_later(
    tmp_path: Path, errno: int, fails: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "events.jsonl"
    path.write_text("one\n")
    tail = Tail(path)
    assert [*tail.lines()] == [b"one"]
    with path.open("a") as file:
        file.write("two\nthree\n")

    def lost(*_: object) -> NoReturn:
        raise OSError(errno, "lost", str(path))

    def half(file: BinaryIO) -> Iterator[bytes]:
        yield next(lines(file))
        lost()

    with monkeypatch.context() as server:
        server.setattr(Path, "stat", lost) if fails != "read" else server.setattr(federation, "lines", half)
        found = [*tail.lines()]
        if fails == "open":
            server.setattr(federation, "open_plain", lost)
            assert [*tail.lines()] == []
    assert [*found, *tail.lines()] == [b"two", b"three"]
    tail.close()


@given(st.lists(st.text("ab\n", max_size=5), max_size=20))
def test_any_way_of_writing_gives_the_same_lines(tmp_path_factory: pytest.TempPathFactory, pieces: list[str]) -> None:
    path = tmp_path_factory.mktemp("tail") / "file"
    path.touch()
    tail, found = Tail(path), []
    with path.open("wb", buffering=0) as file:
        for piece in pieces:
            file.write(piece.encode())
            found += tail.lines()
    tail.close()
    assert found == "".join(pieces).encode().split(b"\n")[:-1]


def test_a_history_with_spoilt_lines(tmp_path: Path) -> None:
    whole = [json.dumps({"time": 1, "event": "round", "round": number, "loss": 0.5}).encode() for number in (1, 2)]
    spoilt = [b"\xff\xfe", b"null", b"5", b"[]", b'"x"', b'{"event": "round"}', b'{"round": 1}']
    (tmp_path / "events.jsonl").write_bytes(b"\n".join([whole[0], *spoilt, whole[1], b'{"event": "ro']))
    assert history(tmp_path) == (RoundDone(time=1, round=1, loss=0.5), RoundDone(time=1, round=2, loss=0.5))


@pytest.mark.parametrize(
    "spoilt",
    [
        {"event": "state", "state": "training", "round": "x"},
        {"event": "waiting", "time": "x", "cause": "join", "for": [], "sentence": ""},
        {"event": "waiting", "cause": "join", "for": 3, "sentence": ""},
        {"event": "waiting", "cause": "join", "for": ["b"], "sentence": ""},
        {"event": "waiting", "cause": "hunger", "for": [], "sentence": ""},
        {"event": "round", "round": 1, "accuracy": [1], "loss": 0.5},
        {"event": "round", "round": 1, "accuracy": {"matched": "x"}, "loss": 0.5},
        {"event": "round", "round": 1, "seconds": 3, "loss": 0.5},
        {"event": "round", "round": 1, "loss": "x"},
        {"event": ["round"]},
        {"event": "unheard of"},
    ],
)
def test_a_line_that_no_peer_wrote_is_passed_over(tmp_path: Path, spoilt: dict[str, Any]) -> None:
    federation = Federation(tmp_path, ["a"], rounds=4, headline=MATCHED)
    write(tmp_path, "a", spoilt)
    assert federation.look(0.0) == []
    assert (federation.round, federation.peers["a"].state) == (0, "starting")
    federation.close()


def test_torn_lines_are_passed_over() -> None:
    assert [*objects([b'{"a": 1}', b'{"a": ', b'{"a": {"b": 2}', b"[1]", b"", b"\xff"])] == [{"a": 1}]


def test_last_lines(tmp_path: Path) -> None:
    path = tmp_path / "log.txt"
    assert last_lines(path, 3) == []
    path.write_text("".join(f"line {n}\n" for n in range(10_000)))
    assert last_lines(path, 2) == ["line 9998", "line 9999"]


def a_round(number: int, accuracy: float) -> dict[str, Any]:
    return {
        "event": "round",
        "round": number,
        "accuracy": {"matched": accuracy, "global": 0.5, "paper": None, "local": None},
        "loss": 0.5,
        "seconds": {"train": 3.0, "communicate": 1.0, "evaluate": 0.0},
        "bytes_sent": 1000 * number,
    }


def told(**fields: Any) -> Event:
    """The event that a peer's line stands for."""
    event = read_event(fields)
    assert event, fields
    return event


def test_one_peer() -> None:
    peer = PeerView("peer0")
    peer.apply(told(event="state", state="training", round=1))
    assert (peer.state, peer.round, peer.completed, peer.figure(MATCHED)) == ("training", 1, 0, None)
    peer.apply(told(**a_round(1, 0.4)))
    peer.apply(told(**a_round(2, 0.6)))
    assert (peer.completed, peer.figure(MATCHED), peer.history.seconds("train")) == (2, 0.6, 6.0)
    peer.apply(told(**a_round(2, 0.6)))  # replayed after a crash: counted once
    assert peer.history.seconds("train") == 6.0
    assert peer.apply(told(event="failed", message="the disk is full")) == "peer0 failed: the disk is full"
    assert peer.state == "failed"


def test_own_data_is_measured_locally() -> None:
    peer = PeerView("peer0")
    peer.apply(told(**a_round(1, 0.0) | {"accuracy": {"matched": None, "local": 0.7}}))
    assert peer.figure(MATCHED) == 0.7


def waiting(time: float, cause: str, *ids: str, reason: str = "refused") -> Event:
    awaited = [{"id": id, "address": f"{id}:1", "reason": reason} for id in ids]
    return told(event="waiting", time=time, cause=cause, sentence="", **{"for": awaited})


def test_after_a_round_without_an_evaluation_the_figure_of_the_one_before_is_shown() -> None:
    peer = PeerView("peer0")
    peer.apply(told(**a_round(1, 0.0) | {"accuracy": {}}))
    assert peer.figure(MATCHED) is None
    for number, measured in ((2, {}), (3, {}), (4, {"accuracy": {}}), (5, {"accuracy": {}})):
        peer.apply(told(**a_round(number, number / 10) | measured))
    assert (peer.completed, peer.figure(MATCHED)) == (5, 0.3)
    assert [peer.figure(MATCHED, at) for at in (1, 2, 3, 4)] == [None, 0.2, 0.3, 0.3]


def test_an_early_end_is_told_once_and_nobody_is_awaited_after_it(tmp_path: Path) -> None:
    for id in ("peer0", "peer1"):
        stopped = {"event": "stopped_early", "round": 2, "best_round": 1, "figure": "accuracy"}
        lines = [a_round(1, 0.4), a_round(2, 0.4), stopped]
        (tmp_path / id).mkdir()
        (tmp_path / id / "events.jsonl").write_text("".join(json.dumps({"time": 1, **one}) + "\n" for one in lines))
    federation = Federation(tmp_path, ["peer0", "peer1"], rounds=9, headline=MATCHED)
    console = Console(file=(written := io.StringIO()), width=200)
    screen = Lines(console)
    screen.show(federation)
    show(federation, screen)
    show(federation, screen)
    *rounds, end = written.getvalue().splitlines()
    assert [line.partition(",")[0] for line in rounds] == ["round 1/2", "round 2/2"]
    assert end == "all peers end after round 2: the mean accuracy is no better since round 1"
    assert (federation.rounds, federation.round) == (2, 2)
    federation.close()


def test_waiting_is_told_once_and_late() -> None:
    peer = PeerView("peer0")
    peer.apply(waiting(100.0, "join", "peer1"))
    assert peer.overdue(101.0) is None
    peer.apply(waiting(104.0, "join", "peer1"))
    assert peer.overdue(106.0) == "peer0 waits for peer1 at peer1:1 (refused)"
    assert peer.overdue(200.0) is None
    peer.apply(waiting(201.0, "join"))
    assert peer.overdue(300.0) is None


def test_of_two_stalled_neighbours_the_one_that_does_not_recover_is_still_shown() -> None:
    peer = PeerView("peer0")
    peer.apply(waiting(100.0, "stalled", "peer1"))
    assert peer.overdue(106.0) == "peer0 waits for peer1 at peer1:1 (refused)"
    peer.apply(waiting(107.0, "stalled", "peer1", "peer2"))
    assert peer.waiting == ["peer1", "peer2"]
    assert peer.overdue(200.0) is None
    peer.apply(waiting(201.0, "stalled", "peer2"))
    assert peer.waiting == ["peer2"]
    assert peer.overdue(202.0) == "peer0 waits for peer2 at peer2:1 (refused)"


def test_the_end_of_one_kind_of_wait_leaves_the_others() -> None:
    peer = PeerView("peer0")
    peer.apply(waiting(100.0, "stalled", "peer1"))
    peer.apply(waiting(101.0, "staleness", "peer1", "peer2"))
    assert peer.waiting == ["peer1", "peer2"]
    peer.apply(waiting(102.0, "staleness"))
    peer.apply(told(event="state", state="training", round=3))
    assert peer.waiting == ["peer1"]


@pytest.mark.parametrize("ended", ["done", "failed", "joining", "restarting"])
def test_who_has_ended_waits_for_nobody(ended: str) -> None:
    peer = PeerView("peer0")
    peer.apply(waiting(100.0, "stalled", "peer1"))
    match ended:
        case "done":
            peer.apply(told(event="done"))
        case "failed":
            peer.apply(told(event="failed", message="the disk is full"))
        case "joining":
            peer.apply(told(event="state", state="joining", round=0))
        case _:
            peer.end(ended)
    assert (peer.waiting, peer.overdue(200.0)) == ([], None)


def write(directory: Path, id: str, *events: dict[str, Any]) -> None:
    (directory / id).mkdir(exist_ok=True)
    with (directory / id / "events.jsonl").open("a") as file:
        file.writelines(json.dumps(event) + "\n" for event in events)


def test_federation_is_as_far_as_its_slowest(tmp_path: Path) -> None:
    federation = Federation(tmp_path, ["a", "b"], rounds=4, headline=MATCHED)
    write(tmp_path, "a", a_round(1, 0.2), a_round(2, 0.9))
    assert federation.look(0.0) == []
    assert federation.round == 0
    write(tmp_path, "b", a_round(1, 0.4))
    federation.look(0.0)
    assert federation.round == 1
    assert federation.mean_figure(1) == pytest.approx(0.3)
    federation.close()


def test_the_time_left_is_that_of_rounds_and_not_of_the_start(tmp_path: Path) -> None:
    federation = Federation(tmp_path, ["a", "b"], rounds=4, headline=MATCHED)
    left = []
    for now, rounds in ((0.0, ()), (60.0, (1,)), (62.0, (2,)), (64.0, (3,)), (66.0, (4,))):
        for id in ("a", "b"):
            write(tmp_path, id, *(a_round(round, 0.5) for round in rounds))
        federation.look(now)
        left.append(federation.seconds_left(now))
    assert left == [None, None, 4.0, 2.0, None]
    federation.close()


def test_what_an_earlier_launch_has_left_says_nothing_of_the_time_left(tmp_path: Path) -> None:
    federation = Federation(tmp_path, ["a"], rounds=9, headline=MATCHED)
    write(tmp_path, "a", a_round(1, 0.5), a_round(2, 0.5))
    federation.forget_past()
    left = []
    for now, round in ((50.0, 3), (53.0, 4)):
        write(tmp_path, "a", a_round(round, 0.5))
        federation.look(now)
        left.append(federation.seconds_left(now))
    assert left == [None, 15.0]
    federation.close()


def test_broken_link_is_told_and_a_finished_neighbours_is_not(tmp_path: Path) -> None:
    federation = Federation(tmp_path, ["a", "b"], rounds=4, headline=MATCHED)
    link = {"event": "link", "neighbour": "b"}
    write(tmp_path, "a", link | {"state": "up"}, link | {"state": "suspected", "reason": "silent for 2 s"})
    assert federation.look(0.0) == ["link a - b is suspected (silent for 2 s)"]
    assert federation.suspected_by("b") == ["a"]
    write(tmp_path, "a", link | {"state": "up"})
    assert federation.look(0.0) == ["link a - b is up"]
    write(tmp_path, "a", link | {"state": "left"}, link | {"state": "up"})
    assert federation.look(0.0) == []  # the ring was ordered anew, and then again
    write(tmp_path, "b", {"event": "state", "state": "serving", "round": 4})
    federation.look(0.0)
    write(tmp_path, "a", link | {"state": "down", "reason": "closed"})
    assert federation.look(0.0) == []
    federation.close()


def test_a_finished_peers_links_are_no_news(tmp_path: Path) -> None:
    federation = Federation(tmp_path, ["a", "b", "c"], rounds=4, headline=MATCHED)
    down = {"event": "link", "state": "down", "reason": "closed"}
    write(tmp_path, "a", {"event": "state", "state": "serving", "round": 4}, down | {"neighbour": "b"})
    write(tmp_path, "b", down | {"neighbour": "c"})
    write(tmp_path, "c", {"event": "done"})  # read after b's line, and counts all the same
    assert federation.look(0.0) == []
    federation.close()


@pytest.mark.parametrize(
    ("event", "line"),
    [
        ({"event": "lost", "sentence": "still waiting for b", "neighbour": "b"}, "a: still waiting for b"),
        ({"event": "left", "sentence": "left without b"}, "a: left without b"),
        ({"event": "certificates", "sentence": "new certificates"}, "a: new certificates"),
        (
            {"event": "damaged", "round": 3, "reason": "its checksum differs"},
            "a: the checkpoint of round 3 is damaged (its checksum differs); this peer goes on without it",
        ),
        (
            {"event": "conflict", "sender": "b", "round": 2, "step": 1},
            "a: b sent two different contents for the same step (round 2, step 1); the first counts",
        ),
        (
            {"event": "refused", "caller": "x", "origin": "ipv4:127.0.0.1:5", "reason": "not a neighbour"},
            "a refused x from ipv4:127.0.0.1:5: not a neighbour",
        ),
        ({"event": "resumed", "round": 3}, "a resumed after round 3"),
    ],
)
def test_what_happens_to_a_peer_is_told_in_a_line(event: dict[str, Any], line: str) -> None:
    assert PeerView("a").apply(told(**event)) == line


def test_a_strangers_words_cannot_forge_a_line(tmp_path: Path) -> None:
    federation = Federation(tmp_path, ["a"], rounds=4, headline=MATCHED)
    write(tmp_path, "a", {"event": "refused", "caller": "x\x1b[2J", "reason": "no\nround 4/4"})
    assert federation.look(0.0) == ["a refused x?[2J: no?round 4/4"]
    federation.close()


def test_earlier_run_is_no_news(tmp_path: Path) -> None:
    write(tmp_path, "a", a_round(1, 0.2), {"event": "failed", "message": "no"})
    federation = Federation(tmp_path, ["a"], rounds=4, headline=MATCHED)
    federation.forget_past()
    assert (federation.round, federation.peers["a"].state, federation.look(time.time())) == (
        1,
        "starting",
        [],
    )
    federation.close()


def test_all_whose_data_differ_are_named_and_two_of_them_once(tmp_path: Path) -> None:
    federation = Federation(tmp_path, ["a", "b", "c", "d"], rounds=4, headline=MATCHED)
    joining = {"event": "state", "state": "joining", "round": 0}
    differ = "refused: its data has 3 columns, and this peer's 2 columns; make the two alike"
    for id, others in {"a": {"b": differ}, "b": {"a": differ, "c": differ}, "c": {"b": "no answer"}}.items():
        awaited = [{"id": other, "address": None, "reason": reason} for other, reason in others.items()]
        write(tmp_path, id, joining, {"event": "waiting", "cause": "join", "for": awaited, "sentence": "waiting"})
    write(tmp_path, "d", joining)
    federation.look(0.0)
    assert [(id, other.id) for id, other in federation.refusals] == [("a", "b"), ("b", "c")]
    federation.close()


def crowd(tmp_path: Path, size: int) -> Federation:
    federation = Federation(tmp_path, [f"peer{n}" for n in range(size)], rounds=9, headline=MATCHED)
    for n, peer in enumerate(federation.peers.values()):
        peer.state = "training"
        for round in range(1, 4 if n == 70 else 6):
            peer.apply(told(**a_round(round, 0.5 + n / 1000)))
    return federation


def test_a_hundred_peers_fit_on_the_screen_the_interesting_ones_first(tmp_path: Path) -> None:
    federation = crowd(tmp_path, 100)
    federation.peers["peer50"].state = "restarting"
    federation.peers["peer9"].links["peer60"] = "suspected"
    shown, hidden = choose(federation, 10)
    assert [peer.id for peer in shown[:4]] == ["peer50", "peer60", "peer70", "peer0"]
    assert (len(shown), len(hidden)) == (10, 90)
    console = Console(width=100, height=24, record=True, file=(tmp_path / "screen").open("w"))
    console.print(render(federation, console))
    console.file.close()
    text = (tmp_path / "screen").read_text()
    assert len(text.splitlines()) <= 23
    assert "and 85 more peers: 85 training" in text
    assert "round 3/9" in text
    assert "100 peers, mean matched accuracy" in text


def test_few_peers_stay_in_ring_order(tmp_path: Path) -> None:
    federation = crowd(tmp_path, 5)
    federation.peers["peer3"].state = "failed"
    shown, hidden = choose(federation, 10)
    assert [peer.id for peer in shown] == [f"peer{n}" for n in range(5)]
    assert hidden == []


def test_a_late_message_is_no_trouble_while_somebody_trains() -> None:
    peer = PeerView("peer0")
    peer.apply(waiting(100.0, "stalled", "peer1"))
    assert peer.overdue(200.0, somebody_works=True) is None
    assert peer.overdue(201.0, somebody_works=False) == "peer0 waits for peer1 at peer1:1 (refused)"
    assert peer.overdue(300.0, somebody_works=False) is None


def test_the_live_table_is_drawn_below_what_is_said(tmp_path: Path) -> None:
    federation = Federation(tmp_path, ["peer0", "peer1"], 3, MATCHED)
    terminal = io.StringIO()
    with display(Console(force_terminal=True, width=100, height=24, file=terminal, _environ={})) as screen:
        screen.show(federation)
        screen.say("peer1 starts [again]")
        federation.peers["peer1"].apply(told(event="state", state="training", round=2))
        screen.show(federation)
    drawn = terminal.getvalue()
    assert drawn.index("starting") < drawn.index("peer1 starts [again]") < drawn.index("training")
    assert "2/3" in drawn


def test_a_neighbour_that_has_lost_its_disk_is_told() -> None:
    """It waits, and nothing else of it would be seen."""
    lost = told(event="regressed", neighbour="peer1", sentence="peer1 has lost round 3")
    assert PeerView("peer0").apply(lost) == "peer0: peer1 has lost round 3"


def test_the_past_is_not_held_in_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After weeks it is many times as large as what is shown of it."""
    told = [StateChanged(state=state, round=3, time=1.0) for state in ("ready", "training")] * 2000
    text = "".join(json.dumps({"time": one.time, **one.as_json()}) + "\n" for one in told)
    (tmp_path / "peer0").mkdir()
    (tmp_path / "peer0" / "events.jsonl").write_text(text)
    monkeypatch.setattr(federation, "AT_A_TIME", 50, raising=False)
    seen = Federation(tmp_path, ["peer0"], 9, MATCHED)
    tracemalloc.start()
    seen.forget_past()
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    seen.close()
    assert (seen.applied, seen.peers["peer0"].round) == (len(told), 3)
    assert peak < len(text)
