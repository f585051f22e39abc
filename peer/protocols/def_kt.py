"""Def-KT, the baseline of FedISP: Li et al. (2022), mutual knowledge transfer between the two of a drawn pair."""

from dataclasses import replace
from typing import Annotated, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor
from torch.nn.functional import cross_entropy, kl_div, log_softmax

from peer.learning.training.optimiser import OPTIMISERS, SGD
from peer.learning.training.phase import Loss, Phase
from peer.protocols.base import Peer, Protocol
from peer.protocols.blocks.training import BatchSize, Fraction, Rate
from peer.protocols.declarations import Share
from peer.topology import Graph


class DefKT(Protocol):
    """Half of the peers train and send w to a partner, which trains it and its own model on its own batches, each
    also towards the other's predictions: CE(y, p) + KL(p_other ‖ p). It keeps the one that it received.
    """

    name: Literal["def-kt"] = "def-kt"
    lr: Rate = 0.01
    """Learning rate of SGD."""
    momentum: Fraction = 0.5
    """Momentum of SGD, reset each round."""
    weight_decay: Fraction = 1e-5
    """Weight decay of SGD."""
    epochs: Annotated[int, Field(ge=1, le=100_000)] = 1
    """E: local epochs, of both halves."""
    batch_size: BatchSize = 64

    paper: ClassVar[str] = "Li et al. 2022, Algorithm 1 (FedISP's baseline)"
    needs_classes: ClassVar[bool] = True
    graph: ClassVar[Graph] = "complete"

    def why_inputs_are_fixed(self) -> str | None:
        return "two models learn from the same batch"

    def shares(self, rounds: int) -> tuple[Share, ...]:
        return (Share("model", whole=True),)

    def why_optimiser_is_fixed(self) -> str:
        return "the two models of a pair learn from each other in the same steps of SGD"

    def why_loss_is_fixed(self) -> str:
        return "two models learn from each other by cross entropy and divergence"

    def why_steps_are_fixed(self) -> str:
        return "each batch is a step of two models, and only one of them would be trained so"

    def local(self) -> tuple[Phase, ...]:
        optimiser = SGD(self.lr, self.momentum, self.weight_decay)
        return (Phase("model", self.epochs, optimiser, self.batch_size),)

    def pairs(self, peer: Peer) -> tuple[tuple[str, str], ...]:
        """(trainer, receiver), disjoint and the same at every peer; of an odd number one peer idles."""
        order = [peer.members[i] for i in peer.shared_generator("pairs").permutation(len(peer.members))]
        half = len(order) // 2
        return tuple(zip(order[:half], order[half : 2 * half], strict=True))

    async def round(self, peer: Peer) -> None:
        pairs = self.pairs(peer)
        to = [receiver for trainer, receiver in pairs if trainer == peer.id]
        of = [trainer for trainer, receiver in pairs if receiver == peer.id]
        if to:
            await peer.train(*self.local())
        received = await peer.exchange("model", to=to, of=of)
        for trainer in of:
            own = peer.model.clone()
            peer.model.copy_(received[trainer].vector)
            await peer.train(*(replace(phase, loss=self.mutual(peer, own)) for phase in self.local()))

    def mutual(self, peer: Peer, own: Tensor) -> Loss:
        """The loss of the received model; each batch of it is a step of `own`, too, by the same predictions."""
        own.requires_grad_()
        optimiser = OPTIMISERS["SGD"]([own], self.lr, self.momentum)

        def loss(received: Tensor, labels: Tensor, positions: Tensor) -> Tensor:
            logits = peer.logits(own, peer.data.batch(positions).inputs, training=True)
            (own.grad,) = torch.autograd.grad(towards(logits, labels, received), own)
            self.decay(peer, own)
            optimiser.step()
            return towards(received, labels, logits)

        return loss

    def decay(self, peer: Peer, own: Tensor) -> None:
        """Weight decay, added to the gradient where something is trained."""
        assert own.grad is not None
        for entry in peer.layout:
            if entry.trainable:
                entry.view(own.grad).add_(entry.view(own.detach()), alpha=self.weight_decay)


def towards(logits: Tensor, labels: Tensor, teacher: Tensor) -> Tensor:
    """CE(y, p) + KL(p_teacher ‖ p), means over the batch; no gradient goes through the teacher."""
    taught = log_softmax(teacher.detach(), 1)
    return cross_entropy(logits, labels) + kl_div(
        log_softmax(logits, 1), taught, reduction="batchmean", log_target=True
    )
