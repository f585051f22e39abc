"""Weights to begin with: pretrained somewhere, or those of a `model.safetensors` of an earlier run.

The files of named tensors are not trusted: safetensors, or a torch state dict, read
without running any code in them.
"""

import zipfile
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from peer.errors import InputError
from peer.files import open_plain
from peer.learning.model.layout import HALVES, Split
from peer.learning.model.model import Model
from peer.plugins import describe_error

ZIP = b"PK\x03\x04"


@dataclass(frozen=True)
class StoredTensor:
    """A tensor in a file, which takes memory only when it is read."""

    shape: tuple[int, ...]
    read: Callable[[], Tensor]


@contextmanager
def tensor_file_errors(path: Path, kind: str, formats: str, hint: str) -> Iterator[None]:
    """Turn what goes wrong with a file of tensors into an InputError; `hint` says which file to give instead."""
    try:
        yield
    except FileNotFoundError as error:
        raise InputError(f"there is no {kind} {path}; {hint}") from error
    except IsADirectoryError as error:
        raise InputError(f"{path} is a directory; {hint}") from error
    except (SafetensorError, OSError) as error:
        raise InputError(f"{path} is truncated or {formats} ({error}); copy it again") from error


@contextmanager
def open_weights(path: Path) -> Iterator[Mapping[str, StoredTensor]]:
    """Open the tensors of a file by name; InputError if it is missing, damaged or something else."""
    formats = "neither safetensors nor what torch.save writes"
    with tensor_file_errors(path, "file of weights", formats, "correct `weights` in `model`"):
        with open_plain(path) as file:
            is_state_dict = file.read(len(ZIP)) == ZIP
        if is_state_dict:
            yield _state_dict(path)
        else:
            with safe_open(path, "pt") as file:
                shapes = {name: tuple(file.get_slice(name).get_shape()) for name in file.keys()}  # noqa: SIM118
                yield {name: StoredTensor(shape, partial(file.get_tensor, name)) for name, shape in shapes.items()}


def _state_dict(path: Path) -> Mapping[str, StoredTensor]:
    """What `torch.save(module.state_dict(), path)` wrote, perhaps under the key `state_dict`; nothing of it runs."""
    try:
        with zipfile.ZipFile(path) as archive:
            packed = any(one.compress_type != zipfile.ZIP_STORED for one in archive.infolist())
        if packed:
            raise ValueError("it is compressed, as torch.save writes nothing")
        content = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
    except OSError:
        raise
    except Exception as error:  # what torch raises for a file that is none, or that wants to run code
        raise InputError(
            f"{path} cannot be read as plain tensors ({describe_error(error)}); write it by "
            "torch.save(module.state_dict(), ...)"
        ) from error
    if isinstance(content, dict) and isinstance(content.get("state_dict"), dict):
        content = content["state_dict"]
    tensors = content.items() if isinstance(content, dict) else ()
    found = {name: one for name, one in tensors if isinstance(name, str) and _is_plain_tensor(one)}
    if not found or len(found) < len(tensors):
        raise InputError(
            f"{path} holds other things than tensors by name; write it by torch.save(module.state_dict(), ...)"
        )
    return {name: StoredTensor(tuple(one.shape), one.detach) for name, one in found.items()}


def _is_plain_tensor(value: object) -> bool:
    return isinstance(value, Tensor) and value.layout == torch.strided and value.device.type == "cpu"


NAMES_SHOWN = 3
"""Names that an error message lists."""


def load_weights(model: Model, path: Path, *, partial: bool) -> str:
    """Copy the file's tensors into the model; says how many.

    Names are those in the model, with or without `extractor.` and `head.`, or those that a layer had before PEFT
    wrapped it. Only what fits is read. InputError for a file that is no such thing, and, unless `partial`, where its
    names and shapes are not the model's.
    """
    own, aliases = model.state(), _aliases(model)
    with open_weights(path) as stored:
        wanted = {name: aliases[name] for name in stored if name in aliases}
        fitting = {name: to for name, to in wanted.items() if stored[name].shape == tuple(own[to].shape)}
        if not partial:
            _check_all(model, path, stored, wanted)
        if not fitting:
            raise InputError(
                f"{path} has no tensor that fits model {model.name}: it has {_some_names([*stored])}, and the model "
                f"has {_some_names([*own])}; give the weights of this model"
            )
        taken: dict[str, Tensor] = {}
        for name, to in fitting.items():
            tensor = _checked(stored[name].read(), own[to], f"{path}: {name}")
            if to in taken and not torch.equal(taken[to], tensor):
                raise InputError(
                    f"{path}: {name} and {to} differ, and are one tensor in model {model.name}; give the weights of "
                    "this model"
                )
            taken[to] = tensor
        model.copy_from(taken)
    return f"{len(taken)} of {len(own)} tensors from {path}"


def _check_all(model: Model, path: Path, stored: Mapping[str, StoredTensor], wanted: Mapping[str, str]) -> None:
    """InputError unless the file has every tensor of the model in its shape, and no other."""
    own = model.state()
    hint = "give the weights of this model, or write `partial: true` beside `weights`"
    if missing := sorted(own.keys() - {*wanted.values()} - model.rebuilt.keys()):
        raise InputError(f"{path} lacks {_some_names(missing)} of model {model.name}; {hint}")
    if unknown := sorted(stored.keys() - wanted.keys()):
        raise InputError(f"{path} has {_some_names(unknown)}, which model {model.name} lacks; {hint}")
    for name, to in wanted.items():
        if stored[name].shape != tuple(own[to].shape):
            raise InputError(
                f"{path}: {name} is {stored[name].shape} and model {model.name} has {tuple(own[to].shape)}; {hint}"
            )


def _checked(tensor: Tensor, own: Tensor, where: str) -> Tensor:
    if tensor.is_floating_point() != own.is_floating_point():
        raise InputError(f"{where} is {tensor.dtype} and the model has {own.dtype}; convert it")
    if tensor.is_floating_point() and not bool(torch.isfinite(tensor).all()):
        raise InputError(f"{where} has values that are not finite; give other weights")
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


def _some_names(names: Sequence[str]) -> str:
    rest = len(names) - NAMES_SHOWN
    return ", ".join([*names[:NAMES_SHOWN], f"and {rest} more"] if rest > 0 else names)
