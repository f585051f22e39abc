"""Means that a few liars cannot pull away: against numpy, by their promise, and in federations with a liar."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from federations import Run, federate, resolve
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from ring_medians import assert_extractors_alone_left, assert_medians_of_three

from launcher.commands.check import traffic
from launcher.plan import plan
from peer.errors import InputError
from peer.protocols.blocks.vectors import BLOCK, trimmed_mean

QUICK = {"head_epochs": 1, "extractor_epochs": 1}
FINITE = st.floats(-1e6, 1e6, width=32)


def robust(vectors: Any, trim: int) -> Any:
    own, *others = [torch.from_numpy(vector.copy()) for vector in vectors]
    trimmed_mean(own, others, trim)
    return own.numpy()


def plain(vectors: Any, trim: int) -> Any:
    kept = np.sort(vectors.astype(np.float64), axis=0)[trim : len(vectors) - trim]
    return kept.mean(axis=0)


@given(st.integers(1, 7), st.data())
def test_against_numpy(count: int, data: st.DataObject) -> None:
    trim = data.draw(st.integers(0, (count - 1) // 2))
    vectors = data.draw(arrays.arrays(np.float32, (count, 5), elements=FINITE))
    np.testing.assert_allclose(robust(vectors, trim), plain(vectors, trim), rtol=1e-4, atol=0.5)


def test_vectors_longer_than_a_block() -> None:
    vectors = np.random.default_rng(1).normal(size=(4, BLOCK + 3)).astype(np.float32)
    np.testing.assert_allclose(robust(vectors, 1), plain(vectors, 1), atol=1e-6)


@given(arrays.arrays(np.float32, (3, 6), elements=FINITE))
def test_of_three_it_is_the_median(vectors: Any) -> None:
    assert (robust(vectors, 1) == np.median(vectors, axis=0)).all()


@given(arrays.arrays(np.float32, (2, 6), elements=FINITE), arrays.arrays(np.float32, 6))
def test_an_arbitrary_neighbour_leaves_each_value_between_the_honest_ones(honest: Any, lie: Any) -> None:
    lie = np.nan_to_num(lie)
    own, other = honest
    found = robust(np.stack([own, other, lie]), 1)
    assert (np.minimum(own, other) <= found).all()
    assert (found <= np.maximum(own, other)).all()


@given(st.integers(1, 2), st.data())
def test_as_many_liars_as_are_trimmed_leave_it_between_the_honest_ones(liars: int, data: st.DataObject) -> None:
    honest = data.draw(arrays.arrays(np.float32, (liars + 2, 4), elements=FINITE))
    lies = data.draw(arrays.arrays(np.float32, (liars, 4), elements=st.floats(width=32, allow_nan=False)))
    found = robust(np.concatenate([honest, np.nan_to_num(lies)]), liars)
    slack = 1e-6 * np.abs(honest).max(axis=0) + 1e-30
    assert (honest.min(axis=0) - slack <= found).all()
    assert (found <= honest.max(axis=0) + slack).all()


def test_the_ring_median_of_a_run(tmp_path: Path) -> None:
    run = federate(tmp_path, {"name": "ring-median", **QUICK}, 4, rounds=2, init="independent")
    for round in (1, 2):
        assert_medians_of_three(run, round)
    assert_extractors_alone_left(run)


@pytest.mark.parametrize(("topology", "size", "trim"), [("ring", 4, 1), ("complete", 5, 2), ("exponential", 6, 1)])
def test_the_trimmed_mean_of_a_run(tmp_path: Path, topology: str, size: int, trim: int) -> None:
    run = federate(tmp_path, {"name": "gossip-sgd", "topology": topology, "trim": trim}, size, rounds=1)
    before = {peer: trace["before"] for peer, trace in run.traces(1).items()}
    for peer, trace in run.traces(1).items():
        heard = [line["to"] for line in run.audit(peer)[1]["sent"]]  # who hears a peer is heard by it
        expected = plain(np.stack([before[peer], *(before[other] for other in heard)]), trim)
        np.testing.assert_allclose(trace["after"], expected, atol=1e-6)


@pytest.mark.parametrize(("topology", "trim"), [("ring", 2), ("complete", 2), ("exponential", 3)])
async def test_a_trim_that_leaves_nothing_is_refused_before_anything_starts(
    tmp_path: Path, topology: str, trim: int
) -> None:
    spec = resolve(tmp_path, {"name": "gossip-sgd", "topology": topology, "trim": trim}, 4)
    with pytest.raises(InputError, match=r"leaves nothing of \d values.*at most 1"):
        await traffic(plan(spec), spec.ids)


HONEST = ("peer0", "peer1", "peer2", "peer4")
GOSSIP = {"name": "gossip-sgd", "lr": 0.1, "epochs": 2, "batch_size": 16}
TWO_PHASES = {"extractor_epochs": 3, "batch_size": 16}


@pytest.mark.parametrize(
    ("easy", "robust"),
    [
        (GOSSIP, {**GOSSIP, "trim": 1}),
        ({"name": "fibfl", **TWO_PHASES}, {"name": "ring-median", **TWO_PHASES}),
    ],
    ids=["gossip-sgd", "ring"],
)
def test_one_noisy_peer_spoils_a_mean_and_not_a_robust_one(
    tmp_path: Path, easy: dict[str, Any], robust: dict[str, Any]
) -> None:
    liar = {"peer3": {"kind": "noise", "scale": 3.0}}
    honest, spoilt = (accuracy(tmp_path / kind, easy, behaviour) for kind, behaviour in (("a", {}), ("b", liar)))
    held = accuracy(tmp_path / "c", robust, liar)
    assert held > honest - 0.05
    assert spoilt < held - 0.1


def accuracy(directory: Path, protocol: dict[str, Any], behaviour: dict[str, Any]) -> float:
    """The honest peers' mean in the end."""
    data = {"name": "digits", "limit": 400}
    run: Run = federate(directory, protocol, 5, rounds=4, trace=False, init="shared", data=data, behaviour=behaviour)
    return float(np.mean([run.result(peer)["accuracy"]["matched"] for peer in HONEST]))
