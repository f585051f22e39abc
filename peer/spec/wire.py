"""In which precision, and how much of them, vectors travel: the `wire` key of federation.yaml."""

from math import ceil
from typing import Annotated, Literal

from pydantic import BeforeValidator, Field

from peer.protocols.declarations import Share
from peer.settings import Settings, kind_of_word


class Float32(Settings):
    """Every vector as it is: 4 bytes a value."""

    kind: Literal["float32"] = "float32"

    def shortens(self, share: Share) -> bool:
        """Whether that vector travels in fewer bytes than it has."""
        return False


class Bfloat16(Settings):
    """Values rounded to bfloat16, 2 bytes a value; what the rounding took is added to what is sent next."""

    kind: Literal["bfloat16"] = "bfloat16"

    def shortens(self, share: Share) -> bool:
        return not share.bytes


class TopK(Settings):
    """Of the extractor and of the head only the values that changed most since they were last told."""

    kind: Literal["top-k"] = "top-k"
    share: Annotated[float, Field(gt=0, le=0.5)] = 0.1
    """How many of the values: k = ⌈share·p⌉ of p."""

    def shortens(self, share: Share) -> bool:
        return not share.own or share.update

    def kept(self, size: int) -> int:
        """k."""
        return ceil(self.share * size)


Wire = Annotated[
    Annotated[Float32 | Bfloat16 | TopK, Field(discriminator="kind")],
    BeforeValidator(kind_of_word, json_schema_input_type=Literal["float32", "bfloat16", "top-k"] | TopK),
]
"""The `wire` block; a word alone is its kind."""
