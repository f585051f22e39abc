"""FibFL+: the neighbours' accuracies gate and tilt the blend. FIRMA (arXiv:2605.22898), Algorithm 2."""

from collections.abc import Mapping
from typing import ClassVar, Literal

from peer.protocols.base import Init, Peer, Protocol, Received
from peer.protocols.blocks.training import Fraction, TwoPhase
from peer.protocols.declarations import Share
from peer.protocols.fibfl import ALPHA, BETA, ring_blend


def gated_weights(left: float, right: float, tau: float) -> tuple[float, float] | None:
    """a_L and a_R from the neighbours' training accuracies (Eqs. 6, 7); None when both fail the gate.

    What is no accuracy counts as the nearest that is one: a lie must not outweigh the other neighbour, nor shrink both.
    """
    g_left = min(left, 1.0) if left >= tau else 0.0
    g_right = min(right, 1.0) if right >= tau else 0.0
    total = g_left + g_right
    if total < 1e-8:
        return None
    return ALPHA / 2 + g_left / total / 2, BETA / 2 + g_right / total / 2


def gated_blend(peer: Peer, gamma: float, received: Mapping[str, Received], tau: float) -> None:
    """Blend with the neighbours by these weights, unless both fail the gate."""
    left, right = received[peer.left], received[peer.right]
    if weights := gated_weights(left.scalars["accuracy"], right.scalars["accuracy"], tau):
        ring_blend(peer, gamma, weights[0], left, weights[1], right)


class FibFLPlus(TwoPhase, Protocol):
    """FibFL with weights from the neighbours' training accuracies; below τ a neighbour's accuracy counts 0."""

    name: Literal["fibfl+"] = "fibfl+"
    gamma: Fraction = 0.5
    """Weight of the own extractor (Eq. 5)."""
    tau: Fraction = 0.35
    """The accuracy below which a neighbour does not count (Eq. 6)."""

    paper: ClassVar[str] = "FIRMA, Algorithm 2"
    min_peers: ClassVar[int] = 3
    init: ClassVar[Init] = "independent"

    def shares(self, rounds: int) -> tuple[Share, ...]:
        return (Share("extractor", scalars=1),)

    async def round(self, peer: Peer) -> None:
        await peer.train(*self.local())
        received = await peer.exchange("extractor", accuracy=await peer.accuracy())
        peer.note(gamma=self.gamma)
        gated_blend(peer, self.gamma, received, self.tau)
