"""One global model without a server: the ring takes the means, and every peer ends with the same bits."""

from typing import ClassVar

from peer.learning.model.model import Part
from peer.protocols.base import Init, Peer, Protocol, Share
from peer.protocols.blocks.common_start import common_start
from peer.protocols.blocks.participation import Participation
from peer.topology.graphs import Graph


class GlobalModel(Participation, Protocol):
    """The drawn peers train from the global model, and everyone takes over the new one."""

    common: ClassVar[Part | None] = "model"

    @property
    def graph(self) -> Graph:
        return "directed ring"

    def shares(self, rounds: int) -> tuple[Share, ...]:
        return (Share("model"),)

    async def start(self, peer: Peer, init: Init) -> None:
        await common_start(peer, init)
