"""What is made of peers' own words: who is done, who is lost, and how far the federation is."""

from typing import Any

import pytest

from launcher.headline import Headline
from launcher.monitor.polled_federation import SILENCE_SECONDS, PolledFederation
from peer.network.operator_client import LinkStatus, PeerStatus

MATCHED = Headline(test="matched")

RING = {"a": ("c", "b"), "b": ("a", "c"), "c": ("b", "a")}


def status(id: str, state: str = "training", round: int = 1, **changes: Any) -> PeerStatus:
    """changes: of its links, by the neighbour's id, as (state, reason, durable)."""
    links = tuple(LinkStatus(other, f"{other}:1", *changes.pop(other, ("up", "", round - 2))) for other in RING[id])
    figures = {
        "rounds": 4,
        "accuracy": 0.5,
        "figure": 0.5,
        "bytes_sent": 1000,
        "bytes_received": 1000,
        "resources": {},
        **changes,
    }
    return PeerStatus(id=id, state=state, round=round, neighbours=links, **figures)


def federation() -> PolledFederation:
    return PolledFederation([*RING], rounds=4, headline=MATCHED)


def test_a_round_is_over_when_its_peer_is_ready() -> None:
    seen = federation()
    assert seen.record({id: status(id, "communicating", 2) for id in RING}, 0.0) == []
    assert (seen.round, seen.peers["a"].round) == (1, 2)
    seen.record({"a": status("a", "ready", 2), "b": status("b", "evaluating", 3), "c": status("c", "serving", 4)}, 1.0)
    assert [peer.completed for peer in seen.peers.values()] == [2, 2, 4]
    assert [*seen.rounds_after(1)] == [2]
    assert [*seen.rounds_after(2)] == []


def test_rounds_that_ended_before_anybody_asked_say_nothing_of_the_time_left() -> None:
    seen, left = federation(), []
    for now, round in ((100.0, 2), (101.0, 2), (103.0, 3), (108.0, 4)):
        seen.record({id: status(id, "training", round, rounds=9) for id in RING}, now)
        left.append(seen.seconds_left(now))
    assert left == [None, None, None, 5.0 * (4 - 3)]


def test_the_mean_is_over_what_each_said_last() -> None:
    seen = federation()
    seen.record({"a": status("a", round=2, figure=0.2), "b": status("b", round=4, figure=0.6)}, 0.0)
    seen.record({"c": status("c", round=3, figure=None)}, 0.0)
    assert seen.mean_figure(seen.round) == pytest.approx(0.4)


def test_who_goes_after_serving_is_done_and_who_goes_before_is_lost() -> None:
    seen = federation()
    seen.record({"a": status("a", "serving", 4), "b": status("b", "training", 3), "c": status("c", "training", 4)}, 0.0)
    gone = dict.fromkeys(("a", "b"), "connection refused")
    assert seen.record(gone, 1.0) == ["b does not answer: connection refused"]
    assert (seen.peers["a"].state, seen.peers["b"].state) == ("done", "no answer")
    assert seen.record(gone, 2.0) == []  # told once
    assert seen.record({"b": "no route"}, 2.0) == ["b does not answer: no route"]
    assert seen.record({"b": status("b", "joining", 2)}, 3.0) == ["b answers again"]
    assert seen.unfinished == ["b", "c"]


def test_a_neighbour_knows_of_a_last_round_on_disk() -> None:
    seen = federation()
    seen.record({id: status(id, "communicating", 4) for id in RING}, 0.0)
    seen.record({"a": status("a", "serving", 4, b=("left", "", 4), c=("up", "", 3))}, 1.0)
    seen.record(dict.fromkeys(RING, "connection refused"), 2.0)
    assert {id: peer.state for id, peer in seen.peers.items()} == {"a": "done", "b": "done", "c": "no answer"}
    for second in range(2, 2 + int(SILENCE_SECONDS)):
        assert not seen.all_unreachable()
        seen.record({}, second + 1.0)
    assert seen.all_unreachable()


@pytest.mark.parametrize("later", [1.0 - 3600, 1.0 + 3600], ids=["the clock is set back", "suspended"])
def test_who_watches_again_after_a_while_waits_for_answers(later: float) -> None:
    seen = federation()
    seen.record({id: status(id) for id in RING}, 0.0)
    seen.record({}, 1.0)
    seen.record({"a": "deadline exceeded"}, later)
    assert not seen.all_unreachable()
    seen.record({id: status(id) for id in RING}, later + 1.0)
    assert seen.silence == 0


def test_peers_that_end_early_are_done_after_fewer_rounds() -> None:
    seen = federation()
    seen.record({id: status(id, "communicating", 2) for id in RING}, 0.0)
    seen.record({"a": status("a", "serving", 2, b=("left", "", 2), c=("up", "", 1), rounds=2)}, 1.0)
    seen.record(dict.fromkeys(RING, "connection refused"), 2.0)
    assert {id: peer.state for id, peer in seen.peers.items()} == {"a": "done", "b": "done", "c": "no answer"}


def test_peers_that_nobody_has_started_yet_are_waited_for() -> None:
    seen = federation()
    seen.record(dict.fromkeys(RING, "connection refused"), 0.0)
    for second in range(100):
        seen.record({}, second)
    assert not seen.all_unreachable()
    assert seen.silence is None


def test_a_lost_neighbour_is_doubted_and_told_of_once_it_lasts() -> None:
    seen = federation()
    down = ("down", "connection refused", 0)
    seen.record({"a": status("a"), "b": status("b")}, 0.0)
    assert seen.record({"a": status("a", "communicating", c=down)}, 1.0) == ["link a - c is down (connection refused)"]
    assert (seen.suspected_by("c"), seen.peers["a"].waiting) == (["a"], ["c"])
    waits = seen.record({"a": status("a", "communicating", c=down), "b": status("b", "communicating")}, 8.0)
    assert waits == ["a waits for c at c:1 (connection refused)"]
    assert seen.record({"a": status("a", "communicating")}, 9.0) == ["link a - c is up"]
    assert (seen.suspected_by("c"), seen.peers["a"].waiting) == ([], [])


def test_of_a_peer_that_nobody_can_ask_its_neighbours_tell() -> None:
    seen = PolledFederation([*RING], rounds=4, headline=MATCHED, unasked=["c"])
    assert seen.peers["c"].state == "dials out"
    seen.record({"a": status("a", "ready", 3, c=("up", "", 2)), "b": status("b", "ready", 3, c=("up", "", 1))}, 0.0)
    assert (seen.peers["c"].round, seen.peers["c"].state, seen.round) == (2, "dials out", 2)
    seen.record({"a": status("a", "serving", 4, c=("up", "", 4)), "b": status("b", "serving", 4)}, 1.0)
    assert (seen.peers["c"].state, seen.unfinished, seen.round) == ("done", ["a", "b"], 4)
    seen.record(dict.fromkeys("ab", "connection refused"), 2.0)
    assert seen.all_unreachable()
    assert not seen.unfinished


def test_the_history_is_told_each_thing_once_and_with_its_time() -> None:
    seen = federation()
    for now in (1.0, 2.0):
        seen.record({"a": status("a", "joining", 2)}, now)
    history = seen.peers["a"].history
    assert [run.start for run in history.runs] == [1.0], "said again, it would be another start"
    assert [(number, one.time) for number, one in history.rounds.items()] == [(1, 1.0)]
    assert history.timeline == []
