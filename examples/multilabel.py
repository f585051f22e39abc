"""What is true of a handwritten digit: several things at once, or none."""

from typing import Any

import numpy as np
from sklearn.datasets import load_digits

Array = np.ndarray[Any, np.dtype[Any]]
ODD, PRIME, LARGE, LOOP = {1, 3, 5, 7, 9}, {2, 3, 5, 7}, {5, 6, 7, 8, 9}, {0, 6, 8, 9}


def properties() -> tuple[Array, Array]:
    """x float32 (1797, 1, 8, 8) in 0..1; y (1797, 4): whether the digit is odd, prime, more than 4, has a loop."""
    images, digits = load_digits(return_X_y=True)
    y = np.stack([np.isin(digits, [*these]) for these in (ODD, PRIME, LARGE, LOOP)], axis=1)
    return (images / 16).reshape(-1, 1, 8, 8).astype(np.float32), y.astype(np.int64)
