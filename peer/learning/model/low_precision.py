"""Tensors of 16 bits beside a vector of 32: written from it before every pass, their gradients added to its own."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from peer.learning.model.layout import Patterned, Split, TensorSlot, owner_of

ParameterPlace = tuple[nn.Module, str, Tensor]
"""A layer, what it calls a tensor, and where in the vector the tensor's values lie."""


class LowPrecisionParameters:
    """The tensors of a module that keep a storage of their own, in bfloat16 or float16.

    What counts is the vector: before every pass they are its values, rounded. A backward pass that ends at such a
    parameter adds its gradient to the float32 one. A pass in training writes buffers, such as BatchNorm's statistics,
    back into the vector.
    """

    def __init__(
        self, split: Split | Patterned, layout: Sequence[TensorSlot], vector: Tensor, gradient: Tensor
    ) -> None:
        self._suspended = False
        rounded = [entry for entry in layout if entry.dtype != "float32"]
        for entry in rounded:
            if entry.trainable:
                add = partial(_add_to, entry.view(gradient))
                split.module.get_parameter(entry.name).register_post_accumulate_grad_hook(add)  # type: ignore[no-untyped-call]
        places = [(*owner_of(split.module, entry.name), entry.view(vector)) for entry in rounded]
        for entrance in split.entrances:
            below = {*entrance.modules()}
            if own := [place for place in places if place[0] in below]:
                entrance.register_forward_pre_hook(partial(self._before, own))
                entrance.register_forward_hook(partial(self._after, own))

    @contextmanager
    def suspended(self) -> Iterator[None]:
        """A block in which passes go by other weights than the vector's."""
        self._suspended = True
        try:
            yield
        finally:
            self._suspended = False

    def _before(self, places: Sequence[ParameterPlace], _entrance: nn.Module, _inputs: object) -> None:
        if self._suspended:
            return
        for owner, key, view in places:
            # By `data`: an earlier pass, of the same values, may still wait for its backward pass.
            getattr(owner, key).data.copy_(view)

    def _after(self, places: Sequence[ParameterPlace], _entrance: nn.Module, _inputs: object, _output: object) -> None:
        if self._suspended:
            return
        for owner, key, view in places:
            if owner.training and key in owner._buffers:
                view.copy_(getattr(owner, key))


def _add_to(gradient: Tensor, parameter: Tensor) -> None:
    assert parameter.grad is not None
    gradient.add_(parameter.grad)
    parameter.grad = None


def set_precision(split: Split | Patterned, dtype: torch.dtype | None) -> None:
    """Convert a module to `dtype`, unless it is None, and let it take floating inputs of any.

    A module with parameters of 16 bits answers in float32, in which losses and figures are computed.
    """
    if dtype:
        split.module.to(dtype)
        for entrance in split.entrances:
            entrance.register_forward_pre_hook(
                lambda _, inputs, keywords: _floats_to(dtype, (inputs, keywords)), with_kwargs=True
            )
    if any(map(is_low_precision, split.module.parameters())):
        split.entrances[-1].register_forward_hook(lambda _module, _inputs, output: _floats_to(torch.float32, output))


def is_low_precision(tensor: Tensor) -> bool:
    """Whether it has 16 bits a value."""
    return tensor.dtype in (torch.bfloat16, torch.float16)


def _floats_to(dtype: torch.dtype, value: Any) -> Any:
    """Every floating tensor in tuples, lists and dicts as `dtype`; everything else as it is."""
    if isinstance(value, Tensor):
        return value.to(dtype) if value.is_floating_point() else value
    if isinstance(value, dict):  # torch's own walk enters no subclass that was not made known to it
        return {key: _floats_to(dtype, one) for key, one in value.items()}
    if type(value) in (tuple, list):
        return type(value)(_floats_to(dtype, one) for one in value)
    return value
