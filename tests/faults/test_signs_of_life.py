"""A dead neighbour is shown within two seconds, on both ends of the heartbeat, also when it is soon back."""

import signal
import time

import pytest
from real_peers import Build

PROTOCOL = {"name": "fibfl", "head_epochs": 1, "extractor_epochs": 1}


@pytest.mark.parametrize("victim", ["peer0", "peer2"])
def test_a_death_is_shown_and_the_ring_moves_on(victim: str, federation: Build) -> None:
    """peer0 dials all its heartbeats, peer2 accepts all of its own."""
    one = federation(PROTOCOL, peers=3, rounds=60)
    one.start()
    others = [id for id in one.ids if id != victim]
    for id in others:
        one.await_event(id, "link", neighbour=victim, state="up")
    one.await_event("peer1", "round", round=2)
    death = time.time()
    one.peers[victim].signal(signal.SIGKILL)
    one.peers[victim].wait(10)
    for id in others:
        assert one.await_event(id, "link", 5, neighbour=victim, state="down")["time"] - death < 2
    one.start(victim)
    resumed = one.await_event(victim, "resumed")["round"]
    ready = one.await_event(victim, "state", state="ready", round=resumed)["time"]
    moved = one.await_event(others[0], "round", round=resumed + 2)["time"]
    assert moved - ready < 1
    assert one.wait() == dict.fromkeys(one.ids, 0)


def test_a_paused_process_is_suspected_and_loses_nothing(federation: Build) -> None:
    one = federation(PROTOCOL, peers=3, rounds=30)
    one.start()
    one.await_event("peer0", "link", neighbour="peer1", state="up")
    one.await_event("peer0", "round", round=2)
    pause = time.time()
    one.peers["peer1"].signal(signal.SIGSTOP)
    try:
        shown = one.await_event("peer0", "link", 5, neighbour="peer1", state="suspected")
    finally:
        one.peers["peer1"].signal(signal.SIGCONT)
    assert shown["time"] - pause < 2.1
    assert one.wait() == dict.fromkeys(one.ids, 0)
    assert all(len(result["history"]) == 30 for result in one.results().values())
