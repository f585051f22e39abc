"""CYCle on Gossip-SGD: opinions, masks and mixing computed again by numpy from the traces of a run."""

import copy
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from federations import Run, Vector, federate
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional

from peer.learning.data.samples import InMemory
from peer.learning.model.layout import Split
from peer.learning.model.model import Model
from peer.learning.model.shape_check import Example
from peer.learning.randomness import derive
from peer.protocols.base import Received
from peer.protocols.cycle_gossip import CycleGossip, local_gradient

BETA, EVERY, ROUNDS = 15, 2, 5
SKEWED = {"name": "digits", "limit": 120, "partition": {"kind": "dirichlet", "alpha": 0.5}}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    protocol = {"name": "cycle-gossip", "beta": BETA, "every": EVERY, "lr": 0.1}
    return federate(tmp_path_factory.mktemp("cycle"), protocol, 5, rounds=ROUNDS, data=SKEWED)


def gradient(run: Run, peer: str, w: Vector) -> Vector:
    """The gradient of the tiny model's mean cross entropy on all samples of a peer, by the chain rule."""
    data = run.runtimes[peer].setup.shard.train
    x, y = data.x.numpy().reshape(len(data), 64).astype(np.float64), data.y.numpy()
    w1, b1, w2, b2 = (
        part.reshape(shape)
        for part, shape in zip(np.split(w, [512, 520, 600]), [(8, 64), (8,), (10, 8), (10,)], strict=True)
    )
    hidden = np.maximum(x @ w1.T + b1, 0)
    logits = hidden @ w2.T + b2
    p = np.exp(logits - logits.max(1, keepdims=True))
    error = (p / p.sum(1, keepdims=True) - np.eye(10)[y]) / len(y)
    back = (error @ w2) * (hidden > 0)
    return np.concatenate([(back.T @ x).ravel(), back.sum(0), (error.T @ hidden).ravel(), error.sum(0)])


def opinions(run: Run) -> dict[int, Any]:
    """W after the opinions of each round, (N, N); row i is what i thinks."""
    found, w = {}, np.ones((len(run.ids), len(run.ids)))
    for round in range(1, ROUNDS + 1):
        if (round - 1) % EVERY == 0:
            g = np.stack([gradient(run, peer, run.trace(peer, round)["start"]) for peer in run.ids])
            g /= np.linalg.norm(g, axis=1, keepdims=True)
            weighed = np.exp(BETA * (1 + g @ g.T) / 2)
            np.fill_diagonal(weighed, 0)
            softmax = weighed / weighed.sum(1, keepdims=True)
            w = (w + softmax / softmax.max(1, keepdims=True)) / 2
            np.fill_diagonal(w, 1)
        found[round] = w
    return found


def mask(run: Run, round: int) -> Any:
    """The matrix (N, N) of who sent its model to whom, and itself, by the senders' records."""
    sends = np.eye(len(run.ids))
    for j, peer in enumerate(run.ids):
        for line in run.audit(peer)[round]["sent"]:
            if line["vector"] == "model" and line["bytes"]:
                assert line["bytes"] == 4 * 610
                sends[j, run.ids.index(line["to"])] = 1
    return sends


def test_opinions_are_those_of_the_gradients(run: Run) -> None:
    for round, w in opinions(run).items():
        noted = np.stack([trace.facts["opinions"] for trace in run.traces(round).values()])
        np.testing.assert_allclose(noted, w, atol=1e-4)
    assert np.ptp(w) > 0.3, "nobody is preferred to anybody: the data or the test is too tame"


def test_everybody_sends_by_its_own_opinion_of_the_receiver(run: Run) -> None:
    masked = 0
    for round, w in opinions(run).items():
        draws = np.random.default_rng(derive(42, "view 0", round, "mask")).random((5, 5))
        expected = (draws < w) | np.eye(5, dtype=bool)
        assert (np.abs(draws - w) > 1e-4).all()
        assert (mask(run, round) == expected).all()
        masked += int((~expected).sum())
    assert masked > 10


def test_peers_mix_what_they_heard_by_their_opinions_of_the_senders(run: Run) -> None:
    for round, w in opinions(run).items():
        traces = run.traces(round)
        weights = w * mask(run, round).T
        mixing = weights / weights.sum(1, keepdims=True)
        before = np.stack([trace["before"] for trace in traces.values()])
        after = np.stack([trace["after"] for trace in traces.values()])
        np.testing.assert_allclose(after, mixing @ before, atol=2e-5)
        heard = [trace.facts["heard"] for trace in traces.values()]
        assert heard == [*(weights > 0).sum(1) - 1]


def test_gradients_travel_only_in_their_rounds(run: Run) -> None:
    for peer in run.ids:
        for round, record in enumerate(run.audit(peer)):
            vectors = {line["vector"] for line in record["sent"] if line["bytes"]}
            assert ("gradient" in vectors) == (round % EVERY == 1)
            assert vectors <= {"gradient", "model"}
        assert [*run.runtimes[peer].peer.state] == ["opinions"]


def test_without_preference_it_is_gossip_on_the_complete_graph(tmp_path: Path) -> None:
    cycle = federate(tmp_path / "cycle", {"name": "cycle-gossip", "beta": 0}, 4, data=SKEWED)
    gossip = federate(tmp_path / "gossip", "gossip-sgd", 4, data=SKEWED)
    assert cycle.models() == gossip.models()


@settings(max_examples=40)
@given(st.lists(st.tuples(st.floats(0, 1), st.floats(-1, 1), st.booleans()), min_size=1, max_size=6), st.floats(-1, 1))
def test_weights_sum_to_one(others: list[tuple[float, float, bool]], own: float) -> None:
    """Nobody leaves the range of what it mixes, and who hears nobody keeps what it has."""
    ids = [f"peer{i}" for i in range(1 + len(others))]
    peer: Any = SimpleNamespace(members=ids, model=torch.full((3,), own))
    opinions = {"peer0": 1.0} | {id: opinion for id, (opinion, _, _) in zip(ids[1:], others, strict=True)}
    received = {id: Received(torch.full((3,), v), {}) for id, (_, v, sent) in zip(ids[1:], others, strict=True) if sent}
    CycleGossip().mix(peer, opinions, received)
    values = [own, *(one.vector[0].item() for one in received.values())]
    assert min(values) - 1e-6 <= peer.model[0] <= max(values) + 1e-6
    if not received:
        assert peer.model[0] == torch.tensor(own)


def test_a_peer_without_gradient_counts_as_neither_like_nor_unlike() -> None:
    entry = SimpleNamespace(trainable=True, view=lambda vector: vector)
    peer: Any = SimpleNamespace(state={"gradient": torch.tensor([1.0, 0.0])}, layout=[entry])
    told = {"a": torch.tensor([2.0, 0.0]), "b": torch.zeros(2), "c": torch.tensor([-1.0, 0.0])}
    found = CycleGossip(beta=2).reputation(peer, {id: Received(vector, {}) for id, vector in told.items()})
    assert found == pytest.approx({"a": 1.0, "b": np.exp(-1.0), "c": np.exp(-2.0)})


def test_the_gradient_is_of_all_samples_in_evaluation_mode_and_none_of_the_buffers() -> None:
    torch.manual_seed(1)
    extractor = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Dropout(0.5))
    model = Model(Split(extractor, nn.Linear(6, 3)), settings="bn", example=Example.zeros((4,), 3))
    model.vector.add_(torch.rand(len(model.vector)))
    data = InMemory(torch.randn(300, 4), torch.randint(0, 3, (300,)))
    plain = copy.deepcopy(model.module).eval()
    peer: Any = SimpleNamespace(model=model.vector, data=data, logits=model.logits, task=model.task)
    found = local_gradient(peer)
    functional.cross_entropy(plain(data.x), data.y).backward()  # type: ignore[no-untyped-call]
    expected = dict(plain.named_parameters())
    for entry in model.layout:
        gradient = expected[entry.name].grad if entry.trainable else torch.zeros(entry.shape)
        torch.testing.assert_close(entry.view(found), gradient)
    assert not found.requires_grad
