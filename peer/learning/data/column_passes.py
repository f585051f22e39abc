"""What is found of the columns of training samples in two passes over them.

Both give vectors of which a weighted mean over several peers is the same of all their samples together. The second one
goes round the mean of the first and in units of the column's size, so that it loses nothing where numbers are large and
alike, or tiny.
"""

import torch
from torch import Tensor

from peer.learning.data.samples import Samples
from peer.learning.data.standard import Standard

BATCH = 4096
"""Samples that are looked at together."""
ALIKE = torch.finfo(torch.float32).eps
"""A deviation so small beside the numbers themselves is that of a column which always is the same."""


def first_pass(samples: Samples) -> Tensor:
    """Of each column its mean and how large its values are, float32 (2·columns,)."""
    total = torch.zeros(2, *samples.shape, dtype=torch.float64)
    for batch in samples.in_order(BATCH):
        x = batch.inputs.cpu().double()
        total += torch.stack([x.sum(0), x.abs().sum(0)])
    return (total / len(samples)).float().flatten()


def second_pass(samples: Samples, first: Tensor) -> Tensor:
    """Of each column the mean distance from the mean of the first pass, and that of its squares, in units of the
    column's size: float32 (2·columns,)."""
    about, size = _of_first(first)
    total = torch.zeros(2, *samples.shape, dtype=torch.float64)
    for batch in samples.in_order(BATCH):
        away = (batch.inputs.cpu().double() - about) / size
        total += torch.stack([away.sum(0), away.square().sum(0)])
    return (total / len(samples)).float().flatten()


def standard_of(first: Tensor, second: Tensor) -> Standard:
    """Of what both passes gave, each perhaps its mean over peers. A column that always is the same has deviation 1,
    and so becomes 0."""
    about, size = _of_first(first)
    rest, squares = second.double().chunk(2)
    deviations = (squares - rest.square()).clamp(min=0).sqrt()
    deviations = torch.where(deviations > ALIKE, deviations * size, 1)
    return Standard((about + rest * size).float(), deviations.float())


def _of_first(first: Tensor) -> tuple[Tensor, Tensor]:
    means, sizes = first.double().chunk(2)
    return means, torch.where(sizes > 0, sizes, 1)
