"""The model as a function of its weights: its answer with any vector in their place."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from peer.learning.model.inputs import spread
from peer.learning.model.layout import Entry


def logits_with(
    module: nn.Module, layout: Sequence[Entry], vector: Tensor, x: Tensor, modes: Mapping[nn.Module, bool]
) -> Tensor:
    """`module(x)` with the weights that `layout` finds in `vector`, (p,) of any floating dtype, which `x` shares.

    `modes` says which layers are in training mode meanwhile. The module keeps its own tensors, buffers and modes. See
    `Model.logits`. ValueError for a vector or inputs that do not fit.
    """
    size = sum(entry.size for entry in layout)
    if vector.shape != (size,) or not vector.is_floating_point():
        raise ValueError(f"the weights are {size} floating-point numbers, not {tuple(vector.shape)} of {vector.dtype}")
    if isinstance(x, Tensor) and x.dtype != vector.dtype:
        raise ValueError(f"the weights are {vector.dtype} and x is {x.dtype}; use x.to(vector.dtype)")
    with _in(modes):
        tensors = _tensors(module, layout, vector)
        logits: Tensor = spread(partial(_called, module, tensors), x)
    return logits


def _called(module: nn.Module, tensors: dict[str, Tensor], *inputs: Any, **named: Any) -> Any:
    return functional_call(module, tensors, inputs, named)


def _tensors(module: nn.Module, layout: Sequence[Entry], vector: Tensor) -> dict[str, Tensor]:
    """Every parameter and buffer by name; buffers as copies, since layers write into them."""
    buffers = dict(module.named_buffers())
    tensors = {name: _like(vector, buffer).clone() for name, buffer in buffers.items()}
    frozen = [(name, p) for name, p in module.named_parameters() if p.dtype != vector.dtype]
    tensors |= {name: _like(vector, parameter.detach()) for name, parameter in frozen}
    # One split and not a slice for each entry: the gradient of every slice would be as long as the whole vector.
    for entry, values in zip(layout, torch.split(vector, [entry.size for entry in layout]), strict=True):
        tensor = values.view(entry.shape)
        tensor = tensor if entry.dtype == "float32" else tensor.to(getattr(torch, entry.dtype))
        # What is not trainable has no gradient here as in training, and BatchNorm refuses statistics that ask for one.
        tensor = tensor if entry.trainable else tensor.detach()
        tensors[entry.name] = tensor.clone() if entry.name in buffers else tensor
    return tensors


def _like(vector: Tensor, tensor: Tensor) -> Tensor:
    """In the vector's dtype, as all is that has not 16 bits on purpose."""
    exact = tensor.is_floating_point() and tensor.dtype not in (torch.bfloat16, torch.float16)
    return tensor.to(vector.dtype) if exact else tensor


@contextmanager
def _in(modes: Mapping[nn.Module, bool]) -> Iterator[None]:
    """These modes for the block; afterwards every layer has its own again."""
    before = [(layer, layer.training) for layer in modes]
    for layer, mode in modes.items():
        layer.training = mode
    try:
        yield
    finally:
        for layer, mode in before:
            layer.training = mode
