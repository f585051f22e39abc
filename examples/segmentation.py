"""Discs and squares in noise, made up, and a small network that finds them."""

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

Array = np.ndarray[Any, np.dtype[Any]]


def shapes(samples: int = 600, size: int = 16) -> tuple[Array, Array]:
    """Pixels uint8 (samples, size, size); for each its class: 0 nothing, 1 a disc, 2 a square."""
    rng = np.random.default_rng(0)
    row, column = np.mgrid[:size, :size]
    classes = np.zeros((samples, size, size), np.int64)
    for mask in classes:
        for kind in (1, 2):
            (y, x), radius = rng.integers(3, size - 3, 2), rng.integers(2, 4)
            far = np.stack([row - y, column - x])
            mask[np.hypot(*far) <= radius if kind == 1 else np.abs(far).max(0) < radius] = kind
    light = np.array([60, 150, 150])[classes] + rng.normal(0, 25, classes.shape)
    return light.clip(0, 255).astype(np.uint8), classes


class Halved(nn.Module):
    """Looks from half the resolution, too: a U-net of one step."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.fine = nn.Sequential(nn.Conv2d(1, channels, 3, padding=1), nn.ReLU())
        self.coarse = nn.Sequential(
            nn.AvgPool2d(2), nn.Conv2d(channels, channels, 5, padding=2), nn.ReLU(), nn.Upsample(scale_factor=2)
        )

    def forward(self, x: Tensor) -> Tensor:
        """(n, 1, H, W), H and W even → (n, 2·channels, H, W)."""
        fine = self.fine(x)
        return torch.cat([fine, self.coarse(fine)], 1)


def unet(shape: tuple[int, ...], classes: int) -> tuple[nn.Module, nn.Module]:
    """Two looks at the image | a logit for each class of each pixel."""
    return Halved(8), nn.Conv2d(16, classes, 3, padding=1)
