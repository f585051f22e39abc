"""Tensors between a model's device and the CPU: to and from a GPU by copies for which nobody waits but who reads them.

Such a copy needs pinned memory on the CPU. torch keeps a block of it, and one of the GPU's, from being used again
before the copies from and to it are over.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from peer.learning.device import memory_errors

WAITED_FOR = ("cpu", "mps")
"""Devices without such copies: of Apple's GPUs torch does not say that they are safe."""
Empty = Callable[[int, torch.dtype], Tensor]
"""Memory on the CPU for so many values, whatever is in it."""


def memory_for(device: torch.device) -> Empty:
    """Where a vector is put together that is to go to that device, or has come from it: pinned for a GPU."""
    pinned = device.type not in WAITED_FOR

    def empty(size: int, dtype: torch.dtype) -> Tensor:
        with memory_errors():
            return torch.empty(size, dtype=dtype, pin_memory=pinned)

    return empty


@dataclass(frozen=True)
class Fetched:
    """A vector on its way to the CPU."""

    vector: Tensor
    """On the CPU, in one piece; not to be read before it is here."""
    copied: torch.cuda.Event | None = None
    """None: it was here at once."""

    def wait(self) -> None:
        """Until it is here (blocking)."""
        if self.copied is not None:
            self.copied.synchronize()


class Transfers:
    """The vectors of one model's device; those of a CUDA device are copied beside what it computes."""

    def __init__(self, device: torch.device) -> None:
        self._device, self._empty = device, memory_for(device)
        self._apart = device.type not in WAITED_FOR
        self._stream = torch.cuda.Stream(device) if device.type == "cuda" else None  # type: ignore[no-untyped-call]

    def fetch(self, vector: Tensor) -> Fetched:
        """A vector (n,) as it is now, whatever becomes of it; of a model on the CPU the same memory, and no copy."""
        vector = vector.detach()
        if not self._apart:
            return Fetched(vector.cpu().contiguous())
        now = vector.clone(memory_format=torch.contiguous_format)
        if now.device.type == "cpu":
            return Fetched(now)
        if self._stream is None:
            return Fetched(self._copied(now))
        self._stream.wait_stream(torch.cuda.current_stream(self._device))
        with torch.cuda.stream(self._stream):
            found = Fetched(self._copied(now), torch.cuda.Event(blocking=True))  # type: ignore[no-untyped-call]
            self._stream.record_event(found.copied)
        now.record_stream(self._stream)
        return found

    def _copied(self, vector: Tensor) -> Tensor:
        return self._empty(vector.numel(), vector.dtype).copy_(vector, non_blocking=True)

    def placed(self, vector: Tensor) -> Tensor:
        """One from the CPU on the device, where all that is computed from now on finds it copied."""
        if self._stream is None:
            return vector.to(self._device, non_blocking=self._apart)
        computing = torch.cuda.current_stream(self._device)
        with torch.cuda.stream(self._stream):
            there = vector.to(self._device, non_blocking=True)
        computing.wait_stream(self._stream)
        there.record_stream(computing)
        return there

    def put(self, vector: Tensor, into: Tensor) -> None:
        """The values of one on the CPU into a live one; of a model on the CPU perhaps the same memory."""
        into.copy_(vector, non_blocking=self._apart)


def copies(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """What they are now, on the CPU and each in one piece (blocking). From a GPU all are under way at once."""
    found = {
        name: torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=tensor.is_cuda).copy_(
            tensor.detach(), non_blocking=True
        )
        for name, tensor in tensors.items()
    }
    for device in {tensor.device for tensor in tensors.values() if tensor.is_cuda}:
        torch.cuda.current_stream(device).synchronize()
    return found
