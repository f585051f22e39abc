"""A torch data set of one's own, of any length: each image is drawn when it is needed."""

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset

SIZE, NOISE = 16, 0.2


class Figures(Dataset[tuple[Tensor, int]]):
    """Images (1, 16, 16) of squares, discs and crosses, somewhere and of some size; the three classes in turn."""

    def __init__(self, samples: int, first: int = 0) -> None:
        self.samples, self.first = samples, first
        self.targets = [number % 3 for number in range(samples)]

    def __len__(self) -> int:
        return self.samples

    def __getitem__(self, number: int) -> tuple[Tensor, int]:
        generator = np.random.default_rng(self.first + number)
        y, x = np.abs(np.indices((SIZE, SIZE)) - generator.integers(5, SIZE - 5, 2)[:, None, None])
        reach = generator.integers(2, 5)
        drawn = [np.maximum(x, y) <= reach, x**2 + y**2 <= reach**2, (np.minimum(x, y) < 1) & (x + y <= reach)]
        image = drawn[self.targets[number]] + generator.normal(0, NOISE, (SIZE, SIZE))
        return torch.from_numpy(image[None]).float(), self.targets[number]


def figures(samples: int) -> tuple[Figures, Figures]:
    """For training and for tests."""
    return Figures(samples), Figures(300, first=samples)
