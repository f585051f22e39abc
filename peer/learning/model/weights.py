"""Weights to begin with: pretrained somewhere, or those of a `model.safetensors` of an earlier run."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import torch
from torch import Tensor

from peer.errors import InputError
from peer.learning.model.model import Model
from peer.learning.model.split import HALVES, Split
from peer.learning.model.weight_files import Stored, opened

SHOWN = 3
"""Names that a sentence lists."""


def load_weights(model: Model, path: Path, *, partial: bool) -> str:
    """Copy the file's tensors into the model; says how many.

    Names are those in the model, with or without `extractor.` and `head.`, or those that a layer had before PEFT
    wrapped it. Only what fits is read. InputError for a file that is no such thing, and, unless `partial`, where its
    names and shapes are not the model's.
    """
    own, aliases = model.state(), _aliases(model)
    with opened(path) as stored:
        wanted = {name: aliases[name] for name in stored if name in aliases}
        fitting = {name: to for name, to in wanted.items() if stored[name].shape == tuple(own[to].shape)}
        if not partial:
            _check_all(model, path, stored, wanted)
        if not fitting:
            raise InputError(
                f"{path} has no tensor that fits model {model.name}: it has {_some([*stored])}, and the model has "
                f"{_some([*own])}; give the weights of this model"
            )
        taken: dict[str, Tensor] = {}
        for name, to in fitting.items():
            tensor = _checked(stored[name].read(), own[to], f"{path}: {name}")
            if to in taken and not torch.equal(taken[to], tensor):
                raise InputError(f"{path}: {name} is another than {to}, and both are one tensor in model {model.name}")
            taken[to] = tensor
        model.take(taken)
    return f"{len(taken)} of {len(own)} tensors from {path}"


def _check_all(model: Model, path: Path, stored: Mapping[str, Stored], wanted: Mapping[str, str]) -> None:
    """InputError unless the file has every tensor of the model in its shape, and no other."""
    own = model.state()
    way_out = "give the weights of this model, or write `partial: true` beside `weights`"
    if missing := sorted(own.keys() - {*wanted.values()}):
        raise InputError(f"{path} lacks {_some(missing)} of model {model.name}; {way_out}")
    if unknown := sorted(stored.keys() - wanted.keys()):
        raise InputError(f"{path} has {_some(unknown)}, which model {model.name} has not; {way_out}")
    for name, to in wanted.items():
        if stored[name].shape != tuple(own[to].shape):
            raise InputError(
                f"{path}: {name} is {stored[name].shape} and model {model.name} has {tuple(own[to].shape)}; {way_out}"
            )


def _checked(tensor: Tensor, own: Tensor, where: str) -> Tensor:
    if tensor.is_floating_point() != own.is_floating_point():
        raise InputError(f"{where} is {tensor.dtype} and the model has {own.dtype}; convert it")
    if tensor.is_floating_point() and not bool(torch.isfinite(tensor).all()):
        raise InputError(f"{where} has values that are no finite numbers; give other weights")
    return tensor


def _aliases(model: Model) -> dict[str, str]:
    """The names under which a file may have a tensor of the model, each with the model's own; none of two meanings."""
    own = model.state().keys()
    tensors = {**dict(model.module.named_parameters()), **dict(model.module.named_buffers())}
    first = {id(tensor): name for name, tensor in tensors.items()}
    every = [
        *model.module.named_parameters(remove_duplicate=False),
        *model.module.named_buffers(remove_duplicate=False),
    ]
    meant = [(alias, first[id(tensor)]) for name, tensor in every for alias in _names(model, name)]
    times = Counter(alias for alias, _ in {*meant})
    return {alias: name for alias, name in meant if name in own and (times[alias] == 1 or alias == name)}


def _names(model: Model, name: str) -> Iterator[str]:
    yield name
    half, _, rest = name.partition(".")
    short = rest if isinstance(model.module, Split) and half in HALVES else name
    yield short
    # PEFT's own names: its layers wrap the ones that they adapt, its models the whole.
    yield short.removeprefix("base_model.model.").replace(".base_layer.", ".")


def _some(names: Sequence[str]) -> str:
    rest = len(names) - SHOWN
    return ", ".join([*names[:SHOWN], f"and {rest} more"] if rest > 0 else names)
