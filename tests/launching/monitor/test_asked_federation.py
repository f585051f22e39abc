"""What is made of peers' own words: who is done, who is lost, and how far the federation is."""

from typing import Any

import pytest

from launcher.headline import Headline
from launcher.monitor.polled_federation import SILENCE_SECONDS, PolledFederation
from peer.network.operator_client import LinkStatus, PeerStatus

MATCHED = Headline.accuracy("matched")

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
    assert seen.hear({id: status(id, "communicating", 2) for id in RING}, 0.0) == []
    assert (seen.round, seen.peers["a"].round) == (1, 2)
    seen.hear({"a": status("a", "ready", 2), "b": status("b", "evaluating", 3), "c": status("c", "serving", 4)}, 1.0)
    assert [peer.completed for peer in seen.peers.values()] == [2, 2, 4]
    assert [*seen.rounds_after(1)] == [2]
    assert [*seen.rounds_after(2)] == []


def test_rounds_that_ended_before_anybody_asked_say_nothing_of_the_time_left() -> None:
    seen, left = federation(), []
    for now, round in ((100.0, 2), (101.0, 2), (103.0, 3), (108.0, 4)):
        seen.hear({id: status(id, "training", round, rounds=9) for id in RING}, now)
        left.append(seen.seconds_left(now))
    assert left == [None, None, None, 5.0 * (4 - 3)]


def test_the_mean_is_over_what_each_said_last() -> None:
    seen = federation()
    seen.hear({"a": status("a", round=2, figure=0.2), "b": status("b", round=4, figure=0.6)}, 0.0)
    seen.hear({"c": status("c", round=3, figure=None)}, 0.0)
    assert seen.mean_figure(seen.round) == pytest.approx(0.4)


def test_who_goes_after_serving_is_done_and_who_goes_before_is_lost() -> None:
    seen = federation()
    seen.hear({"a": status("a", "serving", 4), "b": status("b", "training", 3), "c": status("c", "training", 4)}, 0.0)
    gone = dict.fromkeys(("a", "b"), "connection refused")
    assert seen.hear(gone, 1.0) == ["b does not answer: connection refused"]
    assert (seen.peers["a"].state, seen.peers["b"].state) == ("done", "no answer")
    assert seen.hear(gone, 2.0) == []  # told once
    assert seen.hear({"b": "no route"}, 2.0) == ["b does not answer: no route"]
    assert seen.hear({"b": status("b", "joining", 2)}, 3.0) == ["b answers again"]
    assert seen.unfinished == ["b", "c"]


def test_a_neighbour_knows_of_a_last_round_on_disk() -> None:
    seen = federation()
    seen.hear({id: status(id, "communicating", 4) for id in RING}, 0.0)
    seen.hear({"a": status("a", "serving", 4, b=("left", "", 4), c=("up", "", 3))}, 1.0)
    seen.hear(dict.fromkeys(RING, "connection refused"), 2.0)
    assert {id: peer.state for id, peer in seen.peers.items()} == {"a": "done", "b": "done", "c": "no answer"}
    assert not seen.gone(3.0)
    assert seen.gone(2.0 + SILENCE_SECONDS)


def test_peers_that_end_early_are_done_after_fewer_rounds() -> None:
    seen = federation()
    seen.hear({id: status(id, "communicating", 2) for id in RING}, 0.0)
    seen.hear({"a": status("a", "serving", 2, b=("left", "", 2), c=("up", "", 1), rounds=2)}, 1.0)
    seen.hear(dict.fromkeys(RING, "connection refused"), 2.0)
    assert {id: peer.state for id, peer in seen.peers.items()} == {"a": "done", "b": "done", "c": "no answer"}


def test_peers_that_nobody_has_started_yet_are_waited_for() -> None:
    seen = federation()
    seen.hear(dict.fromkeys(RING, "connection refused"), 0.0)
    assert not seen.gone(1e6)
    assert not seen.met


def test_a_lost_neighbour_is_doubted_and_told_of_once_it_lasts() -> None:
    seen = federation()
    down = ("down", "connection refused", 0)
    seen.hear({"a": status("a"), "b": status("b")}, 0.0)
    assert seen.hear({"a": status("a", "communicating", c=down)}, 1.0) == ["link a - c is down (connection refused)"]
    assert (seen.doubted("c"), seen.peers["a"].waiting) == (["a"], ["c"])
    waits = seen.hear({"a": status("a", "communicating", c=down), "b": status("b", "communicating")}, 8.0)
    assert waits == ["a waits for c at c:1 (connection refused)"]
    assert seen.hear({"a": status("a", "communicating")}, 9.0) == ["link a - c is up"]
    assert (seen.doubted("c"), seen.peers["a"].waiting) == ([], [])


def test_of_a_peer_that_nobody_can_ask_its_neighbours_tell() -> None:
    seen = PolledFederation([*RING], rounds=4, headline=MATCHED, unasked=["c"])
    assert seen.peers["c"].state == "dials out"
    seen.hear({"a": status("a", "ready", 3, c=("up", "", 2)), "b": status("b", "ready", 3, c=("up", "", 1))}, 0.0)
    assert (seen.peers["c"].round, seen.peers["c"].state, seen.round) == (2, "dials out", 2)
    seen.hear({"a": status("a", "serving", 4, c=("up", "", 4)), "b": status("b", "serving", 4)}, 1.0)
    assert (seen.peers["c"].state, seen.unfinished, seen.round) == ("done", ["a", "b"], 4)
    seen.hear(dict.fromkeys("ab", "connection refused"), 2.0)
    assert seen.gone(2.0)
    assert not seen.unfinished


def test_listeners_are_told_each_thing_once() -> None:
    seen, told = federation(), list[str]()
    seen.listeners.append(lambda news: told.extend(f"{id} {event.name} {event.time:g}" for id, event in news))
    for now in (1.0, 2.0):
        seen.hear({"a": status("a", "joining", 2)}, now)
    assert [one for one in told if "state" in one or "round" in one] == ["a state 1", "a round 1"]
    assert not [one for one in told if one.endswith(" 0")], "each has its time"
