"""A data set as it lies on disk, of which each peer takes only its shard.

`labelled` and `join_parts` make one of arrays of any numeric type: the one place where wrong samples are found.
Parts may be held out for testing or set aside as public validation samples, on which no peer is tested; and a data
set may be read batch by batch in place of being taken into memory (`as_streamed`).
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from peer.errors import InputError
from peer.learning.data.batch_loader import BatchLoader, StreamedSamples
from peer.learning.data.batch_reader import BatchReader, DataPart, TorchDataset, as_model_inputs
from peer.learning.data.samples import Array, Indices, InMemory, Inputs, Names, Samples, Targets
from peer.learning.randomness import derive, draw, draw_groups
from peer.learning.tasks import Task

Groups = NDArray[np.int64]
TOKEN_ROWS = 10_000
"""Rows of tokens that are searched together."""


@dataclass(frozen=True)
class SelectedRows:
    """Some rows of the inputs, in a given order, read when asked for."""

    inputs: Inputs
    rows: Indices

    @property
    def shape(self) -> tuple[int, ...]:
        return (len(self.rows), *self.inputs.shape[1:])

    def __getitem__(self, indices: Indices, /) -> Array:
        return self.inputs[self.rows[indices]]


@dataclass(frozen=True)
class Labelled:
    """Inputs (n, *shape) with targets (n, ...) of a task: int64 (n,) in 0..classes-1 for classification.

    Inputs are of any real dtype, images NCHW; an input divided by `scale` is what a model sees (255 for 8-bit pixels,
    16 for digits, 1 for features that are taken as they are).
    """

    inputs: Inputs
    targets: Targets
    task: Task
    scale: float = 1.0
    groups: Groups | None = None
    """(n,): to which group each sample belongs, a patient, say, which is not divided; None: each stands alone."""

    def at(self, rows: Indices) -> "Labelled":
        """The samples at these rows, in that order."""
        groups = None if self.groups is None else self.groups[rows]
        return replace(self, inputs=SelectedRows(self.inputs, rows), targets=self.targets[rows], groups=groups)


PART_WORDS = {"train": "training", "test": "test", "held": "validation"}
"""What the parts are called of which a data set is made."""


@dataclass(frozen=True)
class Dataset:
    """A data set as it lies on disk, raw and where possible memory-mapped; a peer takes its shard out of it."""

    parts: Mapping[str, Labelled]
    """`train` and `test`; `validation`, if some were set aside from the test set; `held`, if some came to be held
    back."""
    classes: int
    """How many numbers a model answers with, by the task: classes, values to foretell, words of a vocabulary."""
    task: Task
    """What they were read for."""
    names: Names = field(default_factory=Names)
    stream: BatchLoader | None = None
    """What reads them batch by batch; None where a shard is taken into memory."""
    remarks: tuple[str, ...] = ()
    """What is to be said of how they were read."""

    @property
    def train_targets(self) -> Targets:
        return self.parts["train"].targets

    @property
    def groups(self) -> Groups | None:
        """(n,): to which group each training sample belongs, of which none is held back in part."""
        return self.parts["train"].groups

    @property
    def shape(self) -> Any:
        """The shape of one input, e.g. (1, 28, 28), as the model takes it; of several inputs, as they come."""
        return self.stream.shape if self.stream else tuple(self.parts["train"].inputs.shape[1:])

    def train(self, indices: Indices) -> Samples:
        """The training samples at `indices`, in that order."""
        return self._take("train", indices)

    def test(self, indices: Indices | None = None) -> Samples:
        """The test samples at `indices` (all of them when not given), in that order."""
        return self._take("test", indices)

    def few(self) -> tuple[Samples, Samples]:
        """Two training samples and two test samples, for a dry pass, chosen as by `Samples.pair` without reading all
        data at once."""
        return self.train(self._two("train")).first(2), self.test(self._two("test")).first(2)

    def _two(self, part: str) -> Indices:
        inputs = self.parts[part].inputs
        count = inputs.shape[0]
        if self.stream or self.task.inputs == "float32":
            return np.arange(min(2, count))
        blocks = (
            inputs[rows].reshape(len(rows), -1) for rows in np.array_split(np.arange(count), -(-count // TOKEN_ROWS))
        )
        largest, smallest = map(np.concatenate, zip(*((rows.max(1), rows.min(1)) for rows in blocks), strict=True))
        return np.array([largest.argmax(), smallest.argmin()])

    def validation_samples(self) -> Samples | None:
        """All validation samples; None if none were set aside."""
        return self._take("validation") if "validation" in self.parts else None

    def held_samples(self) -> Samples | None:
        """All samples that came to be held back; None if none came."""
        return self._take("held") if "held" in self.parts else None

    def _take(self, name: str, indices: Indices | None = None) -> Samples:
        part = self.parts[name]
        chosen = np.arange(len(part.targets)) if indices is None else indices
        if self.stream and not self.task.has_classes:
            return StreamedSamples(self.stream, name, chosen)
        targets = torch.from_numpy(part.targets[chosen])
        if self.stream:
            return StreamedSamples(self.stream, name, chosen, targets)
        return InMemory(torch.from_numpy(as_model_inputs(part.inputs, chosen, self.task.inputs, part.scale)), targets)


_BLOCK = 1 << 22
_CHANNELS = (1, 3, 4)
PIXEL_SCALE = 255.0
"""What 8-bit pixels are divided by."""


def labelled(
    x: Array, y: Array, where: str, task: Task, x_name: str = "x", y_name: str = "y", gaps: bool = False
) -> Labelled:
    """Check inputs and targets that belong together; `where` names their file in the messages.

    gaps: whether the inputs, of which the rest was found to be finite, have NaN for values to be imputed.

    Where the task takes tokens, inputs are whole numbers. Else uint8 inputs are taken for pixels: (n, H, W) and
    (n, H, W, C) become NCHW views, to be divided by 255. Every other numeric type keeps its values and shape.
    InputError says what is wrong.
    """
    if x.ndim < 2 or 0 in x.shape[1:]:
        raise InputError(
            f"{where}: {x_name} must be of shape (n, ...), an array of numbers for each sample, not {x.shape}"
        )
    if x.dtype.kind not in "biuf":
        raise InputError(f"{where}: {x_name} must hold numbers, but it holds {x.dtype}")
    targets = task.read_targets(y, where, y_name)
    if len(x) != len(targets):
        kind = "labels" if task.has_classes else "targets"
        raise InputError(f"{where}: {x_name} has {len(x)} samples and {y_name} has {len(targets)} {kind}")
    if task.inputs == "int64":
        if x.dtype.kind not in "biu":
            raise InputError(f"{where}: {x_name} must hold whole numbers for the task {task.name}, not {x.dtype}")
        return Labelled(x, targets, task)
    if x.dtype == np.uint8:
        return Labelled(channels_first(x), targets, task, PIXEL_SCALE)
    if not gaps:
        _refuse_non_finite(x, where, x_name)
    return Labelled(x, targets, task)


def hold_out(samples: Labelled, share: float, seed: int, where: str) -> tuple[Labelled, Labelled]:
    """Split off `share` of the samples, at least one, for testing: the last ones of a seeded permutation.

    Both parts keep the permutation's order. Of samples in groups, whole groups are split off.
    """
    count, groups = len(samples.targets), samples.groups
    tests = max(1, round(share * count))
    if tests >= count:
        raise InputError(f"{where}: {count} samples are too few to train on some and hold {share:g} out")
    if groups is None:
        order = np.random.default_rng(seed).permutation(count)
        kept, split_off = order[: count - tests], order[count - tests :]
    else:
        split_off, kept = draw_groups(groups, tests, seed)
    if not len(kept):
        raise InputError(f"{where}: the groups are too few to train on some and hold {share:g} out")
    return samples.at(kept), samples.at(split_off)


def join_parts(
    train: Labelled, test: Labelled, where: str, classes: int | None = None, held: Labelled | None = None
) -> Dataset:
    """Join a training and a test part, and what is to be held back; without `classes` there are as many as the targets
    say."""
    parts = {"train": train, "test": test} | ({"held": held} if held else {})
    for name, part in parts.items():
        purpose = PART_WORDS[name]
        if len(part.targets) == 0:
            raise InputError(f"{where}: there are no {purpose} samples")
        if train.inputs.shape[1:] != part.inputs.shape[1:] or train.scale != part.scale:
            others = f"{purpose} inputs {_describe(part)}"
            raise InputError(f"{where}: training inputs {_describe(train)} and {others} must be alike")
    found = train.task.outputs([part.targets for part in parts.values()], classes, where)
    return Dataset(parts, found, train.task)


def channels_first(pixels: Array) -> Array:
    """8-bit pixels (n, H, W) or (n, H, W, C) as a view (n, C, H, W); others as they are."""
    if pixels.ndim == 3:
        return pixels[:, None]
    if pixels.ndim == 4 and pixels.shape[3] in _CHANNELS:
        return pixels.transpose(0, 3, 1, 2)
    return pixels


def pixels_as_inputs(pixels: Array) -> Array:
    """8-bit pixels as `labelled` has the model see them: (n, C, H, W) float32 from 0 to 1."""
    return as_model_inputs(channels_first(pixels), np.arange(len(pixels)), "float32", PIXEL_SCALE)


def _refuse_non_finite(x: Array, where: str, name: str) -> None:
    # Judged as float32, which the model sees: 1e300 is not finite there. In blocks, so that a memory-mapped
    # array is never held whole.
    rows = max(1, _BLOCK // int(np.prod(x.shape[1:])))
    for start in range(0, len(x), rows):
        with np.errstate(over="ignore"):
            block = np.asarray(x[start : start + rows], dtype=np.float32)
        wrong = ~np.isfinite(block)
        if wrong.any():
            sample, *place = np.argwhere(wrong)[0].tolist()
            column = f", column {place[0]}" if len(place) == 1 else ""
            raise InputError(
                f"{where}: {name} has a value that is not a finite float32 in sample {start + sample}{column} (counted "
                "from 0); fill it in or leave the sample out"
            )


def _describe(part: Labelled) -> str:
    kind = "of 8-bit pixels" if part.scale == PIXEL_SCALE else "of numbers"
    return f"{tuple(part.inputs.shape[1:])} {kind}"


def set_aside(dataset: Dataset, share: float, seed: int, where: str) -> Dataset:
    """The data set with `share` of its test samples, at least one, as validation samples instead.

    They are drawn from a stream of `seed` that nothing else uses. Both parts keep the data set's order. Raises
    InputError if no test sample is left, or none of a class that had some.
    """
    test, targets = dataset.parts["test"], dataset.parts["test"].targets
    count = max(1, round(share * len(targets)))
    key = derive(seed, "validation")
    taken, rest = draw(len(targets), count, key) if test.groups is None else draw_groups(test.groups, count, key)
    if not len(rest):
        raise InputError(
            f"{where}: `validation: {share:g}` leaves none of the {len(targets)} test samples to test on; "
            "give a smaller share or more test samples"
        )
    lost = np.setdiff1d(targets, targets[rest]) if dataset.task.has_classes else np.empty(0)
    if len(lost):
        raise InputError(
            f"{where}: `validation: {share:g}` takes every test sample of class {lost[0]}; "
            "give a smaller share or another `seed` of the data"
        )
    return replace(dataset, parts={**dataset.parts, "test": test.at(rest), "validation": test.at(taken)})


def as_streamed(dataset: Dataset, reading: BatchReader, workers: int) -> Dataset:
    """The data set, whose shards are read by `reading` with so many workers; InputError where samples do not fit."""
    parts = {name: _part(part) for name, part in dataset.parts.items()}
    scale = dataset.parts["train"].scale
    stream = BatchLoader(replace(reading, parts=parts, task=dataset.task, scale=scale), workers)
    stream.check()
    return replace(dataset, stream=stream)


def is_read_one_by_one(dataset: Dataset) -> bool:
    """Whether the samples are those of a torch Dataset, which cannot be taken into memory as arrays."""
    return isinstance(_beneath(dataset.parts["train"].inputs)[0], TorchDataset)


def _part(part: Labelled) -> DataPart:
    beneath, rows = _beneath(part.inputs)
    if isinstance(beneath, TorchDataset):
        return DataPart(beneath.dataset, rows, part.targets if part.task.has_classes else None)
    return DataPart(beneath, rows, None if part.task.has_classes else part.targets)


def _beneath(inputs: Inputs) -> tuple[Inputs, Indices | None]:
    """The inputs of which these are some rows, and which."""
    rows = None
    while isinstance(inputs, SelectedRows):
        rows = inputs.rows if rows is None else inputs.rows[rows]
        inputs = inputs.inputs
    return inputs, rows
