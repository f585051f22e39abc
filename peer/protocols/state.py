"""What a protocol remembers from round to round: tensors by name, as nothing else survives a crash."""

import hashlib
from collections import UserDict
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from peer.errors import InputError

if TYPE_CHECKING:
    from peer.protocols.base import Protocol


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


def check_state(protocol: "Protocol", state: State, members: Sequence[str]) -> None:
    """InputError unless the state is as the protocol declares it, after a round."""
    for name in (*protocol.replicated, *protocol.by_peer):
        if name not in state:
            raise InputError(
                f"`{protocol.name}` declares `{name}` as replicated or by_peer and keeps nothing under that name; "
                f"write peer.state[{name!r}] = ... in its rounds"
            )
    for name in protocol.by_peer:
        if state[name].shape[:1] != (len(members),):
            raise InputError(
                f"`{protocol.name}` declares `{name}` as by_peer, and its shape is {tuple(state[name].shape)}; it "
                f"needs a row for each of the {len(members)} members"
            )
