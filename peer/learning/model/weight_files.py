"""Files of named tensors that somebody else may have made: safetensors, or a torch state dict, read without code."""

import zipfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from peer.errors import InputError
from peer.plugins import in_words
from peer.reading import open_plain

ZIP = b"PK\x03\x04"


@dataclass(frozen=True)
class Stored:
    """A tensor in a file, which takes memory only when it is read."""

    shape: tuple[int, ...]
    read: Callable[[], Tensor]


@contextmanager
def opened(path: Path) -> Iterator[Mapping[str, Stored]]:
    """The tensors of a file by name; InputError when it is missing, damaged or something else."""
    try:
        with open_plain(path) as file:
            torchs = file.read(len(ZIP)) == ZIP
        if torchs:
            yield _state_dict(path)
        else:
            with safe_open(path, "pt") as file:
                shapes = {name: tuple(file.get_slice(name).get_shape()) for name in file.keys()}  # noqa: SIM118
                yield {name: Stored(shape, partial(file.get_tensor, name)) for name, shape in shapes.items()}
    except FileNotFoundError as error:
        raise InputError(f"there is no file of weights {path}; mend `weights` in `model`") from error
    except IsADirectoryError as error:
        raise InputError(f"{path} is a directory; give `weights` in `model` a file") from error
    except (SafetensorError, OSError) as error:
        raise InputError(
            f"{path} is truncated, or neither safetensors nor what torch.save writes ({error}); copy it again"
        ) from error


def _state_dict(path: Path) -> Mapping[str, Stored]:
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
            f"{path} cannot be read as plain tensors ({in_words(error)}); write it by torch.save(module.state_dict(), "
            "...)"
        ) from error
    if isinstance(content, dict) and isinstance(content.get("state_dict"), dict):
        content = content["state_dict"]
    tensors = content.items() if isinstance(content, dict) else ()
    found = {name: one for name, one in tensors if isinstance(name, str) and _plain(one)}
    if not found or len(found) < len(tensors):
        raise InputError(
            f"{path} holds other things than tensors by name; write it by torch.save(module.state_dict(), ...)"
        )
    return {name: Stored(tuple(one.shape), one.detach) for name, one in found.items()}


def _plain(value: object) -> bool:
    return isinstance(value, Tensor) and value.layout == torch.strided and value.device.type == "cpu"
