"""Which samples make a batch, and what BatchNorm asks of it."""

from collections.abc import Iterable

import torch
from torch import Tensor, nn

from peer.errors import InputError
from peer.learning.model.model import Model, Part
from peer.learning.training.phase import Phase


def cut(order: Tensor, size: int, *, pairs: bool) -> list[Tensor]:
    """Positions (n,), as views, in batches of `size`, the last one as large as is left.

    With `pairs` a last batch of one joins the one before it.
    """
    batches = list(torch.split(order, size))
    if pairs and len(batches) > 1 and len(batches[-1]) == 1:
        batches[-2:] = [order[-(size + 1) :]]
    return batches


def normalises(model: Model, part: Part) -> bool:
    """Whether a layer of the part is a BatchNorm that learns, which it cannot from one sample at a time."""
    return any(isinstance(layer, nn.modules.batchnorm._BatchNorm) for layer in model.layers(part))


def check_batches(model: Model, phases: Iterable[Phase], samples: int, peer: str) -> None:
    """InputError if BatchNorm would have to learn from one sample at a time in any of the phases."""
    for phase in phases:
        learns = phase.epochs > 0 and model.trainable(phase.part) and normalises(model, phase.part)
        if learns and min(phase.batch_size, samples) == 1:
            held = "has one sample" if samples == 1 else "has a batch_size of 1"
            raise InputError(
                f"{peer} {held} and model {model.name} has BatchNorm, which cannot learn from one sample at a time; "
                "give the peer more samples, a batch_size of at least 2, or another model"
            )
