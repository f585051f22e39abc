"""Samples with their targets: what a model trains on, and is tested on."""

from abc import ABC, abstractmethod
from collections.abc import Generator, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from peer.learning.data.standard import Standard

Array = NDArray[Any]
Targets = NDArray[Any]
"""(n, ...): int64 (n,), classes from 0, where the task has classes."""
Labels = NDArray[np.int64]
Indices = NDArray[np.int64]


class Inputs(Protocol):
    """Inputs that are read when asked for: an array, perhaps memory-mapped, or a folder of image files."""

    @property
    def shape(self) -> tuple[int, ...]:
        """(n, *shape of one input)."""
        ...

    def __getitem__(self, indices: Indices, /) -> Array:
        """The inputs at `indices`, (len(indices), *shape), any real dtype."""
        ...


@dataclass(frozen=True)
class Names:
    """What a data set calls its features and its classes, each in order; empty where it has no names for them."""

    columns: tuple[str, ...] = ()
    classes: tuple[str, ...] = ()


class Batch(NamedTuple):
    """Some samples, on the model's device: their inputs, their targets (n, ...), and which they are."""

    inputs: Any
    """(n, *shape); or a tuple or dict of such tensors, where the data have several inputs."""
    targets: Tensor
    positions: Tensor
    """int64 (n,), in the peer's samples."""


class Samples(ABC):
    """Samples of a peer, in memory (`InMemory`) or read when they are needed (`Streamed`)."""

    @abstractmethod
    def __len__(self) -> int: ...

    @property
    @abstractmethod
    def shape(self) -> Any:
        """The shape of one input, without the leading n; a tuple or dict of shapes where there are several inputs."""

    @property
    @abstractmethod
    def device(self) -> torch.device:
        """Where positions are to lie."""

    @property
    @abstractmethod
    def labels(self) -> Tensor:
        """Every sample's class, int64 (n,), where the task has classes."""

    @abstractmethod
    def batch(self, positions: Tensor) -> Batch:
        """Those at `positions`, int64 (n,) on the samples' own device, in that order, as they are tested."""

    @abstractmethod
    def in_order(self, size: int) -> Iterator[Batch]:
        """All of them as they lie, so many at a time, as they are tested."""

    @abstractmethod
    def drawn(self, order: Iterable[Tensor], seed: int) -> Generator[Batch]:
        """One batch after the other, as they are trained on: random transforms draw from streams of `seed`.

        Closed, it leaves the workers that read to others."""

    @abstractmethod
    def pair(self) -> Batch:
        """Two samples, or twice the only one, for a dry pass; streamed, the data set's first, alike at all peers. Of
        tokens in memory they are those that hold the largest and the smallest."""

    @abstractmethod
    def to(self, device: torch.device | str) -> "Samples":
        """The same samples on `device`; copies nothing when they are there already."""

    @abstractmethod
    def first(self, count: int) -> "Samples":
        """At most so many of them."""

    @abstractmethod
    def changed(self, labels: Tensor | None = None, turns: int = 0) -> "Samples":
        """Others with these labels int64 (n,) and with images turned by so many right angles, anticlockwise."""

    @abstractmethod
    def standardised(self, standard: Standard) -> "Samples":
        """Rows of numbers with their columns brought to one scale."""

    @abstractmethod
    def close(self) -> None:
        """End what reads them; they may be read again, which begins anew."""


@dataclass(frozen=True)
class InMemory(Samples):
    """`x` (n, *shape) float32, images NCHW, or int64 for tokens; `y` (n, ...), as the task has its targets: int64
    (n,), classes from 0, for classification."""

    x: Tensor
    y: Tensor

    def __post_init__(self) -> None:
        if self.x.dtype not in (torch.float32, torch.int64) or self.y.dtype not in (torch.float32, torch.int64):
            raise TypeError(f"samples are float32 or int64, not {self.x.dtype} with {self.y.dtype}")
        if len(self.x) != len(self.y):
            raise ValueError(f"{tuple(self.x.shape)} inputs do not go with {tuple(self.y.shape)} targets")

    def __len__(self) -> int:
        return len(self.y)

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.x.shape[1:])

    @property
    def device(self) -> torch.device:
        return self.x.device

    @property
    def labels(self) -> Tensor:
        return self.y

    def batch(self, positions: Tensor) -> Batch:
        return Batch(self.x.index_select(0, positions), self.y.index_select(0, positions), positions)

    def in_order(self, size: int) -> Iterator[Batch]:
        everywhere = torch.arange(len(self), device=self.x.device)
        yield from map(Batch, *(torch.split(of_all, size) for of_all in (self.x, self.y, everywhere)))

    def drawn(self, order: Iterable[Tensor], seed: int) -> Generator[Batch]:
        yield from map(self.batch, order)

    def pair(self) -> Batch:
        two = torch.tensor([0, min(1, len(self) - 1)], device=self.x.device)
        if self.x.dtype == torch.int64:
            tokens = self.x.flatten(1)
            two = torch.stack([tokens.amax(1).argmax(), tokens.amin(1).argmin()])
        return self.batch(two)

    def to(self, device: torch.device | str) -> "InMemory":
        return InMemory(self.x.to(device), self.y.to(device))

    def first(self, count: int) -> "InMemory":
        return InMemory(self.x[:count], self.y[:count])

    def changed(self, labels: Tensor | None = None, turns: int = 0) -> "InMemory":
        x = torch.rot90(self.x, turns, (-2, -1)).contiguous() if turns else self.x
        return InMemory(x, self.y if labels is None else labels)

    def standardised(self, standard: Standard) -> "InMemory":
        return InMemory(standard(self.x), self.y)

    def close(self) -> None:
        pass
