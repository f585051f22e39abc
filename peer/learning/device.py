"""The device that holds a model and its samples, and tensors on their way to and from it.

A GPU computes the same bits again, or says what it cannot compute so; one without room is reported as one error with a
hint. Copies between a GPU and the CPU are waited for only by the code that reads them. Such a copy needs pinned memory
on the CPU: torch keeps a block of it, and one of the GPU's, from being used again before the copies from and to it are
over.
"""

import os
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor

from peer.errors import FailedError, InputError

OUT_OF_MEMORY_MESSAGES = ("CUDA error: out of memory", "CUBLAS_STATUS_ALLOC_FAILED")
"""What torch's RuntimeErrors say of a GPU without room where it has no OutOfMemoryError for it: before the first tensor
lies there, say, when others have taken all."""
NOT_DETERMINISTIC = "does not have a deterministic implementation"
"""What torch's RuntimeErrors say behind the name of an operation that has none."""


def choose_device(name: str) -> torch.device:
    """`auto` (a GPU if there is one), `cpu`, `cuda` or `cuda:N`; InputError without such a device."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    if name.startswith("cuda"):
        number = int(name.partition(":")[2] or 0)
        if not torch.cuda.is_available() or number >= torch.cuda.device_count():
            raise InputError(
                f"device `{name}`: this machine shows {torch.cuda.device_count()} CUDA devices; use `auto` or `cpu`"
            )
        return torch.device("cuda", number)  # with its number, or torch does not limit its memory
    return torch.device(name)


def in_turn(name: str, number: int) -> str:
    """The device of a machine's peer of that number: on several GPUs, `auto` and `cuda` are each of them in turn."""
    gpus = torch.cuda.device_count() if name in ("auto", "cuda") and torch.cuda.is_available() else 1
    return f"cuda:{number % gpus}" if gpus > 1 else name


def prepare_device(device: torch.device, memory: float | None, deterministic: bool) -> None:
    """Let this process keep no more than that share of a GPU's memory, beside what CUDA itself takes, and, if
    `deterministic`, compute the same bits there again, as a peer must that was killed.

    Call it before anything is computed there. An operation of which torch has no such form raises (`device_errors`).
    """
    if device.type != "cuda":
        return
    torch.use_deterministic_algorithms(deterministic)  # of a process that runs one federation after another, too
    if deterministic:
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # cuBLAS reads it once; without it torch refuses
        # Nothing here reads such memory, and filling it takes time.
        torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
    if memory is not None:
        torch.cuda.set_per_process_memory_fraction(memory, device)


@contextmanager
def device_errors() -> Iterator[None]:
    """Report a GPU without room inside the block as a FailedError with a hint, and so an operation that would give
    other bits each time."""
    try:
        yield
    except RuntimeError as error:
        text = str(error)
        if NOT_DETERMINISTIC in text:
            raise FailedError(
                f"on a GPU {text.partition(NOT_DETERMINISTIC)[0].strip()} gives other bits each time, so a killed peer "
                "could not repeat its round; use another operation, or write `training: {deterministic: false}`, which "
                "gives up the same bits"
            ) from error
        known = isinstance(error, torch.cuda.OutOfMemoryError)
        if not known and not any(one in text for one in OUT_OF_MEMORY_MESSAGES):
            raise
        # How much was asked for and how much there is; torch goes on with advice about its own settings.
        first = text.splitlines()[0]
        shown = re.match(r".*? is free", first)
        reason = (shown[0] if shown else first[:200]).rstrip(".")
        raise FailedError(
            f"the GPU's memory is full ({reason}); set a smaller `batch_size`, run fewer peers on this "
            "GPU (`device: cuda:1` is another one), give each a share (`gpu_memory`), or write `device: cpu`"
        ) from error


Empty = Callable[[int, torch.dtype], Tensor]
"""Allocates uninitialised memory on the CPU for so many values."""


def memory_for(device: torch.device) -> Empty:
    """Return an allocator for vectors that go to a device or come from it: pinned for a GPU."""
    pinned = device.type != "cpu"

    def empty(size: int, dtype: torch.dtype) -> Tensor:
        with device_errors():
            return torch.empty(size, dtype=dtype, pin_memory=pinned)

    return empty


@dataclass(frozen=True)
class HostCopy:
    """A vector on its way to the CPU."""

    vector: Tensor
    """The copy on the CPU, contiguous; not to be read before `wait`."""
    copied: torch.cuda.Event | None = None
    """The event at which it is copied; None if it was copied at once."""

    def wait(self) -> None:
        """Block until the copy is complete."""
        if self.copied is not None:
            self.copied.synchronize()


class Transfers:
    """Copies vectors from and to one model's device; a CUDA device goes on computing meanwhile."""

    def __init__(self, device: torch.device) -> None:
        self._device, self._empty = device, memory_for(device)
        self._apart = device.type != "cpu"
        self._stream = torch.cuda.Stream(device) if device.type == "cuda" else None  # type: ignore[no-untyped-call]

    def fetch(self, vector: Tensor) -> HostCopy:
        """Copy a vector (n,) as it is now; of a model on the CPU it is the same memory, and no copy."""
        vector = vector.detach()
        if not self._apart:
            return HostCopy(vector.cpu().contiguous())
        now = vector.clone(memory_format=torch.contiguous_format)
        if now.device.type == "cpu":
            return HostCopy(now)
        if self._stream is None:
            return HostCopy(self._copied(now))
        self._stream.wait_stream(torch.cuda.current_stream(self._device))
        with torch.cuda.stream(self._stream):
            found = HostCopy(self._copied(now), torch.cuda.Event(blocking=True))  # type: ignore[no-untyped-call]
            self._stream.record_event(found.copied)
        now.record_stream(self._stream)
        return found

    def _copied(self, vector: Tensor) -> Tensor:
        return self._empty(vector.numel(), vector.dtype).copy_(vector, non_blocking=True)

    def to_device(self, vector: Tensor) -> Tensor:
        """Copy a vector from the CPU to the device; all that is computed from now on waits for it."""
        if self._stream is None:
            return vector.to(self._device, non_blocking=self._apart)
        computing = torch.cuda.current_stream(self._device)
        with torch.cuda.stream(self._stream):
            there = vector.to(self._device, non_blocking=True)
        computing.wait_stream(self._stream)
        there.record_stream(computing)
        return there

    def copy_into(self, vector: Tensor, into: Tensor) -> None:
        """Copy a vector on the CPU into a live one, which may be the same memory for a model on the CPU."""
        into.copy_(vector, non_blocking=self._apart)


def copies(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Copy tensors to the CPU, each contiguous (blocking); copies from a GPU run at once."""
    found = {
        name: torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=tensor.is_cuda).copy_(
            tensor.detach(), non_blocking=True
        )
        for name, tensor in tensors.items()
    }
    for device in {tensor.device for tensor in tensors.values() if tensor.is_cuda}:
        torch.cuda.current_stream(device).synchronize()
    return found
