"""From arrays of any numeric type to a checked data set: the one place where wrong samples are found."""

from dataclasses import dataclass, replace

import numpy as np

from peer.errors import InputError
from peer.learning.data.dataset import Dataset
from peer.learning.data.samples import Array, Indices, Inputs, Targets
from peer.learning.tasks import Task

_BLOCK = 1 << 22
_CHANNELS = (1, 3, 4)


@dataclass(frozen=True)
class Rows:
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
    """Inputs (n, *shape) with targets (n, ...) of a task."""

    inputs: Inputs
    targets: Targets
    task: Task
    scale: float = 1.0


def labelled(x: Array, y: Array, where: str, task: Task, x_name: str = "x", y_name: str = "y") -> Labelled:
    """Check inputs and targets that belong together; `where` names their file in the messages.

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
        return Labelled(_channels_first(x), targets, task, 255.0)
    _refuse_non_finite(x, where, x_name)
    return Labelled(x, targets, task)


def hold_out(samples: Labelled, share: float, seed: int, where: str) -> tuple[Labelled, Labelled]:
    """Split off `share` of the samples, at least one, for testing: the last ones of a seeded permutation."""
    count = len(samples.targets)
    tests = max(1, round(share * count))
    if tests >= count:
        raise InputError(f"{where}: {count} samples are too few to train on some and hold {share:g} out")
    order = np.random.default_rng(seed).permutation(count)
    return _rows(samples, order[: count - tests]), _rows(samples, order[count - tests :])


def dataset(train: Labelled, test: Labelled, where: str, classes: int | None = None) -> Dataset:
    """Join a training and a test part; without `classes` there are as many as the targets say."""
    for part, purpose in ((train, "training"), (test, "test")):
        if len(part.targets) == 0:
            raise InputError(f"{where}: there are no {purpose} samples")
    if train.inputs.shape[1:] != test.inputs.shape[1:] or train.scale != test.scale:
        raise InputError(f"{where}: training inputs {_describe(train)} and test inputs {_describe(test)} must be alike")
    found = train.task.outputs((train.targets, test.targets), classes, where)
    return Dataset(train.inputs, train.targets, test.inputs, test.targets, found, scale=train.scale, task=train.task)


def _channels_first(pixels: Array) -> Array:
    if pixels.ndim == 3:
        return pixels[:, None]
    if pixels.ndim == 4 and pixels.shape[3] in _CHANNELS:
        return pixels.transpose(0, 3, 1, 2)
    return pixels


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


def _rows(samples: Labelled, rows: Indices) -> Labelled:
    return replace(samples, inputs=Rows(samples.inputs, rows), targets=samples.targets[rows])


def _describe(part: Labelled) -> str:
    kind = "of 8-bit pixels" if part.scale == 255.0 else "of numbers"
    return f"{tuple(part.inputs.shape[1:])} {kind}"
