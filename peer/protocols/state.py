"""What a protocol remembers from round to round: tensors by name, as nothing else survives a crash."""

import hashlib
from collections import UserDict
from collections.abc import Iterable

import torch
from torch import Tensor


class State(UserDict[str, Tensor]):
    """`peer.state`; TypeError at once for what is no tensor."""

    def __setitem__(self, name: str, value: Tensor) -> None:
        if not isinstance(name, str) or not isinstance(value, Tensor):
            raise TypeError(
                f"peer.state[{name!r}] = {type(value).__name__}: only tensors are kept, by a name; "
                "write torch.tensor(...) and read it with .item()"
            )
        super().__setitem__(name, value)

    def digests(self, names: Iterable[str]) -> dict[str, str]:
        """SHA-256 in hex of each of these tensors' dtype, shape and content."""
        return {name: _sha256(self[name]) for name in names}


def _sha256(tensor: Tensor) -> str:
    content = tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
    return hashlib.sha256(f"{tensor.dtype} {tuple(tensor.shape)} ".encode() + content).hexdigest()
