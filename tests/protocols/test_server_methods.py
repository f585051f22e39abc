"""FedProx, FedDyn, SCAFFOLD and RI-FedAvg round the ring against their papers' loops with a server."""

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import server_form
import torch
from federations import Run, federate
from server_form import BATCH, EPOCHS, LR, MOMENTUM, Server
from torch import Tensor

from peer.learning.model.shape_check import Example
from peer.learning.model.zoo import build
from peer.protocols.base import Peer, StateContract

UNEQUAL = {"name": "digits", "limit": 120, "partition": {"kind": "quantity", "delta": 2}}
COMMON = {"lr": LR, "batch_size": BATCH, "epochs": EPOCHS, "participation": 0.6}
ROUGH: dict[str, Any] = {"lam": 0.2, "length": 3.0, "directions": 4, "intervals": 7}
OWN: dict[str, dict[str, Any]] = {
    "fedprox": {"mu": 0.5, "momentum": MOMENTUM},
    "feddyn": {"alpha": 0.1, "momentum": MOMENTUM},
    "scaffold": {"eta_g": 0.7},
    "ri-fedavg": {**ROUGH, "momentum": MOMENTUM},
}
FORMS: dict[str, Callable[[Server, int], None]] = {
    "fedprox": lambda server, round: server_form.fedprox(server, round, mu=0.5),
    "feddyn": lambda server, round: server_form.feddyn(server, round, alpha=0.1),
    "scaffold": lambda server, round: server_form.scaffold(server, round, eta_g=0.7),
    "ri-fedavg": lambda server, round: server_form.ri_fedavg(server, round, **ROUGH),
}
VECTORS = {"fedprox": {"model"}, "feddyn": {"model", "h"}, "scaffold": {"model", "c"}, "ri-fedavg": {"model"}}
SHAPE = (1, 8, 8)
History = dict[int, dict[str, dict[str, Tensor]]]


def watched(directory: Path, protocol: dict[str, Any], **keys: Any) -> tuple[Run, History]:
    """A run, and what each peer's state was after each round."""
    history: History = {}
    check = StateContract.check

    def record(self: StateContract, peer: Peer) -> None:
        history.setdefault(peer.round, {})[peer.id] = {name: t.clone() for name, t in peer.state.items()}
        check(self, peer)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(StateContract, "check", record)
        return federate(directory, protocol, 5, data=UNEQUAL, **keys), history


@pytest.fixture(params=[*OWN])
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], tuple[Run, History]]:
    """Each method once: three of five peers are drawn in each of three rounds."""

    @cache
    def once(name: str) -> tuple[Run, History]:
        return watched(tmp_path_factory.mktemp(name), {"name": name, **COMMON, **OWN[name]}, rounds=3)

    return once


@pytest.fixture
def run(runs: Callable[[str], tuple[Run, History]], name: str) -> Run:
    return runs(name)[0]


@pytest.fixture
def history(runs: Callable[[str], tuple[Run, History]], name: str) -> History:
    return runs(name)[1]


def test_three_rounds_equal_the_server_s(run: Run, history: History, name: str) -> None:
    server = Server(run, build("federations:tiny", Example.zeros(SHAPE, 10), 42, "shared").vector.double())
    begun = server.x
    for round in (1, 2, 3):
        assert len(server.sampled(round)) == 3
        FORMS[name](server, round)
        for peer in run.ids:
            np.testing.assert_allclose(run.trace(peer, round)["after"], server.x, atol=3e-6)
            if name == "scaffold":
                torch.testing.assert_close(
                    history[round][peer]["c"].double(), server.clients["server"]["c"], atol=1e-5, rtol=0
                )
    assert (server.x - begun).norm() > 0.1


@pytest.mark.parametrize("round", [1, 2, 3])
def test_every_peer_holds_the_same_bits(run: Run, history: History, name: str, round: int) -> None:
    traces = [*run.traces(round).values()]
    assert all((trace["after"] == traces[0]["after"]).all() for trace in traces)
    for vector in VECTORS[name] - {"model"}:
        held = [state[vector] for state in history[round].values()]
        assert held[0].abs().max() > 0.01
        assert all(torch.equal(one, held[0]) for one in held)


@pytest.mark.parametrize(("name", "own", "mean"), [("feddyn", "h_k", "h"), ("scaffold", "c_i", "c")], indirect=["name"])
def test_all_peers_corrections_average_to_the_global_one(history: History, own: str, mean: str) -> None:
    for states in history.values():
        average = torch.stack([state[own] for state in states.values()]).mean(0)
        torch.testing.assert_close(average, states["peer0"][mean], atol=1e-6, rtol=0)


@pytest.mark.parametrize(("name", "own"), [("feddyn", "h_k"), ("scaffold", "c_i")], indirect=["name"])
def test_who_is_not_drawn_keeps_its_correction(run: Run, history: History, own: str) -> None:
    for round in (2, 3):
        for peer, trace in run.traces(round).items():
            kept = torch.equal(history[round][peer][own], history[round - 1][peer][own])
            assert kept == (not trace.facts["participated"])


def test_only_what_is_declared_travels_and_to_the_right_only(run: Run, name: str) -> None:
    for peer, right in zip(run.ids, run.ids[1:] + run.ids[:1], strict=True):
        lines = [line for record in run.audit(peer) for line in record["sent"]]
        assert {line["to"] for line in lines} == {right}
        assert {line["vector"] for line in lines} == VECTORS[name]
        assert len(lines) == 3 * len(VECTORS[name])
        for line in lines:
            assert abs(line["bytes"] - 2 * 4 / 5 * 4 * 610) <= 2 * 4 * 4


def test_fedprox_without_its_term_is_fedavg_bit_for_bit(tmp_path: Path) -> None:
    settings = {**COMMON, "momentum": 0.0}
    fedavg = {"name": "fedavg", **settings}
    proximal, plain = (
        federate(tmp_path / str(protocol["name"]), protocol, 5, data=UNEQUAL, init="shared", trace=False).models()
        for protocol in ({"name": "fedprox", "mu": 0.0, **settings}, fedavg)
    )
    assert proximal == plain


@pytest.mark.parametrize("name", ["ri-fedavg"], indirect=True)
def test_the_roughness_of_each_drawn_peer_is_told(run: Run) -> None:
    server, told = Server(run, torch.empty(0)), []
    for round in (1, 2, 3):
        for peer, trace in run.traces(round).items():
            assert ("roughness" in trace.facts) == trace.facts["participated"]
            if trace.facts["participated"]:
                settings = (ROUGH["length"], ROUGH["directions"], ROUGH["intervals"])
                expected = server_form.roughness_index(server, peer, round, trace["start"], settings)
                told.append(trace.facts["roughness"])
                assert told[-1] == pytest.approx(expected, rel=1e-9, abs=1e-12)
        noted = [one["notes"] for peer in run.ids for one in run.result(peer)["history"] if one["round"] == round]
        assert sum("roughness" in notes for notes in noted) == 3
    assert max(told) > 0.05


def test_ri_fedavg_where_the_loss_is_not_rough_is_fedavg(tmp_path: Path) -> None:
    """The paper's length: the first model's loss is monotone along all directions."""
    settings = {**COMMON, "momentum": 0.0}
    rough, plain = (
        federate(tmp_path / str(protocol["name"]), protocol, 4, rounds=1, init="shared")
        for protocol in ({"name": "ri-fedavg", **settings}, {"name": "fedavg", **settings})
    )
    assert {trace.facts.get("roughness", 0) for trace in rough.traces(1).values()} == {0}
    assert rough.models() == plain.models()


@pytest.mark.parametrize(
    ("name", "own"), [("feddyn", ["h_k", "h"]), ("scaffold", ["c_i", "c"]), ("ri-fedavg", [])], indirect=["name"]
)
def test_running_statistics_are_averaged_and_never_corrected(tmp_path: Path, name: str, own: list[str]) -> None:
    protocol = {"name": name, **COMMON, **OWN[name]}
    model = {"name": "federations:normalised"}
    run, history = watched(tmp_path, protocol, rounds=2, model=model)
    statistics = slice(536, 552)
    for round in (1, 2):
        drawn = [trace for trace in run.traces(round).values() if trace.facts["participated"]]
        weights = [trace.facts["samples"] if name == "ri-fedavg" else 1 for trace in drawn]
        mean = np.average([trace["before"][statistics] for trace in drawn], axis=0, weights=weights)
        for peer, state in history[round].items():
            np.testing.assert_allclose(run.trace(peer, round)["after"][statistics], mean, atol=1e-6)
            assert all((state[vector][statistics] == 0).all() for vector in own)


@pytest.mark.parametrize("name", ["fedprox", "scaffold"], indirect=True)
def test_a_global_model_starts_from_the_mean_of_independent_weights(tmp_path: Path, name: str) -> None:
    run = federate(tmp_path, {"name": name, **OWN[name], "epochs": 1}, 3, rounds=1, init="independent")
    models = [build("federations:tiny", Example.zeros(SHAPE, 10), 42, peer).vector.numpy() for peer in run.ids]
    for trace in run.traces(1).values():
        np.testing.assert_allclose(trace["start"], np.mean(models, axis=0), atol=1e-7)
