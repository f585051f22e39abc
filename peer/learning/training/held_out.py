"""Samples by which a peer sees whether more epochs help: set aside from its own, the same in all rounds."""

import torch
from torch import Tensor

from peer.errors import InputError
from peer.learning.randomness import torch_generator
from peer.learning.training.settings import Training


def trained_on(samples: int, how: Training, peer: str) -> int:
    """How many of a peer's samples its phases train on; InputError where none would be left."""
    if how.stop_early is None:
        return samples
    held = max(1, round(how.stop_early.share * samples))
    if held >= samples:
        raise InputError(
            f"{peer} has {samples} training samples, and `stop_early` holds out {held}; lower its `share`, give the "
            "peer more samples, or leave `stop_early` out"
        )
    return samples - held


def held_out(samples: int, how: Training, seed: int, peer: str) -> tuple[Tensor, Tensor]:
    """Positions to train on and those set aside, each int64 and ascending; all and none where nothing stops early."""
    left, everything = trained_on(samples, how, peer), torch.arange(samples)
    if left == samples:
        return everything, everything[:0]
    order = torch.randperm(samples, generator=torch_generator(seed, peer, 0, "held out"))
    return order[:left].sort().values, order[left:].sort().values
