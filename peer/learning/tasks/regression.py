"""Numbers to foretell."""

from collections.abc import Callable, Mapping
from itertools import pairwise
from typing import Annotated, Any, ClassVar, Literal, Self

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field, FiniteFloat, PrivateAttr, field_validator
from torch import Tensor
from torch.nn import functional

from peer.errors import InputError
from peer.learning.tasks.base import Figure, Targets, Task
from peer.learning.tasks.trial import misshapen

DECILES = tuple(tenth / 10 for tenth in range(1, 10))
_LOSSES: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "mse": functional.mse_loss,
    "l1": functional.l1_loss,
    "huber": functional.huber_loss,
}


class Regression(Task):
    """The mean error of outputs (n, d) and targets float32 (n, d); the answers are the outputs.

    `rmse` and `mae`, over all n·d numbers, have the targets' unit; rmse is the headline, since it always exists. `r2`
    is the coefficient of determination 1 − Σ(y−ŷ)² / Σ(y−ȳ)², the mean of the d columns'; that of a constant column is
    1 if it is foretold exactly and else 0. The score is r2, cut to 0..1.
    """

    name: Literal["regression"]
    """Numbers to foretell: one, or a row of them, a sample."""
    error: Literal["mse", "l1", "huber"] = "mse"
    """What is trained: the squared error, the absolute one, or Huber's, squared up to 1 and absolute beyond."""
    edges: Annotated[tuple[FiniteFloat, ...], Field(min_length=1, max_length=100)] | None = None
    """Ascending bounds between ranges of targets, in each column: `fibfl++` orders the ring by the share of a peer's
    targets in each range. Not given: the deciles of the data that are dealt to the peers; data of a peer's own need
    `edges`."""

    _deciles: tuple[tuple[float, ...], ...] | None = PrivateAttr(None)
    """Of each column of the common training targets."""
    figures: ClassVar[tuple[Figure, ...]] = (Figure("rmse", better="down"), Figure("mae", better="down"), Figure("r2"))

    def targets(self, y: Targets, where: str, name: str) -> Targets:
        with np.errstate(over="ignore"):
            numbers = super().targets(y, where, name).astype(np.float32)
        if numbers.ndim == 1:
            numbers = numbers[:, None]
        if numbers.ndim != 2:
            raise InputError(
                f"{where}: {name} must be of shape (n,) or (n, k), a number or a row of them a sample, not {y.shape}"
            )
        wrong = np.flatnonzero(~np.isfinite(numbers).all(1))
        if len(wrong):
            raise InputError(f"{where}: {name} has a value that is not a finite float32 in sample {wrong[0]}")
        return numbers

    @field_validator("edges")
    @classmethod
    def _ascending(cls, edges: tuple[float, ...] | None) -> tuple[float, ...] | None:
        if edges and any(low >= high for low, high in pairwise(edges)):
            raise ValueError(f"edges ascend, each above the one before, and not {', '.join(map(str, edges))}")
        return edges

    def kinds(self, outputs: int) -> int:
        return outputs * (len(self.edges or DECILES) + 1)

    def mix(self, targets: Targets, outputs: int) -> NDArray[Any] | None:
        edges = self._deciles if self.edges is None else outputs * (self.edges,)
        if edges is None:
            return None
        ranges = [np.searchsorted(of_one, column, "right") for of_one, column in zip(edges, targets.T, strict=True)]
        return np.concatenate([np.bincount(found, minlength=self.kinds(1)) for found in ranges])

    def with_common(self, targets: Targets) -> Self:
        known = self.model_copy()
        known._deciles = tuple(map(tuple, np.quantile(targets.astype(np.float64), DECILES, axis=0).T.tolist()))
        return known

    def outputs_in_words(self, count: int) -> str:
        return f"{count} number{'s' * (count != 1)} to foretell"

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return _LOSSES[self.error](outputs, targets)

    def tally(self, outputs: Tensor, targets: Tensor) -> Tensor:
        true = targets.double()
        wrong = outputs.double() - true
        return torch.cat([wrong**2, wrong.abs(), true, true**2], 1)

    def results(self, sums: Tensor, samples: int) -> dict[str, float]:
        squared, absolute, total, squares = sums.view(4, -1).unbind()
        spread = squares - total**2 / samples
        # What rounding leaves of a constant column is no spread.
        constant = spread <= samples * torch.finfo(torch.float64).eps * squares
        r2 = torch.where(constant, (squared == 0).double(), 1 - squared / spread)
        return {
            "rmse": float((squared / samples).mean().sqrt()),
            "mae": float((absolute / samples).mean()),
            "r2": float(r2.mean()),
        }

    def score(self, results: Mapping[str, float]) -> float:
        return min(max(results["r2"], 0.0), 1.0)

    def misfit(self, outputs: object, targets: Tensor, classes: int) -> str | None:
        return misshapen(outputs, (classes,), "a number for each target")
