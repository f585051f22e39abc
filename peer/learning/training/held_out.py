"""Samples by which a peer sees whether more epochs help: set aside from its own, the same in all rounds."""

import torch
from torch import Tensor

from peer.errors import InputError
from peer.learning.randomness import torch_generator


def held_out(samples: int, share: float | None, seed: int, peer: str) -> tuple[Tensor, Tensor]:
    """Positions to train on and those set aside, each int64 and ascending; with None, all and none.

    InputError where nothing would be left to train on.
    """
    everything = torch.arange(samples)
    if share is None:
        return everything, everything[:0]
    count = max(1, round(share * samples))
    if count >= samples:
        raise InputError(
            f"{peer} has {samples} training samples, and `stop_early` holds out {count}; lower its `share`, give the "
            "peer more samples, or leave `stop_early` out"
        )
    order = torch.randperm(samples, generator=torch_generator(seed, peer, 0, "held out"))
    return order[count:].sort().values, order[:count].sort().values
