"""What a GPU is asked for, seen on torch's `meta` device, whose tensors have shapes and no values.

Reading a value of theirs raises, so whatever runs on them waits for nothing. Two things only a driver could do, and are
lent here: pinned memory is ordinary memory, and what comes back from the device is zeros.
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

META = torch.device("meta")
aten = torch.ops.aten


class Copy(NamedTuple):
    """One between the device and the CPU."""

    values: int
    non_blocking: bool
    pinned: bool


class Device(TorchDispatchMode):
    """Inside its block copies from and to the device can be made, and are listed."""

    def __init__(self) -> None:
        super().__init__()
        self.fetched: list[Copy] = []
        self.placed: list[Copy] = []
        self.sources: list[Tensor] = []
        """What was fetched, each in its own memory on the device."""
        self._pinned: list[Tensor] = []

    def __torch_dispatch__(
        self, function: Any, types: Any, arguments: tuple[Any, ...] = (), keywords: dict[str, Any] | None = None
    ) -> Any:
        keywords = dict(keywords or {})
        if keywords.pop("pin_memory", False):
            self._pinned.append(function(*arguments, **keywords))
            return self._pinned[-1]
        if function is aten.copy_.default:
            into, source, *rest = arguments
            if source.is_meta and not into.is_meta:
                self.sources.append(source)
                self.fetched.append(Copy(source.numel(), bool(rest and rest[0]), self._is_pinned(into)))
                return into.zero_()
            if into.is_meta and not source.is_meta:
                self.placed.append(Copy(source.numel(), bool(rest and rest[0]), self._is_pinned(source)))
        if function is aten._to_copy.default and keywords.get("device") == META and not arguments[0].is_meta:
            waits = not keywords.get("non_blocking")
            self.placed.append(Copy(arguments[0].numel(), not waits, self._is_pinned(arguments[0])))
        return function(*arguments, **keywords)

    def _is_pinned(self, tensor: Tensor) -> bool:
        at = tensor.untyped_storage().data_ptr()
        return any(at == one.untyped_storage().data_ptr() for one in self._pinned)
