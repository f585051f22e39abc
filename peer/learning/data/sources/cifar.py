"""CIFAR-10 and CIFAR-100 through torchvision, which checks the digests of their files."""

from typing import Any, ClassVar, Literal

import numpy as np

from peer.learning.data.dataset import Dataset
from peer.learning.data.sources.arrays import Labelled, dataset, labelled
from peer.learning.data.sources.downloads import Downloadable, alone
from peer.learning.tasks import Task


class CifarSet(Downloadable):
    """50,000 training and 10,000 test colour images (3, 32, 32), pixels in [0, 1], in the files' order."""

    _kind: ClassVar[str]
    _folder: ClassVar[str]
    _classes: ClassVar[int]

    def _read(self, task: Task) -> Dataset:
        folder = self.root / self._folder
        if self.download:
            with alone(self.root):
                self._torchvision_set(self._kind, train=False, download=True)
        if not folder.exists():
            raise self._missing(folder)
        train = self._part(self._torchvision_set(self._kind, train=True), task)
        test = self._part(self._torchvision_set(self._kind, train=False), task)
        return dataset(train, test, str(folder), self._classes)

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
