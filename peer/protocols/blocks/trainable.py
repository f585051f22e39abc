"""What gradients, corrections and rules may touch: a model's vector also holds float buffers, such as BatchNorm's."""

from collections.abc import Callable, Iterable

import torch
from torch import Tensor

from peer.learning.model.layout import Entry


def trainable_places(vector: Tensor, layout: Iterable[Entry]) -> Tensor:
    """Where in a vector, laid out as the model, something is learnt: bool (p,)."""
    places = torch.zeros_like(vector, dtype=torch.bool)
    for entry in layout:
        entry.view(places).fill_(entry.trainable)
    return places


def trainable_only(vector: Tensor, layout: Iterable[Entry]) -> Tensor:
    """`vector`, laid out as the model, itself, with zeros written where float buffers and frozen parameters lie."""
    for entry in layout:
        if not entry.trainable:
            entry.view(vector).zero_()
    return vector


def trainable_by(rule: Callable[[Tensor], Tensor], vector: Tensor, layout: Iterable[Entry]) -> Tensor:
    """A copy of `vector` in which `rule` has replaced what is learnt; it sees zeros elsewhere, where all stays."""
    places = trainable_places(vector, layout)
    return torch.where(places, rule(torch.where(places, vector, 0.0)), vector)
