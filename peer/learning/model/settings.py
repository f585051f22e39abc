"""The `model` block of a federation's settings."""

from pathlib import Path
from typing import Any, Literal, Self

from pydantic import Field, JsonValue, SerializerFunctionWrapHandler, model_serializer, model_validator

from peer.settings import PeerPath, Settings, of_peer

Patterns = tuple[str, ...]


class ModelSettings(Settings):
    """The model that is trained."""

    name: str = "mlp"
    """One above, or `module:Name` of your own."""
    options: dict[str, JsonValue] = Field(default_factory=dict)
    """Keyword arguments of `module:Name`."""
    head: Patterns | None = None
    """Patterns of your head's parameters, `["classifier.*"]`; `[]`: none."""
    freeze: Patterns = ()
    """Patterns of untrained parameters, `["extractor.backbone.*"]`."""
    weights: PeerPath | None = None
    """Initial weights: safetensors or a torch state dict, per machine; `{id}` is the peer's id."""
    partial: bool = False
    """`weights` may lack tensors, or have others or other shapes."""
    dtype: Literal["float32", "bfloat16", "float16"] | None = None
    """In which the module computes; messages stay float32."""

    @model_validator(mode="after")
    def _goes_together(self) -> Self:
        if self.partial and not self.weights:
            raise ValueError("`partial` says how to read `weights`, of which there are none; leave it out")
        if ":" not in self.name and (key := next((key for key in ("options", "head") if getattr(self, key)), None)):
            raise ValueError(f"`{self.name}` takes no `{key}`, which is for a `module:Name` of your own; leave it out")
        return self

    @model_serializer(mode="wrap")
    def _without_defaults(self, dump: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """What is not given stands nowhere."""
        defaults = {key: field.get_default(call_default_factory=True) for key, field in type(self).model_fields.items()}
        return {key: value for key, value in dump(self).items() if key == "name" or getattr(self, key) != defaults[key]}

    def relative_to(self, base: Path) -> Self:
        """A copy whose relative paths are taken from the folder `base`; `~` is the home folder."""
        return self.model_copy(update={"weights": base / self.weights.expanduser()}) if self.weights else self

    def of_peer(self, id: str) -> Self:
        """A copy with that id in the path of `weights`."""
        return self.model_copy(update={"weights": of_peer(self.weights, id)}) if self.weights else self

    def description(self) -> dict[str, Any]:
        """What of it says how to build the model once more: plain JSON, without its name and what is not given."""
        return self.model_dump(mode="json", exclude={"name", "weights", "partial"})
