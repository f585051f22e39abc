"""The model as a function of its weights: its answer with any vector in their place."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.func import functional_call

from peer.learning.model.layout import Entry


def logits_with(
    module: nn.Module, layout: Sequence[Entry], vector: Tensor, x: Tensor, *, training: bool = False
) -> Tensor:
    """`module(x)` with the weights that `layout` finds in `vector`, (p,) of any floating dtype, which `x` shares.

    The module keeps its own tensors, buffers and modes. See `Model.logits`. ValueError for a vector or inputs
    that do not fit.
    """
    size = sum(entry.size for entry in layout)
    if vector.shape != (size,) or not vector.is_floating_point():
        raise ValueError(f"the weights are {size} floating-point numbers, not {tuple(vector.shape)} of {vector.dtype}")
    if isinstance(x, Tensor) and x.dtype != vector.dtype:
        raise ValueError(f"the weights are {vector.dtype} and x is {x.dtype}; use x.to(vector.dtype)")
    with _mode(module, training):
        logits: Tensor = functional_call(module, _tensors(module, layout, vector), (x,))
    return logits


def _tensors(module: nn.Module, layout: Sequence[Entry], vector: Tensor) -> dict[str, Tensor]:
    """Every parameter and buffer by name; buffers as copies, since layers write into them."""
    buffers = dict(module.named_buffers())
    tensors = {n: b.to(vector.dtype if b.is_floating_point() else b.dtype, copy=True) for n, b in buffers.items()}
    # One split and not a slice for each entry: the gradient of every slice would be as long as the whole vector.
    for entry, values in zip(layout, torch.split(vector, [entry.size for entry in layout]), strict=True):
        tensor = values.view(entry.shape)
        # What is not trainable has no gradient here as in training, and BatchNorm refuses statistics that ask for one.
        tensor = tensor if entry.trainable else tensor.detach()
        tensors[entry.name] = tensor.clone() if entry.name in buffers else tensor
    return tensors


@contextmanager
def _mode(module: nn.Module, training: bool) -> Iterator[None]:
    """Training or evaluation mode for the block; afterwards every layer has its own mode again."""
    modes = [(each, each.training) for each in module.modules()]
    module.train(training)
    try:
        yield
    finally:
        for each, mode in modes:
            each.training = mode
