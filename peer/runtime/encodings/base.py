"""What an encoding is, and the one that changes nothing."""

from collections.abc import Callable, Mapping
from typing import Literal

from torch import Tensor

from peer.network.collectives.rounding import Rounding
from peer.network.wire.manifest import Payload
from peer.protocols.declarations import Share

Collective = Literal["exchange", "weighted_mean", "all_gather", "token"]
Placed = Callable[[Tensor], Tensor]
"""A tensor from the CPU where the model lies."""

FLOAT32 = 4
"""Bytes."""


class Encoding:
    """float32: vectors travel as they are."""

    def __init__(self, sizes: Mapping[str, int]) -> None:
        """`sizes`: values of `extractor`, `head` and `model`."""
        self._sizes = sizes
        self.state: dict[str, Tensor] = {}
        """float32 vectors on the CPU, by collective and share."""

    def payload(self, share: Share, payload: Payload) -> Payload:
        """What the manifest says of a vector as it travels."""
        return payload

    def length(self, share: Share, values: int) -> int:
        """Bytes of a vector of so many values as it travels."""
        return values if share.bytes else FLOAT32 * values

    def check(self, collective: Collective, share: Share, each_its_own: bool = False) -> None:
        """InputError where a vector cannot travel so in that collective."""

    def rounding(self, share: Share, vector: Tensor) -> Rounding | None:
        """How the parts of a mean are rounded; None: not at all."""
        return None

    def encode(self, collective: Collective, share: Share, vector: Tensor, each_its_own: bool = False) -> Tensor:
        """A finite vector on the CPU as it travels; OverflowError where that is not finite.

        each_its_own: it is for one neighbour only, and nothing is kept for the next.
        """
        return vector

    def decode(self, share: Share, arrived: Tensor, own: Callable[[], Tensor], placed: Placed) -> Tensor:
        """What arrived as a vector again; `own` is this peer's present one of that name."""
        return placed(arrived)
