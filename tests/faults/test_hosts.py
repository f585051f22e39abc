"""Bad networks between hosts in namespaces: slow, lossy, one-way, cut for longer than a round. Same bits."""

import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from real_peers import Build, Nursery, SmallFederation, digests

from faults.hosts import Hosts, missing
from peer.views.view import STALENESS_BOUND

pytestmark = [pytest.mark.long, pytest.mark.skipif(bool(missing()), reason=missing())]
PEERS = 3
SPEC: dict[str, Any] = {
    "protocol": {"name": "fibfl", "head_epochs": 1, "extractor_epochs": 1},
    "peers": PEERS,
    "model": "tiny:wide",
    "code": str(Path(__file__).parent),
    "plaintext": True,
}


@pytest.fixture(scope="module")
def hosts() -> Iterator[Hosts]:
    hosts = Hosts(PEERS)
    try:
        hosts.make()
        yield hosts
    finally:
        hosts.remove()


@pytest.fixture(scope="module")
def expected() -> dict[int, dict[str, str]]:
    """By rounds; filled in by the first that asks."""
    return {}


def undisturbed(rounds: int, expected: dict[int, dict[str, str]], build: Build) -> dict[str, str]:
    if rounds not in expected:
        expected[rounds] = build(rounds=rounds, **SPEC).undisturbed()
    return expected[rounds]


def begin(hosts: Hosts, build: Build, nursery: Nursery, rounds: int) -> SmallFederation:
    """Each peer on its own host, all started."""
    federation = build(rounds=rounds, addresses=[f"{address}:7700" for address in hosts.addresses], **SPEC)
    for id, host in zip(federation.ids, hosts.names, strict=True):
        argv = ["--config", str(federation.directory / f"{id}.yaml")]
        federation.peers[id] = nursery.start(argv, federation.directory / f"{id}.log", {"HOST": host})
    return federation


def end(federation: SmallFederation) -> dict[str, str]:
    codes = federation.wait(90)
    assert codes == dict.fromkeys(federation.ids, 0), federation.account()
    return digests(federation.results())


def test_one_megabit_a_second(
    hosts: Hosts, federation: Build, fork_server: Nursery, expected: dict[int, dict[str, str]]
) -> None:
    wanted = undisturbed(4, expected, federation)
    with hosts.rate(0, 1.0):
        assert end(begin(hosts, federation, fork_server, 4)) == wanted


def test_one_percent_loss(
    hosts: Hosts, federation: Build, fork_server: Nursery, expected: dict[int, dict[str, str]]
) -> None:
    wanted = undisturbed(12, expected, federation)
    with ExitStack() as stack:
        for host in range(PEERS):
            stack.enter_context(hosts.rule(host, "-m statistic --mode random --probability 0.01"))
        assert end(begin(hosts, federation, fork_server, 12)) == wanted


@pytest.mark.parametrize("what", ["everything", "connections"])
def test_one_way_is_blocked_from_the_start(
    what: str, hosts: Hosts, federation: Build, fork_server: Nursery, expected: dict[int, dict[str, str]]
) -> None:
    """By a firewall that takes everything from peer1, or only its attempts to connect to peer0."""
    wanted = undisturbed(4, expected, federation)
    with hosts.rule(0, f"-s {hosts.addresses[1]}" + (" -p tcp --dport 7700" if what == "connections" else "")):
        one = begin(hosts, federation, fork_server, 4)
        there = f"peer0 at {hosts.addresses[0]}:7700", f"peer1 at {hosts.addresses[1]}:7700"
        why = blocked(f"{hosts.addresses[0]}:7700") if what == "connections" else ("timed out", "timed out")
        one.await_event("peer1", "waiting", sentence=f"waiting for {there[0]} ({why[1]})")
        one.await_event("peer0", "waiting", sentence=f"waiting for {there[1]} ({why[0]})")
    assert end(one) == wanted
    assert all(one["reason"] for event in all_waits(one) for one in event["for"])


def blocked(address: str) -> tuple[str, str]:
    """What peer0, to whose address no connection from peer1 gets through, says of peer1; and peer1 of it."""
    return (
        f"it is reached, but it cannot reach this peer at {address}: timed out; open port 7700 here, or correct that "
        "address",
        f"it reaches this peer, but this peer cannot reach it at {address}: timed out; open port 7700 at peer0, or "
        "correct that address",
    )


def all_waits(federation: SmallFederation) -> list[dict[str, Any]]:
    return [event for id in federation.ids for event in federation.events(id, "waiting") if event["cause"] == "join"]


def newest(federation: SmallFederation) -> dict[str, int]:
    """The last round that each peer has told of."""
    return {id: max((event["round"] for event in federation.events(id, "round")), default=0) for id in federation.ids}


@pytest.mark.parametrize("way", ["one way", "both ways"])
def test_a_link_that_is_dead_for_longer_than_a_round(
    way: str, hosts: Hosts, federation: Build, fork_server: Nursery, expected: dict[int, dict[str, str]]
) -> None:
    """It is shown, it stops the ring within W rounds, and the ring goes on when the link is back."""
    rounds = 40
    wanted = undisturbed(rounds, expected, federation)
    one = begin(hosts, federation, fork_server, rounds)
    one.await_event("peer1", "round", round=2)
    one.await_event("peer1", "link", neighbour="peer0", state="up")  # signs of life may come after the first tensors
    cut = time.time()
    with hosts.rule(1, f"-s {hosts.addresses[0]}") if way == "one way" else hosts.pulled(1):
        reached = newest(one)
        shown = one.await_event("peer1", "link", 5, neighbour="peer0", state="suspected")
        time.sleep(4)  # how long the outage lasts, not for how long something is awaited
        stuck = newest(one)
    back = time.time()
    assert shown["time"] - cut < 3
    assert max(stuck.values()) <= max(reached.values()) + STALENESS_BOUND < rounds
    moved = one.await_event("peer1", "round", 30, round=stuck["peer1"] + 1)
    assert moved["time"] - back < 5
    assert end(one) == wanted
