"""Metrics against independent arithmetic, with the edge cases where a formula is undefined."""

import itertools
import statistics

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from peer.learning.training import metrics

shares = st.lists(st.floats(0, 1), min_size=1, max_size=12)


@given(shares)
def test_mean_and_worst(accuracies: list[float]) -> None:
    assert metrics.mean(accuracies) == pytest.approx(statistics.fmean(accuracies))
    assert metrics.worst(accuracies) == min(accuracies)


@given(shares)
def test_gini_is_the_mean_difference_over_twice_the_mean(accuracies: list[float]) -> None:
    pairs = sum(abs(a - b) for a, b in itertools.product(accuracies, repeat=2))
    total = sum(accuracies)
    expected = 0.0 if total == 0 else pairs / (2 * len(accuracies) * total)
    assert metrics.gini(accuracies) == pytest.approx(expected, abs=1e-9)


@pytest.mark.parametrize(
    ("accuracies", "expected"),
    [([0.7, 0.7, 0.7], 0.0), ([0.0, 0.0], 0.0), ([0.4], 0.0), ([0.0, 1.0], 0.5), ([0.2, 0.4, 0.9], 14 / 45)],
)
def test_gini_known_values(accuracies: list[float], expected: float) -> None:
    assert metrics.gini(accuracies) == pytest.approx(expected)
    assert metrics.gini(accuracies) >= 0


def test_gini_of_equal_accuracies_is_zero_to_the_last_bit() -> None:
    assert {metrics.gini([n / 97] * peers) for peers in range(1, 12) for n in range(98)} == {0.0}


def test_r50_is_the_first_round_at_one_half() -> None:
    assert metrics.r50([0.1, 0.5, 0.4, 0.9]) == 2
    assert metrics.r50([0.6]) == 1
    assert metrics.r50([0.1, 0.49999]) is None
    assert metrics.r50([]) is None


@pytest.mark.parametrize(
    ("means", "tail"),
    [([0.3], [0.3]), ([0.1, 0.3], [0.3]), ([0.1, 0.2, 0.6], [0.2, 0.6]), ([0.0, 0.1, 0.5, 0.9], [0.5, 0.9])],
)
def test_plateau_sigma_takes_the_rounds_after_half(means: list[float], tail: list[float]) -> None:
    assert metrics.plateau_sigma(means) == pytest.approx(statistics.pstdev(tail))


def test_collaboration_gain_and_its_spread() -> None:
    together, solo = [0.9, 0.6, 0.7], [0.5, 0.7, 0.6]
    gains = [0.4, -0.1, 0.1]
    assert metrics.mcg(together, solo) == pytest.approx(statistics.fmean(gains))
    assert metrics.cgs(together, solo) == pytest.approx(statistics.stdev(gains))
    assert metrics.cgs([0.9], [0.5]) is None
    with pytest.raises(ValueError, match="paired"):
        metrics.mcg([0.9], [0.5, 0.6])


@given(st.lists(st.tuples(st.integers(-99, 99), st.integers(-99, 99)), min_size=2, max_size=9))
def test_pearson_agrees_with_the_definition(pairs: list[tuple[int, int]]) -> None:
    xs, ys = [float(x) for x, _ in pairs], [float(y) for _, y in pairs]
    result = metrics.pearson(xs, ys)
    if len(set(xs)) == 1 or len(set(ys)) == 1:
        assert result is None
    else:
        assert result == pytest.approx(statistics.correlation(xs, ys), abs=1e-9)


@pytest.mark.parametrize("xs", [[], [0.5], [0.1, 0.1, 0.1], [0.7] * 7])
def test_pearson_is_undefined_without_variation(xs: list[float]) -> None:
    assert metrics.pearson(xs, [float(i) for i in range(len(xs))]) is None


def test_pearson_of_tiny_differences() -> None:
    assert metrics.pearson([0.5, 0.5 + 1e-12, 0.5 + 2e-12], [1e-200, 2e-200, 3e-200]) == pytest.approx(1, abs=1e-3)


def test_recalls_and_what_is_made_of_them() -> None:
    labels = np.array([0, 0, 0, 0, 1, 1, 3])
    predictions = np.array([0, 0, 0, 1, 1, 3, 2])
    recall = metrics.recalls(predictions == labels, labels, classes=4)
    np.testing.assert_array_equal(recall, [0.75, 0.5, np.nan, 0.0])
    assert metrics.balanced_accuracy(recall) == pytest.approx((0.75 + 0.5 + 0.0) / 3)
    # Class 2 has no test samples, so its share of 0.4 is spread over the others: q = (1/3, 2/3, -, 0).
    assert metrics.matched_accuracy(recall, np.array([0.2, 0.4, 0.4, 0.0])) == pytest.approx(0.75 / 3 + 0.5 * 2 / 3)


def test_matched_accuracy_takes_counts_and_can_be_undefined() -> None:
    recall = np.array([0.5, 1.0, np.nan])
    assert metrics.matched_accuracy(recall, np.array([30, 10, 5])) == pytest.approx(0.625)
    assert metrics.matched_accuracy(recall, np.array([0, 0, 5])) is None
    assert metrics.balanced_accuracy(np.array([np.nan, np.nan])) is None


@given(st.integers(0, 2**32 - 1))
def test_matched_on_the_whole_set_is_plain_accuracy(seed: int) -> None:
    rng = np.random.default_rng(seed)
    labels, predictions = rng.integers(0, 5, 40), rng.integers(0, 5, 40)
    recall = metrics.recalls(predictions == labels, labels, 5)
    matched = metrics.matched_accuracy(recall, np.bincount(labels, minlength=5))
    assert matched == pytest.approx((labels == predictions).mean())


def test_weight_divergence_by_hand() -> None:
    weights = [np.array([1.0, 0.0, 0.0]), np.array([2.0, 0.0, 3.0]), np.array([4.0, 0.0, 3.0])]
    np.testing.assert_allclose(metrics.weight_divergence(weights), [(1 + 3 + 2) / 3, 0, (3 + 3 + 0) / 3])


@pytest.mark.parametrize("block", [1, 7, 1 << 22])
def test_divergence_of_float32_is_computed_in_float64(monkeypatch: pytest.MonkeyPatch, block: int) -> None:
    monkeypatch.setattr(metrics, "BLOCK", block)
    rng = np.random.default_rng(1)
    weights = [rng.normal(size=(4, 3)).astype(np.float32) for _ in range(5)]
    expected = np.mean(
        [np.abs(a.astype(float) - b.astype(float)) for a, b in itertools.combinations(weights, 2)], axis=0
    )
    result = metrics.weight_divergence(weights)
    assert result.dtype == np.float64
    np.testing.assert_allclose(result, expected, rtol=1e-12)


def test_of_equal_models_the_divergence_is_nothing_to_the_bit() -> None:
    assert not metrics.weight_divergence([np.array([0.1, 1e9, -1e-30], np.float32)] * 10).any()


def test_metrics_of_nothing_are_refused() -> None:
    for metric in (metrics.mean, metrics.worst, metrics.gini, metrics.plateau_sigma):
        with pytest.raises(ValueError, match="no values"):
            metric([])
    with pytest.raises(ValueError, match="at least two peers"):
        metrics.weight_divergence([np.zeros(3)])
