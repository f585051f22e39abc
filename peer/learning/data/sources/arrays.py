"""From arrays of any numeric type to a checked data set: the one place where wrong samples are found."""

from dataclasses import dataclass

import numpy as np

from peer.errors import InputError
from peer.learning.data.samples import Array, Dataset, Indices, Inputs, Labels

_BLOCK = 1 << 22
_CHANNELS = (1, 3, 4)
# More classes than this, and more than there are samples, are row numbers or hashes taken for labels.
_MANY_CLASSES = 1000


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
    """Inputs (n, *shape) with labels int64 (n,)."""

    inputs: Inputs
    labels: Labels
    scale: float = 1.0


def labelled(x: Array, y: Array, where: str, x_name: str = "x", y_name: str = "y") -> Labelled:
    """Check inputs and labels that belong together; `where` names their file in the messages.

    uint8 inputs are taken for pixels: (n, H, W) and (n, H, W, C) become NCHW views, to be divided by 255.
    Every other numeric type keeps its values and shape. InputError says what is wrong.
    """
    if x.ndim < 2 or 0 in x.shape[1:]:
        raise InputError(f"{where}: {x_name} must be (samples, ...), but its shape is {x.shape}")
    if x.dtype.kind not in "biuf":
        raise InputError(f"{where}: {x_name} must hold numbers, but it holds {x.dtype}")
    labels = _labels(y, where, y_name)
    if len(x) != len(labels):
        raise InputError(f"{where}: {x_name} has {len(x)} samples and {y_name} has {len(labels)} labels")
    if x.dtype == np.uint8:
        return Labelled(_channels_first(x), labels, 255.0)
    _refuse_non_finite(x, where, x_name)
    return Labelled(x, labels)


def hold_out(samples: Labelled, share: float, seed: int, where: str) -> tuple[Labelled, Labelled]:
    """Split off `share` of the samples, at least one, for testing: the last ones of a seeded permutation."""
    count = len(samples.labels)
    tests = max(1, round(share * count))
    if tests >= count:
        raise InputError(f"{where}: {count} samples are too few to train on some and hold {share:g} out")
    order = np.random.default_rng(seed).permutation(count)
    return _rows(samples, order[: count - tests]), _rows(samples, order[count - tests :])


def dataset(train: Labelled, test: Labelled, where: str, classes: int | None = None) -> Dataset:
    """Join a training and a test part; without `classes` there are as many as the largest label says."""
    for part, purpose in ((train, "training"), (test, "test")):
        if len(part.labels) == 0:
            raise InputError(f"{where}: there are no {purpose} samples")
    if train.inputs.shape[1:] != test.inputs.shape[1:] or train.scale != test.scale:
        raise InputError(f"{where}: training inputs {_describe(train)} and test inputs {_describe(test)} must be alike")
    largest = int(max(train.labels.max(), test.labels.max()))
    found = _classes(largest, len(train.labels), classes, where)
    return Dataset(train.inputs, train.labels, test.inputs, test.labels, found, train.scale)


def _classes(largest: int, samples: int, classes: int | None, where: str) -> int:
    if classes is not None and largest >= classes:
        raise InputError(f"{where}: label {largest} does not fit {classes} classes, numbered from 0")
    if largest >= max(_MANY_CLASSES, samples):
        raise InputError(
            f"{where}: label {largest} among {samples} samples is no class number; number the classes from 0"
        )
    return classes or largest + 1


def _labels(y: Array, where: str, name: str) -> Labels:
    if y.ndim == 2 and y.shape[1] == 1:
        y = y[:, 0]
    if y.ndim != 1:
        raise InputError(f"{where}: {name} must hold one label a sample, but its shape is {y.shape}")
    if y.dtype.kind not in "biu":
        raise InputError(f"{where}: the labels in {name} must be integers from 0, but they are {y.dtype}")
    labels = y.astype(np.int64)
    if len(labels) and labels.min() < 0:
        raise InputError(f"{where}: the labels in {name} must not be negative, but sample "
                         f"{int(labels.argmin())} has {int(labels.min())}")  # fmt: skip
    return labels


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
            sample = start + int(np.argwhere(wrong)[0][0])
            raise InputError(f"{where}: {name} has a value that is not a finite float32 in sample {sample}")


def _rows(samples: Labelled, rows: Indices) -> Labelled:
    return Labelled(Rows(samples.inputs, rows), samples.labels[rows], samples.scale)


def _describe(part: Labelled) -> str:
    kind = "of 8-bit pixels" if part.scale == 255.0 else "of numbers"
    return f"{tuple(part.inputs.shape[1:])} {kind}"
