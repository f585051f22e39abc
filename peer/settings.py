"""What every configurable thing is made of: frozen, validated, unknown keys refused."""

from pydantic import BaseModel, ConfigDict


class Settings(BaseModel):
    """A block of settings; the docstring under a field is its entry in the reference."""

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        allow_inf_nan=False,
        use_attribute_docstrings=True,
        protected_namespaces=(),
    )
