"""The numbers a run is judged by: pure functions of accuracies, recalls and weights.

Accuracies are shares in 0..1, one a peer or one a round. A metric that is undefined for its input is None.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from math import comb
from typing import Any

import numpy as np
from numpy.typing import NDArray

Real = NDArray[np.floating[Any] | np.integer[Any]]
Float64 = NDArray[np.float64]
BLOCK = 1 << 22
"""Values of all peers that are sorted at a time."""


def mean(accuracies: Sequence[float]) -> float:
    """Mean over the peers."""
    return float(np.mean(_some(accuracies)))


def worst(accuracies: Sequence[float]) -> float:
    """The accuracy of the worst peer."""
    return float(np.min(_some(accuracies)))


def gini(accuracies: Sequence[float]) -> float:
    """Gini coefficient 2 Σ i·x_(i) / (N Σx) − (N+1)/N, x ascending, i from 1; 0 if all are equal."""
    x = np.sort(_some(accuracies))
    total = x.sum()
    if x[0] == x[-1]:  # which rounding may hide
        return 0.0
    n = len(x)
    # Rounding can take accuracies that are all but equal just below zero.
    return max(0.0, float(2 * (np.arange(1, n + 1) * x).sum() / (n * total) - (n + 1) / n))


def r50(means: Sequence[float]) -> int | None:
    """The first round, from 1, whose mean accuracy is at least one half; None when there is none."""
    return next((number for number, value in enumerate(means, start=1) if value >= 0.5), None)


def plateau_sigma(means: Sequence[float]) -> float:
    """Population standard deviation of the mean accuracies of the rounds after floor(R/2), of rounds 1..R."""
    return float(np.std(_some(means)[len(means) // 2 :]))


def mcg(accuracies: Sequence[float], solo: Sequence[float]) -> float:
    """Mean collaboration gain: the mean over the peers of accuracy minus accuracy alone (CYCle)."""
    return float(np.mean(_gains(accuracies, solo)))


def cgs(accuracies: Sequence[float], solo: Sequence[float]) -> float | None:
    """Collaboration gain spread: the gains' standard deviation with N−1 (CYCle); None for one peer."""
    gains = _gains(accuracies, solo)
    return float(np.std(gains, ddof=1)) if len(gains) > 1 else None


def pearson(xs: Sequence[float], ys: Sequence[float]) -> float | None:
    """Pearson's correlation in −1..1; None for fewer than two pairs or where either side is constant."""
    x, y = _pair(xs, ys)
    # Equality, not a zero deviation: the mean of equal numbers need not be that number to the last bit.
    if len(x) < 2 or np.all(x == x[0]) or np.all(y == y[0]):
        return None
    x, y = x - x.mean(), y - y.mean()
    # Scaled first, so that the squares of tiny deviations do not vanish.
    x, y = x / np.abs(x).max(), y / np.abs(y).max()
    return float(np.clip(x @ y / np.sqrt((x @ x) * (y @ y)), -1.0, 1.0))


def recalls(correct: NDArray[np.bool_], labels: Real, classes: int) -> Float64:
    """Share of each class's samples that were recognised, float64 (classes,); NaN for classes without any.

    `correct` says of each sample whether it was, `labels` its class's number; both (n,).
    """
    return _ratio(np.bincount(labels[correct], minlength=classes), np.bincount(labels, minlength=classes))


def balanced_accuracy(recall: Float64) -> float | None:
    """Mean recall over the classes that have test samples; `recall` as from `recalls`."""
    tested = ~np.isnan(recall)
    return float(recall[tested].mean()) if tested.any() else None


def matched_accuracy(recall: Float64, proportions: Real) -> float | None:
    """Σ_c q_c·recall_c over the classes with test samples, q renormalised over them.

    `recall` as from `recalls`; `proportions` (classes,) are the peer's class shares or counts. None when no
    class of the peer has test samples.
    """
    tested = ~np.isnan(recall)
    q = np.asarray(proportions, dtype=np.float64)[tested]
    return float(q @ recall[tested] / q.sum()) if q.sum() > 0 else None


CALIBRATION_BINS = 15


def auroc(held: Real, alike: Real) -> float:
    """Area under the ROC curve: the share of pairs of a positive and a negative sample in which the positive has the
    higher score, ties counting half; NaN without one of both. Both arguments (scores,): how many samples with each
    score, ascending, are positive, and how many there are."""
    positive, negative = held.sum(), (alike - held).sum()
    if not (positive and negative):
        return np.nan
    ranks = np.cumsum(alike) - (alike - 1) / 2
    return float(((ranks * held).sum() - positive * (positive + 1) / 2) / (positive * negative))


def average_precision(held: Real, alike: Real) -> float:
    """Σ_k (R_k − R_{k−1})·P_k over the thresholds k, each score once, descending, with precision P and recall R; NaN
    without a positive sample. Both arguments as of `auroc`."""
    if not held.any():
        return np.nan
    hits, taken = np.cumsum(held[::-1]), np.cumsum(alike[::-1])
    return float(np.diff(hits, prepend=0) @ (hits / np.maximum(taken, 1)) / hits[-1])


def calibration_error(confidence: Float64, correct: NDArray[np.bool_]) -> float:
    """Expected calibration error: the mean over the samples of |accuracy − mean confidence| in their bin, of 15 equal
    ones in 0..1 (Guo et al., 2017, Eq. 3); NaN if one is NaN. Both arguments (n,)."""
    if np.isnan(confidence).any():
        return np.nan
    bins = np.clip(np.ceil(confidence * CALIBRATION_BINS).astype(int) - 1, 0, CALIBRATION_BINS - 1)
    right, sure = (np.bincount(bins, one, CALIBRATION_BINS) for one in (correct.astype(np.float64), confidence))
    return float(np.abs(right - sure).sum() / len(confidence))


@dataclass(frozen=True)
class Judged:
    """What a classifier says of samples: its scores, (n, classes); the true classes and those that it says, one-hot,
    bool (n, classes)."""

    scores: Float64
    true: NDArray[np.bool_]
    said: NDArray[np.bool_]

    def figure(self, name: str) -> float:
        """A figure by its name: of two classes that of the second, the positive one; else the mean over the classes for
        which it is defined. NaN where it is defined for none."""
        if name == "calibration-error":
            return calibration_error(self.scores.max(1), np.any(self.true & self.said, axis=1))
        figures = self.of_classes(ranked=name in ("auroc", "average-precision"))
        of_classes = figures["sensitivity" if name == "balanced-accuracy" else name]
        if len(of_classes) == 2 and name != "balanced-accuracy":
            return float(of_classes[1])
        known = of_classes[~np.isnan(of_classes)]
        return float(known.mean()) if len(known) else np.nan

    def of_classes(self, among: NDArray[np.int64] | slice = slice(None), ranked: bool = True) -> dict[str, Float64]:
        """Each figure of each class against all others, (classes,), on the samples at some positions; NaN where it is
        not defined. ranked: also those for which samples are sorted by their scores."""
        true, said = self.true[among], self.said[among]
        held, found, hits = true.sum(0), said.sum(0), (true & said).sum(0)
        absent = len(true) - held
        shares = {
            "sensitivity": _ratio(hits, held),
            "specificity": _ratio(absent - (found - hits), absent),
            "precision": _ratio(hits, found),
            "f1": _ratio(2 * hits, np.where(held > 0, held + found, 0)),
        }
        if not ranked:
            return shares
        times = np.bincount(np.arange(len(self.true))[among], minlength=len(self.true))
        counts = [(np.bincount(place, times * true), np.bincount(place, times)) for place, true in self._places]
        areas = {"auroc": auroc, "average-precision": average_precision}
        return shares | {name: np.array([area(*one) for one in counts]) for name, area in areas.items()}

    @cached_property
    def _places(self) -> list[tuple[NDArray[np.int64], NDArray[np.bool_]]]:
        """Of each class the number of each sample's score among the different ones, ascending, and whether the sample
        is of it; none is if a score is NaN. Sorted once, however often samples are drawn."""
        known = zip(self.scores.T, (self.true & ~np.isnan(self.scores).any(0)).T, strict=True)
        return [(np.unique(scores, return_inverse=True)[1], true) for scores, true in known]

    @property
    def confusion(self) -> tuple[tuple[int, ...], ...]:
        """How many samples of class i are taken for class j."""
        return tuple(map(tuple, (self.true.T.astype(np.float64) @ self.said).astype(int).tolist()))


def _ratio(part: Real, whole: Real) -> Float64:
    """NaN where the whole is 0."""
    found = np.full(np.shape(whole), np.nan)
    np.divide(part, whole, out=found, where=np.asarray(whole) > 0)
    return found


def weight_divergence(weights: Sequence[Real]) -> Float64:
    """Mean over all pairs of peers of |w_i − w_j|, parameter by parameter (FedISP Eq. 11).

    Of N peers, k(N − k) pairs lie on either side of the gap between a parameter's k-th and next value: a thousand have
    half a million pairs and 999 gaps.
    """
    if len(weights) < 2:
        raise ValueError("a divergence needs at least two peers")
    k = np.arange(1, len(weights))
    pairs_across = (k * (len(weights) - k)).astype(np.float64)
    found = np.empty(np.shape(weights[0]))
    flat, columns = [np.reshape(one, -1) for one in weights], max(1, BLOCK // len(weights))
    for start in range(0, found.size, columns):
        part = np.stack([one[start : start + columns] for one in flat]).astype(np.float64)
        part.sort(axis=0)
        found.reshape(-1)[start : start + columns] = pairs_across @ np.diff(part, axis=0)
    return found / comb(len(weights), 2)


def _some(values: Sequence[float]) -> Float64:
    if len(values) == 0:
        raise ValueError("a metric of no values at all")
    return np.asarray(values, dtype=np.float64)


def _pair(xs: Sequence[float] | Float64, ys: Sequence[float]) -> tuple[Float64, Float64]:
    if len(xs) != len(ys):
        raise ValueError(f"{len(xs)} values cannot be paired with {len(ys)}")
    return np.asarray(xs, dtype=np.float64), np.asarray(ys, dtype=np.float64)


def _gains(accuracies: Sequence[float], solo: Sequence[float]) -> Float64:
    together, alone = _pair(_some(accuracies), solo)
    return together - alone
