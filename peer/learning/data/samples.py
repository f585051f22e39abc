"""Labelled samples: what a model trains on, and the data set of which each peer takes only its shard."""

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

Array = NDArray[Any]
Labels = NDArray[np.int64]
Indices = NDArray[np.int64]


@dataclass(frozen=True)
class Samples:
    """Labelled samples in memory: `x` float32 (n, *shape), images NCHW; `y` int64 (n,), classes from 0."""

    x: Tensor
    y: Tensor

    def __post_init__(self) -> None:
        if self.x.dtype != torch.float32 or self.y.dtype != torch.int64:
            raise TypeError(f"samples are float32 with int64 labels, not {self.x.dtype} with {self.y.dtype}")
        if self.y.ndim != 1 or len(self.x) != len(self.y):
            raise ValueError(f"{tuple(self.x.shape)} inputs do not go with {tuple(self.y.shape)} labels")

    def __len__(self) -> int:
        return len(self.y)

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of one input, without the leading n."""
        return tuple(self.x.shape[1:])

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
    (255 for 8-bit pixels, 16 for digits, 1 for features that are taken as they are). Labels are int64 (n,)
    in 0..classes-1.
    """

    train_inputs: Inputs
    train_labels: Labels
    test_inputs: Inputs
    test_labels: Labels
    classes: int
    scale: float = 1.0
    validation: tuple[Inputs, Labels] | None = None
    """Inputs and labels that were set aside from the test set."""
    names: Names = Names()

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of one input, e.g. (1, 28, 28)."""
        return tuple(self.train_inputs.shape[1:])

    def train(self, indices: Indices) -> Samples:
        """The training samples at `indices`, in that order, as float32 in memory."""
        return self._take(self.train_inputs, self.train_labels, indices)

    def test(self, indices: Indices | None = None) -> Samples:
        """The test samples at `indices` (all of them when not given), in that order, as float32 in memory."""
        chosen = np.arange(len(self.test_labels)) if indices is None else indices
        return self._take(self.test_inputs, self.test_labels, chosen)

    def validation_samples(self) -> Samples | None:
        """All validation samples as float32 in memory; None if none were set aside."""
        if self.validation is None:
            return None
        inputs, labels = self.validation
        return self._take(inputs, labels, np.arange(len(labels)))

    def _take(self, inputs: Inputs, labels: Labels, indices: Indices) -> Samples:
        # Advanced indexing copies the shard alone; a view into the whole set would keep all of it alive.
        x = np.ascontiguousarray(inputs[indices], dtype=np.float32)
        if self.scale != 1.0:
            x /= np.float32(self.scale)
        return Samples(torch.from_numpy(x), torch.from_numpy(labels[indices]))
