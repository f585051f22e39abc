"""Gossip-SGD's mixing on its three graphs, and RDFL's on the ring, from their traces."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from federations import Run, federate

from peer.protocols.gossip_sgd import GossipSGD


def everyone(run: Run, when: str, round: int) -> Any:
    return np.stack([trace[when] for trace in run.traces(round).values()])


def graph(topology: str, size: int) -> Any:
    """A matrix of zeros and ones that says who hears whom, and itself."""
    hears = np.eye(size)
    offsets = {"complete": range(1, size), "ring": [1], "exponential": [1, 2, 4]}[topology]
    for offset in offsets:
        if offset < size:
            hears += np.roll(np.eye(size), offset, axis=1) + np.roll(np.eye(size), -offset, axis=1)
    return np.minimum(hears, 1)


@pytest.mark.parametrize("size", [2, 5, 7])
@pytest.mark.parametrize("topology", ["complete", "ring", "exponential"])
def test_gossip_mixes_self_and_neighbours_equally(tmp_path: Path, topology: str, size: int) -> None:
    run = federate(tmp_path, {"name": "gossip-sgd", "topology": topology}, size, rounds=2)
    hears = graph(topology, size)
    mixing = hears / hears.sum(1, keepdims=True)
    for round in (1, 2):
        before = everyone(run, "before", round)
        np.testing.assert_allclose(everyone(run, "after", round), mixing @ before, atol=1e-6)
    for i, peer in enumerate(run.ids):
        told = {line["to"] for line in run.audit(peer)[1]["sent"]}
        assert told == {run.ids[j] for j in np.flatnonzero(hears[:, i]) if j != i}


@pytest.mark.parametrize("trim", [0, 1, 2, 3])
@pytest.mark.parametrize("topology", ["complete", "ring", "exponential"])
def test_so_many_members_are_left_that_trim_leaves_something_of_their_values(topology: str, trim: int) -> None:
    """If all of them are enough: otherwise no view is."""
    protocol = GossipSGD(topology=topology, trim=trim)  # type: ignore[arg-type]
    for peers in range(2, 12):
        enough = [int(graph(topology, n).sum(1)[0]) > 2 * trim for n in range(2, peers)]
        least = protocol.least_members(peers)
        assert all(enough[least - 2 :])
        assert least == 2 or not enough[least - 3]


def test_rdfl_blends_both_neighbours_equally(tmp_path: Path) -> None:
    run = federate(tmp_path, {"name": "rdfl", "gamma": 0.4, "epochs": 1}, 5, rounds=2)
    eye = np.eye(5)
    mixing = 0.4 * eye + 0.3 * (np.roll(eye, 1, axis=1) + np.roll(eye, -1, axis=1))
    for round in (1, 2):
        before = everyone(run, "before", round)
        np.testing.assert_allclose(everyone(run, "after", round), mixing @ before, atol=1e-6)
        assert run.trace("peer0", round).facts["gamma"] == 0.4


def test_rdfl_that_keeps_all_of_its_own_model_is_no_exchange(tmp_path: Path) -> None:
    """FIRMA's published RDFL column: γ = 1 is what every peer reaches alone."""
    alone = {"name": "solo", "like": "rdfl", "settings": {"epochs": 2}}
    rdfl = federate(tmp_path / "rdfl", {"name": "rdfl", "gamma": 1, "epochs": 2}, 3)
    solo = federate(tmp_path / "solo", alone, 3)
    assert rdfl.models() == solo.models()
    assert len({*solo.models().values()}) == 3
