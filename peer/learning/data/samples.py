"""Samples with their targets: what a model trains on, and is tested on; their missing values imputed, and their columns
brought to one scale.

`Samples` is the interface, `InMemory` the simple case. A missing value is NaN until it is imputed by what is found of
the training samples that have one (`typical_values`). Then columns are standardised to mean 0 and deviation 1 by what
is found of training samples in two passes over them. Both passes give vectors of which a weighted mean over several
peers is the same as that of all their samples together. The second one goes round the mean of the first and in
units of the column's size, so that it loses nothing where numbers are large and alike, or tiny.
"""

from abc import ABC, abstractmethod
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal, NamedTuple, Protocol, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from peer.errors import FailedError, InputError

Rule = Literal["mean", "median", "category"]
"""How missing values of a column are imputed; by `category` as by `mean`, and a further column is 1 there, else 0."""
USELESS = (
    "the columns' {}, as found with the other peers, are of no use; look for a column of numbers out of all "
    "proportion, or a peer that tells wrong ones"
)


@dataclass(frozen=True)
class Standardisation:
    """Means and deviations, float32 (columns,) each on the CPU; no deviation is 0."""

    means: Tensor
    deviations: Tensor
    imputed: Tensor | None = None
    """What stands for missing values, float32 (columns,), NaN where none may be missing; None if none may anywhere."""

    def __post_init__(self) -> None:
        """Raise FailedError if no input could be standardised so: other peers contribute to them."""
        usable = bool(torch.isfinite(self.means).all() and torch.isfinite(self.deviations).all())
        if not usable or not bool((self.deviations > 0).all()):
            raise FailedError(USELESS.format("means and deviations"))

    def __call__(self, x: Tensor) -> Tensor:
        """(..., columns) float32 on any device, imputed where it is NaN, and standardised."""
        if self.imputed is not None:
            x = torch.where(x.isnan(), self.imputed.to(x.device), x)
        return (x - self.means.to(x.device)) / self.deviations.to(x.device)

    @property
    def vector(self) -> Tensor:
        """All in one, float32 (2·columns + columns that may lack values,)."""
        imputed = [] if self.imputed is None else [self.imputed[~self.imputed.isnan()]]
        return torch.cat([self.means, self.deviations, *imputed])

    @classmethod
    def from_vector(cls, vector: Tensor, names: "Names") -> Self:
        """Take back what `vector` gave for columns of these names."""
        count = len(names.rules)
        means, deviations = vector[: len(vector) - count].clone().chunk(2)
        return cls(means, deviations, names.placed(vector[len(vector) - count :]))


def check_columns(shape: object, where: str) -> None:
    """Raise InputError unless inputs of that shape are rows of columns."""
    if not (isinstance(shape, tuple) and len(shape) == 1 and isinstance(shape[0], int)):
        raise InputError(
            f"{where}: `standardize` is for rows of numbers, and inputs are {shape}; leave it out (images can be "
            "standardised by `transforms` and `test_transforms`: [{Normalize: {mean: [0.5], std: [0.25]}}])"
        )


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
    """As the model takes them: those that tell where others have no value are the last."""
    classes: tuple[str, ...] = ()
    rules: Mapping[str, Rule] = field(default_factory=dict)
    """How the missing values of columns that may lack some are imputed, in the columns' order."""

    @classmethod
    def imputing(cls, raw: Sequence[str], rules: Mapping[str, Rule]) -> Self:
        """Name the columns of a table, and those that the rules add."""
        return cls((*raw, *(f"{name} missing" for name, rule in rules.items() if rule == "category")), rules=rules)

    @property
    def raw(self) -> tuple[str, ...]:
        """The columns as they lie in the data."""
        return self.columns[: len(self.columns) - len(self._flagged)]

    @cached_property
    def places(self) -> list[int]:
        """The numbers of the columns that may lack values."""
        return [self.columns.index(name) for name in self.rules]

    @cached_property
    def _flagged(self) -> list[int]:
        return [place for place, rule in zip(self.places, self.rules.values(), strict=True) if rule == "category"]

    def with_flags(self, x: Tensor) -> Tensor:
        """Add to (..., raw columns) the columns that tell where values are missing, NaN."""
        return torch.cat([x, x[..., self._flagged].isnan().to(x.dtype)], -1) if self._flagged else x

    def placed(self, values: Tensor) -> Tensor | None:
        """One value for each column that may lack some, as (columns,) with NaN for the others; None if none may.

        FailedError unless all are finite: other peers contribute to them.
        """
        if not self.rules:
            return None
        if not bool(values.isfinite().all()):
            raise FailedError(USELESS.format("values for missing ones"))
        found = torch.full((len(self.columns),), torch.nan)
        found[self.places] = values
        return found


class Batch(NamedTuple):
    """Some samples, on the model's device: their inputs, their targets (n, ...), and which they are."""

    inputs: Any
    """(n, *shape); or a tuple or dict of such tensors, where the data have several inputs."""
    targets: Tensor
    positions: Tensor
    """int64 (n,), in the peer's samples."""


class Samples(ABC):
    """Samples of a peer, in memory (`InMemory`) or read when they are needed (`StreamedSamples`)."""

    @abstractmethod
    def __len__(self) -> int: ...

    @property
    @abstractmethod
    def shape(self) -> Any:
        """The shape of one input, without the leading n; a tuple or dict of shapes where there are several inputs."""

    @property
    @abstractmethod
    def device(self) -> torch.device:
        """The device on which positions must be."""

    @property
    @abstractmethod
    def labels(self) -> Tensor:
        """Every sample's class, int64 (n,), where the task has classes."""

    @property
    def repeats(self) -> bool:
        """Whether training samples are the same when they are read again from the same stream, as far as was tried."""
        return True

    @abstractmethod
    def batch(self, positions: Tensor) -> Batch:
        """The samples at `positions`, int64 (n,) on the samples' own device, in that order, as used in tests."""

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
        """Return the samples on `device`, without a copy if they are already there."""

    @abstractmethod
    def first(self, count: int) -> "Samples":
        """The first `count` samples, or all if there are fewer, for a dry pass: a missing value is 0."""

    @abstractmethod
    def changed(self, labels: Tensor | None = None, turns: int = 0) -> "Samples":
        """Others with these labels int64 (n,) and with images turned by so many right angles, anticlockwise."""

    @abstractmethod
    def standardised(self, standard: Standardisation) -> "Samples":
        """Rows of numbers with their missing values imputed and their columns brought to one scale."""

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
        x, y, positions = self.batch(two)
        return Batch(x.nan_to_num(), y, positions)

    def to(self, device: torch.device | str) -> "InMemory":
        return InMemory(self.x.to(device), self.y.to(device))

    def first(self, count: int) -> "InMemory":
        return InMemory(self.x[:count].nan_to_num(), self.y[:count])

    def changed(self, labels: Tensor | None = None, turns: int = 0) -> "InMemory":
        y = self.y if labels is None else labels
        if not turns:
            return InMemory(self.x, y)
        return InMemory(turned(self.x, turns), turned(y, turns) if lie_alike(self.x, y) else y)

    def standardised(self, standard: Standardisation) -> "InMemory":
        return InMemory(standard(self.x), self.y)

    def close(self) -> None:
        pass


def turned(images: Tensor, turns: int) -> Tensor:
    """Images (..., height, width) turned by so many right angles, anticlockwise."""
    return torch.rot90(images, turns, (-2, -1)).contiguous()


def lie_alike(x: Tensor, y: Tensor) -> bool:
    """Whether targets (n, ...) are laid out as the images, as masks are."""
    return y.ndim > 2 and y.shape[-2:] == x.shape[-2:]


STATISTICS_BATCH = 4096
"""Samples that are looked at together."""
CONSTANT_BELOW = torch.finfo(torch.float32).eps
"""A deviation so small beside the numbers themselves is that of a column which always is the same."""


def typical_values(samples: Samples, names: Names) -> Tensor:
    """Return, for columns that may lack values, the share of samples that have one, and that share times the mean or
    median of these: float32 (2·such columns,). Weighted means over peers give the same of all samples together, but of
    medians their mean, weighted by numbers of values."""
    x = next(iter(samples.in_order(max(1, len(samples))))).inputs.cpu().double().numpy()[:, names.places]
    there = ~np.isnan(x)
    shares, typical = there.mean(0), np.zeros(x.shape[1])
    for number, rule in enumerate(names.rules.values()):
        if there[:, number].any():
            typical[number] = (np.median if rule == "median" else np.mean)(x[there[:, number], number])
    return torch.from_numpy(np.concatenate([shares, shares * typical])).float()


def imputation_of(found: Tensor, names: Names) -> Standardisation:
    """Only impute, by what `typical_values` gave, perhaps its mean over peers. InputError if a column has no value."""
    shares, totals = found.double().chunk(2)
    for name, share in zip(names.rules, shares.tolist(), strict=True):
        if share == 0:
            why = f"column `{name}` has no value in any training sample to impute by"
            raise InputError(f"{why}; name the other columns in `columns`")
    possible = (shares > 0) & (shares < 1.001)  # after rounding
    values = names.placed(torch.where(possible, totals / shares, torch.nan).float())
    return Standardisation(torch.zeros(len(names.columns)), torch.ones(len(names.columns)), values)


def first_pass(samples: Samples) -> Tensor:
    """Return each column's mean and mean size, float32 (2·columns,)."""
    total = torch.zeros(2, *samples.shape, dtype=torch.float64)
    for batch in samples.in_order(STATISTICS_BATCH):
        x = batch.inputs.cpu().double()
        total += torch.stack([x.sum(0), x.abs().sum(0)])
    return (total / len(samples)).float().flatten()


def second_pass(samples: Samples, first: Tensor) -> Tensor:
    """Return each column's mean distance from the first pass's mean, and that of its squares, in units of the
    column's size: float32 (2·columns,)."""
    about, size = _of_first(first)
    total = torch.zeros(2, *samples.shape, dtype=torch.float64)
    for batch in samples.in_order(STATISTICS_BATCH):
        away = (batch.inputs.cpu().double() - about) / size
        total += torch.stack([away.sum(0), away.square().sum(0)])
    return (total / len(samples)).float().flatten()


def standardisation_of(first: Tensor, second: Tensor) -> Standardisation:
    """Combine both passes, each perhaps its mean over peers. A column that is always the same has deviation 1,
    and so becomes 0."""
    about, size = _of_first(first)
    rest, squares = second.double().chunk(2)
    deviations = (squares - rest.square()).clamp(min=0).sqrt()
    deviations = torch.where(deviations > CONSTANT_BELOW, deviations * size, 1)
    return Standardisation((about + rest * size).float(), deviations.float())


def _of_first(first: Tensor) -> tuple[Tensor, Tensor]:
    means, sizes = first.double().chunk(2)
    return means, torch.where(sizes > 0, sizes, 1)
