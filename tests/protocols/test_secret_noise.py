"""Noise from a secret, and what it is worth: distributions by exact tests, ε by published figures and by formulas."""

import sys
from math import exp, inf, lgamma, log, sqrt

import numpy as np
import pytest
import scipy  # its stats are imported where they are first used: that takes seconds
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from peer.errors import InputError
from peer.protocols.blocks.privacy import (
    as_secret,
    draw_secret,
    gaussian_epsilon,
    sampled_epsilon,
    standard_normal,
    stream,
    uniform,
)

SECRET = as_secret(b"a secret of the tests")
UNLIKELY = 1e-9


def test_noise_is_standard_normal() -> None:
    drawn = standard_normal(SECRET, "noise", 3, 200_001).double().numpy()
    assert drawn.shape == (200_001,)
    low, high = scipy.stats.chi2.ppf([UNLIKELY, 1 - UNLIKELY], len(drawn))
    assert low < (drawn**2).sum() < high
    assert abs(drawn.mean()) * sqrt(len(drawn)) < scipy.stats.norm.isf(UNLIKELY)
    assert scipy.stats.kstest(drawn, "norm").pvalue > UNLIKELY


def test_uniform_numbers_are_uniform() -> None:
    drawn = uniform(SECRET, "sample", 3, 100_000)
    assert drawn.min() >= 0
    assert drawn.max() < 1
    assert scipy.stats.kstest(drawn, "uniform").pvalue > UNLIKELY


@settings(deadline=None)
@given(st.integers(1, 300), st.integers(0, 10**6))
def test_a_stream_is_the_same_again_and_unlike_those_of_other_rounds_purposes_and_secrets(
    size: int, round: int
) -> None:
    first = stream(SECRET, "noise", round, size + 16)
    assert stream(SECRET, "noise", round, size + 16) == first
    others = (
        stream(SECRET, "noise", round + 1, size + 16),
        stream(SECRET, "sample", round, size + 16),
        stream(as_secret(b"another"), "noise", round, size + 16),
    )
    assert first not in others


def test_neighbouring_rounds_are_not_correlated() -> None:
    rounds = torch.stack([standard_normal(SECRET, "noise", round, 40_000) for round in range(6)])
    between = torch.corrcoef(rounds)[~torch.eye(6, dtype=torch.bool)]
    assert float(between.abs().max()) * sqrt(40_000) < scipy.stats.norm.isf(UNLIKELY)


def test_every_secret_is_another() -> None:
    drawn = [draw_secret() for _ in range(100)]
    assert {(secret.dtype, tuple(secret.shape)) for secret in drawn} == {(torch.uint8, (32,))}
    assert len({bytes(secret.tolist()) for secret in drawn}) == 100


def test_published_figures() -> None:
    """Opacus' accountants_test.py, by Rényi divergences: ε = 7.329 for z = 1.5, q = .04 and 90 epochs at δ = 1e-5.

    dp-accounting's pld_privacy_accountant_test.py, exactly: ε = 1 at δ = .126936 for three releases with z = √3.
    """
    assert sampled_epsilon(0.04, 1.5, 2250, 1e-5) == pytest.approx(7.32911117143, abs=0.002)
    assert sampled_epsilon(1, sqrt(3), 3, 0.126936) == pytest.approx(1, abs=1e-5)
    assert gaussian_epsilon(1, 0.126936) == pytest.approx(1, abs=1e-5)


@pytest.mark.parametrize(("noise_multiplier", "delta"), [(0.2, 1e-5), (1, 1e-5), (1, 1e-9), (8, 1e-3)])
def test_the_gaussian_s_epsilon_is_where_its_delta_is_met(noise_multiplier: float, delta: float) -> None:
    epsilon = gaussian_epsilon(noise_multiplier, delta)
    half = 1 / (2 * noise_multiplier)
    above = scipy.stats.norm.logcdf(half - epsilon * noise_multiplier)
    below = epsilon + scipy.stats.norm.logcdf(-half - epsilon * noise_multiplier)
    assert exp(above) - exp(below) == pytest.approx(delta, rel=1e-6)


def renyi(rate: float, noise_multiplier: float, order: int) -> float:
    """The Rényi divergence of one Poisson-sampled release, for whole orders: Mironov, Talwar and Zhang 2019."""
    terms = [
        lgamma(order + 1) - lgamma(k + 1) - lgamma(order - k + 1)  # log of the binomial coefficient
        + (k * log(rate) if k else 0) + (order - k) * log(1 - rate)
        + (k * k - k) / (2 * noise_multiplier**2)
        for k in range(order + 1)
    ]  # fmt: skip
    return float(np.logaddexp.reduce(terms)) / (order - 1)


@pytest.mark.parametrize(("rate", "noise_multiplier", "releases"), [(0.1, 1, 10), (0.5, 1, 10), (0.01, 0.7, 1000)])
def test_amplification_is_the_formula_s(rate: float, noise_multiplier: float, releases: int) -> None:
    """Converted by Canonne, Kamath and Steinke 2020, Proposition 12."""
    delta = 1e-5
    bounds = [
        releases * renyi(rate, noise_multiplier, order) + log(1 - 1 / order) - log(delta * order) / (order - 1)
        for order in range(2, 65)
    ]
    assert sampled_epsilon(rate, noise_multiplier, releases, delta) == pytest.approx(min(bounds), rel=1e-6)


@settings(max_examples=8, deadline=None)
@given(st.floats(0.01, 1), st.floats(0.05, 20), st.integers(1, 200))
def test_sampling_never_costs_and_rounds_never_help(rate: float, noise_multiplier: float, releases: int) -> None:
    epsilon = sampled_epsilon(rate, noise_multiplier, releases, 1e-5)
    assert 0 <= epsilon <= gaussian_epsilon(noise_multiplier / sqrt(releases), 1e-5)
    assert epsilon <= sampled_epsilon(rate, noise_multiplier, releases + 1, 1e-5) + 1e-9


def test_without_noise_there_is_no_bound() -> None:
    assert sampled_epsilon(0.5, 0, 1, 1e-5) == inf
    assert gaussian_epsilon(0, 1e-5) == inf


def test_a_missing_accountant_is_told_with_the_way_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "dp_accounting", None)
    with pytest.raises(InputError, match=r"pip install -c constraints.txt 'dfl\[privacy\]'"):
        gaussian_epsilon(1, 1e-5)
