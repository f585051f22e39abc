"""FedAvg without a server: McMahan et al. (2017), the mean taken by ring all-reduce."""

from typing import ClassVar, Literal

from peer.protocols.base import Init, Peer, Protocol, Share
from peer.protocols.blocks.participation import Participation
from peer.protocols.blocks.training import PlainSGD
from peer.topology.graphs import Graph


class FedAvg(PlainSGD, Participation, Protocol):
    """w ← Σ n_k·w_k / Σ n_k over the drawn peers, each after E local epochs; starts from the mean of the initial w.

    FIRMA's published column is met only if each peer's momentum lives on from round to round; McMahan's begins anew.
    """

    name: Literal["fedavg"] = "fedavg"

    paper: ClassVar[str] = "McMahan et al. 2017, Algorithm 1"
    init: ClassVar[Init] = "independent"

    @property
    def graph(self) -> Graph:
        return "directed ring"

    def shares(self, rounds: int) -> tuple[Share, ...]:
        return (Share("model", scalars=1),)

    async def start(self, peer: Peer, init: Init) -> None:
        if init == "independent":
            await peer.weighted_mean("model", weight=1)

    async def round(self, peer: Peer) -> None:
        drawn = peer.id in self.drawn(peer)
        if drawn:
            await peer.train(*self.local())
        await peer.weighted_mean("model", weight=peer.samples if drawn else 0)
