"""How a module is called with what a batch has for inputs."""

from collections.abc import Callable
from typing import Any


def spread(module: Callable[..., Any], inputs: Any) -> Any:
    """`module(x)`, of a tuple `module(*inputs)`, of a dict `module(**inputs)`."""
    if isinstance(inputs, dict):
        return module(**inputs)
    return module(*inputs) if isinstance(inputs, tuple | list) else module(inputs)
