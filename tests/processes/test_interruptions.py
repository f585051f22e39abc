"""Signals and broken connections: a peer leaves in order, and nothing is lost between living peers."""

import signal
import time
from pathlib import Path

import pytest
from real_peers import Build, BuildWatched, digests

pytestmark = pytest.mark.long

QUICK = {"head_epochs": 1, "extractor_epochs": 1, "tau": 0.05}


def no_half_written_file(directory: Path) -> bool:
    return not [path for path in directory.rglob("*") if path.name.endswith((".part", ".tmp"))]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_stopped_and_started_again(number: signal.Signals, federation: Build) -> None:
    made = federation({"name": "fibfl+", **QUICK}, rounds=30)
    made.start()
    made.await_event("peer0", "round", round=5)
    for peer in made.peers.values():
        peer.signal(number)
    assert made.wait() == dict.fromkeys(made.ids, 128 + number)
    for id in made.ids:
        assert made.events(id)[-1]["event"] == "stopped"
        assert "Traceback" not in made.log(id)
        assert not (made.directory / id / "result.json").exists()
    assert no_half_written_file(made.directory)
    assert digests(made.run()) == made.undisturbed()
    for id in made.ids:
        assert made.events(id, "resumed")
        assert [one["round"] for one in made.results()[id]["history"]] == list(range(1, 31))


def test_stopped_while_waiting(federation: Build) -> None:
    made = federation({"name": "fibfl", "head_epochs": 1, "extractor_epochs": 1})
    made.start("peer0")
    made.await_event("peer0", "state", state="joining")
    made.peers["peer0"].signal(signal.SIGTERM)
    assert made.wait() == {"peer0": 143}


def test_stopped_in_the_midst_of_long_training(federation: Build) -> None:
    made = federation({"name": "fibfl", "extractor_epochs": 100_000})
    made.start()
    for id in made.ids:
        made.await_event(id, "state", state="training")
    for peer in made.peers.values():
        peer.signal(signal.SIGTERM)
    assert made.wait() == dict.fromkeys(made.ids, 143)


def test_connections_cut_again_and_again(watched: BuildWatched) -> None:
    federation, proxies = watched({"name": "fibfl++", **QUICK}, 4, rounds=16)
    expected = federation.undisturbed()
    federation.start()
    federation.await_event("peer0", "state", state="communicating")
    cuts = 0
    while any(peer.running for peer in federation.peers.values()):
        cuts += proxies.cut() > 0
        time.sleep(0.25)
    assert cuts >= 2
    assert set(federation.wait().values()) == {0}
    results = federation.results()
    assert digests(results) == expected
    for id in federation.ids:
        assert not federation.events(id, "conflict")
        warm_up = 4 * 116_352 * 3 // 2
        assert results[id]["tensor_bytes_sent"] == 2 * warm_up + 14 * 2 * 2 * 4 * 116_352
