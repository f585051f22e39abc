"""The data set of which each peer takes only its shard."""

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from peer.learning.data.reading import taken
from peer.learning.data.samples import Array, Indices, InMemory, Inputs, Names, Samples, Targets
from peer.learning.data.stream import Stream
from peer.learning.data.streamed import Streamed
from peer.learning.tasks import Classification, Task

ROWS = 10_000
"""Of tokens that are looked through together."""


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
    names: Names = field(default_factory=Names)
    task: Task = Classification()
    """What they were read for."""
    stream: Stream | None = None
    """What reads them batch by batch; None where a shard is taken into memory."""
    remarks: tuple[str, ...] = ()
    """What is to be said of how they were read."""

    @property
    def shape(self) -> Any:
        """The shape of one input, e.g. (1, 28, 28), as the model takes it; of several inputs, as they come."""
        return self.stream.shape if self.stream else tuple(self.train_inputs.shape[1:])

    def train(self, indices: Indices) -> Samples:
        """The training samples at `indices`, in that order."""
        return self._take("train", self.train_inputs, self.train_targets, indices)

    def test(self, indices: Indices | None = None) -> Samples:
        """The test samples at `indices` (all of them when not given), in that order."""
        chosen = np.arange(len(self.test_targets)) if indices is None else indices
        return self._take("test", self.test_inputs, self.test_targets, chosen)

    def few(self) -> tuple[Samples, Samples]:
        """Two training samples and two test samples, for a dry pass: as `Samples.pair` has them, and read in parts."""
        parts = (self.train, self.train_inputs), (self.test, self.test_inputs)
        return tuple(take(self._two(inputs)).first(2) for take, inputs in parts)  # type: ignore[return-value]

    def _two(self, inputs: Inputs) -> Indices:
        if self.stream or self.task.inputs == "float32":
            return np.arange(min(2, inputs.shape[0]))
        rows = np.array_split(np.arange(inputs.shape[0]), -(-inputs.shape[0] // ROWS))
        ends = [_ends(inputs[some]) for some in rows]
        largest, smallest = (np.concatenate([found[end] for found in ends]) for end in (0, 1))
        return np.array([largest.argmax(), smallest.argmin()])

    def validation_samples(self) -> Samples | None:
        """All validation samples; None if none were set aside."""
        if self.validation is None:
            return None
        inputs, targets = self.validation
        return self._take("validation", inputs, targets, np.arange(len(targets)))

    def _take(self, part: str, inputs: Inputs, targets: Targets, indices: Indices) -> Samples:
        if self.stream:
            labels = torch.from_numpy(targets[indices]) if self.task.has_classes else None
            return Streamed(self.stream, part, indices, labels)
        x = torch.from_numpy(taken(inputs, indices, self.task.inputs, self.scale))
        return InMemory(x, torch.from_numpy(targets[indices]))


def _ends(tokens: Array) -> tuple[Array, Array]:
    """The largest and the smallest of each row."""
    flat = np.reshape(tokens, (len(tokens), -1))
    return flat.max(1), flat.min(1)
