"""A long way between the peers, and a NAT between them that forgets: time is lost, nothing else."""

import pytest
from real_peers import BuildWatched, digests

pytestmark = pytest.mark.long

PROTOCOL = {"name": "fibfl+", "head_epochs": 1, "extractor_epochs": 1, "tau": 0.05}


def test_two_hundred_milliseconds_each_way(watched: BuildWatched) -> None:
    made, proxies = watched(PROTOCOL, rounds=4)
    proxies.delay = 0.2
    assert digests(made.run()) == made.undisturbed()
    for id in made.ids:
        assert not [e for e in made.events(id, "link") if e["state"] in ("suspected", "down")], "far is not dead"


def test_a_nat_that_forgets_every_connection(watched: BuildWatched) -> None:
    """Neither end hears of it: only silence tells."""
    made, proxies = watched(PROTOCOL, rounds=40)
    made.start()
    for id in made.ids:
        for other in set(made.ids) - {id}:
            made.await_event(id, "link", state="up", neighbour=other)
    assert proxies.forget() >= 3
    suspected = made.await_event("peer0", "link", state="suspected")
    assert made.wait() == dict.fromkeys(made.ids, 0)
    assert digests(made.results()) == made.undisturbed()
    assert [e for e in made.events("peer0", "link") if e["state"] == "up" and e["time"] > suspected["time"]]
