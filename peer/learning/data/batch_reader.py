"""How samples are read one batch at a time: what a worker process does, and the peer itself where there is none.

Worker processes preload this module (`PRELOADED` in batch_loader.py). What it reads may be arrays, memory-mapped
where possible, or a map-style `torch.utils.data.Dataset` of the user's: of that one nothing is known beforehand but
how many samples it has, and of which classes (`TorchDataset`).
"""

import mmap
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, fields
from functools import cached_property
from operator import index
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils._pytree import tree_map
from torch.utils.data import Dataset, IterableDataset, Subset, default_collate

from peer.errors import InputError
from peer.learning.data.samples import Array, Indices, Inputs, Targets
from peer.learning.data.transforms import Transform
from peer.learning.randomness import Generator, derive, draw_from, generators_in, sample_streams
from peer.learning.tasks import Task
from peer.plugins import describe_error, user_input_errors

Collate = Callable[[list[Any]], Any]


class BatchRequest(NamedTuple):
    """The samples of a batch, and the stream from which each draws."""

    part: str
    rows: Indices
    """Positions in the part."""
    numbers: Indices
    """Each sample's number in the stream of `seed`."""
    seed: int
    drawn: bool
    """Whether they are trained on, and so go through the training transforms."""


class ReadBatch(NamedTuple):
    """A batch as it was read, on the CPU."""

    inputs: Any
    targets: Tensor | None
    """The targets; None if the task has classes, which are known beforehand."""


@dataclass(frozen=True)
class DataPart:
    """Inputs in an order of their own, with targets (n, ...) where the user's data set does not give them itself, or
    they are known beforehand."""

    inputs: Any
    """Inputs, or a map-style torch Dataset."""
    rows: Indices | None = None
    targets: Targets | None = None

    def __len__(self) -> int:
        if self.rows is not None:
            return len(self.rows)
        return int(self.inputs.shape[0]) if hasattr(self.inputs, "shape") else len(self.inputs)

    def __getstate__(self) -> dict[str, Any]:
        mapped = isinstance(self.inputs, np.memmap) and self.inputs._mmap is not None  # type: ignore[attr-defined]
        return {**self.__dict__, "inputs": MappedArray.from_memmap(self.inputs) if mapped else self.inputs}

    def __setstate__(self, state: dict[str, Any]) -> None:
        inputs = state["inputs"]
        self.__dict__.update(state, inputs=inputs.open() if isinstance(inputs, MappedArray) else inputs)

    def at(self, rows: Indices) -> Indices:
        """The places in the inputs of these rows of the part."""
        return rows if self.rows is None else self.rows[rows]


class MappedArray(NamedTuple):
    """The place of a memory-mapped array in a file, for a process that maps it anew; its bytes are not sent."""

    path: str
    begin: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: str

    @classmethod
    def from_memmap(cls, array: Any) -> "MappedArray":
        whole = np.frombuffer(array._mmap, np.uint8)
        begin = array.offset - array.offset % mmap.ALLOCATIONGRANULARITY + array.ctypes.data - whole.ctypes.data
        return cls(str(array.filename), begin, array.shape, array.strides, array.dtype.str)

    def open(self) -> Array:
        file = np.memmap(self.path, np.uint8, "r")
        return np.ndarray(self.shape, self.dtype, file, self.begin, self.strides)


@dataclass(frozen=True)
class BatchReader(Dataset[Any]):
    """Answers a `BatchRequest` by a `ReadBatch`. A worker process is sent all of it except what is memory-mapped."""

    name: str
    """The data set's name, for messages."""
    parts: Mapping[str, DataPart]
    task: Task
    scale: float = 1.0
    transforms: Mapping[bool, Transform | None] | None = None
    """The transforms of samples that are trained on (True), and of all others."""
    collate: Collate | None = None

    @cached_property
    def _generators(self) -> Mapping[tuple[str, bool], Sequence[Generator]]:
        """The generators of the user's code by part and whether samples are trained on: they get streams, too."""
        return {
            (name, drawn): generators_in(part.inputs, (self.transforms or {}).get(drawn))
            for name, part in self.parts.items()
            for drawn in (False, True)
        }

    @cached_property
    def _of_collate(self) -> Sequence[Generator]:
        return generators_in(self.collate)

    def __getstate__(self) -> dict[str, Any]:
        """Without what a worker finds anew, as not every generator can be sent."""
        return {one.name: getattr(self, one.name) for one in fields(self)}

    @property
    def has_user_code(self) -> bool:
        """Whether a sample comes from a data set, a transform or a `collate`, which may draw."""
        made = any(isinstance(part.inputs, Dataset) for part in self.parts.values())
        return made or bool(self.transforms and self.transforms.get(True)) or self.collate is not None

    def __getitems__(self, wanted: BatchRequest) -> ReadBatch | InputError:
        """A batch, or why there is none: torch's loader takes it as it is, and would hide an error that is raised."""
        try:
            return self.read(wanted)
        except InputError as error:
            return error

    def read(self, wanted: BatchRequest) -> ReadBatch:
        """Read a batch; InputError if user code fails, or returns something other than a sample."""
        part, transform = self.parts[wanted.part], (self.transforms or {}).get(wanted.drawn)
        rows = part.at(wanted.rows)
        if isinstance(part.inputs, Dataset):
            samples = self._samples(part.inputs, rows, transform, wanted)
            known = None if part.targets is None else part.targets[wanted.rows]
            if self.collate is None:
                return self._collated(samples, rows, None)
            with sample_streams():
                draw_from(derive(wanted.seed, "collate", *wanted.numbers.tolist()), self._of_collate)
                return self._collated(samples, rows, known)
        x = torch.from_numpy(as_model_inputs(part.inputs, rows, self.task.inputs, self.scale))
        y = None if part.targets is None else torch.from_numpy(part.targets[wanted.rows])
        if transform is None:
            return ReadBatch(x, y)
        pairs = [*zip(x, [None] * len(x) if y is None else y, strict=True)]
        changed = self._samples(pairs, np.arange(len(x)), transform, wanted)
        inputs, targets = zip(*changed, strict=True)
        return ReadBatch(self._stacked(inputs, rows), None if y is None else torch.stack(targets))

    def targets(self, wanted: BatchRequest) -> Array:
        """Read the targets of a torch Dataset's samples, (n, ...), as they come."""
        part = self.parts[wanted.part]
        rows = part.at(wanted.rows)
        found = [y for _, y in self._samples(part.inputs, rows, None, wanted)]
        try:
            return np.stack([np.asarray(y) for y in found])
        except (ValueError, TypeError) as error:
            why = _shape_mismatch(found, rows, "target") or describe_error(error)
            raise InputError(f"{self.name}: its targets are not of one shape: {why}; name a `collate`") from error

    def _samples(self, samples: Any, rows: Indices, transform: Transform | None, wanted: BatchRequest) -> list[Any]:
        found, held = [], self._generators[wanted.part, wanted.drawn]
        with sample_streams():
            for row, number in zip(rows.tolist(), wanted.numbers.tolist(), strict=True):
                draw_from(derive(wanted.seed, number), held)
                found.append(self._sample(samples, row, transform))
        return found

    def _sample(self, samples: Any, row: int, transform: Transform | None) -> Any:
        try:
            given = samples[row]
        except Exception as error:  # it is the user's code
            most = f"; {_says(samples)} that it has {len(samples)}" if isinstance(error, IndexError) else ""
            raise InputError(f"{self.name} fails at sample {row}: {describe_error(error)}{most}") from error
        if self.collate is not None and transform is None:
            return given  # whatever `collate` takes
        if not isinstance(given, tuple | list) or len(given) != 2:
            raise InputError(
                f"{self.name} must give (input, target) for a sample, not a {type(given).__name__}; of others a "
                "`collate` makes (inputs, targets), and classes are then read from the data set's `targets`"
            )
        with user_input_errors(f"{self.name}: a transform fails at sample {row}"):
            return transform(given[0], given[1]) if transform else (given[0], given[1])

    def _collated(self, samples: list[Any], rows: Indices, known: Targets | None) -> ReadBatch:
        """known: the classes of these samples, where they are known; else None."""
        try:
            inputs, targets = (self.collate or default_collate)(samples)
        except Exception as error:  # the user's, or torch's own for what cannot be put together
            hint = "" if self.collate else "; give tensors of one shape, or a `collate` of your own"
            hint += "; if test samples differ in size, write `evaluation_batch = 1` into the task" * (len(samples) > 1)
            parts = [] if self.collate else zip(("input", "target"), zip(*samples, strict=True), strict=True)
            unlike = (_shape_mismatch(values, rows, what) for what, values in parts)
            why = next(filter(None, unlike), describe_error(error))
            raise InputError(f"{self.name}: its samples make no batch: {why}{hint}") from error
        made = tree_map(self._as_input, inputs)
        if not self.task.has_classes:
            return ReadBatch(made, self._as_targets(targets))
        # Of several inputs some may count other things than samples: the nodes and edges of graphs, say.
        if isinstance(made, Tensor) and len(made) != len(rows):
            raise InputError(f"{self.name}: `collate` must make an input of each sample, whose classes are known")
        if known is not None and targets is not None and not np.array_equal(np.asarray(targets).reshape(-1), known):
            raise InputError(
                f"{self.name}: `collate` gives other classes than its data set lists for these samples, or in another "
                "order; keep the order of the samples"
            )
        return ReadBatch(made, None)

    def _as_input(self, x: Any) -> Tensor:
        if isinstance(x, Tensor) and x.is_floating_point():
            return x.float()
        if isinstance(x, Tensor) and x.dtype in (torch.int64, torch.int32, torch.bool):
            return x.to(torch.int64)
        found = f"tensors of {x.dtype}" if isinstance(x, Tensor) else f"a {type(x).__name__}"
        raise InputError(
            f"{self.name}: an input must be floating-point or int64, and a batch has {found}; convert it, as by "
            "`transforms: [ToImage, {ToDtype: {dtype: float32, scale: true}}]`"
        )

    def _as_targets(self, targets: Any) -> Tensor:
        return torch.from_numpy(self.task.read_targets(np.asarray(targets), self.name, "the array of its targets"))

    def _stacked(self, inputs: Sequence[Tensor], rows: Indices) -> Tensor:
        try:
            return torch.stack([*inputs]).float() if self.task.inputs == "float32" else torch.stack([*inputs])
        except (RuntimeError, TypeError) as error:
            why = _shape_mismatch(inputs, rows, "input") or describe_error(error)
            raise InputError(f"{self.name}: the transforms make inputs that cannot be stacked: {why}") from error


def _shape_mismatch(values: Sequence[Any], rows: Indices, what: str) -> str:
    """Name the first two samples whose shapes differ; empty if shapes are not the reason."""
    try:
        shapes = [tuple(np.shape(value)) for value in values]
    except (ValueError, TypeError):
        return ""
    if (other := next((at for at, shape in enumerate(shapes) if shape != shapes[0]), None)) is None:
        return ""
    return f"the {what} of sample {rows[0]} is {shapes[0]}, and that of sample {rows[other]} {shapes[other]}"


def as_model_inputs(inputs: Inputs, indices: Indices, dtype: str, scale: float) -> Array:
    """The inputs at `indices` as a model sees them: a copy."""
    # Advanced indexing copies the shard alone; a view into the whole set would keep all of it alive.
    x = np.ascontiguousarray(inputs[indices], dtype=dtype)
    if scale != 1.0:
        x /= np.float32(scale)
    return x


TARGETS_COMPARED = 8
"""Samples whose targets are compared with the data set's own list."""


class TorchDataset:
    """A map-style torch data set in the place of arrays; only `BatchReader` knows what is in it."""

    def __init__(self, dataset: "Dataset[Any]", name: str, collate: Collate | None = None) -> None:
        if isinstance(dataset, IterableDataset) or not hasattr(dataset, "__len__"):
            raise InputError(f"{name} returned a data set without a length; give it `__len__` and `__getitem__`")
        self.dataset, self.name, self._collate = dataset, name, collate
        self.shape = (_length(dataset, name),)
        """(number of samples,): the shape of an input is not known before one is read."""

    def __getitem__(self, indices: Indices, /) -> Array:
        raise TypeError("samples of a torch data set are read one by one")

    def targets(self, task: Task) -> Targets:
        """Every class, int64 (n,), where the task has classes; else those of a few samples, (few, ...), or of one where
        only a `collate` knows them."""
        count = self.shape[0]
        few = np.unique(np.linspace(0, count - 1, TARGETS_COMPARED).astype(np.int64))
        if self._collate is not None and not task.has_classes:
            return [self._collated(row, task) for row in few[[-1, 0]]][-1]
        listed = _listed_targets(self.dataset) if task.has_classes else None
        known = listed is not None and self._collate is not None
        found = None if known else self._read(few, task)  # the last one among them: there must be as many as it says
        if found is not None and not task.has_classes:
            return found
        if listed is None:
            return self._read(np.arange(count), task)
        labels = task.read_targets(listed, self.name, "`targets`")
        if len(labels) != count:
            raise InputError(
                f"{self.name}: {_says(self.dataset)} that it has {count} samples, and its `targets` are "
                f"{len(labels)}; make them agree"
            )
        wrong = few[:0] if found is None else few[labels[few] != found]
        if len(wrong):
            raise InputError(
                f"{self.name}: `targets` of its data set has not the class that sample {wrong[0]} has; make them agree"
            )
        return labels

    def _collated(self, row: int, task: Task) -> Targets:
        reading = BatchReader(self.name, {"train": DataPart(self.dataset)}, task, collate=self._collate)
        read = reading.read(BatchRequest("train", np.array([row]), np.array([row]), 0, drawn=False))
        assert read.targets is not None
        return read.targets.numpy()

    def _read(self, rows: Indices, task: Task) -> Targets:
        reading = BatchReader(self.name, {"train": DataPart(self.dataset)}, task)
        return task.read_targets(
            reading.targets(BatchRequest("train", rows, rows, 0, drawn=False)), self.name, "the array of its targets"
        )


def _length(dataset: Any, name: str) -> int:
    """Return its `__len__`, at least 1; called directly, as `len` does not name the class that answers wrongly."""
    with user_input_errors(f"{name}: `{type(dataset).__name__}.__len__` fails"):
        count: Any = dataset.__len__()
    with suppress(TypeError):
        if 1 <= index(count) <= sys.maxsize:
            return index(count)
    raise InputError(f"{name}: {_says(dataset)} that it has {count!r} samples; return how many, from 1")


def _says(dataset: Any) -> str:
    return f"`{type(dataset).__name__}` says by `__len__`"


def _listed_targets(dataset: Any) -> NDArray[Any] | None:
    """What the data set says of all its targets, as torchvision's do, without reading any sample."""
    if isinstance(dataset, Subset):
        whole = _listed_targets(dataset.dataset)
        return None if whole is None else whole[np.asarray(dataset.indices)]
    targets = getattr(dataset, "targets", None)
    try:
        return None if targets is None else np.asarray(targets)
    except ValueError as error:
        raise InputError(f"`targets` of a data set are not a list of classes: {describe_error(error)}") from error
