"""Mixing vectors in place, block by block, so that each block is still in the cache for the next term."""

from collections.abc import Iterable

from torch import Tensor

BLOCK = 1 << 16
"""Floats in a block: 256 KiB."""


def blend(own: Tensor, keep: float, others: Iterable[tuple[float, Tensor]]) -> None:
    """own ← keep·own + Σ_j a_j·v_j, in the order given; float32 vectors of one length, `own` changed in place."""
    terms = list(others)
    for start in range(0, own.numel(), BLOCK):
        block = own[start : start + BLOCK].mul_(keep)
        for weight, vector in terms:
            block.add_(vector[start : start + BLOCK], alpha=weight)
