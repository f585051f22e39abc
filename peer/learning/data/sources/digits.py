"""1,797 handwritten digits of 8×8, which come with this package, so nothing is downloaded.

digits.csv.gz is the test set of E. Alpaydin and C. Kaynak, "Optical Recognition of Handwritten Digits", UCI Machine
Learning Repository, 1998, https://doi.org/10.24432/C50P49 (CC BY 4.0), as scikit-learn distributes it, byte for byte:
a line an image, 64 pixels and the digit.
"""

import gzip
import zlib
from functools import cache
from pathlib import Path
from typing import Literal

import numpy as np

from peer.errors import InputError
from peer.learning.data.dataset import Dataset
from peer.learning.data.samples import Array
from peer.learning.data.sources.arrays import Labelled, dataset
from peer.learning.data.sources.base import Source
from peer.learning.tasks import Task

FILE = Path(__file__).with_name("digits.csv.gz")
_TRAIN = 1437
_TOTAL = 1797


class Digits(Source):
    """1,437 training and 360 test images of shape (1, 8, 8), pixels 0..16 scaled to [0, 1], 10 classes.

    The order is `numpy.random.default_rng(seed).permutation(1797)`; the first 1,437 are for training.
    """

    name: Literal["digits"]
    """Handwritten digits that come with this package."""
    root: Path = Path("data")
    """Not used, as the digits come with this package; accepted so that another image set is one word away."""

    def _read(self, task: Task) -> Dataset:
        table = _table(FILE)
        order = np.random.default_rng(self.seed).permutation(_TOTAL)
        pixels = table[order, :-1].reshape(-1, 1, 8, 8)
        targets = task.read_targets(table[order, -1], self.name, "the digits")
        train = Labelled(pixels[:_TRAIN], targets[:_TRAIN], task, 16.0)
        return dataset(
            train, Labelled(pixels[_TRAIN:], targets[_TRAIN:], task, 16.0), self.name, 10 if task.has_classes else None
        )


@cache
def _table(path: Path) -> Array:
    """uint8 (1797, 65), not to be written to: 64 pixels and the label; read once, for all peers of a process."""
    try:
        with gzip.open(path, "rt", encoding="ascii") as file:
            table: Array = np.loadtxt(file, delimiter=",", dtype=np.uint8)
    except (OSError, EOFError, zlib.error, ValueError) as error:
        raise InputError(f"cannot read the digits in {path}: {error}; install dfl again") from error
    table.flags.writeable = False
    return table
