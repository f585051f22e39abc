"""The engines of `dfl-launch run --on NAME`; each is imported when it is chosen."""

from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import Any

from pydantic import ValidationError

from launcher.engines.base import Engine
from launcher.engines.names import ENGINES
from peer.errors import InputError, nearest
from peer.spec.document import scalar


def engine(name: str, given: Mapping[str, Any]) -> Engine[Any]:
    """The engine with these settings; InputError names what it does not have or what is wrong."""
    if name not in ENGINES:
        raise InputError(f"unknown engine `{name}`; {nearest(name, [*ENGINES])}")
    module, _, attribute = ENGINES[name].partition(":")
    kind = getattr(import_module(module), attribute)
    try:
        return kind(kind.Settings(**given))  # type: ignore[no-any-return]
    except ValidationError as error:
        raise InputError(_wrong(name, [*kind.Settings.model_fields], error)) from None


def settings(options: Sequence[str]) -> dict[str, Any]:
    """What `--option KEY=VALUE` says; the value is YAML."""
    found = {}
    for option in options:
        key, equals, value = option.partition("=")
        if not key or not equals:
            raise InputError(f"--option {option}: write key=value, such as --option image=dfl")
        try:
            found[key] = scalar(value)
        except ValueError as error:
            raise InputError(f"--option {option}: the value is not valid YAML: {error}; put it in quotes") from None
    return found


def _wrong(name: str, known: list[str], error: ValidationError) -> str:
    first = error.errors()[0]
    key = ".".join(map(str, first["loc"]))
    if first["type"] == "missing":
        return f"--on {name}: `{key}` must be chosen; give it with --option {key}=..."
    if first["type"] != "extra_forbidden":
        return f"--on {name}: `{key}`: {first['msg']}"
    way_out = nearest(key, known) if known else f"`--on {name}` has no settings"
    return f"--on {name}: unknown setting `{key}`; {way_out}"
