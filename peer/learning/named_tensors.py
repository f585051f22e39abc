"""Tensors by name: those that user code keeps in a checkpoint beside the model, and fingerprints of such mappings."""

import hashlib
from collections import UserDict
from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor


class NamedTensors(UserDict[str, Tensor]):
    """A dict of tensors that raises TypeError at once for anything else."""

    called: ClassVar[str] = "state"
    """What user code calls it."""

    def __setitem__(self, name: str, value: Tensor) -> None:
        if not isinstance(name, str) or not isinstance(value, Tensor):
            raise TypeError(
                f"{self.called}[{name!r}] = {type(value).__name__}: only tensors are kept, by a name; "
                "write torch.tensor(...) and read it with .item()"
            )
        if why := _unkept(value):
            raise TypeError(f"{self.called}[{name!r}] = a tensor that {why}")
        super().__setitem__(name, value.detach() if value.requires_grad else value)  # as after a crash

    def __setattr__(self, name: str, value: Any) -> None:
        if name != "data":
            raise AttributeError(
                f"{self.called} keeps tensors by a name in brackets: write {self.called}[{name!r}] = ..."
            )
        super().__setattr__(name, value)

    def __missing__(self, name: str) -> Tensor:
        raise KeyError(
            f"{self.called} keeps nothing as {name!r}; write {self.called}[{name!r}] = ... before, as in `start`"
        )

    def aliasing_problem(self, model: Tensor) -> str | None:
        """Name one without memory, or that shares it with another or with the model's vector; None if each has its own.

        After a crash each name holds a tensor of its own: tensors that shared memory would silently diverge.
        """
        seen = {model.untyped_storage().data_ptr(): "the model"}
        for name, tensor in self.items():
            own = f"{self.called}[{name!r}]"
            if tensor.is_meta and not model.is_meta:
                return f"keeps in {own} a tensor of the device `meta`, which has no values; make it on the model's"
            other = seen.setdefault(tensor.untyped_storage().data_ptr(), own)
            if tensor.numel() and other != own:
                return f"keeps in {own} a view of {other}; write .clone(), or a crash would change the result"
        return None


def _unkept(tensor: Tensor) -> str | None:
    """Why a tensor would be another one after a crash, or none; None if a checkpoint can keep it."""
    if tensor.layout != torch.strided or tensor.is_nested or tensor.is_quantized:
        return "is sparse, nested or quantized; keep a plain one, as by .to_dense() or .dequantize()"
    if any(size > 1 and not stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True)):
        return "repeats values of one place in memory, as expand() does; write .clone()"
    if tensor.dtype in (torch.complex32, torch.complex128):
        return f"is {dtype_name(tensor)}, which no checkpoint can hold; write torch.view_as_real(...)"
    return None


def dtype_name(tensor: Tensor) -> str:
    """Return the name of a tensor's dtype without torch's prefix."""
    return str(tensor.dtype).removeprefix("torch.")


def content_sha256(tensors: Mapping[str, Tensor]) -> str:
    """SHA-256 in hex over the tensors' bytes alone, contiguous and little-endian, in the order of the sorted names."""
    digest = hashlib.sha256()
    for _, tensor in sorted(tensors.items()):
        digest.update(_plain_bytes(tensor))
    return digest.hexdigest()


def named_sha256(tensors: Mapping[str, Tensor]) -> str:
    """SHA-256 in hex over name, shape, dtype and bytes of each tensor, in the order of the sorted names."""
    digest = hashlib.sha256()
    for name, tensor in sorted(tensors.items()):
        digest.update(f"{name}\n{tuple(tensor.shape)} {tensor.dtype}\n".encode())
        digest.update(_plain_bytes(tensor))
    return digest.hexdigest()


def _plain_bytes(tensor: Tensor) -> bytes:
    plain = tensor.detach().cpu().contiguous()
    if plain.is_floating_point() and plain.dtype not in (torch.float16, torch.float32, torch.float64):
        plain = plain.view(torch.int16 if plain.itemsize == 2 else torch.uint8)  # numpy has no such type
    array = plain.numpy()
    return array.astype(array.dtype.newbyteorder("<"), copy=False).tobytes()
