"""Batches from a data set that stays where it lies, read ahead by worker processes."""

import multiprocessing
import os
import threading
from collections.abc import Generator, Iterable, Iterator
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch.utils._pytree import tree_map
from torch.utils.data import DataLoader

from peer.errors import FailedError, InputError
from peer.learning.data.reading import BatchRequest, Read, Reading, Refused
from peer.learning.data.sent import check_sendable, not_sendable
from peer.plugins import in_words

PRELOADED = ["torch", "numpy", "peer.learning.data.reading"]
"""Imported once; workers are copies of the process that has them."""

_ENDED = ("exited unexpectedly", "is killed by signal")
"""What torch says of a worker; one that is ended while it hands on a batch leaves a broken connection."""


class Stream:
    """Reads what is wanted, in the order in which it is, by `workers` processes that live until `close`.

    They are forked from a server that has no threads: a peer has those of gRPC, which do not survive a fork. Whoever
    is asked while another reading is under way reads in this process.
    """

    def __init__(self, reading: Reading, workers: int = 0) -> None:
        self.reading, self.workers = reading, workers
        self._order, self._busy = _Order(), False
        self._loader: DataLoader[Any] | None = None

    @cached_property
    def pair(self) -> Read:
        """The data set's first two training samples, or twice its only one, as they are trained on."""
        return self._two("train", drawn=True)

    @cached_property
    def shape(self) -> Any:
        """Of one input, as the model takes it."""
        return self._shape(self.pair)

    def check(self) -> None:
        """InputError unless training and test inputs are alike, where they are all of one shape, and the workers can
        be given what they read."""
        tested = self._shape(self._two("test", drawn=False))
        if self.reading.collate is None and tested != self.shape:
            raise InputError(
                f"{self.reading.name}: training inputs are {self.shape} and test inputs {tested} after their "
                "transforms; make them alike by `test_transforms`"
            )
        if self.workers:
            check_sendable(self.reading)  # after it was read from, which may have opened a file

    def read(self, wanted: BatchRequest) -> Read:
        """One batch, read here."""
        return self.reading.read(wanted)

    def batches(self, wanted: Iterable[BatchRequest], *, alone: bool, device: torch.device) -> Generator[Read]:
        """One batch after the other; with `alone` without workers. Pinned in memory for a GPU, where workers read."""
        if alone or self._busy or not self.workers:
            yield from map(self.reading.read, wanted)
            return
        self._busy = True
        try:
            for read in self._loaded(wanted, device):
                if isinstance(read, Refused):
                    raise InputError(read.why)
                yield read
        finally:
            self._busy = False

    def close(self) -> None:
        """End the workers."""
        loader, self._loader = self._loader, None
        if loader is not None and loader._iterator is not None:
            loader._iterator._shutdown_workers()  # type: ignore[attr-defined]

    def _loaded(self, wanted: Iterable[BatchRequest], device: torch.device) -> Iterator[Read | Refused]:
        if self._loader is None:
            self._loader = self._opened(device)
        self._order.wanted = wanted
        try:
            yield from self._loader
        except (RuntimeError, OSError, EOFError) as error:
            if isinstance(error, RuntimeError) and not any(sign in str(error) for sign in _ENDED):
                raise
            raise FailedError(
                f"a worker that reads {self.reading.name} was ended, perhaps for want of memory ({in_words(error)}); "
                "set fewer `workers` or a smaller `batch_size`"
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
            raise not_sendable(self.reading, error) from error
        return loader

    def _two(self, part: str, drawn: bool) -> Read:
        count = len(self.reading.parts[part])
        return self.reading.read(BatchRequest(part, np.array([0, min(1, count - 1)]), np.arange(2), 0, drawn))

    def _shape(self, read: Read) -> Any:
        return tree_map(lambda x: tuple(x.shape[1:]), read.inputs)


class _Order:
    """What is to be read next; torch's loader goes through it anew each time."""

    wanted: Iterable[BatchRequest] = ()

    def __iter__(self) -> Iterator[BatchRequest]:
        return iter(self.wanted)


def _end_with_peer(_number: int) -> None:
    """Torch's own watch looks at the fork server, which a worker keeps alive."""

    def wait() -> None:
        if peer := multiprocessing.parent_process():
            peer.join()
        os._exit(1)

    threading.Thread(target=wait, name="peer", daemon=True).start()


def _as_it_is(read: Any) -> Any:
    return read
