"""Federations whose data drift: who holds what in which round, and that a break makes no difference."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from federations import Run, federate, resolve

from launcher.plan import plan
from peer.errors import InputError
from peer.learning.data.shard import CommonData

DATA: dict[str, Any] = {
    "name": "digits",
    "limit": 120,
    "partition": {"kind": "dirichlet", "alpha": 1.0},
    "drift": [
        {"round": 3, "partition": {"kind": "dirichlet", "alpha": 0.3}},
        {"round": 4, "rotate": 90, "labels": [1, 0]},
    ],
}
FEDAVG = {"name": "fedavg", "epochs": 1, "lr": 0.1}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return federate(tmp_path_factory.mktemp("run"), FEDAVG, 3, rounds=4, data=DATA)


def test_everybody_trains_on_the_samples_of_the_round(run: Run) -> None:
    spec = run.runtimes["peer0"].setup.spec
    for peer in run.ids:
        expected = [len(CommonData(spec.data, spec.ids).shard(peer, round).train) for round in (1, 2, 3, 4)]
        assert [run.trace(peer, round).facts["samples"] for round in (1, 2, 3, 4)] == expected
        assert expected[1] != expected[2]


def test_at_the_end_it_holds_and_tells_what_is_then(run: Run) -> None:
    for peer, runtime in run.runtimes.items():
        spec = runtime.setup.spec
        last = CommonData(spec.data, spec.ids).shard(peer, 4)
        assert torch.equal(runtime.peer.data.x, last.train.x)
        assert torch.equal(runtime.peer.data.y, last.train.y)
        assert torch.equal(runtime.setup.shard.test.y, last.test.y)
        np.testing.assert_array_equal(runtime.peer.proportions.numpy(), last.proportions)
        assert runtime.peer.samples == len(last.train)


def test_a_drift_is_said(run: Run) -> None:
    events = [json.loads(line) for line in (run.out / "peer1" / "events.jsonl").read_text().splitlines()]
    assert [event["round"] for event in events if event["event"] == "drift"] == [3, 4]


def test_a_drift_is_said_once_and_who_goes_on_later_tells_of_the_data_it_holds(tmp_path: Path) -> None:
    for until in (3, 4):
        run = federate(tmp_path, FEDAVG, 3, rounds=until, data={**DATA, "drift": DATA["drift"][:1]})
    spec = run.runtimes["peer1"].setup.spec
    before, after = (len(CommonData(spec.data, spec.ids).shard("peer1", round).train) for round in (1, 3))
    events = [json.loads(line) for line in (run.out / "peer1" / "events.jsonl").read_text().splitlines()]
    assert [event["round"] for event in events if event["event"] == "drift"] == [3]
    held = [(event["round"], event["samples"]) for event in events if event["event"] == "data"]
    assert held == [(0, before), (3, after), (3, after)]


@pytest.mark.parametrize("until", [2, 3])
def test_who_goes_on_later_has_the_data_of_its_round(run: Run, tmp_path: Path, until: int) -> None:
    federate(tmp_path, FEDAVG, 3, rounds=until, data=DATA)
    longer = federate(tmp_path, FEDAVG, 3, rounds=4, data=DATA)
    assert longer.models() == run.models()
    assert [longer.result(peer)["accuracy"] for peer in longer.ids] == [
        run.result(peer)["accuracy"] for peer in run.ids
    ]


def test_who_is_started_once_more_at_the_end_is_tested_on_the_last_data(tmp_path: Path) -> None:
    first = federate(tmp_path, FEDAVG, 3, rounds=3, data=DATA)
    accuracy = {peer: first.result(peer)["accuracy"] for peer in first.ids}
    again = federate(tmp_path, FEDAVG, 3, rounds=3, data=DATA)
    assert {peer: again.result(peer)["accuracy"] for peer in again.ids} == accuracy
    assert {peer: again.result(peer)["samples"] for peer in again.ids} == {
        peer: first.trace(peer, 3).facts["samples"] for peer in first.ids
    }


def test_before_the_first_drift_nothing_is_different(run: Run, tmp_path: Path) -> None:
    plain = federate(tmp_path, FEDAVG, 3, rounds=2, data={**DATA, "drift": []})
    for peer in run.ids:
        assert (run.trace(peer, 2)["after"] == plain.trace(peer, 2)["after"]).all()


def test_the_ring_is_ordered_by_the_new_proportions(tmp_path: Path) -> None:
    protocol = {"name": "fibfl++", "head_epochs": 1, "extractor_epochs": 1, "reorder_every": 1}
    data = {**DATA, "limit": 300, "drift": [{"round": 3, "partition": {"kind": "dirichlet", "alpha": 0.1}}]}
    run = federate(tmp_path, protocol, 5, rounds=3, data=data)
    events = [json.loads(line) for line in (run.out / "peer0" / "events.jsonl").read_text().splitlines()]
    costs = [event["cost_before"] for event in events if event["event"] == "ring"]
    assert len(costs) == 3
    assert costs[0] == costs[1] != costs[2]


def test_an_empty_peer_of_a_later_round_is_found_before_anything_starts(tmp_path: Path) -> None:
    skew = {"kind": "label-skew", "k": 1, "fractions": [1, 1, 1]}
    spec = resolve(tmp_path, FEDAVG, 4, data={**DATA, "drift": [{"round": 9, "partition": skew}]})
    with pytest.raises(InputError, match=r"the drift of round 9: .* leaves peer"):
        plan(spec)


@pytest.mark.parametrize("name", ["vpdl", "cycle-pdl"])
def test_inputs_that_are_encrypted_once_may_not_drift(name: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=f"`{name}` cannot follow data that drift: the encrypted inputs leave once"):
        resolve(tmp_path, {"name": name, "predictions": "encrypted"}, 3, data=DATA)
    assert resolve(tmp_path, {"name": name}, 3, data=DATA).data.drift


def test_targets_stay_wrong_after_a_drift(tmp_path: Path) -> None:
    behaviour = {"peer1": {"kind": "label-flip", "rate": 0.5}}
    run = federate(tmp_path, FEDAVG, 3, rounds=4, data=DATA, behaviour=behaviour, trace=False)
    setup = run.runtimes["peer1"].setup
    true = CommonData(setup.spec.data, setup.spec.ids).shard("peer1", 4)
    assert int((setup.shard.train.y != true.train.y).sum()) == int(0.5 * len(true.train) + 0.5)
