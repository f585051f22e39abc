"""Made up: eight measurements of patients, of whom 2 % have the disease."""

from typing import Any

import numpy as np

Array = np.ndarray[Any, np.dtype[Any]]


def patients(samples: int = 6000) -> tuple[Array, Array]:
    """x float32 (samples, 8), and who is ill, int64 (samples,)."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(samples, 8)).astype(np.float32)
    risk = x @ [1.0, -0.8, 0.6, 0.4, 0, 0, 0, 0] + rng.normal(0, 0.8, samples)
    return x, (risk > np.quantile(risk, 0.98)).astype(np.int64)
