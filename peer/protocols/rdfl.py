"""RDFL as FIRMA's baseline runs it (C-DFL in FedISP): uniform ring blending of whole models."""

from typing import ClassVar, Literal

from peer.protocols.base import Init, Peer, Protocol
from peer.protocols.blocks.training import Fraction, PlainSGD
from peer.protocols.blocks.vectors import blend
from peer.protocols.declarations import Share


class RDFL(PlainSGD, Protocol):
    """w ← γw + (1−γ)(w_L + w_R)/2 after local SGD, whose momentum is kept.

    FIRMA's published column equals γ = 1, which is no exchange at all; with 0.5 the method does far better.
    """

    name: Literal["rdfl"] = "rdfl"
    gamma: Fraction = 0.5
    """Weight of the own model."""

    paper: ClassVar[str] = "FIRMA, Section 6 (baseline)"
    min_peers: ClassVar[int] = 3
    init: ClassVar[Init] = "independent"

    def shares(self, rounds: int) -> tuple[Share, ...]:
        return (Share("model"),)

    async def round(self, peer: Peer) -> None:
        await peer.train(*self.local())
        received = await peer.exchange("model")
        other = (1 - self.gamma) / 2
        peer.note(gamma=self.gamma)
        blend(peer.model, self.gamma, [(other, received[side].vector) for side in (peer.left, peer.right)])
