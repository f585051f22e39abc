"""FedAvg and FedRep round the ring: means by samples over those drawn, from the mean of the initial weights."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from federations import Run, Trace, federate
from hypothesis import given
from hypothesis import strategies as st

from peer.learning.model.shape_check import Example
from peer.learning.model.zoo import build
from peer.protocols.fedavg import FedAvg

UNEQUAL = {"name": "digits", "limit": 120, "partition": {"kind": "quantity", "delta": 2}}
HALF: dict[str, Any] = {"participation": 0.5}
QUICK: dict[str, dict[str, Any]] = {
    "fedavg": {"epochs": 2},
    "fedrep": {"head_epochs": 1, "extractor_epochs": 1},
}


@pytest.fixture(scope="module", params=["fedavg", "fedrep"])
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def whole(name: str, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Everyone takes part."""
    directory = tmp_path_factory.mktemp(name)
    return federate(directory, {"name": name, **QUICK[name]}, 5, rounds=2, data=UNEQUAL)


@pytest.fixture(scope="module")
def half(name: str, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Three of five peers are drawn each round."""
    directory = tmp_path_factory.mktemp(name)
    return federate(directory, {"name": name, **QUICK[name], **HALF}, 5, rounds=6, data=UNEQUAL)


def mean_by_samples(traces: list[Trace]) -> np.ndarray[Any, Any]:
    return np.average(
        [trace["before"] for trace in traces], axis=0, weights=[trace.facts["samples"] for trace in traces]
    )


def test_a_global_model_starts_from_the_mean_of_the_initial_weights(whole: Run, name: str) -> None:
    models = [build("federations:tiny", Example.zeros((1, 8, 8), 10), 42, peer) for peer in whole.ids]
    mean = np.mean([model.vector.numpy() for model in models], axis=0)
    for trace, model in zip(whole.traces(1).values(), models, strict=True):
        expected = mean if name == "fedavg" else model.extractor.numpy()
        np.testing.assert_allclose(trace["start"], expected, atol=1e-7)


@pytest.mark.parametrize("round", [1, 2])
def test_a_round_ends_in_the_mean_by_samples_with_the_same_bits(whole: Run, round: int) -> None:
    traces = [*whole.traces(round).values()]
    assert len({trace.facts["samples"] for trace in traces}) > 1
    for trace in traces:
        np.testing.assert_allclose(trace["after"], mean_by_samples(traces), atol=1e-6)
        assert (trace["after"] == traces[0]["after"]).all()
        assert not np.allclose(trace["before"], trace["start"])


@pytest.mark.parametrize("round", range(1, 7))
def test_only_those_drawn_train_and_count(half: Run, round: int) -> None:
    traces = half.traces(round)
    drawn = [trace for trace in traces.values() if trace.facts["participated"]]
    assert len(drawn) == 3
    for trace in traces.values():
        assert (trace["before"] == trace["start"]).all() == (not trace.facts["participated"])
        np.testing.assert_allclose(trace["after"], mean_by_samples(drawn), atol=1e-6)


def test_others_are_drawn_in_other_rounds(half: Run) -> None:
    draws = {
        frozenset(peer for peer, trace in half.traces(round).items() if trace.facts["participated"])
        for round in range(1, 7)
    }
    assert len(draws) > 1


def test_everyone_draws_alike(half: Run) -> None:
    protocol = FedAvg(participation=0.4)
    for round in (1, 2, 3):
        sets = set()
        for runtime in half.runtimes.values():
            runtime.lifecycle.round = runtime.participant.round.number = round
            sets.add(protocol.drawn(runtime.peer))
        assert len(sets) == 1
        assert len(sets.pop()) == 2


@given(share=st.floats(0.001, 1), size=st.integers(1, 40))
def test_how_many_are_drawn(share: float, size: int) -> None:
    class Draws:
        """The part of a peer that drawing needs."""

        members = tuple(f"peer{i}" for i in range(size))

        @staticmethod
        def shared_generator(purpose: str) -> np.random.Generator:
            return np.random.default_rng(0)

    drawn = FedAvg(participation=share).drawn(Draws)  # type: ignore[arg-type]
    assert len(drawn) == max(1, int(np.floor(share * size + 0.5)))
    assert drawn <= {*Draws.members}


def test_what_is_private(whole: Run, name: str) -> None:
    heads = {runtime.peer.head.numpy().tobytes() for runtime in whole.runtimes.values()}
    head_bytes = sum(line["head_bytes"] for peer in whole.ids for r in whole.audit(peer) for line in r["sent"])
    assert len(heads) == (5 if name == "fedrep" else 1)
    # The set-up's mean and two rounds, each 2(N−1) times the head's 90 values in all.
    assert head_bytes == (0 if name == "fedrep" else 3 * 8 * 90 * 4)


def test_with_shared_weights_nothing_is_averaged_before_round_1(tmp_path: Path) -> None:
    run = federate(tmp_path, {"name": "fedavg", "epochs": 1}, 3, rounds=1, init="shared")
    shared = build("federations:tiny", Example.zeros((1, 8, 8), 10), 42, "shared")
    assert all(np.array_equal(trace["start"], shared.vector.numpy()) for trace in run.traces(1).values())
    assert all(run.audit(peer)[0]["sent"] == [] for peer in run.ids)
