"""Words of the code as Markdown."""

import inspect
from collections.abc import Callable
from typing import Any


def prose(thing: type | Callable[..., Any]) -> str:
    """A docstring's paragraphs, each on one line."""
    return "\n\n".join(escaped(" ".join(block.split())) for block in (inspect.getdoc(thing) or "").split("\n\n"))


def cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def escaped(text: str) -> str:
    """Stars and angle brackets mean themselves, also outside code."""
    parts = text.split("`")
    parts[::2] = [part.replace("*", "\\*").replace("<", "&lt;") for part in parts[::2]]
    return "`".join(parts)
