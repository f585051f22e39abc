"""Peers come in any order; who waits says for whom, where and why, and gives up after `patience`."""

import json
import signal
import socket
import time
from collections.abc import Callable

import pytest
from real_peers import Build, SmallFederation, digests, until

from peer.network.limits import Timeouts

pytestmark = pytest.mark.long

QUICK = {"name": "fibfl", "head_epochs": 1, "extractor_epochs": 1}
Ports = Callable[[int], list[int]]


def test_any_order_seconds_apart(federation: Build) -> None:
    made = federation(QUICK)
    made.start("peer1")
    first = made.await_event("peer1", "waiting")
    assert first["for"] == [
        {"id": id, "address": made.address(id), "reason": "connection refused"} for id in ("peer0", "peer2")
    ]
    until(lambda: "waiting for peer0 at" in made.log("peer1"), 60, "the log tells a person, too")  # after the event
    made.start("peer2")

    def only_peer0() -> bool:
        return [one["id"] for one in made.events("peer1", "waiting")[-1]["for"]] == ["peer0"]

    until(only_peer0, 60, "peer1 waits for peer0 alone")
    made.start("peer0")
    assert set(made.wait().values()) == {0}
    assert made.events("peer1", "waiting")[-1]["for"] == []
    together = federation(QUICK)
    assert digests(together.run()) == digests(made.results())


def test_gives_up_on_a_closed_port(federation: Build) -> None:
    made = federation(QUICK, patience=1.5)
    made.start("peer0")
    assert made.wait() == {"peer0": 1}
    last = made.log("peer0").splitlines()[-1]
    assert last.startswith("dfl-peer: gave up after 1.5 s of waiting for ")
    for id in ("peer1", "peer2"):
        assert f"{id} at {made.address(id)}: connection refused" in last
    failed = made.events("peer0", "failed")
    assert [event["message"] in last for event in failed] == [True]


def test_gives_up_on_a_host_that_does_not_answer(federation: Build, ports: Ports) -> None:
    mute, own, other = ports(3)
    # It takes connections and says nothing, as a filtered port or a frozen machine does.
    with socket.create_server(("127.0.0.1", mute)):
        made = federation(QUICK, patience=7, addresses=[f"127.0.0.1:{port}" for port in (own, mute, other)])
        made.start("peer0")
        assert made.wait() == {"peer0": 1}
    assert f"peer1 at 127.0.0.1:{mute}: timed out" in made.log("peer0")


def test_gives_up_on_a_name_that_is_none(federation: Build, ports: Ports) -> None:
    own, other = ports(2)
    addresses = [f"127.0.0.1:{own}", "no-such-host.invalid:7700", f"127.0.0.1:{other}"]
    made = federation(QUICK, patience=2, addresses=addresses, plaintext=True)
    made.start("peer0")
    assert made.wait() == {"peer0": 1}
    assert "peer1 at no-such-host.invalid:7700: unknown host" in made.log("peer0")


def test_who_came_long_before_its_neighbour_has_no_complaint_about_it_later(federation: Build) -> None:
    """It has dialled by then where it need not dial once the neighbour is there, which dials itself."""
    made = federation({"name": "fedavg", "epochs": 1}, rounds=5000, data={"name": "digits", "limit": 60})
    made.start("peer1")
    tried = made.await_event("peer1", "waiting")["time"]
    until(lambda: time.time() - tried > 2 * Timeouts().suspect_after + Timeouts().probe or None, 20, "it has dialled")
    made.start("peer0", "peer2")
    begun = made.await_event("peer0", "round", round=1)["time"]
    until(lambda: made.events("peer0", "round")[-1]["time"] - begun > 2 * Timeouts().stable_after or None, 30, "rounds")
    for id in made.ids:
        assert not [event for event in made.events(id, "link") if event["state"] in ("suspected", "down")]


@pytest.mark.parametrize("lost", ["peer0", "peer2"])
def test_who_cannot_be_reached_is_told_so(lost: str, federation: Build, ports: Ports) -> None:
    """Its address is wrong everywhere: both ends say so, each in its words, with the reason of the one."""
    made = federation(QUICK, patience=15)
    made.configure(lost, listen=f"127.0.0.1:{ports(1)[0]}")
    made.start(lost)
    made.await_event(lost, "waiting")
    made.start(*[id for id in made.ids if id != lost])
    assert set(made.wait().values()) == {1}
    there = made.address(lost)
    port = there.rpartition(":")[2]
    for id in made.ids:
        if id != lost:
            assert reasons(made, lost, id) >= {
                f"it is reached, but it cannot reach this peer at {there}: connection refused; open port {port} here, "
                "or correct that address"
            }
            assert reasons(made, id, lost) >= {
                f"it reaches this peer, but this peer cannot reach it at {there}: connection refused; open port {port} "
                f"at {lost}, or correct that address"
            }
    assert all(one["reason"] for id in made.ids for event in made.events(id, "waiting") for one in event["for"])


def reasons(made: SmallFederation, who: str, other: str) -> set[str]:
    """What one has said of why it waits for the other."""
    return {one["reason"] for event in made.events(who, "waiting") for one in event["for"] if one["id"] == other}


@pytest.mark.parametrize(
    ("key", "value"), [("seed", 7), ("protocol", QUICK | {"gamma": 0.4}), ("data", {"name": "digits", "limit": 200})]
)
def test_gives_up_on_another_federation(key: str, value: object, federation: Build) -> None:
    made = federation(QUICK, patience=8)
    content = json.loads((made.directory / "federation.yaml").read_text())
    (made.directory / "other.yaml").write_text(json.dumps({**content, key: value}))
    made.configure("peer1", federation="other.yaml")
    made.start("peer0", "peer1")
    assert set(made.wait().values()) == {1}
    for id, other in (("peer0", "peer1"), ("peer1", "peer0")):
        named = made.log(id).splitlines()[-1].partition(f"{other} at {made.address(other)}: ")[2]
        assert key in named.partition(";")[0]
        assert any(key in event["reason"] for event in made.events(id, "refused"))


def test_a_refusal_is_not_forgotten_when_the_other_one_leaves(federation: Build) -> None:
    made = federation(QUICK, patience=15)
    content = json.loads((made.directory / "federation.yaml").read_text())
    (made.directory / "other.yaml").write_text(json.dumps({**content, "seed": 7, "patience": 3}))
    made.configure("peer1", federation="other.yaml")
    made.start("peer0")
    made.await_event("peer0", "waiting")
    made.start("peer1")
    assert set(made.wait().values()) == {1}
    said = made.log("peer0").splitlines()[-1]
    assert "connection refused (before that: " in said
    assert "seed" in said


def test_who_is_lost_for_good_ends_the_run_where_the_spec_says_so(federation: Build) -> None:
    made = federation(QUICK, rounds=10_000, patience=1.5, on_loss="stop")
    made.start()
    made.await_event("peer0", "round", round=2)
    made.peers["peer2"].signal(signal.SIGKILL)
    assert made.wait() == {"peer0": 1, "peer1": 1, "peer2": -signal.SIGKILL}
    for id in ("peer0", "peer1"):
        assert made.log(id).splitlines()[-1].startswith("dfl-peer: stopped because of peer")
        assert made.events(id)[-1]["event"] == "failed"
    stopped = [event["message"] for id in ("peer0", "peer1") for event in made.events(id, "failed")]
    assert any(f"stopped because of peer2 at {made.address('peer2')}" in message for message in stopped)
