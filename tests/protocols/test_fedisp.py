"""FedISP: step sizes, the token's way round the ring, and each peer's two steps computed again by a plain loop."""

from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from federations import Run, federate
from torch import Tensor, nn
from torch.nn import functional

from peer.learning.model.shape_check import Example
from peer.learning.model.zoo import build
from peer.learning.randomness import torch_generator
from peer.learning.training.phase import Phase
from peer.protocols.fedisp import FedISP, Schedule
from peer.runtime.rounds.local_peer import LocalPeer

SIZE = 0.05


@pytest.mark.parametrize(
    ("schedule", "k", "rounds", "expected"),
    [
        ("fixed", 0, 100, 0.01),
        ("fixed", 99, 100, 0.01),
        ("equispaced", 49, 200, 0.01),
        ("equispaced", 50, 200, 0.005),
        ("equispaced", 149, 200, 0.0025),
        ("exponential", 0, 10, 0.01),
        ("exponential", 100, 200, 0.01 * 0.99**100),
        ("linear", 0, 11, 0.01),
        ("linear", 5, 11, 0.01 - 5 * 0.00099),
        ("linear", 10, 11, 0.0001),
        ("linear", 0, 1, 0.01),
        ("cosine", 0, 10, 0.01),
        ("cosine", 5, 10, 0.005),
        ("cosine", 9, 10, 0.005 * (1 + np.cos(0.9 * np.pi))),
        ("harmonic", 49, 100, 0.01),
        ("harmonic", 50, 100, 0.01),
        ("harmonic", 51, 100, 0.005),
        ("harmonic", 99, 100, 0.0002),
    ],
)
def test_step_sizes(schedule: Schedule, k: int, rounds: int, expected: float) -> None:
    assert FedISP(schedule=schedule).step_size(k, rounds) == pytest.approx(expected)


@pytest.mark.parametrize("schedule", ["fixed", "equispaced", "exponential", "linear", "cosine", "harmonic"])
@pytest.mark.parametrize("rounds", [1, 2, 120])
def test_step_sizes_begin_at_alpha_stay_positive_and_never_grow(schedule: Schedule, rounds: int) -> None:
    sizes = [FedISP(schedule=schedule, lr=0.3).step_size(k, rounds) for k in range(rounds)]
    assert sizes[0] == 0.3
    assert sizes[-1] > 0
    assert all(later <= sooner for sooner, later in pairwise(sizes))


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    protocol = {"name": "fedisp", "lr": SIZE, "schedule": "cosine", "batch_size": 16, "weight_decay": 0.01}
    return federate(tmp_path_factory.mktemp("fedisp"), protocol, 4, rounds=3)


def plain_epoch(
    vector: Tensor, run: Run, peer: str, round: int, phase: int, size: float, centre: Tensor | None
) -> Tensor:
    """One epoch of SGD with momentum .5 written out, on cross entropy + ‖z − centre‖²/(2α)."""
    data = run.runtimes[peer].setup.shard.train
    w1, b1, w2, b2 = (
        part.clone().view(shape)
        for part, shape in zip(torch.split(vector, [512, 8, 80, 10]), [(8, 64), (8,), (10, 8), (10,)], strict=True)
    )
    parameters = [nn.Parameter(part) for part in (w1, b1, w2, b2)]
    centres = None if centre is None else torch.split(centre, [512, 8, 80, 10])
    velocity = [torch.zeros_like(part) for part in parameters]
    order = torch.randperm(len(data), generator=torch_generator(42, peer, round, f"order {phase}"))
    for batch in torch.split(order, 16):
        hidden = torch.relu(data.x[batch].flatten(1) @ parameters[0].T + parameters[1])
        loss = functional.cross_entropy(hidden @ parameters[2].T + parameters[3], data.y[batch])
        if centres:
            pairs = zip(parameters, centres, strict=True)
            loss = loss + sum(((p.flatten() - c) ** 2).sum() for p, c in pairs) / (2 * size)
        gradients = torch.autograd.grad(loss, parameters)
        with torch.no_grad():
            for p, v, g in zip(parameters, velocity, gradients, strict=True):
                v.mul_(0.5).add_(g + 0.01 * p)
                p.sub_(size * v)
    return torch.cat([p.detach().flatten() for p in parameters])


def test_every_step_of_every_peer(run: Run) -> None:
    token = build("federations:tiny", Example.zeros((1, 8, 8), 10), 42, "shared").vector.clone()
    for round in (1, 2, 3):
        size = SIZE / 2 * (1 + np.cos(np.pi * (round - 1) / 3))
        for peer in run.ids:
            z = plain_epoch(token, run, peer, round, 0, size, token)
            token = plain_epoch(z, run, peer, round, 1, size, None)
            np.testing.assert_allclose(run.trace(peer, round)["before"], token, atol=2e-5)
            token = torch.tensor(run.trace(peer, round)["before"], dtype=torch.float32)


def test_a_peer_s_model_is_the_token_it_last_sent(run: Run) -> None:
    for peer, runtime in run.runtimes.items():
        for round in (1, 2, 3):
            trace = run.trace(peer, round)
            assert (trace["after"] == trace["before"]).all()
        assert (runtime.peer.model.numpy() == run.trace(peer, 3)["before"]).all()


def test_the_token_goes_to_the_right_only(run: Run) -> None:
    for peer, right in zip(run.ids, run.ids[1:] + run.ids[:1], strict=True):
        sent = [line for record in run.audit(peer) for line in record["sent"]]
        assert {line["to"] for line in sent} == {right}
        assert [line["bytes"] for line in sent] == [4 * 610] * 3


def test_the_pull_is_the_proximal_term_s_gradient(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Phase] = []
    train = LocalPeer.train

    async def watched(self: LocalPeer, *phases: Phase) -> float:
        received = self.model.clone()
        gradient_hook = phases[0].gradient_hook
        assert gradient_hook
        gradient = torch.ones(610)
        gradient_hook(received + 0.5, gradient)
        torch.testing.assert_close(gradient, torch.full((610,), 1 + 0.5 / 0.02), rtol=1e-4, atol=1e-4)
        seen.extend(phases)
        return await train(self, *phases)

    monkeypatch.setattr(LocalPeer, "train", watched)
    federate(tmp_path, {"name": "fedisp", "lr": 0.02}, 2, rounds=1)
    assert [phase.gradient_hook is None for phase in seen] == [False, True] * 2
    assert {phase.keep for phase in seen} == {None}


def test_peers_not_drawn_relay(tmp_path: Path) -> None:
    run = federate(tmp_path, {"name": "fedisp", "participation": 0.5}, 4, rounds=4)
    token: Any = build("federations:tiny", Example.zeros((1, 8, 8), 10), 42, "shared").vector.numpy()
    for round in range(1, 5):
        traces = run.traces(round)
        assert sum(trace.facts["participated"] for trace in traces.values()) == 2
        for trace in traces.values():
            assert (trace["after"] == token).all() == (not trace.facts["participated"])
            token = trace["after"]


def test_independent_weights_are_averaged_before_the_token_starts(tmp_path: Path) -> None:
    run = federate(tmp_path, "fedisp", 3, rounds=1, init="independent")
    models = [build("federations:tiny", Example.zeros((1, 8, 8), 10), 42, peer).vector.numpy() for peer in run.ids]
    for trace in run.traces(1).values():
        np.testing.assert_allclose(trace["start"], np.mean(models, axis=0), atol=1e-7)
