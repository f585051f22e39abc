"""kill -9 of real processes at chosen events: started again with the same command, all end in the same bits."""

import json
import os
import signal
from pathlib import Path
from subprocess import STDOUT
from typing import Any

import pytest
from interpreter import Commands
from real_peers import Build, SmallFederation, digests, until

from faults.accidents import start_and_die

pytestmark = pytest.mark.long

ONE = {"head_epochs": 1, "extractor_epochs": 1}
PROTOCOLS: dict[str, dict[str, Any]] = {
    "fibfl": {"name": "fibfl", **ONE},
    "fibfl++": {"name": "fibfl++", "tau": 0.0, **ONE},
    "fedavg": {"name": "fedavg", "epochs": 1, "participation": 0.5},
    "fedisp": {"name": "fedisp"},
    "gossip-sgd": {"name": "gossip-sgd"},
    "every call": {"name": "callers:EveryCall", "epochs": 1},
}
HERE = str(Path(__file__).parent)
CASES = [
    ("fibfl", "training:7"),
    ("fibfl", "mid-frame:3"),
    ("fibfl++", "mid-pass:3"),
    ("fedavg", "all-reduce:6"),
    ("fedisp", "token:2"),
    ("gossip-sgd", "mid-frame:4"),
    ("fibfl++", "checkpoint:3"),
    ("fibfl", "checkpoint:6"),
    ("fedavg", "acknowledgement:2"),
    ("fibfl", "greeting:1"),
    ("gossip-sgd", "greeted:2"),
    ("fibfl", "serving:1"),
    ("every call", "mid-pass:2"),
    ("every call", "all-gather:3"),
    ("every call", "all-reduce:2"),
    ("every call", "checkpoint:8"),
]
ROUNDS = 3
"""FIRMA's warm-up, a round of passes, and one after it."""


@pytest.fixture(scope="session")
def undisturbed() -> dict[str, dict[str, str]]:
    """Filled in by `expected`: each protocol runs undisturbed once a session."""
    return {}


def expected(undisturbed: dict[str, dict[str, str]], protocol: str, build: Build) -> dict[str, str]:
    if protocol not in undisturbed:
        undisturbed[protocol] = build(PROTOCOLS[protocol], peers=3, rounds=ROUNDS, code=HERE).undisturbed()
    return undisturbed[protocol]


def finish(federation: SmallFederation) -> dict[str, str]:
    codes = federation.wait()
    assert codes == dict.fromkeys(federation.ids, 0), federation.account()
    return digests(federation.results())


@pytest.mark.parametrize("fault", ["once:1", "once:2", "once:5", "all-gather:4"])
def test_what_was_drawn_in_secret_is_sent_once(fault: str, federation: Build) -> None:
    """Secrets differ from run to run; but all peers end with the same model, so nobody heard two of one."""
    one = federation({"name": "callers:Secrets", "epochs": 1}, peers=3, rounds=ROUNDS, code=HERE)
    start_and_die(one, {"peer1": fault})
    assert len({*finish(one).values()}) == 1
    assert not [event for id in one.ids for event in one.events(id, "conflict")]


@pytest.mark.parametrize(("protocol", "fault"), CASES)
def test_death_at_an_event(
    protocol: str, fault: str, federation: Build, undisturbed: dict[str, dict[str, str]]
) -> None:
    wanted = expected(undisturbed, protocol, federation)
    one = federation(PROTOCOLS[protocol], peers=3, rounds=ROUNDS, code=HERE)
    start_and_die(one, {"peer1": fault})
    assert finish(one) == wanted
    audits = [json.loads(line) for line in (one.directory / "peer1" / "audit.jsonl").read_text().splitlines()]
    assert {audit["round"] for audit in audits} == set(range(ROUNDS + 1))


@pytest.mark.parametrize("killed", [["peer0", "peer1"], ["peer0", "peer1", "peer2"]])
def test_several_deaths_at_once(killed: list[str], federation: Build, undisturbed: dict[str, dict[str, str]]) -> None:
    """Two adjacent peers, and all of them; the newest checkpoint of one lacks a byte when it starts again."""
    wanted = expected(undisturbed, "fibfl++", federation)
    one = federation(PROTOCOLS["fibfl++"], peers=3, rounds=ROUNDS)
    one.start()
    for id in ("peer0", "peer1"):  # the checkpoint of round 0 is on disk by then
        one.await_event(id, "state", state="training", round=2)
    for id in killed:
        one.peers[id].signal(signal.SIGKILL)
    for id in killed:
        one.peers[id].wait(10)
    delete_last_byte(newest(one.directory / "peer0" / "checkpoint"))
    one.start(*killed)
    assert finish(one) == wanted


def newest(checkpoints: Path) -> Path:
    return max(checkpoints.glob("round-*.safetensors"))


def delete_last_byte(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


def test_the_launcher_starts_a_killed_peer_again(
    federation: Build, undisturbed: dict[str, dict[str, str]], commands: Commands, tmp_path: Path
) -> None:
    wanted = expected(undisturbed, "fibfl", federation)
    spec, out = federation(PROTOCOLS["fibfl"], peers=3, rounds=ROUNDS), tmp_path / "run"
    arguments = ["-m", "launcher.cli", "run", str(spec.directory / "federation.yaml"), "--out", str(out)]
    with commands.command(arguments, stderr=STDOUT) as launcher:
        assert launcher.stdout
        events = out / "peer1" / "events.jsonl"
        until(lambda: events.exists() and '"training", "round": 2' in events.read_text(), 40, "peer1 trains")
        os.kill(int((out / "peer1" / "pid").read_text()), signal.SIGKILL)
        said = launcher.stdout.read()
        assert launcher.wait() == 0, said
    assert "peer1 was killed by SIGKILL" in said
    assert "peer1: restarting" in said
    summary = json.loads((out / "summary.json").read_text())
    assert summary["restarts"] == 1
    assert {peer["id"]: peer["model_sha256"] for peer in summary["per_peer"]} == wanted
