"""What a protocol remembers from round to round: tensors by name, as nothing else survives a crash."""

import hashlib
from collections.abc import Iterable
from typing import ClassVar

import torch
from torch import Tensor

from peer.learning.kept import Kept


class State(Kept):
    """`peer.state`; TypeError at once for what is no tensor."""

    called: ClassVar[str] = "peer.state"

    def digests(self, names: Iterable[str]) -> dict[str, str]:
        """SHA-256 in hex of each of these tensors' dtype, shape and content."""
        return {name: _sha256(self[name]) for name in names}


def _sha256(tensor: Tensor) -> str:
    content = tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
    return hashlib.sha256(f"{tensor.dtype} {tuple(tensor.shape)} ".encode() + content).hexdigest()
