"""Columns brought to mean 0 and deviation 1, by what was found of training samples in two passes over them.

Both passes give vectors of which a weighted mean over several peers is the same of all their samples together. The
second one goes round the mean of the first and in units of the column's size, so that it loses nothing where numbers
are large and alike, or tiny.
"""

from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor

from peer.errors import FailedError, InputError
from peer.learning.data.samples import Samples

BATCH = 4096
"""Samples that are looked at together."""
ALIKE = torch.finfo(torch.float32).eps
"""A deviation so small beside the numbers themselves is that of a column which always is the same."""


@dataclass(frozen=True)
class Standard:
    """Means and deviations, float32 (columns,) each on the CPU; no deviation is 0."""

    means: Tensor
    deviations: Tensor

    def __post_init__(self) -> None:
        """FailedError where no input could be standardised so: others have a part in them."""
        usable = bool(torch.isfinite(self.means).all() and torch.isfinite(self.deviations).all())
        if not usable or not bool((self.deviations > 0).all()):
            raise FailedError(
                "the columns' means and deviations, as found with the other peers, are of no use; look for a column of "
                "numbers out of all proportion, or a peer that tells wrong ones"
            )

    def __call__(self, x: Tensor) -> Tensor:
        """(..., columns) float32 on any device, standardised."""
        return (x - self.means.to(x.device)) / self.deviations.to(x.device)

    @property
    def vector(self) -> Tensor:
        """Both in one, float32 (2·columns,)."""
        return torch.cat([self.means, self.deviations])

    @classmethod
    def of_vector(cls, vector: Tensor) -> Self:
        """Of what `vector` gave."""
        means, deviations = vector.clone().chunk(2)
        return cls(means, deviations)

    @classmethod
    def of_passes(cls, first: Tensor, second: Tensor) -> Self:
        """Of what both passes gave, each perhaps its mean over peers. A column that always is the same has deviation 1,
        and so becomes 0."""
        about, size = _of_first(first)
        rest, squares = second.double().chunk(2)
        deviations = (squares - rest.square()).clamp(min=0).sqrt()
        deviations = torch.where(deviations > ALIKE, deviations * size, 1)
        return cls((about + rest * size).float(), deviations.float())


def first_pass(samples: Samples) -> Tensor:
    """Of each column its mean and how large its values are, float32 (2·columns,)."""
    total = torch.zeros(2, *samples.shape, dtype=torch.float64)
    for batch in samples.in_order(BATCH):
        x = batch.inputs.cpu().double()
        total += torch.stack([x.sum(0), x.abs().sum(0)])
    return (total / len(samples)).float().flatten()


def second_pass(samples: Samples, first: Tensor) -> Tensor:
    """Of each column the mean distance from the mean of the first pass, and that of its squares, in units of the
    column's size: float32 (2·columns,)."""
    about, size = _of_first(first)
    total = torch.zeros(2, *samples.shape, dtype=torch.float64)
    for batch in samples.in_order(BATCH):
        away = (batch.inputs.cpu().double() - about) / size
        total += torch.stack([away.sum(0), away.square().sum(0)])
    return (total / len(samples)).float().flatten()


def _of_first(first: Tensor) -> tuple[Tensor, Tensor]:
    means, sizes = first.double().chunk(2)
    return means, torch.where(sizes > 0, sizes, 1)


def check_columns(shape: object, where: str) -> None:
    """InputError unless inputs of that shape are rows of columns."""
    if not (isinstance(shape, tuple) and len(shape) == 1 and isinstance(shape[0], int)):
        raise InputError(
            f"{where}: `standardize` is for rows of numbers, and inputs are {shape}; leave it out (images can be "
            "standardised by `transforms` and `test_transforms`: [{Normalize: {mean: [0.5], std: [0.25]}}])"
        )
