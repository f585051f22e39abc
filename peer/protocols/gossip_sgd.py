"""Gossip-SGD (DSGD), the baseline of CYCle: train an epoch, then average with all neighbours of a graph."""

from typing import ClassVar, Literal

from peer.protocols.base import Peer, Protocol, Share
from peer.protocols.blocks.blend import blend
from peer.protocols.blocks.training import Epochs, PlainSGD
from peer.topology.graphs import Graph


class GossipSGD(PlainSGD, Protocol):
    """w_i ← Σ_j w_j / (|N(i)| + 1) over itself and its neighbours; the optimiser is kept."""

    name: Literal["gossip-sgd"] = "gossip-sgd"
    topology: Literal["complete", "ring", "exponential"] = "complete"
    """Who talks to whom; exponential: to positions i ± 2^k, 2^k < N."""
    epochs: Epochs = 1
    """Local epochs a round."""

    paper: ClassVar[str] = "CYCle, Section 5 (baseline; Lian et al. 2017)"

    @property
    def graph(self) -> Graph:
        return self.topology

    def shares(self, rounds: int) -> tuple[Share, ...]:
        return (Share("model"),)

    async def round(self, peer: Peer) -> None:
        await peer.train(*self.local())
        received = await peer.exchange("model")
        weight = 1 / (len(received) + 1)
        blend(peer.model, weight, [(weight, received[j].vector) for j in peer.members if j in received])
