"""What a user adds without touching the package: `module:Name` in the YAML."""

import sys
from importlib import import_module
from pathlib import Path
from typing import Any

from peer.errors import InputError


def imported(reference: str) -> Any:
    """The object called `module:Name`; InputError says what is missing."""
    module_name, _, name = reference.partition(":")
    try:
        module = import_module(module_name)
    except ModuleNotFoundError as error:
        looked = ", ".join(entry or "." for entry in sys.path[:2])
        raise InputError(f"`{reference}`: no module `{error.name}` (looked first in {looked})") from None
    except (ImportError, SyntaxError, NameError, ValueError, TypeError, AttributeError) as error:
        raise InputError(f"`{reference}`: the module `{module_name}` cannot be imported: {error}") from error
    try:
        return getattr(module, name)
    except AttributeError:
        raise InputError(f"`{reference}`: the module `{module_name}` has no `{name}`") from None


def import_from(directory: Path) -> None:
    """Let modules beside the federation file be imported."""
    if str(directory) not in sys.path:
        sys.path.insert(0, str(directory))
