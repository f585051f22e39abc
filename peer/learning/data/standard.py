"""Columns brought to mean 0 and deviation 1."""

from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor

from peer.errors import FailedError, InputError


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


def check_columns(shape: object, where: str) -> None:
    """InputError unless inputs of that shape are rows of columns."""
    if not (isinstance(shape, tuple) and len(shape) == 1 and isinstance(shape[0], int)):
        raise InputError(
            f"{where}: `standardize` is for rows of numbers, and inputs are {shape}; leave it out (images can be "
            "standardised by `transforms` and `test_transforms`: [{Normalize: {mean: [0.5], std: [0.25]}}])"
        )
