"""The equations of FibFL and FibFL+ by themselves, and what the paper claims of them and does not hold."""

from math import sqrt
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from peer.protocols.base import Received
from peer.protocols.fibfl import ALPHA, BETA, ring_blend
from peer.protocols.fibfl_plus import gated_weights

GOLDEN = (1 + sqrt(5)) / 2
Matrix = NDArray[np.float64]
unit = st.floats(0, 1)


def mixed(own: Matrix, gamma: float, a_left: float, left: Matrix, a_right: float, right: Matrix) -> Matrix:
    """What the runtime's blend makes of three vectors."""
    peer: Any = SimpleNamespace(extractor=torch.tensor(own, dtype=torch.float32))
    both = [Received(torch.tensor(v, dtype=torch.float32), {}) for v in (left, right)]
    ring_blend(peer, gamma, a_left, both[0], a_right, both[1])
    return peer.extractor.double().numpy()


def mixing(peers: int, gamma: float, a_left: float, a_right: float) -> Matrix:
    """Row i: how much of everyone's vector peer i has after one blend."""
    eye = np.eye(peers)
    rows = [mixed(eye[i], gamma, a_left, eye[i - 1], a_right, eye[(i + 1) % peers]) for i in range(peers)]
    return np.stack(rows)


def test_left_and_right_weights_are_the_golden_ratio_s() -> None:
    assert pytest.approx(1 / GOLDEN) == ALPHA == pytest.approx(0.618034, abs=1e-6)
    assert pytest.approx(1 / GOLDEN**2) == BETA == pytest.approx(0.381966, abs=1e-6)


@settings(deadline=None)
@given(gamma=unit, seed=st.integers(0, 99), size=st.sampled_from([1, 3, 65_536, 65_537, 140_000]))
def test_blend_is_equation_5(gamma: float, seed: int, size: int) -> None:
    own, left, right = np.random.default_rng(seed).standard_normal((3, size))
    expected = gamma * own + (1 - gamma) * (left / GOLDEN + right / GOLDEN**2)
    np.testing.assert_allclose(mixed(own, gamma, ALPHA, left, BETA, right), expected, atol=2e-6)


def test_equal_accuracies_do_not_give_the_golden_ratio() -> None:
    assert gated_weights(0.8, 0.8, 0.35) == pytest.approx((0.559, 0.441), abs=5e-4)


@pytest.mark.parametrize(("left", "right"), [(0.34, 0.34), (0.0, 0.3499), (float("nan"), 0.2)])
def test_two_neighbours_below_the_gate_change_nothing(left: float, right: float) -> None:
    assert gated_weights(left, right, 0.35) is None


def test_the_gate_is_open_at_tau_itself() -> None:
    assert gated_weights(0.35, 0.1, 0.35) == pytest.approx((ALPHA / 2 + 0.5, BETA / 2))
    assert gated_weights(0.1, 0.35, 0.35) == pytest.approx((ALPHA / 2, BETA / 2 + 0.5))


@pytest.mark.parametrize("claim", [1.5, 1e6, 1e308, float("inf")])
def test_an_accuracy_above_one_counts_as_one(claim: float) -> None:
    assert gated_weights(claim, 0.9, 0.35) == gated_weights(1.0, 0.9, 0.35)
    assert gated_weights(claim, claim, 0.35) == gated_weights(1.0, 1.0, 0.35)


def test_without_a_gate_two_peers_that_are_always_wrong_change_nothing() -> None:
    assert gated_weights(0.0, 0.0, 0.0) is None


@settings(deadline=None)
@given(left=unit, right=unit, tau=unit)
def test_gated_weights_are_equations_6_and_7(left: float, right: float, tau: float) -> None:
    g = np.array([left, right]) * (np.array([left, right]) >= tau)
    weights = gated_weights(left, right, tau)
    if g.sum() < 1e-8:
        assert weights is None
    else:
        np.testing.assert_allclose(weights, np.array([ALPHA, BETA]) / 2 + g / g.sum() / 2, atol=1e-12)
        assert sum(weights or ()) == pytest.approx(1)


def test_a_tenth_of_gamma_is_not_what_a_peer_keeps_after_all_passes() -> None:
    """The paper has the self-weight after K passes equal γ_r; the neighbours' answers bring much of it back."""
    weights = gated_weights(0.9, 0.9, 0.35)
    assert weights
    once = mixing(10, 0.05 ** (1 / 5), *weights)
    assert np.linalg.matrix_power(once, 5)[0, 0] == pytest.approx(0.2573, abs=1e-4)


def test_asymmetry_widens_the_gap() -> None:
    """Lemma 5.1 says that it tightens it: |λ_k|² grows by (1−γ)²(α−β)² sin²θ_k."""
    peers, gamma = 9, 0.5
    theta = 2 * np.pi * np.arange(peers) / peers
    # A circulant matrix's eigenvalues are the Fourier transform of its first column.
    golden = abs(np.fft.fft(mixing(peers, gamma, ALPHA, BETA)[:, 0])) ** 2
    uniform = abs(np.fft.fft(mixing(peers, gamma, 0.5, 0.5)[:, 0])) ** 2
    growth = (1 - gamma) ** 2 * (ALPHA - BETA) ** 2 * np.sin(theta) ** 2
    np.testing.assert_allclose(golden - uniform, growth, atol=1e-6)


def test_passes_in_place_would_weigh_peers_unequally() -> None:
    """Why all passes are Jacobi: N = 5, K = 3, γ_r = .05; in place, what is kept of a peer is .59 to 1.55."""
    gamma, now = 0.05 ** (1 / 3), np.eye(5)
    for _ in range(3):
        for i in range(5):
            now[i] = mixed(now[i], gamma, ALPHA, now[i - 1], BETA, now[(i + 1) % 5])
    assert sorted(now.sum(0))[::4] == pytest.approx([0.59, 1.55], abs=0.005)
    jacobi = np.linalg.matrix_power(mixing(5, gamma, ALPHA, BETA), 3)
    np.testing.assert_allclose(jacobi.sum(0), 1, atol=1e-6)
