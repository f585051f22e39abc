"""Fully connected models; inputs of any shape are flattened first."""

import math

from torch import nn


def mlp(shape: tuple[int, ...], classes: int) -> tuple[nn.Module, nn.Module]:
    """FIRMA's: d-256-256-128 with layer norm after the first two | 128-C. 64 and 10: 116,352 and 1,290."""
    extractor = nn.Sequential(
        nn.Flatten(),
        nn.Linear(math.prod(shape), 256),
        nn.LayerNorm(256),
        nn.ReLU(),
        nn.Linear(256, 256),
        nn.LayerNorm(256),
        nn.ReLU(),
        nn.Linear(256, 128),
        nn.ReLU(),
    )
    return extractor, nn.Linear(128, classes)


def mlp3(shape: tuple[int, ...], classes: int) -> tuple[nn.Module, nn.Module]:
    """FedISP's: d-512-256-128 with ReLU | 128-C. 784 and 10: 567,434 in all."""
    extractor = nn.Sequential(
        nn.Flatten(),
        nn.Linear(math.prod(shape), 512),
        nn.ReLU(),
        nn.Linear(512, 256),
        nn.ReLU(),
        nn.Linear(256, 128),
        nn.ReLU(),
    )
    return extractor, nn.Linear(128, classes)
