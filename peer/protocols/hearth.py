"""Hearth, a protocol of this project: the extractors' mean round the ring; the head is calibrated and refitted at home.

Logit adjustment: Menon et al. (ICLR 2021); against label skew between clients: Zhang et al. (ICML 2022).
"""

from dataclasses import replace
from typing import Annotated, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor
from torch.nn import functional

from peer.errors import InputError
from peer.learning.model.layout import ModelPart, TensorSlot
from peer.learning.training.optimiser import Adam
from peer.learning.training.phase import Loss, Phase
from peer.protocols.base import Init, Peer
from peer.protocols.blocks.global_model import MeanExtractor, common_start
from peer.protocols.blocks.training import BatchSize, Epochs, Rate

FLOOR = 1e-8
"""Added to the share of a class before its logarithm is taken: a class without samples has about -18."""

Decay = Annotated[float, Field(ge=0, lt=1)]


class Hearth(MeanExtractor):
    """Train θ and η on logits adjusted by the local label prior; θ ← Σ n_k·θ_k / n; then refit a copy of η, ψ, to θ.

    η, ψ and the prior never leave. Between rounds η stands in `peer.state["head"]`: training goes on from it, never
    from ψ, which only predicts. So a run may be lengthened, and each round is evaluated as the peer would predict.
    """

    name: Literal["hearth"] = "hearth"
    lr: Rate = 1e-3
    """Learning rate of Adam, in training and in the refit."""
    beta1: Decay = 0.9
    """β₁ of Adam."""
    beta2: Decay = 0.99
    """β₂ of Adam."""
    epochs: Epochs = 5
    """Local epochs of θ and η together."""
    refit_epochs: Epochs = 5
    """Epochs of ψ after the mean; 0: ψ is η with the label prior in its bias."""
    batch_size: BatchSize = 64
    predicts: Literal["local", "balanced"] = "local"
    """Head for predictions: ψ for data like its own, η for all classes alike."""

    paper: ClassVar[str] = "none: a protocol of this project"
    common: ClassVar[ModelPart | None] = "extractor"
    needs_classes: ClassVar[bool] = True
    init: ClassVar[Init] = "shared"

    def local(self) -> tuple[Phase, ...]:
        adam = Adam(self.lr, betas=(self.beta1, self.beta2))
        return (Phase("model", self.epochs, adam, self.batch_size, keep="model"),)

    def why_training_is_fixed(self) -> str:
        return "it trains on a loss of its own, by the local label prior"

    def why_loss_is_fixed(self) -> str:
        return "its own loss corrects the local label prior already"

    async def start(self, peer: Peer, init: Init) -> None:
        output_bias(peer)
        await common_start(peer, init, "extractor")

    def begin_late(self, peer: Peer) -> None:
        output_bias(peer)

    async def round(self, peer: Peer) -> None:
        if "head" in peer.state:
            peer.head.copy_(peer.state["head"])
        adjusted = adjusted_loss(class_counts(peer))
        await peer.train(*(replace(phase, loss=adjusted) for phase in self.local()))
        await peer.weighted_mean("extractor", weight=peer.samples)
        peer.state["head"] = peer.head.clone()
        if self.predicts == "local":
            await self.refit(peer)

    async def refit(self, peer: Peer) -> None:
        """η becomes ψ: the label prior into its bias, then some epochs of plain cross entropy with θ frozen."""
        counts = class_counts(peer)
        prior = torch.log((counts + 1) / (counts.sum() + len(counts)))
        output_bias(peer).view(peer.model).add_(prior.to(peer.model))
        await peer.train(Phase("head", self.refit_epochs, Adam(self.lr), self.batch_size))


def class_counts(peer: Peer) -> Tensor:
    """n_ic: how many local training samples each class has, float64 (classes,)."""
    return torch.bincount(peer.data.labels, minlength=len(peer.proportions)).double()


def adjusted_loss(counts: Tensor) -> Loss:
    """CE(logits + a, y) with a_c = log(n_c/n + 1e-8): a head so trained predicts as if all classes were equal."""
    offset = torch.log(counts / counts.sum() + FLOOR)

    def loss(logits: Tensor, labels: Tensor, positions: Tensor) -> Tensor:
        return functional.cross_entropy(logits + offset.to(logits), labels)

    return loss


def output_bias(peer: Peer) -> TensorSlot:
    """The bias of the head's last layer, one number a class; InputError when there is none."""
    classes = len(peer.proportions)
    last = [entry for entry in peer.layout if entry.part == "head" and entry.trainable][-2:]
    if len(last) == 2:
        weight, bias = last
        if bias.name.endswith("bias") and bias.shape == (classes,) and weight.shape[1:] and weight.shape[0] == classes:
            return bias
    found = f"ends with {last[-1].name} {last[-1].shape}" if last else "has nothing to train"
    raise InputError(
        "`hearth` writes the label prior into the bias of the head's last layer, and the head of this model "
        f"{found}; let it end with torch.nn.Linear(..., {classes})"
    )
