"""Hearth without its adjusted loss: what is due to Adam and the refit alone."""

from typing import ClassVar, Literal

from peer.learning.training.optimiser import Adam
from peer.learning.training.phase import Phase
from peer.protocols.base import Peer
from peer.protocols.declarations import Share
from peer.protocols.hearth import Hearth


class Unadjusted(Hearth):
    """Hearth's Adam, mean and refit; training by plain cross entropy."""

    name: Literal["hearth_rivals:Unadjusted"] = "hearth_rivals:Unadjusted"  # type: ignore[assignment]
    shared: Literal["extractor", "model"] = "extractor"
    """What is averaged: with the whole model it is FedAvg, and the refit begins with the label prior in the bias."""

    paper: ClassVar[str] = "none: for a comparison"

    def shares(self, rounds: int) -> tuple[Share, ...]:
        return (Share(self.shared),)

    async def round(self, peer: Peer) -> None:
        if "head" in peer.state:
            peer.head.copy_(peer.state["head"])
        await peer.train(*self.local())
        await peer.weighted_mean(self.shared, weight=peer.samples)
        peer.state["head"] = peer.head.clone()
        await self.refit(peer)

    async def refit(self, peer: Peer) -> None:
        if self.shared == "model":
            await super().refit(peer)
        else:  # a head of its own has learnt the prior in training
            await peer.train(Phase("head", self.refit_epochs, Adam(self.lr), self.batch_size))
