"""Every built-in task's figures are those of its formula, written down again in NumPy, whatever the batches."""

from collections.abc import Sequence

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from peer.learning.tasks import LanguageModel, Multilabel, Regression, Segmentation, Task

IGNORED = 9
SPACES = ((3, 2), (2, 3, 2))
"""Sizes of an image, and of a volume."""


def figures(task: Task, outputs: Tensor, targets: Tensor, batch: int) -> dict[str, float]:
    pairs = zip(torch.split(outputs, batch), torch.split(targets, batch), strict=True)
    rows = torch.cat([task.tally(some, wanted) for some, wanted in pairs]).double()
    return task.judge(rows.numpy())


def drawn(seed: int, *shape: int) -> Tensor:
    return torch.from_numpy(np.random.default_rng(seed).normal(size=shape).astype(np.float32))


def numbers(seed: int, high: int, *shape: int) -> Tensor:
    return torch.from_numpy(np.random.default_rng(seed).integers(0, high, size=shape))


seeds, samples, widths, batches = st.integers(0, 2**32), st.integers(1, 12), st.integers(1, 4), st.integers(1, 13)
few = settings(max_examples=60, deadline=None)


@few
@given(seeds, samples, widths, batches)
def test_of_labels(seed: int, n: int, labels: int, batch: int) -> None:
    outputs, targets = drawn(seed, n, labels), numbers(seed + 1, 2, n, labels).float()
    found, true = outputs.numpy() > 0, targets.numpy() > 0
    precision = (found & true).sum() / found.sum() if found.any() else 0.0
    recall = (found & true).sum() / true.sum() if true.any() else 0.0
    f1 = 2 * precision * recall / (precision + recall) if precision + recall else float(not (found | true).any())
    wanted = {"f1": f1, "exact": float((found == true).all(1).mean())}
    assert figures(Multilabel(name="multilabel"), outputs, targets, batch) == pytest.approx(wanted)


@few
@given(seeds, st.integers(2, 12), widths, batches, st.sampled_from([0.0, 1e3]), st.sampled_from([1.0, 1e-2, 100.0]))
def test_of_numbers(seed: int, n: int, columns: int, batch: int, at: float, scale: float) -> None:
    outputs, targets = at + scale * drawn(seed, n, columns), at + scale * drawn(seed + 1, n, columns)
    y, wrong = targets.numpy().astype(np.float64), (outputs.double() - targets.double()).numpy()
    wanted = {
        "rmse": np.sqrt((wrong**2).mean()),
        "mae": np.abs(wrong).mean(),
        "r2": (1 - (wrong**2).sum(0) / ((y - y.mean(0)) ** 2).sum(0)).mean(),
    }
    assert figures(Regression(name="regression"), outputs, targets, batch) == pytest.approx(wanted, rel=1e-4)


def test_of_numbers_whose_mean_is_far_above_their_deviation() -> None:
    outputs, targets = 1e7 + drawn(1, 300, 2), 1e7 + drawn(2, 300, 2)
    y, wrong = targets.numpy().astype(np.float64), (outputs.double() - targets.double()).numpy()
    r2 = (1 - (wrong**2).sum(0) / ((y - y.mean(0)) ** 2).sum(0)).mean()
    assert figures(Regression(name="regression"), outputs, targets, 7)["r2"] == pytest.approx(r2)


@few
@given(seeds, st.integers(1, 5), widths, st.integers(1, 6), st.booleans(), st.booleans(), st.sampled_from(SPACES))
def test_of_masks(
    seed: int, n: int, classes: int, batch: int, background: bool, ignores: bool, space: tuple[int, ...]
) -> None:
    outputs, targets = drawn(seed, n, classes, *space), numbers(seed + 1, classes, n, *space)
    if ignores:
        targets[numbers(seed + 2, 2, n, *space) == 1] = IGNORED
    task = Segmentation(name="segmentation", background=background, ignore=IGNORED if ignores else None)
    kept = targets.numpy() != IGNORED
    found, true = outputs.argmax(1).numpy()[kept], targets.numpy()[kept]
    overlaps = [
        (((found == c) & (true == c)).sum(), (found == c).sum() + (true == c).sum(), ((found == c) | (true == c)).sum())
        for c in range(0 if background else 1, classes)
    ]
    counted = [one for one in overlaps if one[2]]
    wanted = {
        "dice": mean([2 * both / sizes for both, sizes, _ in counted]),
        "iou": mean([both / either for both, _, either in counted]),
        "pixels": mean(list(found == true)),
    }
    assert figures(task, outputs, targets, batch) == pytest.approx(wanted)
    told = task.of_classes(task.tally(outputs, targets).double().sum(0))
    for name, which in {"dice": 1, "iou": 2}.items():
        each = [(1 + (name == "dice")) * one[0] / one[which] if one[2] else np.nan for one in overlaps]
        assert told[name][0 if background else 1 :].numpy() == pytest.approx(np.array(each), nan_ok=True)
        assert len(told[name]) == classes


@few
@given(seeds, samples, st.integers(1, 5), st.integers(2, 5), batches, st.booleans())
def test_of_tokens(seed: int, n: int, length: int, words: int, batch: int, ignores: bool) -> None:
    outputs, targets = drawn(seed, n, length, words), numbers(seed + 1, words, n, length)
    if ignores:
        targets[numbers(seed + 2, 2, n, length) == 1] = -100
    asked = targets.numpy() >= 0
    scores, true = outputs.numpy().astype(np.float64)[asked], targets.numpy()[asked]
    log = scores - np.log(np.exp(scores).sum(1, keepdims=True))
    entropy = -np.mean([log[i, word] for i, word in enumerate(true)]) if len(true) else 0.0
    wanted = {"perplexity": np.exp(entropy), "accuracy": mean(list(scores.argmax(1) == true))}
    task = LanguageModel(name="language-model", vocabulary=words)
    assert figures(task, outputs, targets, batch) == pytest.approx(wanted, rel=1e-4)
    assert task.score(figures(task, outputs, targets, batch)) == pytest.approx(np.exp(-entropy), rel=1e-4)


@pytest.mark.parametrize("space", SPACES)
def test_soft_dice(space: tuple[int, ...]) -> None:
    task = Segmentation(name="segmentation", dice_weight=2.0, ignore=IGNORED)
    outputs, targets = drawn(1, 4, 3, *space), numbers(2, 3, 4, *space)
    targets[0] = IGNORED
    scores = np.exp(outputs.double().numpy())
    shares = np.moveaxis(scores / scores.sum(1, keepdims=True), 1, -1)[1:].reshape(-1, 3)
    true = np.eye(3)[targets.numpy()[1:].reshape(-1)]
    entropy = -np.log((shares * true).sum(1)).mean()
    dice = (2 * (shares * true).sum(0) + 1) / ((shares + true).sum(0) + 1)
    assert float(task.loss(outputs, targets)) == pytest.approx(entropy + 2 * (1 - dice.mean()), rel=1e-5)


def mean(values: Sequence[float]) -> float:
    return float(np.mean(values)) if values else 1.0
