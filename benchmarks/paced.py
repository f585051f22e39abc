"""FibFL whose peers rest in each round, so that a few cores carry many of them."""

import time
from typing import ClassVar, Literal

from peer.protocols.base import Peer
from peer.protocols.fibfl import FibFL


class Paced(FibFL):
    """FibFL with a pause before each round."""

    name: Literal["paced:Paced"] = "paced:Paced"  # type: ignore[assignment]
    pause: float = 1.0
    """Seconds a round."""

    paper: ClassVar[str] = "none: for measuring"

    async def round(self, peer: Peer) -> None:
        await peer.compute(time.sleep, self.pause)
        await super().round(peer)
