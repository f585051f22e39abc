"""Which peers train in a round, drawn alike by all."""

from math import floor
from typing import Annotated

from pydantic import Field

from peer.protocols.base import Peer
from peer.settings import Settings


class Participation(Settings):
    """A share of the peers trains in each round; the others add nothing, relay, and take the result."""

    participation: Annotated[float, Field(gt=0, le=1)] = 1.0
    """C: the share of peers drawn each round from the shared seed; max(1, ⌊C·N + ½⌋) of them."""

    def drawn(self, peer: Peer) -> frozenset[str]:
        """S_t; the same set at every peer."""
        size = len(peer.members)
        count = max(1, floor(self.participation * size + 0.5))
        if count == size:
            return frozenset(peer.members)
        chosen = peer.shared_generator("participation").choice(size, count, replace=False)
        return frozenset(peer.members[i] for i in chosen)
