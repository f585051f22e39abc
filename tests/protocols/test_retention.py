"""How much FibFL++ retains: the cosine schedule (FIRMA, Eq. 10), counted from the first round after warm-up."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from peer.protocols.fibfl_plus_plus import FibFLPlusPlus


def gammas(rounds: int, **settings: Any) -> list[float]:
    protocol = FibFLPlusPlus(**settings)
    return [protocol.gamma(r, rounds) for r in range(protocol.warmup_rounds(rounds) + 1, rounds + 1)]


def test_retention_schedule_of_ten_rounds() -> None:
    published = [0.4, 0.3867, 0.3487, 0.292, 0.225, 0.158, 0.1013, 0.0633, 0.05]
    assert gammas(10) == pytest.approx(published, abs=5e-5)


@pytest.mark.parametrize(
    ("rounds", "warmup", "expected"),
    [
        (1, None, []),
        (2, None, [0.4]),
        (3, None, [0.4, 0.05]),
        (1, 0, [0.4]),
        (2, 0, [0.4, 0.05]),
        (3, 0, [0.4, 0.225, 0.05]),
        (4, 9, []),
    ],
)
def test_retention_schedule_of_short_runs(rounds: int, warmup: int | None, expected: list[float]) -> None:
    assert gammas(rounds, warmup=warmup) == pytest.approx(expected)


@given(rounds=st.integers(1, 200), start=st.floats(0.01, 1), end=st.floats(0.01, 1))
def test_retention_is_equation_10(rounds: int, start: float, end: float) -> None:
    warm = max(1, rounds // 6)
    expected = [
        end + (start - end) / 2 * (1 + np.cos(np.pi * r / max(rounds - warm - 1, 1))) for r in range(rounds - warm)
    ]
    assert gammas(rounds, gamma_start=start, gamma_end=end) == pytest.approx(expected)
