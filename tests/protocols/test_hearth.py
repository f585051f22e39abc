"""Hearth: two rounds computed again by a plain loop, the two heads, what leaves a peer, and what is refused."""

from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest
import torch
from federations import Run, federate, resolve
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional

from peer.errors import InputError
from peer.learning.model.shape_check import Example
from peer.learning.model.zoo import build
from peer.learning.randomness import torch_generator
from peer.protocols.hearth import adjusted_loss

SKEWED = {"name": "digits", "limit": 120, "partition": {"kind": "dirichlet", "alpha": 0.3}}
SETTINGS = {"name": "hearth", "lr": 0.003, "beta1": 0.8, "epochs": 2, "refit_epochs": 3, "batch_size": 16}
EXTRACTOR, HEAD, CLASSES = 520, 90, 10


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return federate(tmp_path_factory.mktemp("hearth"), SETTINGS, 4, rounds=2, data=SKEWED)


@dataclass
class Plain:
    """One peer as the algorithm has it: a module of its own, torch's Adam, batches in the runtime's order."""

    id: str
    x: Tensor
    y: Tensor
    extractor: nn.Linear = field(default_factory=lambda: nn.Linear(64, 8))
    head: nn.Linear = field(default_factory=lambda: nn.Linear(8, CLASSES))

    def __post_init__(self) -> None:
        shared = build("federations:tiny", Example.zeros((1, 8, 8), CLASSES), 42, "shared").vector.detach().clone()
        nn.utils.vector_to_parameters(shared, self.parameters())
        self.adam = torch.optim.Adam(self.parameters(), lr=0.003, betas=(0.8, 0.99))
        self.counts = np.bincount(self.y.numpy(), minlength=CLASSES)

    def parameters(self) -> list[nn.Parameter]:
        return [*self.extractor.parameters(), *self.head.parameters()]

    def features(self) -> Tensor:
        return torch.relu(self.extractor(self.x.flatten(1)))

    def batches(self, round: int, phase: int, epochs: int) -> list[Tensor]:
        generator = torch_generator(42, self.id, round, f"order {phase}")
        orders = [torch.randperm(len(self.y), generator=generator) for _ in range(epochs)]
        return [batch for order in orders for batch in torch.split(order, 16)]

    def train(self, round: int) -> None:
        prior = torch.tensor(np.log(self.counts / len(self.y) + 1e-8), dtype=torch.float32)
        for batch in self.batches(round, 0, 2):
            self.adam.zero_grad()
            logits = self.head(self.features()[batch])
            torch.autograd.backward(functional.cross_entropy(logits + prior, self.y[batch]))
            self.adam.step()

    def refitted(self, round: int) -> Tensor:
        psi = nn.Linear(8, CLASSES)
        prior = np.log((self.counts + 1) / (len(self.y) + CLASSES))
        psi.load_state_dict({"weight": self.head.weight, "bias": self.head.bias + torch.tensor(prior).float()})
        adam, features = torch.optim.Adam(psi.parameters(), lr=0.003), self.features().detach()
        for batch in self.batches(round, 1, 3):
            adam.zero_grad()
            torch.autograd.backward(functional.cross_entropy(psi(features[batch]), self.y[batch]))
            adam.step()
        return nn.utils.parameters_to_vector(psi.parameters())


def test_two_rounds_by_a_plain_loop(run: Run) -> None:
    shards = {peer: runtime.setup.shard.train for peer, runtime in run.runtimes.items()}
    peers = [Plain(peer, shard.x, shard.y) for peer, shard in shards.items()]
    weights = torch.tensor([len(peer.y) for peer in peers]) / 120
    assert len({len(peer.y) for peer in peers}) > 1
    for round in (1, 2):
        for peer in peers:
            peer.train(round)
            theta = nn.utils.parameters_to_vector(peer.extractor.parameters())
            np.testing.assert_allclose(run.trace(peer.id, round)["before"], theta.detach(), atol=2e-5)
        mean = sum(
            w * nn.utils.parameters_to_vector(p.extractor.parameters()) for w, p in zip(weights, peers, strict=True)
        )
        for peer in peers:
            nn.utils.vector_to_parameters(mean.detach().clone(), peer.extractor.parameters())
            np.testing.assert_allclose(run.trace(peer.id, round)["after"], mean.detach(), atol=2e-5)
    for peer in peers:
        known = run.runtimes[peer.id].peer
        np.testing.assert_allclose(
            known.state["head"], nn.utils.parameters_to_vector(peer.head.parameters()).detach(), atol=2e-5
        )
        np.testing.assert_allclose(known.head, peer.refitted(2).detach(), atol=2e-5)


@given(
    logits=st.lists(st.lists(st.floats(-20, 20), min_size=3, max_size=3), min_size=1, max_size=4),
    counts=st.tuples(st.integers(0, 50), st.integers(0, 50), st.integers(1, 50)),
)
def test_the_loss_is_that_of_predictions_weighted_by_the_prior(
    logits: list[list[float]], counts: tuple[int, ...]
) -> None:
    z, n = np.array(logits), np.array(counts)
    weighted = np.exp(z) * (n / n.sum() + 1e-8)
    labels = np.arange(len(z)) % 3
    expected = -np.log(weighted[range(len(z)), labels] / weighted.sum(1)).mean()
    y = torch.tensor(labels)
    found = adjusted_loss(torch.tensor(counts).double())(torch.tensor(z), y, torch.arange(len(z)))
    assert float(found) == pytest.approx(expected, rel=1e-6, abs=1e-9)


def test_the_prior_stands_in_the_bias_before_the_refit(tmp_path: Path, run: Run) -> None:
    unfitted = federate(tmp_path, {**SETTINGS, "refit_epochs": 0}, 4, rounds=2, data=SKEWED)
    for peer, runtime in unfitted.runtimes.items():
        counts = np.bincount(runtime.setup.shard.train.y.numpy(), minlength=CLASSES)
        prior = np.log((counts + 1) / (counts.sum() + CLASSES))
        added = (runtime.peer.head - runtime.peer.state["head"]).numpy()
        np.testing.assert_allclose(added, np.concatenate([np.zeros(HEAD - CLASSES), prior]), atol=1e-6)
        # The refit is for predictions alone: without it θ and η are the same.
        assert torch.equal(runtime.peer.extractor, run.runtimes[peer].peer.extractor)
        assert torch.equal(runtime.peer.state["head"], run.runtimes[peer].peer.state["head"])


def test_balanced_predictions_are_those_of_the_head_that_trains(tmp_path: Path, run: Run) -> None:
    balanced = federate(tmp_path, {**SETTINGS, "predicts": "balanced"}, 4, rounds=2, data=SKEWED)
    for peer, runtime in balanced.runtimes.items():
        assert torch.equal(runtime.peer.head, run.runtimes[peer].peer.state["head"])
        assert not torch.equal(run.runtimes[peer].peer.head, run.runtimes[peer].peer.state["head"])


def test_rounds_given_later_go_on_from_the_head_that_trains(tmp_path: Path, run: Run) -> None:
    federate(tmp_path, SETTINGS, 4, rounds=1, data=SKEWED)
    assert federate(tmp_path, SETTINGS, 4, rounds=2, data=SKEWED).models() == run.models()


def test_only_the_extractor_leaves_and_only_to_the_right(run: Run) -> None:
    for peer, right in zip(run.ids, run.ids[1:] + run.ids[:1], strict=True):
        sent = [line for record in run.audit(peer) for line in record["sent"]]
        assert {(line["to"], line["head_bytes"]) for line in sent} == {(right, 0)}
        assert sum(line["bytes"] for line in sent) == 2 * 2 * 3 * EXTRACTOR  # rounds · 2(N−1)/N · 4 bytes · p_e
    assert len({runtime.peer.extractor.numpy().tobytes() for runtime in run.runtimes.values()}) == 1
    assert len({runtime.peer.head.numpy().tobytes() for runtime in run.runtimes.values()}) == 4


def test_independent_extractors_are_averaged_before_round_1(tmp_path: Path) -> None:
    run = federate(tmp_path, {**SETTINGS, "epochs": 1}, 3, rounds=1, init="independent")
    models = [build("federations:tiny", Example.zeros((1, 8, 8), CLASSES), 42, peer) for peer in run.ids]
    mean = np.mean([model.extractor.numpy() for model in models], axis=0)
    for trace in run.traces(1).values():
        np.testing.assert_allclose(trace["start"], mean, atol=1e-7)


def unbiased(shape: tuple[int, ...], classes: int) -> tuple[nn.Module, nn.Module]:
    """A head of one weight matrix."""
    return nn.Flatten(), nn.Linear(64, classes, bias=False)


def normalised(shape: tuple[int, ...], classes: int) -> tuple[nn.Module, nn.Module]:
    """A head whose last bias is not that of a linear layer."""
    return nn.Flatten(), nn.Sequential(nn.Linear(64, classes), nn.LayerNorm(classes))


def fixed(shape: tuple[int, ...], classes: int) -> tuple[nn.Module, nn.Module]:
    """Nothing to train in the head."""
    return nn.Sequential(nn.Flatten(), nn.Linear(64, classes)), nn.Identity()


@pytest.mark.parametrize("model", ["unbiased", "normalised", "fixed"])
def test_a_head_that_does_not_end_in_a_bias_is_refused(tmp_path: Path, model: str) -> None:
    with pytest.raises(InputError, match=r"the head of this model .*; let it end with torch.nn.Linear\(\.\.\., 10\)"):
        federate(tmp_path, "hearth", 2, model={"name": f"test_hearth:{model}"})
    assert resolve(tmp_path / "other", "fedrep", 2, model={"name": f"test_hearth:{model}"})
