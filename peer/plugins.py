"""Code of the user's, `module:Name` in the YAML, without touching the package: found, checked, and blamed.

An object is imported by name, and the error says what is missing. Whether a class of the user's fits the class that it
stands on is seen before any of it is called. What such code raises later comes out as a `UserCodeError` that names the
innermost line of the user's own.

Installed packages give such code short names by entry points: `dfl.tasks`, `dfl.models`, `dfl.data`, `dfl.protocols`
and `dfl.exports`.
"""

import inspect
import sys
import sysconfig
import traceback
import warnings
from abc import abstractmethod
from asyncio import CancelledError, current_task
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import cache, partial
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from inspect import getattr_static, isfunction, signature
from pathlib import Path
from types import ModuleType
from typing import Any

from pydantic import PydanticUndefinedAnnotation, PydanticUserError, ValidationError

from peer.errors import FailedError, InputError, first_cause, suggest
from peer.settings import Settings

OURS = tuple(Path(__file__).parents[1] / name for name in ("peer", "launcher", "extras"))
_INSTALLED = (*(sysconfig.get_path(name) for name in ("stdlib", "purelib", "platlib")), *map(str, OURS))
"""The directories of code that is not the user's."""


class Preset(Settings):
    """What stands for several blocks of a federation's file: `task: {NAME: {...}}`, by an entry point of `dfl.tasks`.

    A subclass's fields are what is written there; `task: {NAME: value}` gives its first field alone.
    """

    @abstractmethod
    def blocks(self, folder: Path) -> Mapping[str, Any]:
        """The blocks as in federation.yaml, plain JSON: `task` at least, and `model`, `data`, `training`. What the file
        itself says in them counts more. InputError for what cannot be used.

        folder: of the file, from which paths are taken.
        """


@cache
def installed(kind: str) -> Mapping[str, EntryPoint]:
    """What installed packages bring of that kind (`tasks`, `models`, `data`, `protocols`, `exports`), by name, each a
    `module:Name`. Asked for only where a name is no built-in one: it takes 0.1 s."""
    return {one.name: one for one in entry_points(group=f"dfl.{kind}")}


def load_object(reference: str, base: type = object) -> Any:
    """The object called `module:Name`; InputError says what is missing, or where the module is wrong.

    base: what classes of the module stand on.
    """
    module_name, _, name = reference.partition(":")
    module = _module(module_name, reference, base)
    try:
        return getattr(module, name)
    except AttributeError:
        missing = f"`{name}`" if name else "name after the colon"
        where = f" ({module.__file__})" if getattr(module, "__file__", None) else ""
        own = [known for known, value in vars(module).items() if getattr(value, "__module__", "") == module_name]
        hint = f"; {suggest(name, own)}" if name and own else ""
        raise InputError(f"`{reference}`: the module `{module_name}`{where} has no {missing}{hint}") from None


def load_function(name: str) -> Callable[..., Any]:
    """The function of a user's called `module:name`; InputError when there is none."""
    function = load_object(name)
    if not callable(function):
        raise InputError(f"`{name}` is not a function, so it cannot be called")
    return function  # type: ignore[no-any-return]


def _module(name: str, reference: str, base: type) -> ModuleType:
    """The module. Its code is the user's and may raise whatever it likes."""
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Field name .* shadows")  # what is wrong with that is told as an error
            return import_module(name)
    except (Exception, SystemExit) as error:
        if isinstance(error, ModuleNotFoundError) and error.name and f"{name}.".startswith(f"{error.name}."):
            looked = ", ".join(entry or "." for entry in sys.path[:2])
            raise InputError(
                f"`{reference}`: no module `{error.name}` (looked first in {looked}); "
                "put it beside the federation's file or install it"
            ) from None
        if isinstance(error, PydanticUserError) and error.code == "model-field-missing-annotation":
            raise InputError(f"`{reference}`: {_untyped(error, base)} ({_place(error)})") from None
        if isinstance(error, PydanticUserError) and error.code == "schema-for-unknown-type":
            raise InputError(
                f"`{reference}`: a field has a type that no YAML file can hold ({_place(error)}); take float, int, "
                "bool or str, or a tuple of them, or ClassVar if it is no hyperparameter"
            ) from None
        raise InputError(f"`{reference}`: the module `{name}` cannot be imported: {describe_error(error)}") from error


def _untyped(error: PydanticUserError, base: type) -> str:
    """What to write in place of `name = value`, which is a method or a value of `base`, or a hyperparameter."""
    field = error.message.partition("`")[2].partition("`")[0]
    name = field.partition(" = ")[0]
    meant = getattr_static(base, name, None)
    if isfunction(meant):
        return f"`{name}` is a method; write `def {name}({', '.join(signature(meant).parameters)}): return ...`"
    if hasattr(base, name):
        return f"`{field}` has no type; write `{name}: ClassVar = ...`, as it is no hyperparameter"
    return f"the field `{field}` has no type; give it one, such as `{name}: float = 0.1`, or ClassVar"


def takes(function: Any, positional: Sequence[object]) -> bool:
    """Whether it can be called with these; so, too, where Python does not know what it takes."""
    try:
        signature(function).bind(*positional)
    except TypeError:
        return False
    except ValueError:
        return callable(function)
    return True


def reference(function: Any) -> str:
    """A function's name as in settings, `module:Name`."""
    inner = function.func if isinstance(function, partial) else function
    return f"{inner.__module__}:{getattr(inner, '__qualname__', type(inner).__name__)}"


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
    except (Exception, SystemExit, CancelledError) as error:
        if ":" not in name or is_stopped(error):
            raise
        if isinstance(error, ExceptionGroup) and isinstance(cause := first_cause(error), (FailedError, InputError)):
            raise cause from None
        raise UserCodeError(f"`{name}` failed: {describe_error(error)}") from error


def is_stopped(error: BaseException) -> bool:
    """Whether an error is the cancellation of the present task, and not of another, for which a user's code waits."""
    if isinstance(error, CancelledError):
        with suppress(RuntimeError):  # a thread without a loop, which nobody cancels
            return (task := current_task()) is not None and task.cancelling() > 0
    return False


@contextmanager
def user_input_errors(what_failed: str) -> Iterator[None]:
    """Turn what user code raises while it is set up into an InputError: `what_failed`, and where."""
    try:
        yield
    except InputError:
        raise
    except (Exception, SystemExit) as error:
        raise InputError(f"{what_failed}: {describe_error(error)}") from error


def call_problem(function: Any, given: Mapping[str, Any], hint: str, reserved: Sequence[str] = ()) -> str | None:
    """Return why keyword arguments do not fit a callable; None if they do, or if its signature is not known.

    hint: how to give one that is missing, with `{}` for its name.
    reserved: parameters that the caller fills in itself.
    """
    try:
        known = {key: one for key, one in signature(function).parameters.items() if key not in reserved}
    except (TypeError, ValueError):  # not written in Python
        return None
    takes_any = any(one.kind is one.VAR_KEYWORD for one in known.values())
    if unknown := [key for key in given if key not in known and not takes_any]:
        return f"has no argument `{unknown[0]}`; {suggest(unknown[0], [*known])}"
    named = [key for key, one in known.items() if one.kind not in (one.VAR_KEYWORD, one.VAR_POSITIONAL)]
    lacking = [key for key in named if known[key].default is inspect.Parameter.empty and key not in given]
    return f"needs `{lacking[0]}`; {hint.format(lacking[0])}" if lacking else None


def check_options(function: Any, name: str, options: Mapping[str, Any], *positional: object) -> None:
    """InputError unless a user's function can be called with these options."""
    try:
        signature(function).bind(*positional, **options)
    except TypeError as error:
        raise InputError(f"{name} cannot be called with the options given: {error}") from error
    except ValueError:  # its signature is not known: the call will tell
        pass


def describe_error(error: BaseException) -> str:
    """What a user's code raised, in one line: kind, the message's first line, and the innermost line of their code."""
    if isinstance(error, BaseExceptionGroup):
        error = first_cause(error)
    if isinstance(error.__cause__, StopIteration | StopAsyncIteration):  # Python hides it, and where it was raised
        error = error.__cause__
    if isinstance(error, SyntaxError):
        message, place = error.msg or "", f"{error.filename}:{error.lineno}" if error.filename else ""
    else:
        message, place = _message(error), _place(error)
    said = ": ".join((type(error).__name__, *message.strip().removesuffix(".").splitlines()[:1]))
    return f"{said} ({place})" if place else said


def _message(error: BaseException) -> str:
    """A KeyError's text is the key as Python writes it, and pydantic's begins with how many errors there are."""
    if isinstance(error, KeyError) and error.args and " " in str(error.args[0]):
        return str(error.args[0])
    if "in DataLoader worker process" in str(error):
        return str(error).strip().splitlines()[-1]  # what was raised there; torch puts a traceback before it
    if isinstance(error, ValidationError):
        first = error.errors()[0]
        return f"{'.'.join(map(str, first['loc']))}: {first['msg']}"
    return str(error)


def _place(error: BaseException) -> str:
    """file:line, the innermost of the user's."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [f"{frame.filename}:{frame.lineno}" for frame in frames if not is_installed(frame.filename)]
    return own[-1] if own else ""


def is_installed(file: str) -> bool:
    """Whether code lies where none is the user's: with Python, its packages or these."""
    return file.startswith("<") or any(Path(file).is_relative_to(place) for place in _INSTALLED)


def import_from(directory: Path) -> None:
    """Let modules beside the federation file be imported."""
    if str(directory) not in sys.path:
        sys.path.insert(0, str(directory))


def load_class(name: str, base: type[Settings]) -> type[Any]:
    """The subclass of `base` called `module:Name`; InputError unless it can be made and called as `base` is."""
    found = load_object(name, base)
    if not (isinstance(found, type) and issubclass(found, base)):
        raise InputError(
            f"`{name}` is not a subclass of peer.{base.__name__}; write "
            f"`class {name.partition(':')[2]}({base.__name__})`"
        )
    for one in reversed(found.__mro__[: found.__mro__.index(base)]):
        made = {key: vars(one)[key] for key in vars(one).keys() & {"__init__", "model_post_init"}}
        if wrong := [key for key in made if not str(getattr(made[key], "__module__", "")).startswith("pydantic.")]:
            raise InputError(
                f"`{name}` defines `{min(wrong)}`, which it has to inherit; write its settings as fields "
                "(`lr: float = 0.1`), and what a protocol remembers into `peer.state`"
            )
        for attribute, meant in vars(base).items():
            if attribute in vars(one) and not attribute.startswith("_"):
                _check_override(name, attribute, vars(one)[attribute], meant)
    try:
        found.model_rebuild()
    except PydanticUndefinedAnnotation as error:
        raise InputError(f"`{name}` has a field of the type `{error.name}`, which is not defined; import it") from None
    if missing := sorted(found.__abstractmethods__):
        written = "; ".join(_as_written(method, getattr(base, method)) for method in missing)
        raise InputError(f"`{name}` does not define {', '.join(f'`{method}`' for method in missing)}; add `{written}`")
    return found


def _check_override(name: str, attribute: str, ours: Any, meant: Any) -> None:
    """InputError where one is a method and the other is not, or where they are not called in the same way."""
    if not inspect.isfunction(meant):
        if inspect.isfunction(ours):
            hint = 'write it as a value of the class, such as `records = (Record("name", 3),)`'
            if isinstance(meant, str):  # settings may decide on a word
                hint = "write `@property` above it"
            raise InputError(f"`{attribute}` of `{name}` is a method ({_line_of(ours)}); {hint}")
        return
    written = _as_written(attribute, meant)
    if not inspect.isfunction(ours):
        raise InputError(f"`{attribute}` of `{name}` is not a method; write `{written}: return ...`")
    if inspect.isgeneratorfunction(ours) or inspect.isasyncgenfunction(ours):
        raise InputError(f"`{attribute}` of `{name}` has a `yield` ({_line_of(ours)}); write `{written}` without one")
    given = [*inspect.signature(meant).parameters]
    if inspect.iscoroutinefunction(ours) != inspect.iscoroutinefunction(meant) or not takes(ours, given):
        raise InputError(f"`{attribute}` of `{name}` cannot be called ({_line_of(ours)}); write `{written}`")


def _as_written(name: str, method: Callable[..., Any]) -> str:
    """The first line of a method, without types."""
    begun = "async def" if inspect.iscoroutinefunction(method) else "def"
    return f"{begun} {name}({', '.join(inspect.signature(method).parameters)})"


def _line_of(function: Callable[..., Any]) -> str:
    code = inspect.unwrap(function).__code__
    return f"{code.co_filename}:{code.co_firstlineno}"
