"""How a module is divided into extractor and head, and how its tensors lie in one flat vector.

From the module to the vector: how it is called with a batch's inputs; what is extractor and what is head (two
modules, or one whose tensors are divided by their names); which parameters each layer goes with, so what is frozen
and which layers rest while a part learns; and where each tensor lies in the vector, into which the module's own
tensors become views.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import partial
from itertools import compress
from operator import not_
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn

from peer.errors import InputError
from peer.learning.named_tensors import dtype_name


def spread(module: Callable[..., Any], inputs: Any) -> Any:
    """`module(x)`, of a tuple `module(*inputs)`, of a dict `module(**inputs)`."""
    if isinstance(inputs, dict):
        return module(**inputs)
    return module(*inputs) if isinstance(inputs, tuple | list) else module(inputs)


Half = Literal["extractor", "head"]
HALVES: tuple[Half, ...] = ("extractor", "head")


class Split(nn.Module):
    """head(extractor(x)); gives every tensor its name, `extractor.…` or `head.…`."""

    def __init__(self, extractor: nn.Module, head: nn.Module) -> None:
        super().__init__()
        self.extractor = extractor
        self.head = head

    def forward(self, *inputs: Any, **named: Any) -> Tensor:
        """(n, *shape) → the model's outputs: (n, classes) logits where the task has classes."""
        outputs: Tensor = self.head(self.extractor(*inputs, **named))
        return outputs

    @property
    def module(self) -> nn.Module:
        return self

    @property
    def entrances(self) -> tuple[nn.Module, ...]:
        """The modules that are called on their own, each with what the one before it gave."""
        return self.extractor, self.head

    def part_of(self, name: str) -> Half:
        """The half to which the tensor of that name belongs."""
        return "head" if name.startswith("head.") else "extractor"


@dataclass(frozen=True, eq=False)
class Patterned:
    """One module: the tensors whose names match a pattern are the head, all others the extractor.

    They keep the names that they have in the module.
    """

    module: nn.Module
    head: tuple[str, ...]

    @property
    def entrances(self) -> tuple[nn.Module, ...]:
        return (self.module,)

    def part_of(self, name: str) -> Half:
        return "head" if matches(name, self.head) or self._beside_a_head(name) else "extractor"

    def _beside_a_head(self, name: str) -> bool:
        """Whether it is a buffer of a layer all of whose parameters are the head's, such as a BatchNorm's mean."""
        owner, _, key = name.rpartition(".")
        layer = self.module.get_submodule(owner)
        if key not in layer._buffers:
            return False
        beside = [f"{owner}.{other}" if owner else other for other in layer._parameters]
        return bool(beside) and all(matches(other, self.head) for other in beside)


def matches(name: str, patterns: tuple[str, ...]) -> bool:
    """Whether a name matches any pattern, in which `*` stands for anything, dots included."""
    return any(fnmatchcase(name, pattern) for pattern in patterns)


def check_patterns(module: nn.Module, patterns: tuple[str, ...], key: str, model: str) -> None:
    """Raise InputError for a pattern that no tensor's name matches."""
    names = [name for name, _ in (*module.named_parameters(remove_duplicate=False), *module.named_buffers())]
    for pattern in patterns:
        if not any(matches(name, (pattern,)) for name in names):
            some = ", ".join(names[:3] + ["..."] * (len(names) > 3)) or "none"
            raise InputError(f"model {model} has no tensor whose name matches `{pattern}` of `{key}`; it has {some}")


ModelPart = Literal["extractor", "head", "model"]
PARTS: tuple[ModelPart, ...] = get_args(ModelPart)
ParameterNames = tuple[str, ...]


def governing(root: nn.Module) -> dict[str, ParameterNames]:
    """Return, by each layer's name, the names of the parameters that govern it.

    They are its own; without any, all those of the layers in it; without any, those of the nearest layer around it
    that has some.
    """
    names = {id(parameter): name for name, parameter in root.named_parameters()}
    found = dict[str, ParameterNames]()
    for path, layer in root.named_modules():
        own = layer.parameters(recurse=False)
        found[path] = (
            tuple(names[id(parameter)] for parameter in own)
            or tuple(names[id(parameter)] for parameter in layer.parameters())
            or found.get(path.rpartition(".")[0], ())
        )
    return found


def frozen_layers(root: nn.Module) -> frozenset[str]:
    """Return the layers governed by frozen parameters alone; call it before a phase freezes a part."""
    trainable = {name for name, parameter in root.named_parameters() if parameter.requires_grad}
    return frozenset(layer for layer, names in governing(root).items() if names and not trainable & {*names})


def resting(split: Split | Patterned) -> Mapping[ModelPart, tuple[nn.Module, ...]]:
    """Return, by part, the layers that stay in evaluation mode while it learns.

    Those are frozen layers that have buffers, such as a BatchNorm, whose statistics so stay as well; and, of one module
    that is divided by names, the layers that go with parameters of the other part alone.
    """
    root = split.module
    goes_with, frozen = governing(root), frozen_layers(root)

    def rests(path: str, layer: nn.Module, part: ModelPart) -> bool:
        halves = {split.part_of(name) for name in goes_with[path]}
        others = isinstance(split, Patterned) and part != "model" and bool(halves) and part not in halves
        return others or (path in frozen and _keeps_buffers(layer))

    return {part: tuple(layer for path, layer in root.named_modules() if rests(path, layer, part)) for part in PARTS}


def _keeps_buffers(layer: nn.Module) -> bool:
    kept = layer._buffers.keys() - layer._non_persistent_buffers_set
    return any(layer._buffers[key] is not None for key in kept)


LEARNABLE_DTYPES = (torch.float32, torch.bfloat16, torch.float16)
"""Dtypes whose values the vector, itself float32, can hold."""


@dataclass(frozen=True)
class TensorSlot:
    """The place of a named tensor in the vector; `offset` and `size` count elements, not bytes."""

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


def lay_out(split: Split | Patterned, model: str) -> tuple[TensorSlot, ...]:
    """Extractor parameters and float buffers, then the head's, each in module order; what is frozen is left out.

    Raises InputError for floating tensors of other than 16 or 32 bits, parameters outside the two halves, and
    parameters that belong to both.
    """
    held = frozen_tensors(split.module)
    _check_halves(split, model)
    floats = [(name, b) for name, b in _persistent_buffers(split.module) if b.is_floating_point()]
    entries: list[TensorSlot] = []
    offset = 0
    for half in HALVES:
        for name, tensor in [*split.module.named_parameters(), *floats]:
            if name in held or split.part_of(name) != half:
                continue
            if tensor.dtype not in LEARNABLE_DTYPES:
                raise InputError(
                    f"model {model}: {name} is {dtype_name(tensor)}; a peer learns float32, bfloat16 or float16: "
                    "convert it, or write `dtype: float32` into `model`"
                )
            trainable, shape = isinstance(tensor, nn.Parameter), tuple(tensor.shape)
            entries.append(TensorSlot(name, shape, dtype_name(tensor), half, offset, tensor.numel(), trainable))
            offset += tensor.numel()
    return tuple(entries)


def joined_slices(entries: Iterable[TensorSlot]) -> tuple[slice, ...]:
    """The places of these tensors in the vector, in its order, as few slices as possible."""
    slices: list[slice] = []
    for entry in entries:
        joins = bool(slices) and slices[-1].stop == entry.offset
        start = slices.pop().start if joins else entry.offset
        slices.append(slice(start, entry.offset + entry.size))
    return tuple(slices)


def frozen_tensors(module: nn.Module) -> dict[str, Tensor]:
    """Tensors that are never trained and never travel, by name, live and of any dtype.

    Parameters that ask for no gradient, and the persistent buffers of layers that go with such parameters alone.
    """
    layers = frozen_layers(module)
    parameters = {name: tensor for name, tensor in module.named_parameters() if not tensor.requires_grad}
    return parameters | {
        name: buffer for name, buffer in _persistent_buffers(module) if name.rpartition(".")[0] in layers
    }


def write_counts(tensors: Mapping[str, Tensor]) -> dict[str, int]:
    """How often each was written into, as torch counts."""
    return {name: 0 if tensor.is_inference() else tensor._version for name, tensor in tensors.items()}


def counter_buffers(module: nn.Module, held: Collection[str] = ()) -> dict[str, Tensor]:
    """The persistent integer and boolean buffers by name, but those `held` frozen, as the live tensors."""
    return {
        name: buffer
        for name, buffer in _persistent_buffers(module)
        if not buffer.is_floating_point() and name not in held
    }


def _persistent_buffers(module: nn.Module) -> Iterator[tuple[str, Tensor]]:
    persistent = module.state_dict(keep_vars=True)
    return ((name, buffer) for name, buffer in module.named_buffers() if name in persistent)


def bind(module: nn.Module, layout: tuple[TensorSlot, ...], vector: Tensor, gradient: Tensor) -> None:
    """Copy the module's values into `vector`; make parameters, their gradients and buffers views.

    Tensors of 16 bits stay where they are. A parameter whose `grad` is None when a backward pass begins has its view
    again when it ends, with the gradient of that pass alone.
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
            parameter, its_gradient = owner.get_parameter(key), entry.view(gradient)
            parameter.data, parameter.grad = view, its_gradient
            parameter.register_post_accumulate_grad_hook(partial(_place, its_gradient))  # type: ignore[no-untyped-call]


def _place(gradient: Tensor, parameter: Tensor) -> None:
    """Move a parameter's gradient into the flat gradient, if the backward pass has allocated a new one."""
    if parameter.grad is not gradient:
        assert parameter.grad is not None
        torch.add(parameter.grad, 0.0, out=gradient)  # as if added to zeros: a copy would keep the sign of -0
        parameter.grad = gradient


class GradientWriter:
    """Backward passes whose gradient takes the place of what `gradient` held.

    As if it were set to zero before them; but the first pass is written there, and not added to zeros: that saves large
    models a tenth of each step.
    """

    def __init__(self, module: nn.Module, entries: Sequence[TensorSlot], gradient: Tensor) -> None:
        """`entries`: of the part that learns; a module that is bound to `gradient`."""
        is_written = [entry.trainable and entry.dtype == "float32" for entry in entries]
        written, others = compress(entries, is_written), compress(entries, map(not_, is_written))
        self._own = [(module.get_parameter(entry.name), entry.view(gradient)) for entry in written]
        self._others = [gradient[where] for where in joined_slices(others)]

    @contextmanager
    def writing(self) -> Iterator[None]:
        """The block in which the passes of one step are."""
        for values in self._others:
            values.zero_()
        for parameter, _ in self._own:
            parameter.grad = None
        yield
        for parameter, values in self._own:
            if parameter.grad is None:
                parameter.grad = values.zero_()


@torch.no_grad()
def rebind(module: nn.Module, layout: tuple[TensorSlot, ...], vector: Tensor) -> None:
    """Take back what lies elsewhere: buffers that a module assigned anew (`self.mean = …`) instead of updating them in
    place, and tensors that a training loop moved."""
    for entry in layout:
        owner, key = owner_of(module, entry.name)
        tensor, view = getattr(owner, key), entry.view(vector)
        if entry.dtype != "float32" or tensor.data_ptr() == view.data_ptr():
            continue
        view.copy_(tensor)
        if key in owner._buffers:
            _replace_buffer(module, tensor, view)
        else:
            tensor.data = view


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
            hint = (
                "let the patterns of `model.head` match both names or neither"
                if isinstance(split, Patterned)
                else "give one module that has both, and say by patterns in `model.head` what is the head"
            )
            raise InputError(
                f"model {model}: {first} and {name} are one parameter, which belongs to extractor and head; {hint}"
            )
