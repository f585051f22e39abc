"""FedDyn without a server: Acar et al. (2021), a regulariser of each peer's own that makes drift cancel out."""

from typing import Annotated, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor

from peer.protocols.base import Init, Peer
from peer.protocols.blocks.global_model import GlobalModel
from peer.protocols.blocks.training import WholeModelSGD, corrected
from peer.protocols.blocks.vectors import trainable_only
from peer.protocols.declarations import Share


class FedDyn(WholeModelSGD, GlobalModel):
    """Each drawn peer trains on f_k(w) + α⟨w, h_k − w_t⟩ + (α/2)‖w‖² and adds its w_k − w_t to its h_k.

    w_t ← the plain mean of the drawn w_k + the mean h over *all* peers of h_k. So at rest Σ ∇f_k = 0: the plain mean of
    the f_k is at a minimum, which FedAvg misses when the peers' data differ.
    """

    name: Literal["feddyn"] = "feddyn"
    alpha: Annotated[float, Field(gt=0, le=1_000)] = 0.01
    """Strength of the regulariser."""

    paper: ClassVar[str] = "Acar et al. 2021, Algorithm 1 (RI-FedAvg's baseline)"
    replicated: ClassVar[tuple[str, ...]] = ("h",)

    def shares(self, rounds: int) -> tuple[Share, ...]:
        return (Share("model"), Share("h", like="model", rounds=range(1, rounds + 1)))

    def why_optimiser_is_fixed(self) -> str:
        return "its regulariser is part of each gradient, and h_k rests on how far plain SGD goes along it"

    async def start(self, peer: Peer, init: Init) -> None:
        await super().start(peer, init)
        peer.state["h_k"], peer.state["h"] = torch.zeros_like(peer.model), torch.zeros_like(peer.model)

    def begin_late(self, peer: Peer) -> None:
        peer.state["h_k"] = torch.zeros_like(peer.model)

    async def round(self, peer: Peer) -> None:
        drawn, start, h_k = peer.id in self.drawn(peer), peer.model.clone(), peer.state["h_k"]

        def dynamic(parameters: Tensor, gradient: Tensor) -> None:
            gradient.add_(parameters - start + h_k, alpha=self.alpha)

        if drawn:
            await peer.train(*corrected(self.local(), dynamic))
            h_k += trainable_only(peer.model - start, peer.layout)
        await peer.weighted_mean("model", weight=1 if drawn else 0)
        peer.state["h"] = h_k.clone()
        await peer.weighted_mean("h", weight=1)
        peer.model += peer.state["h"]
