"""Samples that stay where they lie, and are read batch by batch, ahead of training, by worker processes.

Whether what workers are to read can be sent to a process of its own is found out first, without starting one.
Workers are forked from a server that has no threads: a peer has those of gRPC, which do not survive a fork.
"""

import multiprocessing
import os
import threading
from collections import deque
from collections.abc import Generator, Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass, replace
from functools import cached_property
from multiprocessing.context import set_spawning_popen
from multiprocessing.reduction import ForkingPickler
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map
from torch.utils.data import DataLoader

from peer.errors import FailedError, InputError
from peer.learning.data.batch_reader import BatchReader, BatchRequest, ReadBatch
from peer.learning.data.samples import Batch, Indices, Samples, Standardisation, lie_alike, turned
from peer.plugins import describe_error


def check_picklable(reading: BatchReader) -> None:
    """Raise InputError if some user object in it cannot be sent to a worker."""
    # What may be sent at a process's start alone, such as a lock, asks whether one is being started.
    set_spawning_popen(_NoProcess())  # type: ignore[arg-type]
    try:
        with open(os.devnull, "wb") as nowhere:
            _WithoutNumbers(nowhere).dump(reading)
    except Exception as error:  # whatever an object of the user's raises
        raise not_picklable(reading, error) from error
    finally:
        set_spawning_popen(None)


def not_picklable(reading: BatchReader, error: Exception) -> InputError:
    return InputError(
        f"{reading.name} cannot be given to `workers`: {describe_error(error)}; use no lambda and no open file in it, "
        "or set `workers: 0`"
    )


class _WithoutNumbers(ForkingPickler):
    """Pickles everything but numbers, which can always be sent and may be large."""

    def reducer_override(self, value: Any) -> Any:
        numbers = isinstance(value, Tensor) or (isinstance(value, np.ndarray) and not value.dtype.hasobject)
        return (str, ()) if numbers else NotImplemented


class _NoProcess:
    """Stands in for the process that is being started."""

    DupFd: ClassVar[type[int]] = int

    def duplicate_for_child(self, descriptor: int) -> int:
        return descriptor


PRELOADED = ["torch", "numpy", "peer.learning.data.batch_reader"]
"""Imported once; workers are copies of the process that has them."""

_WORKER_ENDED = ("exited unexpectedly", "is killed by signal")
"""What torch says of a worker; one that is ended while it hands on a batch leaves a broken connection."""


class BatchLoader:
    """Reads batches in the order in which they are requested, by `workers` processes that live until `close`.

    A request that comes while another one is being read is read in this process.
    """

    def __init__(self, reading: BatchReader, workers: int = 0) -> None:
        self.reading, self.workers = reading, workers
        self._order, self._busy = _RequestOrder(), False
        self._loader: DataLoader[Any] | None = None

    @cached_property
    def pair(self) -> ReadBatch:
        """The data set's first two training samples, or twice its only one, as they are trained on."""
        return self._two("train", drawn=True)

    @cached_property
    def shape(self) -> Any:
        """The shape of one input, as the model takes it."""
        return _input_shape(self.pair)

    @cached_property
    def repeats(self) -> bool:
        """Whether the first two training samples are the same when they are read again from the same stream."""
        if not self.reading.has_user_code:
            return True
        once, again = tree_leaves(tuple(self.pair)), tree_leaves(tuple(self._two("train", drawn=True)))
        return len(once) == len(again) and all(map(_same, once, again))

    @cached_property
    def augments(self) -> bool:
        """Whether the training set itself changes samples at random, and so those that are held back, too."""
        if not self.reading.has_user_code:
            return False
        once, again = (tree_leaves(self._two("train", drawn=False, seed=seed).inputs) for seed in (0, 1))
        return any(not _same(one, other) for one, other in zip(once, again, strict=True))

    def check(self) -> None:
        """Raise InputError unless training and all other inputs have the same shape, where nothing says how others are
        judged, and workers can be given what they read."""
        for part, words in (("test", "test"), ("held", "validation")):
            if part not in self.reading.parts:
                continue
            tested = _input_shape(self._two(part, drawn=False, most=self.reading.task.evaluation_batch))
            if self.reading.collate is None and not self.reading.task.infers and tested != self.shape:
                raise InputError(
                    f"{self.reading.name}: training inputs are {self.shape} and {words} inputs {tested} after their "
                    "transforms; make them alike by `test_transforms`, or give the task an `infer`"
                )
        _ = self.repeats  # found out here, in a thread, and not where it is asked for
        if self.workers:
            check_picklable(self.reading)  # after it was read from, which may have opened a file

    def batches(self, wanted: Iterable[BatchRequest], *, alone: bool, device: torch.device) -> Generator[ReadBatch]:
        """Yield one batch after the other; with `alone` without workers. Workers pin them in memory for a GPU."""
        if alone or self._busy or not self.workers:
            yield from map(self.reading.read, wanted)
            return
        self._busy = True
        try:
            for read in self._loaded(wanted, device):
                if isinstance(read, InputError):
                    raise read
                yield read
        finally:
            self._busy = False

    def close(self) -> None:
        """End the workers."""
        loader, self._loader = self._loader, None
        if loader is not None and loader._iterator is not None:
            loader._iterator._shutdown_workers()  # type: ignore[attr-defined]

    def _loaded(self, wanted: Iterable[BatchRequest], device: torch.device) -> Iterator[ReadBatch | InputError]:
        if self._loader is None:
            self._loader = self._opened(device)
        self._order.wanted = wanted
        try:
            yield from self._loader
        except (RuntimeError, OSError, EOFError) as error:
            if isinstance(error, RuntimeError) and not any(sign in str(error) for sign in _WORKER_ENDED):
                raise
            raise FailedError(
                f"a worker that reads {self.reading.name} was ended, perhaps for want of memory "
                f"({describe_error(error)}); set fewer `workers` or a smaller `batch_size`"
            ) from error

    def _opened(self, device: torch.device) -> DataLoader[Any]:
        known = multiprocessing.get_all_start_methods()
        context = multiprocessing.get_context("forkserver" if "forkserver" in known else "spawn")
        context.set_forkserver_preload(PRELOADED)
        loader = DataLoader(
            self.reading,
            batch_sampler=self._order,  # type: ignore[arg-type]
            num_workers=self.workers,
            collate_fn=_as_it_is,
            multiprocessing_context=context,
            persistent_workers=True,
            pin_memory=device.type == "cuda",
            generator=torch.Generator(),
            worker_init_fn=_end_with_peer,
        )
        try:
            iter(loader)
        except Exception as error:  # whatever an object of the user's raises that cannot be sent to another process
            raise not_picklable(self.reading, error) from error
        return loader

    def _two(self, part: str, drawn: bool, most: int = 2, seed: int = 0) -> ReadBatch:
        """The first two samples of a part, or twice its only one, but at most so many."""
        rows = np.array([0, min(1, len(self.reading.parts[part]) - 1)])[:most]
        return self.reading.read(BatchRequest(part, rows, np.arange(len(rows)), seed, drawn))


def _same(one: Any, other: Any) -> bool:
    return torch.equal(one.nan_to_num(), other.nan_to_num()) if isinstance(one, Tensor) else bool(one == other)


def _input_shape(read: ReadBatch) -> Any:
    return tree_map(lambda x: tuple(x.shape[1:]), read.inputs)


class _RequestOrder:
    """The requests in their order. Torch's loader takes one such object for good and goes through it each time."""

    wanted: Iterable[BatchRequest] = ()

    def __iter__(self) -> Iterator[BatchRequest]:
        return iter(self.wanted)


def _end_with_peer(_number: int) -> None:
    """End a worker with its peer. Torch's own watch looks at the fork server, which a worker keeps alive."""

    def wait() -> None:
        if peer := multiprocessing.parent_process():
            peer.join()
        os._exit(1)

    threading.Thread(target=wait, name="peer", daemon=True).start()


def _as_it_is(read: Any) -> Any:
    return read


CPU = torch.device("cpu")


@dataclass(frozen=True)
class StreamedSamples(Samples):
    """Some rows of a part of the data set. As they are tested they look the same each time; as they are trained on,
    their random transforms draw from the stream of the seed that is given."""

    stream: BatchLoader
    part: str
    rows: Indices
    known: Tensor | None = None
    """Every sample's class, int64 (n,) on the CPU; None where the task has none."""
    on: torch.device = CPU
    """The device to which batches go."""
    turns: int = 0
    """Right angles by which images are turned, anticlockwise."""
    standard: Standardisation | None = None
    """What brings its columns to one scale."""
    alone: bool = False
    """Read here, without workers."""

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def shape(self) -> Any:
        return self.stream.shape

    @property
    def repeats(self) -> bool:
        return self.stream.repeats

    @property
    def device(self) -> torch.device:
        """The CPU, whatever the model's: what is read next must not wait for what is computed now."""
        return CPU

    @property
    def labels(self) -> Tensor:
        if self.known is None:
            raise TypeError("the task has no classes")
        return self.known

    def batch(self, positions: Tensor) -> Batch:
        return self._batch(self.stream.reading.read(self._tested(positions.cpu())), positions.cpu())

    def in_order(self, size: int) -> Iterator[Batch]:
        return self._read((at, self._tested(at)) for at in torch.split(torch.arange(len(self)), size))

    def drawn(self, order: Iterable[Tensor], seed: int) -> Generator[Batch]:
        return self._read(self._trained(order, seed))

    def pair(self) -> Batch:
        read = self.stream.pair
        known = None if self.known is None else self.known[torch.tensor([0, min(1, len(self) - 1)])]
        inputs = self.standard(read.inputs) if self.standard else read.inputs
        return Batch(inputs, read.targets if known is None else known, torch.arange(2))  # type: ignore[arg-type]

    def to(self, device: torch.device | str) -> "StreamedSamples":
        return replace(self, on=torch.device(device))

    def first(self, count: int) -> "StreamedSamples":
        """The first `count` samples, or all if there are fewer, read without workers."""
        known = None if self.known is None else self.known[:count]
        return replace(self, rows=self.rows[:count], known=known, alone=True)

    def changed(self, labels: Tensor | None = None, turns: int = 0) -> "StreamedSamples":
        return replace(self, known=self.known if labels is None else labels, turns=self.turns + turns)

    def standardised(self, standard: Standardisation) -> "StreamedSamples":
        return replace(self, standard=standard)

    def close(self) -> None:
        self.stream.close()

    def _tested(self, positions: Tensor) -> BatchRequest:
        rows = self.rows[positions.numpy()]
        return BatchRequest(self.part, rows, rows, 0, drawn=False)

    def _trained(self, order: Iterable[Tensor], seed: int) -> Iterator[tuple[Tensor, BatchRequest]]:
        number = 0
        for at in order:
            numbers = np.arange(number, number + len(at))
            number += len(at)
            yield at, BatchRequest(self.part, self.rows[at.numpy()], numbers, seed, drawn=True)

    def _read(self, pairs: Iterable[tuple[Tensor, BatchRequest]]) -> Generator[Batch]:
        asked = deque[Tensor]()

        def wanted() -> Iterator[BatchRequest]:
            for at, one in pairs:
                asked.append(at)
                yield one

        with closing(self.stream.batches(wanted(), alone=self.alone, device=self.on)) as reads:
            for read in reads:
                yield self._batch(read, asked.popleft())

    def _batch(self, read: ReadBatch, at: Tensor) -> Batch:
        targets = read.targets if self.known is None else self.known[at]
        assert targets is not None
        inputs = tree_map(lambda x: x.to(self.on, non_blocking=True), read.inputs)
        if self.standard:
            inputs = self.standard(inputs)
        if self.turns:
            targets = turned(targets, self.turns) if lie_alike(inputs, targets) else targets
            inputs = turned(inputs, self.turns)
        return Batch(inputs, targets.to(self.on, non_blocking=True), at.to(self.on, non_blocking=True))
