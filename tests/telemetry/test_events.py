"""Events as lines for programs and as sentences: what is written is read back, and what is spoilt is passed over."""

import json
import logging
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from peer.telemetry.events import (
    CLASSES_BY_NAME,
    SCHEMA,
    UNREPEATABLE,
    Awaited,
    BytesPassed,
    CallerRefused,
    CertificateExpires,
    CertificatesChanged,
    CheckpointDamaged,
    Conflict,
    DataDrifted,
    DataSummary,
    Departed,
    Done,
    EndedUnacknowledged,
    Event,
    Failed,
    FineTuned,
    Halted,
    Leaving,
    LinkChanged,
    Misbehaving,
    NeighbourLost,
    PeerRegressed,
    ReleaseSeen,
    Resumed,
    Returning,
    Rewound,
    RingOrdered,
    RoundDone,
    RoundDurable,
    Shortage,
    Started,
    StateChanged,
    Stopped,
    StoppedEarly,
    SubscriberDropped,
    Unrepeatable,
    ViewDecided,
    Waiting,
    read_event,
)
from peer.telemetry.results import EarlierProcesses, Result, earlier, gave_up, read_result, write_result
from peer.telemetry.telemetry import Telemetry

ROUND = RoundDone(
    round=3,
    accuracy={"matched": 0.9, "global": 0.8, "paper": None, "local": None},
    loss=0.25,
    test_loss=0.5,
    balanced=0.75,
    seconds={"train": 1.0, "communicate": 0.5, "evaluate": 0.25},
    bytes_sent=300,
    bytes_received=200,
    tensor_bytes_sent=100,
    notes={"gamma": 0.5, "weights": [0.25, 0.75]},
)
STARTED = Started(schema=SCHEMA, version="1.0", id="a", federation="digits", protocol="fibfl", rounds=3)
EVENTS: list[tuple[Event, str]] = [
    (STARTED, "a of digits starts (fibfl, 3 rounds)"),
    (BytesPassed(round=2, sent={"b": 5}, received={"b": 3, "c": 1}), "5 B sent, 4 B received (round 2)"),
    (SubscriberDropped(sentence="metrics failed"), "metrics failed"),
    (StateChanged(state="training", round=2), "training (round 2)"),
    (Waiting(cause="join", awaited=(Awaited("b", "b:1", "refused"),), sentence="waiting for b"), "waiting for b"),
    (LinkChanged(neighbour="b", state="up"), "link to b: up"),
    (LinkChanged(neighbour="b", state="down", reason="closed"), "link to b: down (closed)"),
    (
        RingOrdered(order=("a", "b"), cost_before=1.5, cost_after=0.25),
        "ring order a, b; cost 1.5000 before, 0.2500 after",
    ),
    (
        Misbehaving(peers={"b": "stale", "c": "noise, scale 0.5"}),
        "an experiment: the settings make these peers misbehave: b (stale); c (noise, scale 0.5)",
    ),
    (DataDrifted(round=5, samples=80), "this peer has new data from round 5 on: 80 training samples"),
    (ROUND, "round 3 done: accuracy matched 0.9000, global 0.8000, loss 0.2500"),
    (
        ViewDecided(
            number=2,
            members=("peer0", "peer2"),
            first=7,
            planned=True,
            entrants=(("peer2", -1),),
            reason="peer2 taken in",
        ),
        "view 2 from round 7 on: peer0, peer2 (peer2 taken in)",
    ),
    (Leaving(sentence="told to leave"), "told to leave"),
    (Departed(sentence="left: view 1 goes on without this peer"), "left: view 1 goes on without this peer"),
    (Returning(sentence="no checkpoint is whole"), "no checkpoint is whole"),
    (
        StoppedEarly(round=9, best_round=6, figure="accuracy"),
        "all peers end after round 9: the mean accuracy is no better since round 6",
    ),
    (
        FineTuned(accuracy={"matched": 0.9}, figures={"accuracy": 0.9, "f1": 0.5}),
        "fine-tuned on its own samples: accuracy 0.9000, f1 0.5000",
    ),
    (
        DataSummary(round=4, samples=30, classes={"0": 0.25, "1": 0.75}),
        "30 training samples from round 4 on, of 2 classes",
    ),
    (RoundDone(round=1), "round 1 done: accuracy not measured, loss not measured"),
    (Resumed(round=2), "resumed after round 2"),
    (Rewound(round=2), "went back to round 2, as `rewinds` says"),
    (RoundDurable(round=2), "round 2 is durable"),
    (CallerRefused(caller="x", origin="ipv4:127.0.0.1:5", reason="no"), "refused x from ipv4:127.0.0.1:5: no"),
    (
        Conflict(sender="b", round=2, step=1),
        "b sent two different contents for the same step (round 2, step 1); the first counts",
    ),
    (Unrepeatable(data="scans"), UNREPEATABLE.format(data="scans")),
    (ReleaseSeen(neighbour="peer1", release="2+a", own="1+b"), "peer1 runs dfl 2+a, and this peer 1+b"),
    (
        Halted(seconds=3.14159),
        "this peer stood still for 3.1 s, which its neighbours take for silence: its process was paused, the machine "
        "has too much to do, or code of your own blocks the event loop (in a protocol, give long work to "
        "`peer.compute`)",
    ),
    (PeerRegressed(neighbour="peer1", sentence="peer1 has lost round 3"), "peer1 has lost round 3"),
    (
        CheckpointDamaged(round=2, reason="torn"),
        "the checkpoint of round 2 is damaged (torn); this peer goes on without it",
    ),
    (EndedUnacknowledged(sentence="left without b"), "left without b"),
    (NeighbourLost(neighbour="b", sentence="still waiting for b"), "still waiting for b"),
    (CertificatesChanged(sentence="new certificates", expires=1e9), "new certificates"),
    (
        CertificateExpires(file="a.pem", expires=1e9, days=7, left=6.5 * 86_400),
        "a.pem expires on 2001-09-09 01:46 UTC, in 6 days; copy new certificates over the old ones",
    ),
    (
        CertificateExpires(file="a.pem", expires=1e9, days=0, left=0.0),
        "a.pem expired on 2001-09-09 01:46 UTC: other peers refuse each new connection until there are new "
        "certificates in place of the old ones",
    ),
    (Stopped(signal="SIGTERM"), "stopped by SIGTERM"),
    (Failed(message="the disk is full"), "the disk is full"),
    (Done(), "done"),
]


def test_every_kind_of_event_is_tried_here() -> None:
    assert {type(event) for event, _ in EVENTS} == {*CLASSES_BY_NAME.values()}


@pytest.mark.parametrize(("event", "sentence"), EVENTS, ids=lambda value: getattr(value, "name", ""))
def test_an_event_is_a_line_that_is_read_back_and_a_sentence(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, event: Event, sentence: str
) -> None:
    telemetry = Telemetry()
    telemetry.write_to(tmp_path / "events.jsonl")
    with caplog.at_level(logging.DEBUG):
        telemetry.emit(event)
    line = json.loads((tmp_path / "events.jsonl").read_text())
    read = read_event(line)
    assert read
    assert read.time == line["time"] > 0
    assert read.as_json() == event.as_json()
    assert type(read) is type(event)
    assert caplog.messages == [sentence]


def test_the_names_that_programs_rely_on() -> None:
    assert ROUND.as_json() == {
        "event": "round",
        "round": 3,
        "accuracy": {"matched": 0.9, "global": 0.8, "paper": None, "local": None},
        "figures": {},
        "loss": 0.25,
        "test_loss": 0.5,
        "balanced": 0.75,
        "seconds": {"train": 1.0, "communicate": 0.5, "evaluate": 0.25},
        "bytes_sent": 300,
        "bytes_received": 200,
        "tensor_bytes_sent": 100,
        "notes": {"gamma": 0.5, "weights": [0.25, 0.75]},
    }
    waiting = Waiting(cause="staleness", awaited=(Awaited("b", "b:1", "slow"),), others=2, sentence="s")
    assert json.loads(json.dumps(waiting.as_json())) == {
        "event": "waiting",
        "cause": "staleness",
        "for": [{"id": "b", "address": "b:1", "reason": "slow"}],
        "others": 2,
        "sentence": "s",
        "shortage": None,
    }
    short = Waiting.for_quorum(Shortage(2, 4, 3, "a", 1.5), waiting.awaited)
    assert json.loads(json.dumps(short.as_json()))["shortage"] == {
        "here": 2,
        "members": 4,
        "needed": 3,
        "tie_breaker": "a",
        "seconds": 1.5,
    }


def test_a_line_of_a_newer_version_is_read_as_far_as_it_is_known() -> None:
    newer = STARTED.as_json() | {"schema": SCHEMA + 1, "colour": "red", "time": 1.0}
    assert read_event(newer) == replace(STARTED, schema=SCHEMA + 1, time=1.0)
    assert read_event({"event": "invented", "time": 1.0, "round": 3}) is None


def test_whoever_is_told_hears_what_is_written_with_its_time(tmp_path: Path) -> None:
    telemetry, heard = Telemetry(), list[Event]()
    telemetry.subscribe(heard.append)
    telemetry.emit(Resumed(round=1))
    telemetry.write_to(tmp_path / "events.jsonl")
    telemetry.emit(ROUND)
    assert [type(event) for event in heard] == [Resumed, RoundDone]
    assert heard[1] == read_event(json.loads((tmp_path / "events.jsonl").read_text()))


def test_earlier_lives_are_counted_and_the_pauses_between_them_are_not(tmp_path: Path) -> None:
    assert earlier(tmp_path) == EarlierProcesses(0, 0.0)
    told = [
        (100.0, STARTED),
        (101.0, CallerRefused(caller='"started"', reason="no")),
        (104.5, Failed(message="started")),
        (1000.0, STARTED),
        (1002.0, ROUND),
    ]
    lines = [json.dumps({"time": time, **event.as_json()}) for time, event in told]
    (tmp_path / "events.jsonl").write_text("\n".join([*lines, '{"time": 1003.0, "event": "ro']))
    assert earlier(tmp_path) == EarlierProcesses(2, 4.5 + 2.0)


def test_a_state_is_for_programs_and_a_failure_is_an_error(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        Telemetry().emit(StateChanged(state="training", round=2))
        Telemetry().emit(Failed(message="the disk is full"))
    assert [(one.levelno, one.message) for one in caplog.records] == [(logging.ERROR, "the disk is full")]


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)


@given(st.sampled_from(EVENTS), st.data())
def test_a_line_with_anything_in_a_field_never_raises(event: tuple[Event, str], data: st.DataObject) -> None:
    line = event[0].as_json() | {"time": 1.0}
    line[data.draw(st.sampled_from(sorted(line)))] = data.draw(JSON)
    read = read_event(line)
    assert read is None or str(read) or "" in line.values(), "a sentence is empty only where a field is"


@given(st.dictionaries(st.sampled_from(["event", "time", "round", "for", "state"]), JSON))
def test_any_object_is_an_event_or_none(line: dict[str, Any]) -> None:
    assert read_event(line) is None or line["event"] in ("state", "round", "resumed", "done")


def test_a_result_is_read_back(tmp_path: Path) -> None:
    result = Result(
        id="peer0",
        samples=10,
        accuracy=ROUND.accuracy,
        model_sha256="0" * 64,
        bytes_sent=300,
        bytes_received=200,
        tensor_bytes_sent=100,
        sent_to={"peer1": 300},
        seconds=ROUND.seconds,
        rounds=3,
        ring=("peer0", "peer1"),
        ring_cost={"before": None, "after": None},
        history=(RoundDone(round=1), ROUND),
    )
    assert read_result(tmp_path) is None
    write_result(tmp_path, result)
    assert read_result(tmp_path) == result
    assert result.notes == ({"round": 3, "gamma": 0.5, "weights": [0.25, 0.75]},)
    write_result(tmp_path, replace(result, ring_cost={"before": float("nan"), "after": None}))
    assert read_result(tmp_path) is None


def test_who_has_given_up_has_whatever_comes_after_it_of_a_tracker(tmp_path: Path) -> None:
    """A restart would fail again; but not where a later start follows, or the last line is cut."""
    failed, dropped = Failed(message="diverged"), SubscriberDropped(sentence="tracker mlflow hangs")
    for events, given_up in (
        ([failed], True),
        ([failed, dropped], True),
        ([dropped], False),
        ([failed, dropped, Stopped(signal="SIGTERM")], False),
        ([], False),
    ):
        (tmp_path / "events.jsonl").write_text("".join(f"{json.dumps(event.as_json())}\n" for event in events))
        assert gave_up(tmp_path) == given_up, events
    (tmp_path / "events.jsonl").write_text(f'{json.dumps(failed.as_json())}\n{{"event": "star')
    assert not gave_up(tmp_path)
