"""From a data set as it lies on disk to one that is read batch by batch."""

from dataclasses import replace

from peer.learning.data.dataset import Dataset
from peer.learning.data.items import Items
from peer.learning.data.reading import Part, Reading
from peer.learning.data.samples import Indices, Inputs, Targets
from peer.learning.data.sources.arrays import Rows
from peer.learning.data.stream import Stream


def streamed(dataset: Dataset, reading: Reading, workers: int) -> Dataset:
    """The data set, whose shards are read by `reading` with so many workers; InputError where samples do not fit."""
    parts = {
        "train": _part(dataset.train_inputs, dataset.train_targets, dataset),
        "test": _part(dataset.test_inputs, dataset.test_targets, dataset),
    }
    if dataset.validation:
        parts["validation"] = _part(*dataset.validation, dataset)
    stream = Stream(replace(reading, parts=parts, task=dataset.task, scale=dataset.scale), workers)
    stream.check()
    return replace(dataset, stream=stream)


def is_read_one_by_one(dataset: Dataset) -> bool:
    """Whether the samples are those of a torch Dataset, which cannot be taken into memory as arrays."""
    return isinstance(_beneath(dataset.train_inputs)[0], Items)


def _part(inputs: Inputs, targets: Targets, dataset: Dataset) -> Part:
    beneath, rows = _beneath(inputs)
    if isinstance(beneath, Items):
        return Part(beneath.dataset, rows)
    return Part(beneath, rows, None if dataset.task.has_classes else targets)


def _beneath(inputs: Inputs) -> tuple[Inputs, Indices | None]:
    """The inputs of which these are some rows, and which."""
    rows = None
    while isinstance(inputs, Rows):
        rows = inputs.rows if rows is None else inputs.rows[rows]
        inputs = inputs.inputs
    return inputs, rows
