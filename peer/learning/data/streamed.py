"""Samples that stay where they lie, and are read batch by batch."""

from collections import deque
from collections.abc import Generator, Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils._pytree import tree_map

from peer.learning.data.reading import BatchRequest, Read
from peer.learning.data.samples import Batch, Indices, Samples
from peer.learning.data.standard import Standard
from peer.learning.data.stream import Stream

CPU = torch.device("cpu")


@dataclass(frozen=True)
class Streamed(Samples):
    """Some rows of a part of the data set. As they are tested they look the same each time; as they are trained on,
    their random transforms draw from the stream of the seed that is given."""

    stream: Stream
    part: str
    rows: Indices
    known: Tensor | None = None
    """Every sample's class, int64 (n,) on the CPU; None where the task has none."""
    on: torch.device = CPU
    """Where batches go."""
    turns: int = 0
    """By so many right angles images are turned, anticlockwise."""
    standard: Standard | None = None
    """What brings its columns to one scale."""
    alone: bool = False
    """Read here, without workers."""

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def shape(self) -> Any:
        return self.stream.shape

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
        return self._batch(self.stream.read(self._tested(positions.cpu())), positions.cpu())

    def in_order(self, size: int) -> Iterator[Batch]:
        return self._read((at, self._tested(at)) for at in torch.split(torch.arange(len(self)), size))

    def drawn(self, order: Iterable[Tensor], seed: int) -> Generator[Batch]:
        return self._read(self._trained(order, seed))

    def pair(self) -> Batch:
        read = self.stream.pair
        known = None if self.known is None else self.known[torch.tensor([0, min(1, len(self) - 1)])]
        inputs = self.standard(read.inputs) if self.standard else read.inputs
        return Batch(inputs, read.targets if known is None else known, torch.arange(2))  # type: ignore[arg-type]

    def to(self, device: torch.device | str) -> "Streamed":
        return replace(self, on=torch.device(device))

    def first(self, count: int) -> "Streamed":
        """Those are read without workers."""
        known = None if self.known is None else self.known[:count]
        return replace(self, rows=self.rows[:count], known=known, alone=True)

    def changed(self, labels: Tensor | None = None, turns: int = 0) -> "Streamed":
        return replace(self, known=self.known if labels is None else labels, turns=self.turns + turns)

    def standardised(self, standard: Standard) -> "Streamed":
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

    def _batch(self, read: Read, at: Tensor) -> Batch:
        targets = read.targets if self.known is None else self.known[at]
        assert targets is not None
        inputs = tree_map(lambda x: x.to(self.on, non_blocking=True), read.inputs)
        if self.standard:
            inputs = self.standard(inputs)
        if self.turns:
            inputs = torch.rot90(inputs, self.turns, (-2, -1)).contiguous()
        return Batch(inputs, targets.to(self.on, non_blocking=True), at.to(self.on, non_blocking=True))
