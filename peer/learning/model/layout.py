"""How a split module's tensors lie in one flat vector, and making the module's tensors views into it."""

import math
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from peer.errors import InputError

Half = Literal["extractor", "head"]
HALVES: tuple[Half, ...] = ("extractor", "head")


@dataclass(frozen=True)
class Entry:
    """Where one named tensor lies in the vector; `offset` and `size` count elements, not bytes."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    part: Half
    offset: int
    size: int
    trainable: bool

    def view(self, vector: Tensor) -> Tensor:
        """This entry's place in `vector`, or in any other (p,) tensor of the same layout, in its own shape.

        Of any dtype (a gradient in float64, a mask in bool); a view: what is written into it stands in `vector`,
        and autograd goes through it. For the views of all entries that need gradients, `vector.split` is quicker.
        """
        return vector[self.offset : self.offset + self.size].view(self.shape)


def lay_out(split: nn.Module, model: str) -> tuple[Entry, ...]:
    """Extractor parameters and float buffers, then the head's, each in module order.

    `split` has the children `extractor` and `head`. Raises InputError for floating tensors that are not
    float32, parameters outside the two halves, and parameters that belong to both.
    """
    _check_halves(split, model)
    persistent = split.state_dict(keep_vars=True)
    entries: list[Entry] = []
    offset = 0
    for half in HALVES:
        floats = [(name, b) for name, b in split.named_buffers() if b.is_floating_point() and name in persistent]
        for name, tensor in [*split.named_parameters(), *floats]:
            if not name.startswith(f"{half}."):
                continue
            if tensor.dtype != torch.float32:
                raise InputError(f"model {model}: {name} is {tensor.dtype}; only float32 is supported, convert it")
            trainable = isinstance(tensor, nn.Parameter) and tensor.requires_grad
            shape = tuple(tensor.shape)
            entries.append(Entry(name, shape, "float32", half, offset, math.prod(shape), trainable))
            offset += math.prod(shape)
    return tuple(entries)


def counters(split: nn.Module) -> dict[str, Tensor]:
    """The persistent integer and boolean buffers by name, as the live tensors."""
    persistent = split.state_dict(keep_vars=True)
    return {
        name: buffer for name, buffer in split.named_buffers() if not buffer.is_floating_point() and name in persistent
    }


def bind(split: nn.Module, layout: tuple[Entry, ...], vector: Tensor, gradient: Tensor) -> None:
    """Copy the module's values into `vector`; make parameters, their gradients and buffers views."""
    for entry in layout:
        owner, _, key = entry.name.rpartition(".")
        module = split.get_submodule(owner)
        view = entry.view(vector)
        with torch.no_grad():
            view.copy_(getattr(module, key))
        if key in module._buffers:
            _replace_buffer(split, module._buffers[key], view)
        else:
            parameter = module.get_parameter(key)
            parameter.data = view
            if entry.trainable:
                parameter.grad = entry.view(gradient)


def rebind(split: nn.Module, layout: tuple[Entry, ...], vector: Tensor) -> None:
    """Take back buffers that a module assigned anew (`self.mean = …`) instead of updating them in place."""
    for entry in layout:
        owner, _, key = entry.name.rpartition(".")
        buffer = split.get_submodule(owner)._buffers.get(key)
        view = entry.view(vector)
        if buffer is not None and buffer.data_ptr() != view.data_ptr():
            view.copy_(buffer)
            _replace_buffer(split, buffer, view)


def _replace_buffer(split: nn.Module, old: Tensor | None, view: Tensor) -> None:
    for module in split.modules():
        for key, buffer in module._buffers.items():
            if buffer is old:
                module._buffers[key] = view


def _check_halves(split: nn.Module, model: str) -> None:
    owners: dict[int, str] = {}
    for name, parameter in split.named_parameters(remove_duplicate=False):
        half = name.partition(".")[0]
        if owners.setdefault(id(parameter), half) != half:
            raise InputError(f"model {model}: {name} belongs to extractor and head; a part must own its parameters")
