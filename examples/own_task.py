"""Counting: how often something happens. task: "own_task:Counts", data: {name: "own_task:visits"}"""

from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from peer import Figure, Task


class Counts(Task):
    """Poisson regression: the model gives the logarithm of the expected number, (n, 1)."""

    figures = (Figure("deviance", better="down"), Figure("mae", better="down"))

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return functional.poisson_nll_loss(outputs, targets.reshape(outputs.shape))

    def tally(self, outputs: Tensor, targets: Tensor) -> Tensor:
        seen, expected = targets.reshape(outputs.shape), outputs.exp()
        deviance = 2 * (torch.xlogy(seen, seen / expected) - seen + expected)
        return torch.cat([deviance, (seen - expected).abs()], 1)

    def answers(self, outputs: Tensor) -> Tensor:
        return outputs.exp()[:, 0]


Array = np.ndarray[Any, np.dtype[Any]]


def visits(samples: int = 800) -> tuple[Array, Array]:
    """Made up: x float32 (samples, 4), and how many came, int64 (samples,)."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(samples, 4)).astype(np.float32)
    return x, rng.poisson(np.exp(x @ [0.8, -0.5, 0.3, 0] + 1))
