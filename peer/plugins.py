"""What a user adds without touching the package: `module:Name` in the YAML."""

import sys
import sysconfig
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

from pydantic import PydanticUserError

from peer.errors import FailedError, InputError

_INSTALLED = (*(sysconfig.get_path(name) for name in ("stdlib", "purelib", "platlib")), str(Path(__file__).parent))
"""Where code lies that is not the user's."""


def load_object(reference: str) -> Any:
    """The object called `module:Name`; InputError says what is missing, or where the module is wrong."""
    module_name, _, name = reference.partition(":")
    module = _module(module_name, reference)
    try:
        return getattr(module, name)
    except AttributeError:
        missing = f"`{name}`" if name else "name after the colon"
        raise InputError(f"`{reference}`: the module `{module_name}` has no {missing}") from None


def _module(name: str, reference: str) -> ModuleType:
    """The module. Its code is the user's and may raise whatever it likes."""
    try:
        return import_module(name)
    except (Exception, SystemExit) as error:
        if isinstance(error, ModuleNotFoundError) and error.name and f"{name}.".startswith(f"{error.name}."):
            looked = ", ".join(entry or "." for entry in sys.path[:2])
            raise InputError(
                f"`{reference}`: no module `{error.name}` (looked first in {looked}); "
                "put it beside the federation's file or install it"
            ) from None
        if isinstance(error, PydanticUserError) and error.code == "model-field-missing-annotation":
            field = error.message.partition("`")[2].partition("`")[0]
            raise InputError(
                f"`{reference}`: the field `{field}` has no type; give it one, such as `lr: float = 0.1`, or "
                "ClassVar if it is no hyperparameter, such as `graph`"
            ) from None
        raise InputError(f"`{reference}`: the module `{name}` cannot be imported: {in_words(error)}") from error


class UserCodeError(FailedError):
    """Code of a user's failed, and its cause is what it raised: started again it would raise the same."""


@contextmanager
def user_code_errors(name: str) -> Iterator[None]:
    """What code of a user's raises, as a UserCodeError that says where. A built-in's (a name without a colon) passes
    as it is."""
    try:
        yield
    except (FailedError, InputError):
        raise
    except Exception as error:
        if ":" not in name:
            raise
        raise UserCodeError(f"`{name}` failed: {in_words(error)}") from error


def in_words(error: BaseException) -> str:
    """What a user's code raised, in one line: kind, the message's first line, and the innermost line of their code."""
    if isinstance(error, SyntaxError):
        message, place = error.msg or "", f"{error.filename}:{error.lineno}" if error.filename else ""
    else:
        frames = traceback.extract_tb(error.__traceback__)
        own = [f"{frame.filename}:{frame.lineno}" for frame in frames if not _is_installed(frame.filename)]
        message, place = str(error), own[-1] if own else ""
    said = ": ".join((type(error).__name__, *message.strip().rstrip(".").splitlines()[:1]))
    return f"{said} ({place})" if place else said


def _is_installed(file: str) -> bool:
    return file.startswith("<") or any(Path(file).is_relative_to(place) for place in _INSTALLED)


def import_from(directory: Path) -> None:
    """Let modules beside the federation file be imported."""
    if str(directory) not in sys.path:
        sys.path.insert(0, str(directory))
