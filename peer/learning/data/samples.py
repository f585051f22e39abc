"""Samples with their targets: what a model trains on, and the data set of which each peer takes only its shard."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from peer.learning.tasks import Classification, Task

Array = NDArray[Any]
Targets = NDArray[Any]
"""(n, ...): int64 (n,), classes from 0, where the task has classes."""
Labels = NDArray[np.int64]
Indices = NDArray[np.int64]


class Batch(NamedTuple):
    """Some samples, on the model's device: their inputs (n, *shape) and targets (n, ...), and which they are."""

    inputs: Tensor
    targets: Tensor
    positions: Tensor
    """int64 (n,), in the peer's samples."""


@dataclass(frozen=True)
class Samples:
    """Samples in memory: `x` (n, *shape) float32, images NCHW, or int64 for tokens; `y` (n, ...), as the task has its
    targets: int64 (n,), classes from 0, for classification."""

    x: Tensor
    y: Tensor

    def __post_init__(self) -> None:
        if self.x.dtype not in (torch.float32, torch.int64) or self.y.dtype not in (torch.float32, torch.int64):
            raise TypeError(f"samples are float32 or int64, not {self.x.dtype} with {self.y.dtype}")
        if len(self.x) != len(self.y):
            raise ValueError(f"{tuple(self.x.shape)} inputs do not go with {tuple(self.y.shape)} targets")

    def __len__(self) -> int:
        return len(self.y)

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of one input, without the leading n."""
        return tuple(self.x.shape[1:])

    def batch(self, positions: Tensor) -> Batch:
        """Those at `positions`, int64 (n,) on the samples' own device, in that order."""
        return Batch(self.x.index_select(0, positions), self.y.index_select(0, positions), positions)

    def in_order(self, size: int) -> Iterator[Batch]:
        """All of them as they lie, so many at a time."""
        everywhere = torch.arange(len(self), device=self.x.device)
        for at in torch.split(everywhere, size):
            yield Batch(self.x[at[0] : at[-1] + 1], self.y[at[0] : at[-1] + 1], at)

    def to(self, device: torch.device | str) -> "Samples":
        """The same samples on `device`; copies nothing when they are there already."""
        return Samples(self.x.to(device), self.y.to(device))

    def first(self, count: int) -> "Samples":
        """At most so many of them, as views."""
        return Samples(self.x[:count], self.y[:count])


class Inputs(Protocol):
    """Inputs that are read when asked for: an array, perhaps memory-mapped, or a folder of image files."""

    @property
    def shape(self) -> tuple[int, ...]:
        """(n, *shape of one input)."""
        ...

    def __getitem__(self, indices: Indices, /) -> Array:
        """The inputs at `indices`, (len(indices), *shape), any real dtype."""
        ...


@dataclass(frozen=True)
class Names:
    """What a data set calls its features and its classes, each in order; empty where it has no names for them."""

    columns: tuple[str, ...] = ()
    classes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Dataset:
    """A data set as it lies on disk, raw and where possible memory-mapped; a peer takes its shard out of it.

    Inputs are (n, *shape) of any real dtype, images NCHW; an input divided by `scale` is what a model sees
    (255 for 8-bit pixels, 16 for digits, 1 for features that are taken as they are). Targets are as the task has them:
    int64 (n,) in 0..classes-1 for classification.
    """

    train_inputs: Inputs
    train_targets: Targets
    test_inputs: Inputs
    test_targets: Targets
    classes: int
    """How many numbers a model answers with, by the task: classes, values to foretell, words of a vocabulary."""
    scale: float = 1.0
    validation: tuple[Inputs, Targets] | None = None
    """Inputs and targets that were set aside from the test set."""
    names: Names = Names()
    task: Task = Classification()
    """What they were read for."""

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of one input, e.g. (1, 28, 28)."""
        return tuple(self.train_inputs.shape[1:])

    def train(self, indices: Indices) -> Samples:
        """The training samples at `indices`, in that order, in memory."""
        return self._take(self.train_inputs, self.train_targets, indices)

    def test(self, indices: Indices | None = None) -> Samples:
        """The test samples at `indices` (all of them when not given), in that order, in memory."""
        chosen = np.arange(len(self.test_targets)) if indices is None else indices
        return self._take(self.test_inputs, self.test_targets, chosen)

    def validation_samples(self) -> Samples | None:
        """All validation samples in memory; None if none were set aside."""
        if self.validation is None:
            return None
        inputs, targets = self.validation
        return self._take(inputs, targets, np.arange(len(targets)))

    def _take(self, inputs: Inputs, targets: Targets, indices: Indices) -> Samples:
        # Advanced indexing copies the shard alone; a view into the whole set would keep all of it alive.
        x = np.ascontiguousarray(inputs[indices], dtype=self.task.inputs)
        if self.scale != 1.0:
            x /= np.float32(self.scale)
        return Samples(torch.from_numpy(x), torch.from_numpy(targets[indices]))
