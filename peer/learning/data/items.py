"""A map-style `torch.utils.data.Dataset` of the user's: how many samples it has, and of which classes."""

import sys
from operator import index
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch.utils.data import Dataset, IterableDataset, Subset

from peer.errors import InputError
from peer.learning.data.reading import BatchRequest, Part, Reading
from peer.learning.data.samples import Array, Indices, Targets
from peer.learning.tasks import Task
from peer.plugins import in_words

LOOKED_AT = 8
"""Samples whose targets are compared with the data set's own list."""


class Items:
    """Such a data set in the place of arrays; only `Reading` knows what is in it."""

    def __init__(self, dataset: "Dataset[Any]", name: str) -> None:
        if isinstance(dataset, IterableDataset) or not hasattr(dataset, "__len__"):
            raise InputError(f"{name} returned a data set without a length; give it `__len__` and `__getitem__`")
        self.dataset, self.name = dataset, name
        self.shape = (_length(dataset, name),)
        """Of how many there are; of one input nothing is known before it is read."""

    def __getitem__(self, indices: Indices, /) -> Array:
        raise TypeError("samples of a torch data set are read one by one")

    def targets(self, task: Task) -> Targets:
        """Every class, int64 (n,), where the task has classes; else those of a few samples, (few, ...)."""
        count = self.shape[0]
        few = np.unique(np.linspace(0, count - 1, LOOKED_AT).astype(np.int64))
        found = self._read(few, task)  # the last one among them: there must be as many as the data set says
        if not task.has_classes:
            return found
        listed = _listed(self.dataset)
        if listed is None:
            return self._read(np.arange(count), task)
        labels = task.read_targets(listed, self.name, "`targets`")
        if len(labels) != count:
            raise InputError(
                f"{self.name}: its data set says by `__len__` that it has {count} samples, and its `targets` are "
                f"{len(labels)}; make them agree"
            )
        wrong = few[labels[few] != found]
        if len(wrong):
            raise InputError(
                f"{self.name}: `targets` of its data set has not the class that sample {wrong[0]} has; make them agree"
            )
        return labels

    def _read(self, rows: Indices, task: Task) -> Targets:
        reading = Reading(self.name, {"train": Part(self.dataset)}, task)
        return task.read_targets(
            reading.targets(BatchRequest("train", rows, rows, 0, drawn=False)), self.name, "the array of its targets"
        )


def _length(dataset: Any, name: str) -> int:
    """How many samples it says that it has, from 1; asked as it is, since `len` names nobody for what is no length."""
    try:
        count: object = dataset.__len__()
    except Exception as error:  # it is the user's code
        raise InputError(f"{name}: `__len__` of its data set fails: {in_words(error)}") from error
    try:
        if 1 <= index(count) <= sys.maxsize:  # type: ignore[arg-type]
            return index(count)  # type: ignore[arg-type]
    except TypeError:
        pass
    raise InputError(f"{name}: its data set says by `__len__` that it has {count!r} samples; return how many, from 1")


def _listed(dataset: Any) -> NDArray[Any] | None:
    """What the data set says of all its targets, as torchvision's do, without reading any sample."""
    if isinstance(dataset, Subset):
        whole = _listed(dataset.dataset)
        return None if whole is None else whole[np.asarray(dataset.indices)]
    targets = getattr(dataset, "targets", None)
    try:
        return None if targets is None else np.asarray(targets)
    except ValueError as error:
        raise InputError(f"`targets` of a data set are no list of classes: {in_words(error)}") from error
