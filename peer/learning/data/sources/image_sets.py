"""Well-known image sets by name: the digits that come with this package, MNIST and its relatives, and CIFAR.

digits.csv.gz is the test set of E. Alpaydin and C. Kaynak, "Optical Recognition of Handwritten Digits", UCI Machine
Learning Repository, 1998, https://doi.org/10.24432/C50P49 (CC BY 4.0), as scikit-learn distributes it, byte for
byte: a line an image, 64 pixels and the digit. Nothing is downloaded for it.

The others lie in torchvision's layout under one root, fetched by torchvision when that is allowed. MNIST and its
relatives are memory-mapped from their idx files: reading these here and not through torchvision saves every peer
its import and a copy of all images. CIFAR goes through torchvision, which checks the digests of its files.
"""

import gzip
import math
import os
import struct
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any, ClassVar, Literal, NamedTuple

import numpy as np

from peer.errors import InputError
from peer.files import lock, open_plain
from peer.learning import vision
from peer.learning.data.dataset import Dataset, Labelled, join_parts, labelled
from peer.learning.data.samples import Array
from peer.learning.data.sources.base import OnDisk, Source
from peer.learning.tasks import Task

DIGITS_FILE = Path(__file__).with_name("digits.csv.gz")
_DIGITS_TRAIN = 1437
_DIGITS_TOTAL = 1797


class Digits(Source):
    """1,437 training and 360 test images of shape (1, 8, 8), pixels 0..16 scaled to [0, 1], 10 classes.

    The order is `numpy.random.default_rng(seed).permutation(1797)`; the first 1,437 are for training.
    """

    name: Literal["digits"]
    """Handwritten digits that come with this package."""
    root: Path = Path("data")
    """Not used."""

    def _read(self, task: Task) -> Dataset:
        table = _digits_table(DIGITS_FILE)
        order = np.random.default_rng(self.seed).permutation(_DIGITS_TOTAL)
        pixels = table[order, :-1].reshape(-1, 1, 8, 8)
        targets = task.read_targets(table[order, -1], self.name, "the digits")
        train = Labelled(pixels[:_DIGITS_TRAIN], targets[:_DIGITS_TRAIN], task, 16.0)
        test = Labelled(pixels[_DIGITS_TRAIN:], targets[_DIGITS_TRAIN:], task, 16.0)
        return join_parts(train, test, self.name, 10 if task.has_classes else None)


@cache
def _digits_table(path: Path) -> Array:
    """uint8 (1797, 65), not to be written to: 64 pixels and the label; read once, for all peers of a process."""
    try:
        with gzip.open(path, "rt", encoding="ascii") as file:
            table: Array = np.loadtxt(file, delimiter=",", dtype=np.uint8)
    except (OSError, EOFError, zlib.error, ValueError) as error:
        raise InputError(f"cannot read the digits in {path}: {error}; install dfl again") from error
    table.flags.writeable = False
    return table


class MissingError(InputError):
    """The set is not there; it could be fetched."""


class Downloadable(Source):
    """An image set that torchvision can download."""

    root: Path = Path("data")
    """Folder of torchvision's data sets."""
    download: bool = False
    """Fetch a missing set into `root`."""

    def _missing(self, file: Path) -> MissingError:
        return MissingError(
            f"no {self.name} in {self.root} (looked for {file}); "
            "set the data's root to the folder that has it, or download: true"
        )

    def _torchvision_set(self, kind: str, **options: Any) -> Any:
        """torchvision's data set of that class name; InputError when it cannot be fetched or is damaged."""
        datasets = vision.torchvision().datasets
        try:
            return getattr(datasets, kind)(self.root, **options)
        except (RuntimeError, OSError, EOFError) as error:
            attempt = "download" if self.download else "read"
            reason = " ".join(str(error).split())
            raise InputError(f"cannot {attempt} {self.name} in {self.root}: {reason}") from error


@contextmanager
def download_lock(root: Path) -> Iterator[None]:
    """Let one process of this machine at a time download into `root`; the others then find the files."""
    try:
        root.mkdir(parents=True, exist_ok=True)
        folder = os.open(root, os.O_RDONLY)
    except OSError as error:
        raise InputError(f"cannot use the data folder {root}: {error.strerror}") from error
    try:
        lock(folder, patience=math.inf)
        yield
    finally:
        os.close(folder)


class IdxLayout(NamedTuple):
    """How a set lies in its files."""

    parts: tuple[str, str] = ("train", "t10k")
    """How the names of the files for training and of those for tests begin."""
    options: Mapping[str, str] = {}
    """Further arguments of torchvision's data set."""
    classes: int = 10
    first_label: int = 0


class IdxSet(Downloadable, OnDisk):
    """Images (1, 28, 28) with pixels scaled to [0, 1], in the files' order, with their own test set."""

    _folder: ClassVar[str]

    def _read(self, task: Task) -> Dataset:
        raw, layout = self.root / self._folder / "raw", self._layout
        files = [raw / f"{part}-{kind}-ubyte" for part in layout.parts for kind in ("images-idx3", "labels-idx1")]
        if self.download:
            with download_lock(self.root):
                if not all(path.exists() for path in files):
                    self._torchvision_set(self._folder, download=True, **layout.options)
        if absent := [path for path in files if not path.exists()]:
            raise self._missing(absent[0])
        images, labels, test_images, test_labels = files
        train, test = self._part(images, labels, task), self._part(test_images, test_labels, task)
        return join_parts(train, test, str(raw), layout.classes)

    def _part(self, images: Path, labels: Path, task: Task) -> Labelled:
        x, y = read_idx(images, dimensions=3), read_idx(labels, dimensions=1)
        return labelled(x, y - self._layout.first_label, str(images.parent), task, images.name, labels.name)

    @property
    def _layout(self) -> IdxLayout:
        return IdxLayout()


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

    @property
    def _layout(self) -> IdxLayout:
        parts = f"emnist-{self.split}-train", f"emnist-{self.split}-test"
        classes = {"byclass": 62, "bymerge": 47, "balanced": 47, "letters": 26}.get(self.split, 10)
        return IdxLayout(parts, {"split": self.split}, classes, first_label=int(self.split == "letters"))


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


class CifarSet(Downloadable):
    """50,000 training and 10,000 test colour images (3, 32, 32), pixels in [0, 1], in the files' order."""

    _kind: ClassVar[str]
    _folder: ClassVar[str]
    _classes: ClassVar[int]

    def _read(self, task: Task) -> Dataset:
        folder = self.root / self._folder
        if self.download:
            with download_lock(self.root):
                self._torchvision_set(self._kind, train=False, download=True)
        if not folder.exists():
            raise self._missing(folder)
        train = self._part(self._torchvision_set(self._kind, train=True), task)
        test = self._part(self._torchvision_set(self._kind, train=False), task)
        return join_parts(train, test, str(folder), self._classes)

    def _part(self, loaded: Any, task: Task) -> Labelled:
        return labelled(loaded.data, np.asarray(loaded.targets), str(self.root / self._folder), task)


class Cifar10(CifarSet):
    """Colour images (3, 32, 32) of 10 classes."""

    name: Literal["cifar10"]
    """Small photographs of 10 kinds of thing."""
    _kind: ClassVar[str] = "CIFAR10"
    _folder: ClassVar[str] = "cifar-10-batches-py"
    _classes: ClassVar[int] = 10


class Cifar100(CifarSet):
    """Colour images (3, 32, 32) of 100 classes."""

    name: Literal["cifar100"]
    """Small photographs of 100 kinds of thing."""
    _kind: ClassVar[str] = "CIFAR100"
    _folder: ClassVar[str] = "cifar-100-python"
    _classes: ClassVar[int] = 100
