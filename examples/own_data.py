"""Samples made up for trying data of one's own: three spirals in the plane, one a class."""

import sys
from pathlib import Path
from typing import Any

import numpy as np

Array = np.ndarray[Any, np.dtype[Any]]


def spirals(samples: int = 600) -> tuple[Array, Array]:
    """x float32 (samples, 2) and y int64 (samples,); the same at every call, as every peer calls it."""
    rng = np.random.default_rng(0)
    y = np.arange(samples) % 3
    radius = rng.uniform(0.2, 1, samples)
    angle = 5 * radius + 2 * np.pi / 3 * y + rng.normal(0, 0.1, samples)
    x = np.stack([radius * np.cos(angle), radius * np.sin(angle)], axis=1)
    return x.astype(np.float32), y


def write_csv(path: Path) -> None:
    """A header line, then a line a sample."""
    path.parent.mkdir(parents=True, exist_ok=True)
    rows = [f"{a:.4f},{b:.4f},{label}" for (a, b), label in zip(*spirals(), strict=True)]
    path.write_text("\n".join(["x,y,label", *rows]) + "\n", encoding="utf-8")


if __name__ == "__main__":
    write_csv(Path(sys.argv[1] if len(sys.argv) > 1 else "data/spirals.csv"))
