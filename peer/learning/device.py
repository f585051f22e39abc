"""Where a model and its samples lie."""

import torch

from peer.errors import InputError


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
