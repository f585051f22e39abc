"""Where a model and its samples lie, and what is said when there is no room for them."""

import re
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from peer.errors import FailedError, InputError

FULL = ("CUDA error: out of memory", "CUBLAS_STATUS_ALLOC_FAILED", "MPS backend out of memory")
"""What torch's RuntimeErrors say of a GPU without room where it has no OutOfMemoryError for it: before the first tensor
lies there, say, when others have taken all."""


def choose_device(name: str) -> torch.device:
    """`auto` (a GPU if there is one), `cpu`, `cuda`, `cuda:N` or `mps`; InputError if this machine has none such."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if name.startswith("cuda"):
        number = int(name.partition(":")[2] or 0)
        if not torch.cuda.is_available() or number >= torch.cuda.device_count():
            raise InputError(
                f"device `{name}`: this machine shows {torch.cuda.device_count()} CUDA devices; use `auto` or `cpu`"
            )
    if name == "mps" and not torch.backends.mps.is_available():
        raise InputError("device `mps`: this machine has none; use `auto` or `cpu`")
    return torch.device(name)


def in_turn(name: str, number: int) -> str:
    """The device of a machine's peer of that number: on several GPUs, `auto` and `cuda` are each of them in turn."""
    gpus = torch.cuda.device_count() if name in ("auto", "cuda") and torch.cuda.is_available() else 1
    return f"cuda:{number % gpus}" if gpus > 1 else name


def limit_memory(device: torch.device, share: float | None) -> None:
    """Let this process keep no more than that share of a CUDA device's memory, beside what CUDA itself takes."""
    if share is not None and device.type == "cuda":
        torch.cuda.set_per_process_memory_fraction(share, device)


@contextmanager
def memory_errors() -> Iterator[None]:
    """That a GPU has no room inside the block, as a FailedError with the way out."""
    try:
        yield
    except RuntimeError as error:
        if not _is_full(error):
            raise
        raise FailedError(
            f"the GPU's memory is full ({_first_words(error)}); set a smaller `batch_size`, run fewer peers on this "
            "GPU (`device: cuda:1` is another one), give each a share (`gpu_memory`), or write `device: cpu`"
        ) from error


def _is_full(error: RuntimeError) -> bool:
    return isinstance(error, torch.cuda.OutOfMemoryError) or any(one in str(error) for one in FULL)


def _first_words(error: RuntimeError) -> str:
    """How much was asked for and how much there is; torch goes on with advice about its own settings."""
    said = str(error).splitlines()[0]
    found = re.match(r".*? is free", said)
    return (found[0] if found else said[:200]).rstrip(".")
