"""A peer's life as its events tell it, and the clock of a run."""

import sys
from collections.abc import Callable
from functools import reduce
from operator import add
from types import FrameType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from launcher.history import ACTIVITIES, KINDS, PeerHistory
from launcher.monitor.federation import TOLD
from launcher.page.timeline import Clock, event_rows
from launcher.views import Views, view_of_event
from peer.telemetry.events import CLASSES_BY_NAME, Event, Rewound, RoundDone, ViewDecided, read_event
from peer.text import MAX_MESSAGE_CHARACTERS


def heard(*lines: tuple[float, str, dict[str, Any]], id: str = "peer0") -> PeerHistory:
    """The history of a peer from lines (time, event, its fields)."""
    found = PeerHistory(id)
    for time, name, fields in lines:
        event = read_event({"time": time, "event": name, **fields})
        assert event, name
        found.apply(event)
    return found


def joins(time: float) -> tuple[float, str, dict[str, Any]]:
    return time, "state", {"state": "joining", "round": 0}


def done(time: float, number: int) -> tuple[float, str, dict[str, Any]]:
    return time, "round", {"round": number}


def waits(time: float, *ids: str) -> tuple[float, str, dict[str, Any]]:
    awaited = [{"id": id, "address": None, "reason": "silent"} for id in ids]
    return time, "waiting", {"sentence": "", "cause": "staleness", "for": awaited}


VIEW = {"number": 1, "members": ["peer0", "peer1"], "first": 2, "planned": False, "entrants": [], "reason": "silence"}


def test_a_peer_that_is_killed_and_resumes_has_two_lives() -> None:
    one = heard(joins(10), done(12, 1), (20, "resumed", {"round": 1}), joins(20.1), done(22, 2), (23, "done", {}))
    assert [(life.start, life.end) for life in one.runs] == [(10, 12), (20, 23)]
    assert one.completed == 2
    assert one.ended == 23


def test_a_start_is_told_once() -> None:
    said = {"schema": 1, "version": "1", "id": "peer0", "federation": "f", "protocol": "fibfl", "rounds": 3}
    first, again = (10, "started", said), (20, "started", said)
    one = heard(first, joins(10.1), done(12, 1), again, (20.1, "resumed", {"round": 1}), joins(20.2), done(22, 2))
    assert [(life.start, life.end) for life in one.runs] == [(10, 12), (20, 22)]
    assert [moment.text for moment in one.timeline if moment.text == "started again"] == ["started again"]
    moved = heard(first, joins(10.1), (13, "view", VIEW), again, joins(20.2))
    assert len(moved.runs) == 2, "a process that died on its way into the next view"


def test_the_next_view_is_no_new_life_and_makes_rounds_void() -> None:
    one = heard(joins(10), done(11, 1), done(12, 2), (13, "view", VIEW), (13.1, "resumed", {"round": 1}), joins(13.2))
    assert [(life.start, life.end) for life in one.runs] == [(10, 13.2)]
    assert [*one.rounds] == [1]
    assert one.timeline == []


NUMBERS = st.integers(1, 9)
SECONDS = st.dictionaries(st.sampled_from(ACTIVITIES), st.floats(0, 1e3))
HEARD = st.one_of(
    st.builds(RoundDone, round=NUMBERS, seconds=SECONDS, figures=st.sampled_from([{}, {"accuracy": 0.5}])),
    NUMBERS.map(lambda first: read_event({"time": 13, "event": "view", **VIEW, "first": first})),
    st.builds(Rewound, round=NUMBERS),
)


@given(st.lists(st.tuples(HEARD, st.booleans())))
def test_what_is_counted_as_rounds_come_is_what_all_rounds_say(told: list[tuple[Event, bool]]) -> None:
    """Whenever it is asked for."""
    one = PeerHistory("peer0")
    for event, asked in told:
        one.apply(event)
        if not asked:
            continue
        rounds = [one.rounds[number] for number in sorted(one.rounds)]
        assert one.completed == max(one.rounds, default=0)
        for activity in ACTIVITIES:
            assert one.seconds(activity) == reduce(add, (done.seconds.get(activity, 0.0) for done in rounds), 0.0)
        for last in range(11):
            judged = [done for done in rounds if done.evaluated and done.round <= last]
            assert one.evaluated(last) is (judged[-1] if judged else None)


def steps(lines: list[tuple[float, str, dict[str, Any]]]) -> int:
    """How many steps of the code take a history up."""
    count = 0

    def see(_frame: FrameType, happened: str, _of: Any) -> Callable[..., Any]:
        nonlocal count
        count += happened == "line"
        return see

    before = sys.gettrace()
    sys.settrace(see)
    try:
        heard(*lines)
    finally:
        sys.settrace(before)
    return count


MANY = 400


@pytest.mark.parametrize(
    "told",
    [
        lambda at: ("link", {"neighbour": f"peer{at}", "state": "down"}),
        lambda at: ("data", {"round": at, "samples": 1}),
        lambda at: ("round", {"round": at}) if at < 300 else ("rewound", {"round": 300 if at % 2 else 600 - at}),
    ],
    ids=["links", "data", "rewinds"],
)
def test_an_event_costs_the_same_however_many_came_before(told: Callable[[int], tuple[str, dict[str, Any]]]) -> None:
    """A file of 2 MB from another machine took 5 to 40 s, one of 20 MB an hour."""
    lines = [(10.0, *told(at)) for at in range(MANY)]
    heard(*lines)  # the first time, it is found how each kind of event is read
    assert steps(lines) < 2.5 * steps(lines[: MANY // 2])


def test_of_a_long_text_no_more_is_kept_than_anybody_reads() -> None:
    one = heard((10, "refused", {"caller": "peer1", "reason": "z" * 1_000_000}))
    assert [len(moment.text) for moment in one.timeline] == [MAX_MESSAGE_CHARACTERS + 1]


def test_a_wait_lasts_until_nobody_is_waited_for() -> None:
    one = heard(joins(10), waits(11, "peer1"), waits(15, "peer1"), waits(17, "peer2"), waits(18))
    assert [(wait.start, wait.end) for wait in one.timeline] == [(11, 17), (17, 18)]
    last = heard(joins(10), waits(11, "peer1"), done(14, 1))
    assert [(wait.start, wait.end) for wait in last.timeline] == [(11, 14)]


def test_silence_counts_unless_the_other_has_finished() -> None:
    down = {"neighbour": "peer1", "state": "down"}
    up = {"neighbour": "peer1", "state": "up"}
    peers = {
        "peer0": heard(joins(10), (12, "link", down), (15, "link", up), (20.2, "link", down), (22, "done", {})),
        "peer1": heard(joins(10), (20, "done", {}), id="peer1"),
    }
    silent = [row for row in event_rows(peers, Views(("peer0", "peer1"), 3)) if row["kind"] == "not heard"]
    assert [(row["peer"], row["begin"], row["end"]) for row in silent] == [("peer0", 2, 5)]


def test_a_change_of_view_is_told_once() -> None:
    event = read_event({"time": 13, "event": "view", **VIEW})
    assert isinstance(event, ViewDecided)
    ids = ("peer0", "peer1", "peer2")
    peers = {id: heard(joins(10), (13 + at, "view", VIEW), id=id) for at, id in enumerate(ids[:2])}
    (row,) = [
        row for row in event_rows(peers, Views(ids, 3, (view_of_event(event),))) if row["kind"] == "change of view"
    ]
    assert row["begin"] == 3
    assert row["text"] == "view 1 from round 2: peer2 lost (silence)"


def test_the_clock_stands_while_nobody_runs() -> None:
    clock = Clock([(100, 110), (105, 120), (123, 130), (90_000, 90_010)])
    assert [clock.seconds(time) for time in (90, 100, 121, 130, 500, 90_000, 90_004)] == [0, 0, 21, 30, 30, 30, 34]
    assert clock.pauses == [30]


def test_what_is_shown_and_told_by_name_are_events() -> None:
    assert KINDS.keys() | TOLD <= CLASSES_BY_NAME.keys()
