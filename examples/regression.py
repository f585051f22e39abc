"""442 people with diabetes: how far the disease has gone after a year, from ten measurements (Efron et al., 2004)."""

from typing import Any

import numpy as np
from sklearn.datasets import load_diabetes

Array = np.ndarray[Any, np.dtype[Any]]


def diabetes() -> tuple[Array, Array]:
    """x float32 (442, 10), each column of mean 0 and variance 1; y float32 (442,), in hundreds of the score."""
    x, y = load_diabetes(return_X_y=True)
    return (x * len(x) ** 0.5).astype(np.float32), (y / 100).astype(np.float32)
