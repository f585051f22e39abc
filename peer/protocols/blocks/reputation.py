"""Reputations: float64 (N,), a number for each peer in the order of the spec, the same bits at all of them."""

import torch
from torch import Tensor

from peer.protocols.blocks.updates import Told


def portions(values: Tensor, among: Tensor) -> Tensor:
    """Parts of a whole for the peers of `among` (bool), 0 for the others; even parts if their values are all 0."""
    found = torch.where(among, values, 0.0)
    total = found.sum()
    return found / total if total > 0 else among.double() / among.sum()


def still_here(remaining: Tensor) -> Tensor:
    """Who was not dropped, bool (N,); everybody where all of those have left the run since."""
    return remaining if bool(remaining.any()) else torch.ones_like(remaining)


def judged(told: Told, before: Tensor, among: Tensor, alpha: float, floor: float) -> tuple[Tensor, Tensor]:
    """(u, r): u = Σ r_i·Δ_i, by samples while nobody has a reputation; r_i ← α·r_i + (1−α)·cos(Δ_i, u), made parts.

    u is float64 (p,). A reputation counts at least `floor` before it is made a part.
    """
    total = told.total(portions(before if before.any() else told.samples, among))
    found = alpha * before + (1 - alpha) * told.cosines(total)
    return total, portions(found.clamp(min=floor), among)


def reputable(reputation: Tensor, among: Tensor, threshold: float) -> Tensor:
    """Who stays, bool (N,): those of `among` who have at least `threshold` of an even part."""
    return among & (reputation >= threshold / int(among.sum()))
