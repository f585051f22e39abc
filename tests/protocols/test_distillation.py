"""VPDL and CYCle on private decentralised learning, computed again by plain loops from the traces of real runs."""

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from federations import Run, federate
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from peer.errors import InputError
from peer.learning.randomness import derive, torch_generator
from peer.protocols.blocks.distillation import Distillation, distillation_loss
from peer.protocols.cycle_pdl import CyclePDL

PLAIN = {"lr": 0.05, "lr_step": 2, "batch_size": 16, "warmup_epochs": 3, "lam": 5.0}
"""The learning rate falls within the warm-up, and again after round 1."""
SIZES = [512, 8, 80, 10]


@pytest.fixture(scope="module")
def vpdl(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return federate(tmp_path_factory.mktemp("vpdl"), {"name": "vpdl", **PLAIN}, 3, rounds=3)


@pytest.fixture(scope="module")
def cycle(tmp_path_factory: pytest.TempPathFactory) -> Run:
    protocol = {"name": "cycle-pdl", "reputation_every": 3, "tau_opt": 0.1, "tau_max": 0.6, **PLAIN}
    skewed = {"name": "digits", "limit": 120, "partition": {"kind": "dirichlet", "alpha": 0.3}}
    return federate(tmp_path_factory.mktemp("cycle"), protocol, 4, rounds=6, data=skewed)


class Student:
    """One peer's model and momentum, trained by a loop of its own."""

    def __init__(self, run: Run, peer: str) -> None:
        self.peer, self.data = peer, run.runtimes[peer].setup.shard.train
        self.vector = vector(run, peer, 1, "start")
        self.velocity = torch.zeros(610)
        self.order = 0

    def logits(self, w: Tensor, x: Tensor) -> Tensor:
        w1, b1, w2, b2 = torch.split(w, SIZES)
        hidden = torch.relu(x.flatten(1) @ w1.view(8, 64).T + b1)
        return hidden @ w2.view(10, 8).T + b2

    def epochs(self, round: int, phase: int, lr: float, count: int, teachers: list[tuple[float, Tensor]]) -> None:
        generator = torch_generator(42, self.peer, round, f"order {phase}")
        for _ in range(count):
            for batch in torch.split(torch.randperm(len(self.data), generator=generator), 16):
                w = nn.Parameter(self.vector)
                (gradient,) = torch.autograd.grad(self.loss(w, batch, teachers), w)
                self.velocity = 0.9 * self.velocity + gradient
                self.vector = self.vector - lr * self.velocity

    def loss(self, w: Tensor, batch: Tensor, teachers: list[tuple[float, Tensor]]) -> Tensor:
        """CE + 5 Σ_k r_k KL(softmax(z_n/5) ‖ softmax(z_k/5)): its gradient is that of DL."""
        own = self.logits(w, self.data.x[batch])
        total = functional.cross_entropy(own, self.data.y[batch])
        for weight, other in teachers:
            theirs = functional.log_softmax(self.logits(other, self.data.x[batch]) / 5, 1)
            mine = functional.log_softmax(own / 5, 1)
            total = total + 5.0 * weight * functional.kl_div(theirs, mine, reduction="batchmean", log_target=True)
        return total


def vector(run: Run, peer: str, round: int, when: str) -> Tensor:
    return torch.tensor(run.trace(peer, round)[when], dtype=torch.float32)


def follow(run: Run, student: Student, round: int, teachers: list[tuple[float, Tensor]]) -> None:
    """Round 1 has epochs 0, 1 at .05 and 2 at .005 before its own, epoch 3; round 2 has epoch 4 at .0005."""
    if round == 1:
        student.epochs(1, 0, 0.05, 2, [])
        student.epochs(1, 1, 0.005, 1, [])
        np.testing.assert_allclose(student.vector, vector(run, student.peer, 1, "before"), atol=2e-5)
    student.epochs(round, 2 if round == 1 else 0, 0.05 * 0.1 ** ((2 + round) // 2), 1, teachers)
    np.testing.assert_allclose(student.vector, vector(run, student.peer, round, "after"), atol=3e-5)
    student.vector = vector(run, student.peer, round, "after")


def test_every_epoch_of_vpdl(vpdl: Run) -> None:
    for peer in vpdl.ids:
        student = Student(vpdl, peer)
        for round in (1, 2, 3):
            others = [vector(vpdl, k, round, "before") for k in vpdl.ids if k != peer]
            follow(vpdl, student, round, [(0.5, other) for other in others])


def test_teachers_are_as_they_were_at_the_end_of_the_round_before(vpdl: Run) -> None:
    for peer in vpdl.ids:
        for round in (2, 3):
            assert (vpdl.trace(peer, round)["before"] == vpdl.trace(peer, round - 1)["after"]).all()


def test_every_epoch_of_cycle(cycle: Run) -> None:
    """From the reputations of a plain statement, with the answers that the audit says were given."""
    reputations = {peer: dict.fromkeys(cycle.ids, 0.0) for peer in cycle.ids}
    students = {peer: Student(cycle, peer) for peer in cycle.ids}
    partial = 0
    for round in range(1, 7):
        drawn = np.random.default_rng(derive(42, "view 0", round, "answers")).random((4, 4))
        measuring = round in (1, 4)
        gives = {n: told(cycle, n, round) for n in cycle.ids}
        for i, n in enumerate(cycle.ids):
            by_lot = {k for j, k in enumerate(cycle.ids) if drawn[i, j] < reputations[n][k]}
            assert gives[n] == (set(cycle.ids) - {n} if measuring else by_lot)
            partial += len(gives[n]) < 3
        for n in cycle.ids:
            others = {k: vector(cycle, k, round, "before") for k in cycle.ids if n in gives[k]}
            if measuring:
                now = {
                    k: trust(misaligned(students[n], vector(cycle, n, round, "before"), w)) for k, w in others.items()
                }
                old = reputations[n] if round > 1 else now
                reputations[n] = {k: 0.5 * old[k] + 0.5 * now[k] for k in now} | {n: 0.0}
            noted = cycle.trace(n, round).facts["reputation"]
            np.testing.assert_allclose(noted, [reputations[n][k] for k in cycle.ids], atol=1e-4)
            follow(cycle, students[n], round, [(reputations[n][k], w) for k, w in others.items()])
    assert partial, "nobody was ever refused an answer"


def told(run: Run, peer: str, round: int) -> set[str]:
    return {line["to"] for line in run.audit(peer)[round]["sent"] if line["bytes"]}


def misaligned(student: Student, own: Tensor, other: Tensor) -> float:
    """(1 − cos)/2 in float64, with the whole set as one batch."""
    everything = torch.arange(len(student.data))
    w = nn.Parameter(own)
    (ce,) = torch.autograd.grad(student.loss(w, everything, []), w)
    (both,) = torch.autograd.grad(student.loss(w, everything, [(1.0, other)]), w)
    a, b = ce.double().numpy(), (both - ce).double().numpy()
    return float(1 - a @ b / np.sqrt((a @ a) * (b @ b))) / 2


def trust(s: float) -> float:
    return float(np.clip((s - 0.6) / (0.1 - 0.6), 0, 1))


def test_only_models_leave_and_only_to_those_who_are_answered(cycle: Run) -> None:
    sent = [line for peer in cycle.ids for record in cycle.audit(peer) for line in record["sent"]]
    assert {line["vector"] for line in sent if line["bytes"]} == {"model"}
    assert {line["bytes"] for line in sent} == {0, 4 * 610}


def test_without_distillation_it_is_solo(tmp_path: Path) -> None:
    alone = {"name": "solo", "like": "vpdl", "settings": {**PLAIN, "lam": 0.0}}
    together = federate(tmp_path / "vpdl", {"name": "vpdl", **PLAIN, "lam": 0.0}, 3)
    solo = federate(tmp_path / "solo", alone, 3)
    for peer in solo.ids:
        np.testing.assert_allclose(together.trace(peer, 2)["after"], solo.trace(peer, 2)["after"], atol=1e-6)


@pytest.mark.parametrize(
    ("settings", "round", "expected"),
    [
        ({}, 1, [(25, 0.1), (1, 0.01)]),
        ({}, 25, [(1, 0.01)]),
        ({}, 26, [(1, 0.001)]),
        ({}, 75, [(1, 0.0001)]),
        ({"warmup_epochs": 0}, 1, [(1, 0.1)]),
        ({"warmup_epochs": 30, "epochs": 21}, 1, [(25, 0.1), (5, 0.01), (20, 0.01), (1, 0.001)]),
    ],
)
def test_learning_rates_by_epoch(settings: dict[str, Any], round: int, expected: list[tuple[int, float]]) -> None:
    phases = Distillation(**settings).training(round)
    assert [phase.epochs for phase in phases] == [epochs for epochs, _ in expected]
    assert [phase.optimiser.lr for phase in phases] == pytest.approx([lr for _, lr in expected])
    assert {phase.keep for phase in phases} <= {"model"}


@given(st.integers(0, 60), st.integers(1, 9), st.integers(1, 30), st.integers(1, 12))
def test_no_epoch_is_lost_between_learning_rates(warmup: int, epochs: int, step: int, rounds: int) -> None:
    settings = Distillation(warmup_epochs=warmup, epochs=epochs, lr_step=step)
    phases = [phase for round in range(1, rounds + 1) for phase in settings.training(round)]
    rates = [phase.optimiser.lr for phase in phases for _ in range(phase.epochs)]
    assert rates == pytest.approx([0.1 * 0.1 ** (epoch // step) for epoch in range(warmup + rounds * epochs)])


def softmax(z: NDArray[np.float64]) -> NDArray[np.float64]:
    powers = np.exp(z - z.max(1, keepdims=True))
    return powers / powers.sum(1, keepdims=True)


@given(st.integers(0, 10_000), st.floats(0.5, 20))
def test_the_loss_is_linear_in_the_teacher_and_least_where_both_agree(seed: int, temperature: float) -> None:
    z, first, second = np.random.default_rng(seed).normal(0, 5, (3, 6, 4))

    def loss(own: NDArray[np.float64], teacher: NDArray[np.float64]) -> float:
        return float(distillation_loss(torch.from_numpy(own), torch.from_numpy(teacher), temperature))

    p = softmax(z / temperature)
    assert loss(z, first) == pytest.approx(float((p * (np.log(p) - first / temperature)).sum(1).mean()))
    assert loss(z, 0.3 * first + 0.7 * second) == pytest.approx(0.3 * loss(z, first) + 0.7 * loss(z, second))
    assert loss(first, first) <= loss(z, first) + 1e-9
    assert loss(first + 3.0, first) == pytest.approx(loss(first, first))


@pytest.mark.parametrize(("misalignment", "expected"), [(0, 1), (0.25, 1), (0.5, 0.5), (0.75, 0), (1, 0)])
def test_trust(misalignment: float, expected: float) -> None:
    assert CyclePDL().trust(misalignment) == pytest.approx(expected)


def test_a_twin_counts_half(tmp_path: Path) -> None:
    """Before anything was trained all models are the same: DL's gradient is 0 and says nothing."""
    run = federate(tmp_path, {"name": "cycle-pdl", **PLAIN, "warmup_epochs": 0}, 3, rounds=1)
    for peer in run.ids:
        told = run.trace(peer, 1).facts["reputation"]
        assert told == [0.0 if other == peer else 0.5 for other in run.ids]


def test_without_tenseal_encrypted_predictions_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tenseal", None)
    with pytest.raises(
        InputError, match=r"needs TenSEAL, .* install it with: pip install -c constraints.txt 'dfl\[encrypted\]'"
    ):
        federate(tmp_path, {"name": "vpdl", "predictions": "encrypted"}, 3)
