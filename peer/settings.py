"""What every configurable thing is made of: frozen, validated, unknown keys refused."""

from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel, ConfigDict


class Settings(BaseModel):
    """A block of settings; the docstring under a field is its entry in the reference."""

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        allow_inf_nan=False,
        protected_namespaces=(),
        defer_build=True,
    )


@dataclass(frozen=True)
class Wanted:
    """Beside a field's type, in `Annotated`: what it takes, with an example, for whoever wrote something else."""

    words: str


def kind_of_word(value: Any) -> Any:
    """`stale` and `{kind: stale}` are the same, where a block has a `kind`."""
    return {"kind": value} if isinstance(value, str) else value
