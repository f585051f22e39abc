"""Arithmetic on vectors that are laid out as the model: mixing, robust means, likeness, largest entries, and masks.

Mixing goes block by block, so that each block is still in the cache for the next term. Robust means are those that a
few arbitrary values cannot pull away: of each coordinate the extremes do not count. A model's vector also holds float
buffers, such as BatchNorm's: gradients, corrections and rules must not touch them, and running variances stay at
least 0 where a model has been changed by more than training."""

from collections.abc import Callable, Iterable, Sequence
from math import ceil, sqrt
from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor

from peer.learning.model.layout import TensorSlot

BLOCK = 1 << 16
"""Floats in a block: 256 KiB."""


def blend(own: Tensor, keep: float, others: Iterable[tuple[float, Tensor]]) -> None:
    """own ← keep·own + Σ_j a_j·v_j, in the order given; float32 vectors of one length, `own` changed in place."""
    terms = list(others)
    for start in range(0, own.numel(), BLOCK):
        block = own[start : start + BLOCK].mul_(keep)
        for weight, vector in terms:
            block.add_(vector[start : start + BLOCK], alpha=weight)


Trim = Annotated[int, Field(ge=0, le=10_000)]


def trimmed_mean(own: Tensor, others: Sequence[Tensor], trim: int) -> None:
    """own ← per coordinate, the mean of all values (its own among them) but the `trim` smallest and the `trim` largest.

    Yin et al. 2018, Definition 2, with a count in place of a share. Float32 vectors of one length, of which there are
    more than 2·trim; `own` changes in place. Of three with trim 1 it is the median.
    """
    count = len(others) + 1 - 2 * trim
    for start in range(0, own.numel(), BLOCK):
        block = slice(start, start + BLOCK)
        values = torch.stack([own[block], *(vector[block] for vector in others)]).sort(0).values
        own[block] = values[trim : trim + count].mean(0)


def cosine(first: Tensor, second: Tensor, layout: Sequence[TensorSlot]) -> float:
    """cos of two vectors laid out as the model, in float64; 0 where one of them is 0.

    Over the trainable parameters alone: BatchNorm's statistics say nothing of the direction of learning.
    """
    product = one = other = 0.0
    for entry in layout:
        if entry.trainable:
            a, b = entry.view(first).flatten().double(), entry.view(second).flatten().double()
            product, one, other = product + float(a @ b), one + float(a @ a), other + float(b @ b)
    length = sqrt(one) * sqrt(other)
    return max(-1.0, min(1.0, product / length)) if length > 0 else 0.0


def largest(vector: Tensor, count: int) -> Tensor:
    """A copy of a (p,) vector with its `count` entries of greatest magnitude, and zero elsewhere."""
    if count >= vector.numel():
        return vector.clone()
    at = places_of_largest(vector, count)
    return torch.zeros_like(vector).index_copy_(0, at, vector[at])


def places_of_largest(values: Tensor, count: int) -> Tensor:
    """The places of the `count` values of largest magnitude, ascending, int64; of equal ones the first."""
    if count < 1:
        return torch.empty(0, dtype=torch.int64, device=values.device)
    magnitudes = values.abs()
    least = magnitudes.topk(count, sorted=False).values.min()
    above, equal = (magnitudes > least).nonzero().flatten(), (magnitudes == least).nonzero().flatten()
    return torch.cat((above, equal[: count - len(above)])).sort().values


def largest_of_each(layout: Sequence[TensorSlot], vector: Tensor, share: float) -> Tensor:
    """The ⌈share·size⌉ entries of greatest magnitude of each tensor of `layout` in a (p,) vector, share in 0..1."""
    kept = torch.zeros_like(vector)
    for entry in layout:
        values = entry.view(vector).flatten()
        entry.view(kept).copy_(largest(values, ceil(share * entry.size)).view(entry.shape))
    return kept


def trainable_places(vector: Tensor, layout: Iterable[TensorSlot]) -> Tensor:
    """The places of a vector, laid out like the model, at which something is learnt: bool (p,)."""
    places = torch.zeros_like(vector, dtype=torch.bool)
    for entry in layout:
        entry.view(places).fill_(entry.trainable)
    return places


def trainable_only(vector: Tensor, layout: Iterable[TensorSlot]) -> Tensor:
    """`vector`, laid out as the model, itself, with zeros written where float buffers and frozen parameters lie."""
    for entry in layout:
        if not entry.trainable:
            entry.view(vector).zero_()
    return vector


def trainable_by(rule: Callable[[Tensor], Tensor], vector: Tensor, layout: Iterable[TensorSlot]) -> Tensor:
    """A copy of `vector` in which `rule` has replaced what is learnt; it sees zeros elsewhere, where all stays."""
    places = trainable_places(vector, layout)
    return torch.where(places, rule(torch.where(places, vector, 0.0)), vector)


def keep_variances(layout: Sequence[TensorSlot], vector: Tensor) -> None:
    """Running variances below 0, of noise or of a liar, become 0, in place; `vector` (p,) is laid out as the model."""
    for entry in layout:
        if not entry.trainable and entry.name.endswith("running_var"):
            entry.view(vector).clamp_(min=0)
