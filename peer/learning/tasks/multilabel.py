"""Any number of labels a sample: each holds or not."""

from typing import Any, ClassVar, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from peer.errors import InputError
from peer.learning.tasks.base import Figure, Targets, Task
from peer.learning.tasks.trial import misshapen


class Multilabel(Task):
    """Binary cross entropy of logits (n, labels) and targets float32 (n, labels) of 0 and 1, the mean over both; the
    answer is which logits are positive, bool.

    `f1` is the micro-average 2·TP / (2·TP + FP + FN) over all labels of all samples, 1 where none holds and none is
    found: defined for labels that no test sample has, too. `exact` is the share of samples with all labels right.
    """

    name: Literal["multilabel"]
    """Any number of labels a sample; targets are 0 and 1, a column a label."""

    figures: ClassVar[tuple[Figure, ...]] = (Figure("f1"), Figure("exact"))

    def targets(self, y: Targets, where: str, name: str) -> Targets:
        labels = super().targets(y, where, name).astype(np.float32)
        if labels.ndim == 1:
            labels = labels[:, None]
        if labels.ndim != 2:
            raise InputError(f"{where}: {name} must be of shape (n, k), a row of labels a sample, not {y.shape}")
        wrong = np.flatnonzero(((labels != 0) & (labels != 1)).any(1))
        if len(wrong):
            raise InputError(f"{where}: the labels in {name} must be 0 or 1, but sample {wrong[0]} has another number")
        return labels

    def kinds(self, outputs: int) -> int:
        return outputs

    def mix(self, targets: Targets, outputs: int) -> NDArray[Any]:
        return targets.sum(0, dtype=np.float64)  # type: ignore[no-any-return]

    def outputs_in_words(self, count: int) -> str:
        return f"{count} label{'s' * (count != 1)}"

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return functional.binary_cross_entropy_with_logits(outputs, targets)

    def tally(self, outputs: Tensor, targets: Tensor) -> Tensor:
        found, true = outputs > 0, targets > 0
        hits, misses = (found & true).sum(1), (found ^ true).sum(1)
        return torch.stack([hits, misses, misses == 0], 1)

    def results(self, sums: Tensor, samples: int) -> dict[str, float]:
        hits, misses, exact = sums.tolist()
        return {"f1": 2 * hits / (2 * hits + misses) if hits + misses else 1.0, "exact": exact / samples}

    def answers(self, outputs: Tensor) -> Tensor:
        return outputs > 0

    def misfit(self, outputs: object, targets: Tensor, classes: int) -> str | None:
        return misshapen(outputs, (classes,), "a logit for each label")
