"""FedProx without a server: Li et al. (2020), FedAvg with a proximal term."""

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from peer.protocols.base import Peer
from peer.protocols.blocks.global_model import GlobalModel
from peer.protocols.blocks.training import WholeModelSGD, corrected, proximal


class FedProx(WholeModelSGD, GlobalModel):
    """Each drawn peer trains on f_k(w) + (μ/2)‖w − w_t‖²; then w_t ← Σ n_k·w_k / Σ n_k over those drawn.

    With μ = 0 it is FedAvg with the same settings, bit for bit.
    """

    name: Literal["fedprox"] = "fedprox"
    mu: Annotated[float, Field(ge=0, le=1_000)] = 0.001
    """Pull of local training towards the global model."""

    paper: ClassVar[str] = "Li et al. 2020, Algorithm 2 (RI-FedAvg's baseline)"

    async def round(self, peer: Peer) -> None:
        drawn = peer.id in self.drawn(peer)
        if drawn:
            await peer.train(*corrected(self.local(), proximal(peer.model.clone(), self.mu)))
        await peer.weighted_mean("model", weight=peer.samples if drawn else 0)
