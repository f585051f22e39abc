"""The engines of `dfl-launch run --on NAME`; each is imported when it is chosen."""

from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, TypeVar

from launcher.engines.base import Engine
from launcher.engines.names import ENGINES
from peer.errors import InputError, nearest
from peer.settings import Settings
from peer.spec.document import Document, scalar, validate

S = TypeVar("S", bound=Settings)


def engine(name: str, given: Mapping[str, Any]) -> Engine[Any]:
    """The engine with these settings; InputError names what it does not have or what is wrong."""
    if name not in ENGINES:
        raise InputError(f"unknown engine `{name}`; {nearest(name, [*ENGINES])}")
    module, _, attribute = ENGINES[name].partition(":")
    kind = getattr(import_module(module), attribute)
    return kind(checked(kind.Settings, given, f"--on {name}"))  # type: ignore[no-any-return]


def checked(kind: type[S], given: Mapping[str, Any], place: str) -> S:
    """The settings; InputError, which names the place where they are given, for what is wrong."""
    if given and not kind.model_fields:
        raise InputError(f"{place}: it has no settings, so there is no `{next(iter(given))}`; leave it out")
    required = (key for key, field in kind.model_fields.items() if field.is_required())
    if lacking := next((key for key in required if key not in given), None):
        raise InputError(f"{place}: `{lacking}` must be chosen; give it with --option {lacking}=...")
    content = dict(given)
    return validate(kind, content, Document(Path(place), content, None), {})


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
