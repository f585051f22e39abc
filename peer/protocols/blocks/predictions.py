"""What other peers' models predict on one's own samples, and how it is got."""

from collections.abc import Collection
from typing import ClassVar, Literal

import torch
from torch import Tensor

from peer.learning.encryption.square_mlp import check_fits
from peer.learning.training.evaluation import BATCH
from peer.protocols.base import Init, Peer, Share
from peer.protocols.blocks import encrypted_predictions
from peer.protocols.blocks.distillation import Distillation, Predictions
from peer.topology.graphs import Graph


class SharedPredictions(Distillation):
    """Peers answer one another along a complete graph."""

    predictions: Literal["model", "encrypted"] = "model"
    """Who computes what k predicts on n's data: n, to whom k's model goes, or k, on inputs that n has encrypted."""

    needs_classes: ClassVar[bool] = True
    unchanging: ClassVar[tuple[str, ...]] = encrypted_predictions.KEPT

    @property
    def graph(self) -> Graph:
        return "complete"

    def shares(self, rounds: int) -> tuple[Share, ...]:
        return (Share("model", whole=True),) if self.predictions == "model" else encrypted_predictions.SHARES

    def why_members_are_fixed(self) -> str | None:
        return "keys and encrypted inputs leave once, in round 1" if self.predictions == "encrypted" else None

    def why_data_are_fixed(self) -> str | None:
        return "the encrypted inputs leave once, in round 1" if self.predictions == "encrypted" else None

    def check_samples(self, peer: str, samples: int) -> None:
        if self.predictions == "encrypted":
            check_fits(peer, samples)

    def why_inputs_are_fixed(self) -> str | None:
        return "the others have answered to the samples as they are"

    async def start(self, peer: Peer, init: Init) -> None:
        if self.predictions == "encrypted":
            encrypted_predictions.check_encryptable(peer)

    async def predictions_of(self, peer: Peer, to: Collection[str]) -> Predictions:
        """Answer the peers in `to`; what those say who answered this one, in the spec's order.

        An answer that is not finite is none: it would end this peer, also with no weight.
        """
        found = await self._answers(peer, to)
        return {k: z for k, z in found.items() if bool(torch.isfinite(z).all())}

    async def _answers(self, peer: Peer, to: Collection[str]) -> Predictions:
        if self.predictions == "encrypted":
            return await encrypted_predictions.encrypted_predictions(peer, to)
        received = await peer.exchange("model", to=to)
        return {k: await peer.compute(_answer, peer, received[k].vector) for k in peer.members if k in received}


def others(peer: Peer) -> list[str]:
    """Everyone but this peer, in the spec's order."""
    return [member for member in peer.members if member != peer.id]


def _answer(peer: Peer, vector: Tensor) -> Tensor:
    with torch.no_grad():
        return torch.cat([peer.logits(vector, batch.inputs) for batch in peer.data.in_order(BATCH)])
