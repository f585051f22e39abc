"""FibFL: Fibonacci ring blending of extractors with private heads. FIRMA (arXiv:2605.22898), Algorithm 1."""

from math import sqrt
from typing import ClassVar, Literal

from peer.protocols.base import Init, Peer, Protocol, Received
from peer.protocols.blocks.training import Fraction, TwoPhase
from peer.protocols.blocks.vectors import blend
from peer.protocols.declarations import Share

PHI = (1 + sqrt(5)) / 2
ALPHA, BETA = 1 / PHI, 1 / PHI**2
"""Weights of the left and of the right neighbour (Eq. 3); they sum to one."""


class FibFL(TwoPhase, Protocol):
    """θ ← γθ + (1−γ)(αθ_L + βθ_R) after two-phase local training; η never leaves the peer."""

    name: Literal["fibfl"] = "fibfl"
    gamma: Fraction = 0.5
    """Weight of the own extractor (Eq. 5)."""

    paper: ClassVar[str] = "FIRMA, Algorithm 1"
    min_peers: ClassVar[int] = 3
    init: ClassVar[Init] = "independent"

    def shares(self, rounds: int) -> tuple[Share, ...]:
        return (Share("extractor"),)

    async def round(self, peer: Peer) -> None:
        await peer.train(*self.local())
        received = await peer.exchange("extractor")
        left, right = received[peer.left], received[peer.right]
        peer.note(gamma=self.gamma)
        ring_blend(peer, self.gamma, ALPHA, left, BETA, right)


def ring_blend(peer: Peer, gamma: float, a_left: float, left: Received, a_right: float, right: Received) -> None:
    """θ ← γθ + (1−γ)(a_L·θ_L + a_R·θ_R), Eqs. 4, 5."""
    blend(peer.extractor, gamma, [((1 - gamma) * a_left, left.vector), ((1 - gamma) * a_right, right.vector)])
