"""Gossip-SGD (DSGD), the baseline of CYCle: train an epoch, then average with all neighbours of a graph.

With `trim` the mean is robust: Yin et al. 2018, "Byzantine-Robust Distributed Learning", Definition 2.
"""

from typing import ClassVar, Literal

from peer.errors import InputError
from peer.protocols.base import Peer, Protocol
from peer.protocols.blocks.training import Epochs, PlainSGD
from peer.protocols.blocks.vectors import Trim, blend, trimmed_mean
from peer.protocols.declarations import Share
from peer.topology import Graph, receivers


class GossipSGD(PlainSGD, Protocol):
    """w_i ← Σ_j w_j / (|N(i)| + 1) over itself and its neighbours; the optimiser is kept."""

    name: Literal["gossip-sgd"] = "gossip-sgd"
    topology: Literal["complete", "ring", "exponential"] = "complete"
    """The graph of neighbours; exponential: to positions i ± 2^k, 2^k < N."""
    epochs: Epochs = 1
    """E: local epochs a round."""
    trim: Trim = 0
    """Values ignored at each end per coordinate; 0: plain mean."""

    paper: ClassVar[str] = "CYCle, Section 5 (baseline; Lian et al. 2017)"

    @property
    def graph(self) -> Graph:  # type: ignore[override]
        return self.topology

    def shares(self, rounds: int) -> tuple[Share, ...]:
        return (Share("model"),)

    def least_members(self, peers: int) -> int:
        """So many that `trim` leaves something of the values, in every larger ring too (`exponential` has gaps)."""
        if not self.trim:
            return self.min_peers
        ring = [*map(str, range(peers))]
        trims_all = [n for n in range(1, peers) if 2 * self.trim > len(receivers(self.topology, ring[:n], "0"))]
        return max([self.min_peers, *(n + 1 for n in trims_all[-1:])])

    async def round(self, peer: Peer) -> None:
        await peer.train(*self.local())
        received = await peer.exchange("model")
        vectors = [received[j].vector for j in peer.members if j in received]
        if self.trim:
            self._check_trim(len(vectors))
            trimmed_mean(peer.model, vectors, self.trim)
        else:
            weight = 1 / (len(vectors) + 1)
            blend(peer.model, weight, [(weight, vector) for vector in vectors])

    def _check_trim(self, neighbours: int) -> None:
        if 2 * self.trim > neighbours:
            raise InputError(
                f"`gossip-sgd` with `trim: {self.trim}` leaves nothing of {neighbours + 1} values, those of a peer and "
                f"its neighbours; give a trim of at most {neighbours // 2}, more peers or another topology"
            )
