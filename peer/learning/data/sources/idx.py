"""MNIST and its relatives, memory-mapped from the idx files that torchvision downloads.

Reading the files here and not through torchvision saves every peer its import and a copy of all images.
"""

import math
import struct
from pathlib import Path
from typing import ClassVar, Literal

import numpy as np

from peer.errors import InputError
from peer.learning.data.dataset import Dataset
from peer.learning.data.samples import Array
from peer.learning.data.sources.arrays import Labelled, dataset, labelled
from peer.learning.data.sources.base import OnDisk
from peer.learning.data.sources.downloads import Downloadable, alone
from peer.learning.tasks import Task
from peer.reading import open_plain


class IdxSet(Downloadable, OnDisk):
    """Images (1, 28, 28) with pixels scaled to [0, 1], in the files' order, with their own test set."""

    _folder: ClassVar[str]

    def _read(self, task: Task) -> Dataset:
        if self.download:
            with alone(self.root):
                if self._absent():
                    self._fetch()
        if absent := self._absent():
            raise self._missing(absent[0])
        images, labels, test_images, test_labels = self._files()
        train, test = self._part(images, labels, task), self._part(test_images, test_labels, task)
        return dataset(train, test, str(images.parent), self._classes())

    def _part(self, images: Path, labels: Path, task: Task) -> Labelled:
        x, y = read_idx(images, dimensions=3), read_idx(labels, dimensions=1)
        return labelled(x, y - self._first_label(), str(images.parent), task, images.name, labels.name)

    def _absent(self) -> list[Path]:
        return [path for path in self._files() if not path.exists()]

    def _files(self) -> tuple[Path, Path, Path, Path]:
        """Training images and labels, test images and labels."""
        return self._paths("train", "t10k")

    def _paths(self, train: str, test: str) -> tuple[Path, Path, Path, Path]:
        raw = self.root / self._folder / "raw"
        images, labels = "images-idx3-ubyte", "labels-idx1-ubyte"
        return (
            raw / f"{train}-{images}",
            raw / f"{train}-{labels}",
            raw / f"{test}-{images}",
            raw / f"{test}-{labels}",
        )

    def _fetch(self) -> None:
        self._torchvision_set(self._folder, download=True)

    def _classes(self) -> int:
        return 10

    def _first_label(self) -> int:
        return 0


class Mnist(IdxSet):
    """60,000 training and 10,000 test images of handwritten digits, (1, 28, 28), 10 classes."""

    name: Literal["mnist"]
    """Handwritten digits."""
    _folder: ClassVar[str] = "MNIST"


class FashionMnist(IdxSet):
    """60,000 training and 10,000 test images of clothing, (1, 28, 28), 10 classes."""

    name: Literal["fashion-mnist"]
    """Articles of clothing."""
    _folder: ClassVar[str] = "FashionMNIST"


class Emnist(IdxSet):
    """Handwritten letters and digits, (1, 28, 28), transposed as in the original files and in torchvision."""

    name: Literal["emnist"]
    """Handwritten letters and digits."""
    split: Literal["byclass", "bymerge", "balanced", "letters", "digits", "mnist"] = "byclass"
    """EMNIST's own sets: byclass has 62 classes, bymerge and balanced 47, letters 26, digits and mnist 10."""
    _folder: ClassVar[str] = "EMNIST"

    def _files(self) -> tuple[Path, Path, Path, Path]:
        return self._paths(f"emnist-{self.split}-train", f"emnist-{self.split}-test")

    def _fetch(self) -> None:
        self._torchvision_set(self._folder, download=True, split=self.split)

    def _classes(self) -> int:
        return {"byclass": 62, "bymerge": 47, "balanced": 47, "letters": 26}.get(self.split, 10)

    def _first_label(self) -> int:
        # The letters' files count from 1.
        return 1 if self.split == "letters" else 0


def read_idx(path: Path, dimensions: int) -> Array:
    """The uint8 array of an idx file, memory-mapped; InputError when it is missing or damaged.

    Format: two zero bytes, 8 for uint8, the number of dimensions, each as big-endian int32, then the data.
    """
    start = 4 + 4 * dimensions
    try:
        with open_plain(path) as file:
            header = file.read(start)
        size = path.stat().st_size
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror}") from error
    shape = struct.unpack(f">{dimensions}i", header[4:]) if len(header) == start else ()
    values = math.prod(shape)
    if header[:4] != bytes((0, 0, 8, dimensions)) or values <= 0 or size != start + values:
        raise InputError(f"{path} is truncated or damaged; delete it and set download: true to fetch it again")
    return np.memmap(path, np.uint8, "r", offset=start, shape=shape)
