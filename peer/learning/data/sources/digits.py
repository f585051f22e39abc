"""scikit-learn's handwritten digits: 1,797 images of 8×8, part of that package, so nothing is downloaded."""

import gzip
import importlib.util
import zlib
from pathlib import Path
from typing import Literal

import numpy as np

from peer.errors import InputError
from peer.learning.data.samples import Array, Dataset
from peer.learning.data.sources.base import Source

_TRAIN = 1437
_TOTAL = 1797


class Digits(Source):
    """1,437 training and 360 test images of shape (1, 8, 8), pixels 0..16 scaled to [0, 1], 10 classes.

    The order is `numpy.random.default_rng(seed).permutation(1797)`; the first 1,437 are for training.
    """

    name: Literal["digits"]
    """The digits that come with scikit-learn."""
    root: Path = Path("data")
    """Not used, as the digits come with scikit-learn; accepted so that another image set is one word away."""

    def _read(self) -> Dataset:
        table = _table()
        order = np.random.default_rng(self.seed).permutation(_TOTAL)
        pixels = table[order, :-1].reshape(-1, 1, 8, 8)
        labels = table[order, -1].astype(np.int64)
        return Dataset(pixels[:_TRAIN], labels[:_TRAIN], pixels[_TRAIN:], labels[_TRAIN:], classes=10, scale=16.0)


def _table() -> Array:
    """uint8 (1797, 65): 64 pixels and the label."""
    # The file is read where scikit-learn keeps it: importing the package would cost a second a process.
    spec = importlib.util.find_spec("sklearn")
    if spec is None or spec.origin is None:
        raise InputError("the digits come with scikit-learn, which is missing: pip install scikit-learn")
    path = Path(spec.origin).parent / "datasets" / "data" / "digits.csv.gz"
    try:
        with gzip.open(path, "rt", encoding="ascii") as file:
            table = np.loadtxt(file, delimiter=",", dtype=np.uint8)
    except (OSError, EOFError, zlib.error, ValueError) as error:
        raise InputError(f"cannot read scikit-learn's digits in {path}: {error}") from error
    if table.shape != (_TOTAL, 65):
        raise InputError(f"{path} is not scikit-learn's digits: it holds {table.shape}, not (1797, 65)")
    return table
