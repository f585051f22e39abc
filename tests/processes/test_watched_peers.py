"""Real peers whose events somebody takes in: the figures are right while they run, and no bit of a model changes."""

import signal
import socket
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from endless import endless
from prometheus_client.openmetrics.parser import text_string_to_metric_families
from real_peers import Build, SmallFederation, digests, until
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

Ports = Callable[[int], list[int]]
FAILING = """
def track(event):
    if event.name == "round":
        raise ValueError("no room")
"""


def scraped(port: int) -> dict[str, float]:
    """Figures by name and labels; none while nobody answers."""

    def all_of(text: str) -> Iterator[tuple[str, float]]:
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                yield " ".join([sample.name, *(sample.labels[name] for name in sorted(sample.labels))]), sample.value

    asked = urllib.request.Request(
        f"http://127.0.0.1:{port}/metrics", headers={"Accept": "application/openmetrics-text; version=1.0.0"}
    )
    try:
        with urllib.request.urlopen(asked, timeout=10) as answer:
            return dict(all_of(answer.read().decode()))
    except OSError:
        return {}


def after(port: int, rounds: int) -> dict[str, float]:
    """The figures as soon as so many rounds are over, and both links up: a busy machine may have one suspected."""

    def look() -> dict[str, float] | None:
        found = scraped(port)
        links = [found.get(f"dfl_link_state up {other}") for other in ("peer0", "peer2")]
        return found if found.get("dfl_rounds_total", 0) >= rounds and links == [1, 1] else None

    return until(look, 60, f"{rounds} rounds are over at {port}, and its links are up")


def test_a_peer_is_scraped_while_it_runs_and_counts_anew_when_it_is_back(federation: Build, ports: Ports) -> None:
    made, port = endless(federation), ports(1)[0]
    made.configure("peer1", metrics=port)
    made.start()
    found = after(port, 3)
    assert [name.split()[1:3] for name in found if name.startswith("dfl_info ")] == [["tiny", "peer1"]]
    assert found["dfl_round"] >= 2  # read before the rounds that are over
    assert sum(value for name, value in found.items() if name.startswith("dfl_peer_state ")) == 1
    assert 0 <= found["dfl_accuracy_ratio matched"] <= 1
    assert found["dfl_sent_bytes_total peer0"] > 1000 < found["dfl_received_bytes_total peer2"]
    assert found["dfl_restarts_total"] == 0
    assert found["process_resident_memory_bytes"] > 1e6
    made.peers["peer1"].signal(signal.SIGKILL)
    made.peers["peer1"].wait(60)
    made.start("peer1")
    again = after(port, 2)
    assert again["dfl_restarts_total"] == 1
    assert again["dfl_rounds_total"] < again["dfl_round"]


def test_who_is_told_changes_no_bit(federation: Build, tmp_path: Path) -> None:
    made = federation("fibfl", tensorboard=True, tracker="failing:track", rounds=3)
    (made.directory / "failing.py").write_text(FAILING)
    results = made.run()
    assert digests(results) == made.undisturbed()
    assert not (made.directory / "memory" / "peer0" / "tensorboard").exists()
    for id in made.ids:
        (untold,) = made.events(id, "untold")
        assert untold["sentence"].startswith("tracker `failing:track` failed: ValueError: no room (")
        assert f"{made.directory}/failing.py:4)" in untold["sentence"]
        assert untold["sentence"] in made.log(id)
        read = EventAccumulator(str(made.directory / id / "tensorboard"))
        read.Reload()
        history = results[id]["history"]
        assert [one.step for one in read.Scalars("accuracy/matched")] == [1, 2, 3]
        assert [one.value for one in read.Scalars("accuracy/matched")] == pytest.approx(
            [one["accuracy"]["matched"] for one in history]
        )


def test_bytes_of_all_rounds_are_told_by_neighbour(federation: Build) -> None:
    made = federation("fibfl", rounds=3)
    results = made.run()
    for id in made.ids:
        passed = made.events(id, "traffic")
        assert [event["round"] for event in passed] == [1, 2, 3]
        last = results[id]["history"][-1]
        in_round_0 = made.events(id, "round")[0]["bytes_sent"] - sum(passed[0]["sent"].values())
        told = sum(sum(event["sent"].values()) for event in passed) + in_round_0
        assert last["bytes_sent"] == pytest.approx(told, abs=0.01 * told)
        (started,) = made.events(id, "started")
        assert made.events(id)[0] == started
        assert (started["schema"], started["restarts"], started["members"]) == (1, 0, [*made.ids])


def refused(made: SmallFederation, **settings: object) -> str:
    """What peer0 says when it ends with 2, having created nothing."""
    made.configure("peer0", **settings)
    made.start("peer0")
    assert made.peers["peer0"].wait(60) == 2
    assert not (made.directory / "peer0").exists()
    return made.log("peer0")


def test_a_port_in_use_is_said_before_anything_is_created(federation: Build, ports: Ports) -> None:
    made = federation("fibfl")
    with socket.create_server(("127.0.0.1", ports(1)[0])) as taken:
        port = taken.getsockname()[1]
        said = refused(made, metrics=port)
    assert f"cannot serve metrics at 127.0.0.1:{port}: address already in use; stop what uses it" in said


def test_a_tracker_that_is_not_there_is_said_before_anything_is_created(federation: Build) -> None:
    assert "no module `absent`" in refused(federation("fibfl"), tracker="absent:track")
