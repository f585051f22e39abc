"""One class a sample."""

from collections.abc import Sequence
from typing import ClassVar, Literal

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from peer.errors import InputError
from peer.learning.tasks.base import Figure, Targets, Task

# More classes than this, and more than there are samples, are row numbers or hashes taken for labels.
_MANY_CLASSES = 1000


class Classification(Task):
    """Cross entropy of logits (n, classes) and labels int64 (n,); the answer is the class of the largest logit."""

    name: Literal["classification"] = "classification"
    """One class a sample."""

    figures: ClassVar[tuple[Figure, ...]] = (Figure("accuracy"),)
    has_classes: ClassVar[bool] = True

    def targets(self, y: Targets, where: str, name: str) -> Targets:
        if y.ndim == 2 and y.shape[1] == 1:
            y = y[:, 0]
        if y.ndim != 1:
            raise InputError(f"{where}: {name} must be of shape (n,), one label a sample, not {y.shape}")
        if y.dtype.kind not in "biu":
            raise InputError(f"{where}: the labels in {name} must be integers from 0, but they are {y.dtype}")
        labels = y.astype(np.int64)
        if len(labels) and labels.min() < 0:
            raise InputError(f"{where}: the labels in {name} must not be negative, but sample "
                             f"{int(labels.argmin())} has {int(labels.min())}")  # fmt: skip
        return labels

    def outputs(self, parts: Sequence[Targets], given: int | None, where: str) -> int:
        largest, samples = max(int(labels.max(initial=0)) for labels in parts), len(parts[0])
        if given is not None and largest >= given:
            raise InputError(f"{where}: label {largest} does not fit {given} classes, numbered from 0")
        if largest >= max(_MANY_CLASSES, samples):
            raise InputError(
                f"{where}: label {largest} among {samples} samples is no class number; number the classes from 0"
            )
        return given or largest + 1

    def outputs_in_words(self, count: int) -> str:
        return f"{count} classes"

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return functional.cross_entropy(outputs, targets)

    def tally(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return (outputs.argmax(1) == targets)[:, None]

    def answers(self, outputs: Tensor) -> Tensor:
        return outputs.argmax(1)

    def misfit(self, outputs: object, targets: Tensor, classes: int) -> str | None:
        if not isinstance(outputs, Tensor):
            return f"one tensor of logits, not a {type(outputs).__name__}"
        if outputs.shape != (len(targets), classes) or outputs.dtype != torch.float32:
            kind = str(outputs.dtype).removeprefix("torch.")
            return f"{classes} float32 logits, and gives {tuple(outputs.shape[1:])} of {kind}"
        return None
