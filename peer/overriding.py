"""Whether a class of the user's fits the class that it stands on, seen before any of it is called."""

import inspect
from collections.abc import Callable
from typing import Any

from pydantic import PydanticUndefinedAnnotation

from peer.errors import InputError
from peer.plugins import load_object, takes
from peer.settings import Settings

VALUE = 'write it as a value of the class, such as `records = (Record("name", 3),)`'


def load_class(name: str, base: type[Settings]) -> type[Any]:
    """The subclass of `base` called `module:Name`; InputError unless it can be made and called as `base` is."""
    found = load_object(name, base)
    if not (isinstance(found, type) and issubclass(found, base)):
        raise InputError(
            f"`{name}` is not a subclass of peer.{base.__name__}; write "
            f"`class {name.partition(':')[2]}({base.__name__})`"
        )
    for one in reversed(found.__mro__[: found.__mro__.index(base)]):
        if wrong := vars(one).keys() & {"__init__", *_own_functions(one, "model_post_init")}:
            raise InputError(
                f"`{name}` defines `{min(wrong)}`, which it has to inherit; write its settings as fields "
                "(`lr: float = 0.1`), and what a protocol remembers into `peer.state`"
            )
        for attribute, meant in vars(base).items():
            if attribute in vars(one) and not attribute.startswith("_"):
                _check(name, attribute, vars(one)[attribute], meant)
    try:
        found.model_rebuild()
    except PydanticUndefinedAnnotation as error:
        raise InputError(f"`{name}` has a field of the type `{error.name}`, which is not defined; import it") from None
    if missing := sorted(found.__abstractmethods__):
        written = "; ".join(_written(method, getattr(base, method)) for method in missing)
        raise InputError(f"`{name}` does not define {', '.join(f'`{method}`' for method in missing)}; add `{written}`")
    return found


def _own_functions(one: type, name: str) -> list[str]:
    """Its name, where it is not pydantic's."""
    return [name] if getattr(vars(one).get(name), "__module__", "") == one.__module__ else []


def _check(name: str, attribute: str, ours: Any, meant: Any) -> None:
    """InputError where one is a method and the other is not, or where they are not called in the same way."""
    if not inspect.isfunction(meant):
        if inspect.isfunction(ours):
            way_out = "write `@property` above it" if isinstance(meant, property) else VALUE
            raise InputError(f"`{attribute}` of `{name}` is a method ({_line(ours)}); {way_out}")
        return
    written = _written(attribute, meant)
    if not inspect.isfunction(ours):
        raise InputError(f"`{attribute}` of `{name}` is not a method; write `{written}: return ...`")
    if inspect.isgeneratorfunction(ours) or inspect.isasyncgenfunction(ours):
        raise InputError(f"`{attribute}` of `{name}` has a `yield` ({_line(ours)}); write `{written}` without one")
    given = [*inspect.signature(meant).parameters]
    if inspect.iscoroutinefunction(ours) != inspect.iscoroutinefunction(meant) or not takes(ours, given):
        raise InputError(f"`{attribute}` of `{name}` cannot be called ({_line(ours)}); write `{written}`")


def _written(name: str, method: Callable[..., Any]) -> str:
    """Its first line, without types."""
    begun = "async def" if inspect.iscoroutinefunction(method) else "def"
    return f"{begun} {name}({', '.join(inspect.signature(method).parameters)})"


def _line(function: Callable[..., Any]) -> str:
    code = inspect.unwrap(function).__code__
    return f"{code.co_filename}:{code.co_firstlineno}"
