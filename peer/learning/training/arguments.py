"""Arguments that a user gives to a class of torch's: what is wrong with them, in a sentence that names them."""

import inspect
import json
from collections.abc import Callable, Mapping
from typing import Any

from peer.errors import nearest

UNTAKEN = (ValueError, TypeError, AttributeError, RuntimeError, ArithmeticError, LookupError)
"""What torch's classes raise for arguments, many of which they do not look at closely."""
Make = Callable[[Mapping[str, Any]], object]
"""Makes something of the class, and may try it."""


def check_arguments(name: str, kind: type, given: Mapping[str, Any], ours: tuple[str, ...]) -> None:
    """ValueError for an argument that the class does not have, that is not the user's to give, that is text in vain, or
    that is lacking."""
    known = {one: parameter for one, parameter in inspect.signature(kind).parameters.items() if one not in ours}
    for key, value in given.items():
        if key not in known:
            raise ValueError(f"`{name}` has no argument `{key}`; {nearest(key, [*known])}")
        values = value if isinstance(value, list | tuple) else (value,)
        text = next((one for one in values if isinstance(one, str)), None)
        if text is not None and not isinstance(known[key].default, str | None):
            raise ValueError(f"`{name}` takes no text as `{key}`, and it is {text!r}; write a number")
    if lacking := [key for key, one in known.items() if one.default is one.empty and key not in given]:
        raise ValueError(f"`{name}` needs `{lacking[0]}`; write it beside the name")


def why_untaken(name: str, make: Make, given: Mapping[str, Any], error: Exception) -> str:
    """What is wrong, in torch's words, with the arguments without any one of which it would do; or with all."""
    blamed = [key for key in given if does(make, {other: given[other] for other in given if other != key})]
    shown = ", ".join(f"`{key}: {_as_written(given[key])}`" for key in blamed or given) or "no arguments"
    return f"`{name}` does not work with {shown}: {str(error).rstrip('.') or type(error).__name__}"


def does(make: Make, given: Mapping[str, Any]) -> bool:
    """Whether it can be made with these."""
    try:
        make(given)
    except UNTAKEN:
        return False
    return True


def as_arguments(given: Mapping[str, Any]) -> dict[str, Any]:
    """Lists as the tuples that torch's classes take."""
    return {key: tuple(value) if isinstance(value, list) else value for key, value in given.items()}


def _as_written(value: Any) -> str:
    return json.dumps(value, default=str)
