"""A long way between the peers, and a NAT between them that forgets: time is lost, nothing else."""

from pathlib import Path

import pytest
from real_peers import BuildWatched, SmallFederation, digests

from peer.runtime.in_process import run_in_process

pytestmark = pytest.mark.long

PROTOCOL = {"name": "fibfl+", "head_epochs": 1, "extractor_epochs": 1, "tau": 0.05}


async def undisturbed(federation: SmallFederation, place: Path) -> dict[str, str]:
    runtimes = await run_in_process(federation.spec, place)
    return {id: one.setup.model.sha256() for id, one in runtimes.items()}


async def test_two_hundred_milliseconds_each_way(watched: BuildWatched, tmp_path: Path) -> None:
    made, proxies = watched(PROTOCOL, rounds=4)
    proxies.delay = 0.2
    assert digests(made.run()) == await undisturbed(made, tmp_path / "memory")
    for id in made.ids:
        assert not [e for e in made.events(id, "link") if e["state"] in ("suspected", "down")], "far is not dead"


async def test_a_nat_that_forgets_every_connection(watched: BuildWatched, tmp_path: Path) -> None:
    """Neither end hears of it: only silence tells."""
    made, proxies = watched(PROTOCOL, rounds=40)
    made.start()
    for id in made.ids:
        for other in set(made.ids) - {id}:
            made.await_event(id, "link", state="up", neighbour=other)
    assert proxies.forget() >= 3
    suspected = made.await_event("peer0", "link", state="suspected")
    assert made.wait() == dict.fromkeys(made.ids, 0)
    assert digests(made.results()) == await undisturbed(made, tmp_path / "memory")
    assert [e for e in made.events("peer0", "link") if e["state"] == "up" and e["time"] > suspected["time"]]
