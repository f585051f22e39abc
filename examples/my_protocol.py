"""Each weight becomes the median of one's own and both neighbours'. protocol: {name: "my_protocol:RingMedian"}"""

from typing import ClassVar

import torch

from peer import SGD, Peer, Phase, Protocol, Share


class RingMedian(Protocol):
    """One neighbour that sends nonsense cannot pull a weight beyond the other two values."""

    epochs: int = 1
    """Local epochs a round."""

    paper: ClassVar[str] = "an example"
    min_peers: ClassVar[int] = 3

    def shares(self, rounds: int) -> tuple[Share, ...]:
        return (Share("extractor"),)  # the head has no way out

    def local(self) -> tuple[Phase, ...]:
        return (Phase("model", self.epochs, SGD(lr=0.05), batch_size=32),)

    async def round(self, peer: Peer) -> None:
        await peer.train(*self.local())
        received = await peer.exchange("extractor")
        left, right = received[peer.left].vector, received[peer.right].vector
        peer.extractor.copy_(torch.stack([left, peer.extractor, right]).sort(0).values[1])
