"""Local training of methods that correct each gradient, so that peers do not drift apart."""

from dataclasses import replace

from peer.learning.training.phase import GradientHook
from peer.protocols.base import Peer
from peer.protocols.blocks.training import WholeModelSGD


class CorrectedSGD(WholeModelSGD):
    """Stochastic gradient descent on the whole model whose gradients a protocol corrects."""

    async def train(self, peer: Peer, correction: GradientHook) -> None:
        """`local()` with a correction of each gradient."""
        await peer.train(*(replace(phase, gradient_hook=correction) for phase in self.local()))
