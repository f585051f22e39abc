"""Def-KT: who is paired, who sends what to whom, and two models learning together, by a plain torch loop."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from federations import Run, federate, resolve
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional

from peer.errors import InputError
from peer.learning.randomness import torch_generator
from peer.protocols.def_kt import DefKT, towards

LR, MOMENTUM, DECAY, BATCH = 0.1, 0.5, 0.01, 16


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    protocol = {"name": "def-kt", "lr": LR, "weight_decay": DECAY, "batch_size": BATCH, "epochs": 2}
    return federate(tmp_path_factory.mktemp("def-kt"), protocol, 5, rounds=4)


def pairs(run: Run, round: int) -> dict[str, str]:
    """By trainer who received, from what the peers' audits say was sent."""
    sent = [
        (peer, line["to"], line["bytes"])
        for peer in run.ids
        for record in run.audit(peer)
        if record["round"] == round
        for line in record["sent"]
        if line["bytes"]
    ]
    assert {size for _, _, size in sent} == {4 * 610}
    assert len({trainer for trainer, _, _ in sent}) == len(sent)
    return {trainer: receiver for trainer, receiver, _ in sent}


class Draws:
    """The part of a peer that pairing needs."""

    def __init__(self, size: int, seed: int) -> None:
        self.members, self._seed = tuple(f"peer{i}" for i in range(size)), seed

    def shared_generator(self, purpose: str) -> np.random.Generator:
        return np.random.default_rng(self._seed)


@settings(deadline=None)
@given(st.integers(2, 41), st.integers(0, 1000))
def test_pairs_are_disjoint_and_leave_out_one_peer_at_most(size: int, seed: int) -> None:
    drawn = DefKT().pairs(Draws(size, seed))  # type: ignore[arg-type]
    members = [member for pair in drawn for member in pair]
    assert len(drawn) == size // 2
    assert len({*members}) == len(members) == size - size % 2


def test_everyone_trains_receives_and_idles_at_times() -> None:
    counts = np.zeros((5, 3))
    for seed in range(300):
        drawn = DefKT().pairs(Draws(5, seed))  # type: ignore[arg-type]
        for i in range(5):
            role = [f"peer{i}" in {pair[0] for pair in drawn}, f"peer{i}" in {pair[1] for pair in drawn}]
            counts[i, role.index(True) if any(role) else 2] += 1
    np.testing.assert_allclose(counts / 300, [[0.4, 0.4, 0.2]] * 5, atol=0.12)


def test_only_the_drawn_pairs_carry_bytes_and_every_peer_draws_them_alike(run: Run) -> None:
    seen = set()
    for round in range(1, 5):
        used, drawn = pairs(run, round), set()
        for runtime in run.runtimes.values():
            runtime.lifecycle.round = runtime.participant.round.number = round
            drawn.add(DefKT().pairs(runtime.peer))
        assert [dict(one) for one in drawn] == [used]
        assert len(used) == 2
        seen.add(tuple(sorted(used.items())))
    assert len(seen) > 1


def test_an_idle_peer_keeps_its_model(run: Run) -> None:
    for round in range(1, 5):
        used = pairs(run, round)
        (idle,) = {*run.ids} - {*used} - {*used.values()}
        trace = run.trace(idle, round)
        assert (trace["after"] == trace["start"]).all()
        assert not trace.facts["participated"]


Weights = list[nn.Parameter]


def unpack(vector: Tensor) -> Weights:
    parts = zip(torch.split(vector, [512, 8, 80, 10]), [(8, 64), (8,), (10, 8), (10,)], strict=True)
    return [nn.Parameter(part.clone().view(shape)) for part, shape in parts]


def probabilities(weights: Weights, x: Tensor) -> Tensor:
    hidden = torch.relu(x.flatten(1) @ weights[0].T + weights[1])
    return torch.softmax(hidden @ weights[2].T + weights[3], 1)


def step(weights: Weights, velocity: list[Tensor], loss: Tensor) -> None:
    gradients = torch.autograd.grad(loss, weights)
    with torch.no_grad():
        for w, v, g in zip(weights, velocity, gradients, strict=True):
            v.mul_(MOMENTUM).add_(g + DECAY * w)
            w.sub_(LR * v)


def order(run: Run, peer: str, round: int) -> list[tuple[Tensor, Tensor]]:
    """Batches of two epochs."""
    data = run.runtimes[peer].setup.shard.train
    generator = torch_generator(42, peer, round, "order 0")
    drawn = [torch.randperm(len(data), generator=generator) for _ in range(2)]
    return [(data.x[batch], data.y[batch]) for one in drawn for batch in torch.split(one, BATCH)]


def flat(weights: Weights) -> Tensor:
    return torch.cat([w.detach().flatten() for w in weights])


def start(run: Run, peer: str, round: int) -> Tensor:
    return torch.tensor(run.trace(peer, round)["start"], dtype=torch.float32)


@pytest.mark.parametrize("round", [1, 2, 3, 4])
def test_trainers_train_and_receivers_learn_together_with_what_they_received(run: Run, round: int) -> None:
    for trainer, receiver in pairs(run, round).items():
        sent = unpack(start(run, trainer, round))
        velocity = [torch.zeros_like(w) for w in sent]
        for x, y in order(run, trainer, round):
            step(sent, velocity, -probabilities(sent, x)[torch.arange(len(y)), y].log().mean())
        np.testing.assert_allclose(run.trace(trainer, round)["after"], flat(sent), atol=2e-5)

        received, own = unpack(flat(sent)), unpack(start(run, receiver, round))
        velocities = [[torch.zeros_like(w) for w in weights] for weights in (received, own)]
        for x, y in order(run, receiver, round):
            p, q = probabilities(received, x), probabilities(own, x)
            losses = [
                (-mine[torch.arange(len(y)), y].log() + (other * (other / mine).log()).sum(1)).mean()
                for mine, other in ((p, q.detach()), (q, p.detach()))
            ]
            step(received, velocities[0], losses[0])
            step(own, velocities[1], losses[1])
        np.testing.assert_allclose(run.trace(receiver, round)["after"], flat(received), atol=2e-5)
        assert not np.allclose(flat(received), flat(own), atol=1e-3)


@settings(deadline=None)
@given(st.integers(0, 1000))
def test_the_teacher_gets_no_gradient_and_an_equal_one_adds_nothing(seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    mine, other = (torch.randn(7, 4, generator=generator).requires_grad_() for _ in range(2))
    labels = torch.randint(4, (7,), generator=generator)
    towards(mine, labels, other).backward()  # type: ignore[no-untyped-call]
    assert other.grad is None
    assert float(towards(mine, labels, other).detach()) > float(functional.cross_entropy(mine, labels).detach())
    torch.testing.assert_close(towards(mine, labels, mine), functional.cross_entropy(mine, labels))


def test_running_statistics_come_with_the_received_model_and_go_on(tmp_path: Path) -> None:
    """In a pair, the receiver's statistics are the trainer's, updated by its own batches, without decay."""
    protocol = {"name": "def-kt", "lr": 1e-6, "batch_size": 100, "weight_decay": 1}
    run = federate(tmp_path, protocol, 2, rounds=1, model={"name": "federations:normalised"})
    layout = {entry.name: entry for entry in run.runtimes["peer0"].peer.layout}
    moved = {}
    for peer, runtime in run.runtimes.items():
        moved[peer] = layout["extractor.2.running_mean"].view(runtime.peer.model)
    ((trainer, receiver),) = (pair for pair in DefKT().pairs(at(run, 1)))
    weight, bias = (layout[f"extractor.1.{name}"].view(run.runtimes[trainer].peer.model) for name in ("weight", "bias"))
    means = {
        peer: (runtime.setup.shard.train.x.flatten(1) @ weight.T + bias).mean(0)
        for peer, runtime in run.runtimes.items()
    }
    torch.testing.assert_close(moved[trainer], 0.1 * means[trainer], atol=1e-4, rtol=0)
    torch.testing.assert_close(moved[receiver], 0.09 * means[trainer] + 0.1 * means[receiver], atol=1e-4, rtol=0)


def at(run: Run, round: int):  # type: ignore[no-untyped-def]
    runtime = run.runtimes["peer0"]
    runtime.lifecycle.round = runtime.participant.round.number = round
    return runtime.peer


@pytest.mark.parametrize(
    "training",
    [{"clip_gradient": 1}, {"clip_value": 1}, {"accumulate": 2}, {"step": "m:f"}, {"precision": "float16"}],
    ids=lambda training: next(iter(training)),
)
@pytest.mark.parametrize("protocol", [{"name": "def-kt"}, {"name": "solo", "like": "def-kt"}], ids=["pairs", "alone"])
def test_both_models_learn_by_plain_steps(tmp_path: Path, protocol: dict[str, str], training: dict[str, Any]) -> None:
    said = rf"cannot train by `training\.{next(iter(training))}`: each batch is a step of two models.*; leave it out"
    with pytest.raises(InputError, match=said):
        resolve(tmp_path, protocol, 4, training=training)
    resolve(tmp_path, protocol, 4, training={"precision": "bfloat16", "budget": {"steps": 3}})
