"""VPDL, the baseline of CYCle: every peer learns from what all others predict on its data, all of them alike."""

from typing import ClassVar, Literal

from peer.protocols.base import Peer, Protocol
from peer.protocols.blocks.predictions import SharedPredictions, others


class VPDL(SharedPredictions, Protocol):
    """Loss CE + λ0/(N−1) Σ_k DL_nk, the teachers as they were at the end of the round before; no model is replaced."""

    name: Literal["vpdl"] = "vpdl"

    paper: ClassVar[str] = "CYCle, Equations 1 and 2 (baseline; CaPriDe, Tastan and Nandakumar 2023)"

    async def round(self, peer: Peer) -> None:
        await self.warm_up_once(peer)
        predictions = await self.predictions_of(peer, to=others(peer))
        weights = dict.fromkeys(predictions, 1 / len(others(peer)))
        await peer.train(*self.distilling(peer, weights, predictions))
