"""Types for JSON that another party may have written, and its reading, which ends at the first error.

Pydantic tells all errors at once, and each takes half a kilobyte: a text of two megabytes can have a million.
"""

from typing import Annotated, Any, TypeAlias, TypeVar

from pydantic import Field, TypeAdapter, ValidatorFunctionWrapHandler, WrapValidator
from pydantic_core import from_json

Item = TypeVar("Item")
Many: TypeAlias = Annotated[tuple[Item, ...], Field(fail_fast=True)]
ManyKept: TypeAlias = Annotated[list[Item], Field(fail_fast=True)]
FEW = 100
"""Entries of which all errors are told."""


def _one_by_one(given: Any, read: ValidatorFunctionWrapHandler) -> Any:
    if not isinstance(given, dict) or len(given) <= FEW:
        return read(given)
    return {name: one for key, value in given.items() for name, one in read({key: value}).items()}


Named: TypeAlias = Annotated[dict[str, Item], WrapValidator(_one_by_one)]  # no `fail_fast` before Pydantic 2.14


def parsed(kind: TypeAdapter[Item], text: bytes) -> Item:
    """The value in a JSON text; raises ValueError if it holds none."""
    # Not by `validate_json`, whose errors each hold a copy of the object around them.
    return kind.validate_python(from_json(text))
