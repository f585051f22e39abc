"""How a module is called with what a batch has for inputs."""

from typing import Any

from torch import nn


def spread(module: nn.Module, inputs: Any) -> Any:
    """`module(x)`, of a tuple `module(*inputs)`, of a dict `module(**inputs)`."""
    if isinstance(inputs, dict):
        return module(**inputs)
    return module(*inputs) if isinstance(inputs, tuple | list) else module(inputs)
