"""Real peers of which one is stopped for good: the others finish, and what is said of the run is true."""

import json
import signal

import pytest
from real_peers import Build

from launcher.cli import main

pytestmark = pytest.mark.long

PRIVATE = {"name": "fibfl", "head_epochs": 1, "extractor_epochs": 1}


def test_the_others_finish_and_the_summary_says_who_is_missing(
    federation: Build, capfd: pytest.CaptureFixture[str]
) -> None:
    made = federation(PRIVATE, peers=4, rounds=12, on_loss="bypass", absence=6)
    made.start()
    made.await_event("peer2", "round", round=4)
    made.peers["peer2"].signal(signal.SIGKILL)
    ended = made.wait()
    assert ended == {"peer0": 0, "peer1": 0, "peer2": -9, "peer3": 0}
    assert main(["summary", str(made.directory), "--json"]) == 0
    made_of_it = json.loads(capfd.readouterr().out)
    assert [peer["id"] for peer in made_of_it["per_peer"]] == ["peer0", "peer1", "peer3"]
    assert made_of_it["exact"] is False
    (first, last) = made_of_it["absences"]["peer2"][0]
    assert 4 <= first <= 6
    assert last == 12
    proof = made_of_it["privacy"]
    assert (proof["violations"], proof["head_bytes_sent"]) == ([], 0)
    assert proof["definitions"] == {"3.1": True, "3.2": True, "3.3": True}
    assert ["peer1", "peer3"] in proof["edges_used"]
    assert main(["summary", str(made.directory)]) == 0
    assert f"with changes of view at round {first}: peer2 lost" in capfd.readouterr().out
