"""A dead neighbour is shown, on both ends of the heartbeat, also when it is soon back.

How soon is measured by `make chaos` and stands in docs/reliability.md: a busy machine could make any bound here wrong.
"""

import signal
import time

import pytest
from real_peers import Build

pytestmark = pytest.mark.long

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
        assert one.await_event(id, "link", 10, neighbour=victim, state="down")["time"] >= death
    one.start(victim)
    resumed = one.await_event(victim, "resumed")["round"]
    one.await_event(others[0], "round", round=resumed + 2)
    assert one.wait() == dict.fromkeys(one.ids, 0)


def test_a_paused_process_is_suspected_and_loses_nothing(federation: Build) -> None:
    one = federation(PROTOCOL, peers=3, rounds=30)
    one.start()
    one.await_event("peer0", "link", neighbour="peer1", state="up")
    one.await_event("peer0", "round", round=2)
    one.peers["peer1"].signal(signal.SIGSTOP)
    try:
        shown = one.await_event("peer0", "link", 10, neighbour="peer1", state="suspected")
    finally:
        one.peers["peer1"].signal(signal.SIGCONT)
    assert shown["reason"] == "silent for 1.8 s"
    assert one.wait() == dict.fromkeys(one.ids, 0)
    assert all(len(result["history"]) == 30 for result in one.results().values())
