"""What every configurable thing is made of: frozen, validated, unknown keys refused, and documented where it is
defined.

The docstring under a field is its entry in the reference: `field_docs` reads it from the source on demand.
`{id}` in a path stands for the peer's id, so that one setting gives each peer a place of its own.
"""

import ast
import inspect
import re
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from pathlib import Path
from textwrap import dedent
from typing import Annotated, Any, TypeVar, get_args

from pydantic import AfterValidator, BaseModel, ConfigDict


class Settings(BaseModel):
    """A block of settings; the docstring under a field is its entry in the reference."""

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        allow_inf_nan=False,
        protected_namespaces=(),
        defer_build=True,
    )


S = TypeVar("S", bound=Settings)


@dataclass(frozen=True)
class Wanted:
    """Beside a field's type, in `Annotated`: what it takes, with an example, for the message about anything else."""

    words: str


def kind_of_word(value: Any) -> Any:
    """`stale` and `{kind: stale}` are the same, where a block has a `kind`."""
    return {"kind": value} if isinstance(value, str) else value


def by_word(key: str, *kinds: type[S]) -> dict[str, type[S]]:
    """Classes of settings by the one word that each of them takes as `key`."""
    return {get_args(kind.model_fields[key].annotation)[0]: kind for kind in kinds}


ID_PLACEHOLDER = "{id}"


def names_peers(path: Path) -> bool:
    return ID_PLACEHOLDER in str(path)


def of_peer(path: Path, id: str) -> Path:
    return Path(str(path).replace(ID_PLACEHOLDER, id))


def spelled(path: Path) -> Path:
    """The path; ValueError for `{ID}` and the like in it, which would be taken as they stand."""
    for found in re.findall(r"\{\s*id\s*\}", str(path), re.IGNORECASE):
        if found != ID_PLACEHOLDER:
            raise ValueError(f"`{found}` in {path} stands for nothing; write `{ID_PLACEHOLDER}` for the peer's id")
    return path


PeerPath = Annotated[Path, AfterValidator(spelled)]


def field_docs(kind: type) -> dict[str, str]:
    """What stands below each field of a class in the source, by name; of those that it inherits, too."""
    found: dict[str, str] = {}
    for one in reversed(kind.__mro__[:-1]):
        found |= _own_field_docs(one)
    return found


@cache
def _own_field_docs(kind: type) -> dict[str, str]:
    try:
        source = dedent(inspect.getsource(kind))
    except (OSError, TypeError):  # made without a file, or built in
        return {}
    found: dict[str, str] = {}
    body = ast.parse(source).body[0]
    for field, words in pairwise(body.body if isinstance(body, ast.ClassDef) else ()):
        match field, words:
            case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(text))):
                found[name] = inspect.cleandoc(text)
    return found
