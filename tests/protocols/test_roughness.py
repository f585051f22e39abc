"""The Roughness Index on functions of which it is known."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from peer.protocols.ri_fedavg import normalised_variation, roughness

AXES = torch.eye(3, dtype=torch.float64)
ORIGIN = torch.zeros(3, dtype=torch.float64)


def test_a_loss_that_is_monotone_along_all_directions_is_not_rough() -> None:
    def loss(w: Tensor) -> float:
        return float(w[0] ** 3 + 2 * w[1] - w[2])

    assert roughness(loss, ORIGIN, AXES, 0.5, 19) == pytest.approx(0, abs=1e-12)


def test_of_a_valley_each_direction_counts_twice() -> None:
    """f turns back in the middle: TV = 2A. Along the other two it is monotone: T is 2, 1 and 1 over 2l."""

    def loss(w: Tensor) -> float:
        return float(w[0] ** 2 + w[1] - 3 * w[2])

    expected = np.std([2, 1, 1]) / np.mean([2, 1, 1])
    for length in (0.01, 1.0):
        assert roughness(loss, ORIGIN, 7 * AXES, length, 18) == pytest.approx(expected)


def test_a_constant_loss_counts_as_monotone() -> None:
    assert normalised_variation([2.5] * 20, 0.01) == 1 / 0.02
    assert roughness(lambda w: 2.5, ORIGIN, AXES, 0.01, 19) == 0
    expected = np.std([2, 1, 1]) / np.mean([2, 1, 1])  # constant along two of three
    assert roughness(lambda w: float(w[0] ** 2), ORIGIN, AXES, 1.0, 18) == pytest.approx(expected)


def test_the_length_of_a_direction_does_not_matter_and_the_ends_are_looked_at() -> None:
    seen: list[float] = []

    def loss(w: Tensor) -> float:
        seen.append(float(w[1]))
        return math.sin(float(w[1]))

    roughness(loss, ORIGIN, [5 * AXES[1]], 2.0, 4)
    assert seen == [-2, -1, 0, 1, 2]


@given(values=st.lists(st.floats(-1e6, 1e6), min_size=2, max_size=30), length=st.floats(1e-3, 1e3))
def test_a_function_varies_by_at_least_its_amplitude(values: list[float], length: float) -> None:
    found = normalised_variation(values, length) * 2 * length
    assert 1 - 1e-9 <= found <= (len(values) - 1) * (1 + 1e-9)


@given(factor=st.floats(1e-3, 1e3), shift=st.floats(-10, 10), seed=st.integers(0, 1000))
def test_scale_and_offset_of_the_loss_do_not_matter(factor: float, shift: float, seed: int) -> None:
    values = np.random.default_rng(seed).normal(size=20)
    scaled = normalised_variation(list(factor * values + shift), 0.5)
    assert scaled == pytest.approx(normalised_variation(list(values), 0.5), rel=1e-6)
