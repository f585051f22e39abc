"""How a split module's tensors lie in one flat vector, and making the module's tensors views into it."""

import math
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from peer.errors import InputError
from peer.learning.model.layers import frozen_layers
from peer.learning.model.split import HALVES, Half, Patterned, Split

DTYPES = (torch.float32, torch.bfloat16, torch.float16)
"""Of what a vector can hold; it is float32 itself."""


@dataclass(frozen=True)
class Entry:
    """Where one named tensor lies in the vector; `offset` and `size` count elements, not bytes."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    """The tensor's own in the module, float32, bfloat16 or float16; the vector is float32."""
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


def lay_out(split: Split | Patterned, model: str) -> tuple[Entry, ...]:
    """Extractor parameters and float buffers, then the head's, each in module order; what is frozen is left out.

    Raises InputError for floating tensors of other than 16 or 32 bits, parameters outside the two halves, and
    parameters that belong to both.
    """
    held = frozen(split.module)
    _check_halves(split, model)
    floats = [(name, b) for name, b in _persistent_buffers(split.module) if b.is_floating_point()]
    entries: list[Entry] = []
    offset = 0
    for half in HALVES:
        for name, tensor in [*split.module.named_parameters(), *floats]:
            if name in held or split.part_of(name) != half:
                continue
            if tensor.dtype not in DTYPES:
                raise InputError(
                    f"model {model}: {name} is {_short(tensor)}; a peer learns float32, bfloat16 or float16: convert "
                    "it, or write `dtype: float32` into `model`"
                )
            trainable, shape = isinstance(tensor, nn.Parameter), tuple(tensor.shape)
            entries.append(Entry(name, shape, _short(tensor), half, offset, math.prod(shape), trainable))
            offset += math.prod(shape)
    return tuple(entries)


def joined(entries: Iterable[Entry]) -> tuple[slice, ...]:
    """The places of these tensors in the vector, in its order, as few slices as possible."""
    slices: list[slice] = []
    for entry in entries:
        joins = bool(slices) and slices[-1].stop == entry.offset
        start = slices.pop().start if joins else entry.offset
        slices.append(slice(start, entry.offset + entry.size))
    return tuple(slices)


def frozen(module: nn.Module) -> dict[str, Tensor]:
    """What nobody trains and what never travels, by name, as the live tensors, of any dtype.

    Parameters that ask for no gradient, and the persistent buffers of layers that go with such parameters alone.
    """
    layers = frozen_layers(module)
    parameters = {name: tensor for name, tensor in module.named_parameters() if not tensor.requires_grad}
    return parameters | {
        name: buffer for name, buffer in _persistent_buffers(module) if name.rpartition(".")[0] in layers
    }


def versions(tensors: Mapping[str, Tensor]) -> dict[str, int]:
    """How often each was written into, as torch counts."""
    return {name: 0 if tensor.is_inference() else tensor._version for name, tensor in tensors.items()}


def counters(module: nn.Module, held: Collection[str] = ()) -> dict[str, Tensor]:
    """The persistent integer and boolean buffers by name, but those `held` frozen, as the live tensors."""
    return {
        name: buffer
        for name, buffer in _persistent_buffers(module)
        if not buffer.is_floating_point() and name not in held
    }


def _persistent_buffers(module: nn.Module) -> Iterator[tuple[str, Tensor]]:
    persistent = module.state_dict(keep_vars=True)
    return ((name, buffer) for name, buffer in module.named_buffers() if name in persistent)


def _short(tensor: Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")


def bind(module: nn.Module, layout: tuple[Entry, ...], vector: Tensor, gradient: Tensor) -> None:
    """Copy the module's values into `vector`; make parameters, their gradients and buffers views.

    Tensors of 16 bits stay where they are.
    """
    for entry in layout:
        owner, key = owner_of(module, entry.name)
        view = entry.view(vector)
        with torch.no_grad():
            view.copy_(getattr(owner, key))
        if entry.dtype != "float32":
            continue
        if key in owner._buffers:
            _replace_buffer(module, owner._buffers[key], view)
        else:
            parameter = owner.get_parameter(key)
            parameter.data = view
            parameter.grad = entry.view(gradient)


def rebind(module: nn.Module, layout: tuple[Entry, ...], vector: Tensor) -> None:
    """Take back buffers that a module assigned anew (`self.mean = …`) instead of updating them in place."""
    for entry in layout:
        owner, key = owner_of(module, entry.name)
        buffer = owner._buffers.get(key)
        view = entry.view(vector)
        if buffer is not None and entry.dtype == "float32" and buffer.data_ptr() != view.data_ptr():
            view.copy_(buffer)
            _replace_buffer(module, buffer, view)


def owner_of(module: nn.Module, name: str) -> tuple[nn.Module, str]:
    """The layer that has the tensor of that name, and what it calls it."""
    owner, _, key = name.rpartition(".")
    return module.get_submodule(owner), key


def _replace_buffer(module: nn.Module, old: Tensor | None, view: Tensor) -> None:
    for layer in module.modules():
        for key, buffer in layer._buffers.items():
            if buffer is old:
                layer._buffers[key] = view


def _check_halves(split: Split | Patterned, model: str) -> None:
    owners: dict[int, str] = {}
    for name, parameter in split.module.named_parameters(remove_duplicate=False):
        if not parameter.requires_grad:
            continue
        first = owners.setdefault(id(parameter), name)
        if split.part_of(first) != split.part_of(name):
            way_out = (
                "let the patterns of `model.head` match both names or neither"
                if isinstance(split, Patterned)
                else "give one module that has both, and say by patterns in `model.head` what is the head"
            )
            raise InputError(
                f"model {model}: {first} and {name} are one parameter, which belongs to extractor and head; {way_out}"
            )
