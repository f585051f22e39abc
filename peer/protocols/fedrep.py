"""FedRep without a server: Collins et al. (2021), the extractors' mean taken by ring all-reduce."""

from typing import ClassVar, Literal

from peer.learning.model.layout import ModelPart
from peer.learning.training.optimiser import SGD
from peer.learning.training.phase import Phase
from peer.protocols.base import Init, Peer
from peer.protocols.blocks.global_model import MeanExtractor, Participation
from peer.protocols.blocks.training import BatchSize, Epochs, Fraction, Rate


class FedRep(Participation, MeanExtractor):
    """Train the head, then the extractor; average the extractors; keep the head.

    There is no global model, so with `init: independent` the extractors first meet after round 1.
    """

    name: Literal["fedrep"] = "fedrep"
    lr: Rate = 0.01
    """Learning rate of SGD."""
    momentum: Fraction = 0.9
    """Momentum of SGD."""
    keep_momentum: bool = True
    """Keep momenta across rounds, as in FIRMA; the original does not."""
    head_epochs: Epochs = 2
    """E_h: local epochs of the head."""
    extractor_epochs: Epochs = 2
    """E_e: local epochs of the extractor."""
    batch_size: BatchSize = 64

    paper: ClassVar[str] = "Collins et al. 2021, Algorithm 1"
    common: ClassVar[ModelPart | None] = "extractor"
    init: ClassVar[Init] = "independent"

    def local(self) -> tuple[Phase, ...]:
        sgd, kept = SGD(self.lr, self.momentum), self.keep_momentum
        return (
            Phase("head", self.head_epochs, sgd, self.batch_size, "head" if kept else None),
            Phase("extractor", self.extractor_epochs, sgd, self.batch_size, "extractor" if kept else None),
        )

    async def round(self, peer: Peer) -> None:
        drawn = peer.id in self.drawn(peer)
        if drawn:
            await peer.train(*self.local())
        await peer.weighted_mean("extractor", weight=peer.samples if drawn else 0)
