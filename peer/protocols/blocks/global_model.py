"""One global model, or one extractor, without a server: the ring takes the means, and every peer ends with the same
bits.

Which peers train in a round is drawn alike by all. A peer's own head never leaves it where only extractors are shared.
"""

from math import floor
from typing import Annotated, ClassVar

from pydantic import Field

from peer.learning.model.layout import ModelPart
from peer.protocols.base import Init, Peer, Protocol
from peer.protocols.declarations import Share
from peer.settings import Settings
from peer.topology import Graph


class Participation(Settings):
    """A share of the peers trains in each round; the others add nothing, relay, and take the result."""

    participation: Annotated[float, Field(gt=0, le=1)] = 1.0
    """C: share of peers drawn per round."""

    def drawn(self, peer: Peer) -> frozenset[str]:
        """S_t; the same set at every peer."""
        size = len(peer.members)
        count = max(1, floor(self.participation * size + 0.5))
        if count == size:
            return frozenset(peer.members)
        chosen = peer.shared_generator("participation").choice(size, count, replace=False)
        return frozenset(peer.members[i] for i in chosen)


async def common_start(peer: Peer, init: Init, share: str = "model") -> None:
    """Take the mean of the peers' first weights, if they differ."""
    if init == "independent":
        await peer.weighted_mean(share, weight=1)


class GlobalModel(Participation, Protocol):
    """The drawn peers train from the global model, and all peers take over the new one."""

    common: ClassVar[ModelPart | None] = "model"
    graph: ClassVar[Graph] = "directed ring"

    def shares(self, rounds: int) -> tuple[Share, ...]:
        return (Share("model"),)

    async def start(self, peer: Peer, init: Init) -> None:
        await common_start(peer, init)


class MeanExtractor(Protocol):
    """Peers share the extractor alone, by `weighted_mean`."""

    graph: ClassVar[Graph] = "directed ring"

    def shares(self, rounds: int) -> tuple[Share, ...]:
        return (Share("extractor"),)
