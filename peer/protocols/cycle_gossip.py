"""CYCle on Gossip-SGD: peers with similar gradients are useful and receive more. CYCle paper, Algorithm 3."""

from collections.abc import Mapping
from math import exp
from typing import Annotated, ClassVar, Literal

from pydantic import Field
from torch import Tensor

from peer.protocols.base import Peer, Protocol, Received
from peer.protocols.blocks.training import Epochs, Fraction, PlainSGD, mean_gradients
from peer.protocols.blocks.vectors import blend, cosine
from peer.protocols.declarations import Share
from peer.topology import Graph


def local_gradient(peer: Peer) -> Tensor:
    """∇f_i(w) of the task's mean loss over all local samples, laid out as the model. Long: for `compute`."""
    return mean_gradients(peer, 1, lambda outputs, targets, _: [peer.task.loss(outputs, targets)])[0]


class CycleGossip(PlainSGD, Protocol):
    """w_ij ← α·w_ij + (1−α)·r_ij from the gradients' cosines; j sends to i with probability w_ji; i mixes by w_ij.

    Each peer mixes itself in with weight 1. The optimiser is kept.
    """

    name: Literal["cycle-gossip"] = "cycle-gossip"
    epochs: Epochs = 1
    """E: local epochs a round."""
    beta: Annotated[float, Field(ge=0, le=10_000)] = 15.0
    """Preference for similar gradients; 0: none."""
    alpha: Fraction = 0.5
    """Weight of earlier reputation."""
    every: Annotated[int, Field(ge=1, le=1_000_000)] = 5
    """R: rounds between exchanges of gradients, from round 1."""

    paper: ClassVar[str] = "CYCle, Algorithm 3"
    by_peer: ClassVar[Mapping[str, float]] = {"opinions": 1.0}
    graph: ClassVar[Graph] = "complete"

    def shares(self, rounds: int) -> tuple[Share, ...]:
        return (Share("model"), Share("gradient", like="model", rounds=range(1, rounds + 1, self.every)))

    async def round(self, peer: Peer) -> None:
        if (peer.round - 1) % self.every == 0:
            await self.form_opinions(peer)
        await peer.train(*self.local())
        opinions = dict(zip(peer.members, peer.state["opinions"].tolist(), strict=True))
        told = self.drawn(peer, opinions)
        received = await peer.exchange("model", to=told)
        self.mix(peer, opinions, received)
        peer.note(opinions=[*opinions.values()], told=len(told), heard=len(received))

    async def form_opinions(self, peer: Peer) -> None:
        """w_ij of all others, from all gradients at the model before this round's training."""
        peer.state["gradient"] = await peer.compute(local_gradient, peer)
        received = await peer.exchange("gradient")
        reputation = await peer.compute(self.reputation, peer, received)
        del peer.state["gradient"]
        for j, r in reputation.items():
            opinion = peer.state["opinions"][peer.members.index(j)]
            opinion.mul_(self.alpha).add_((1 - self.alpha) * r)

    def reputation(self, peer: Peer, gradients: Mapping[str, Received]) -> dict[str, float]:
        """r_ij: softmax of β·(1 + cos)/2 over the others, divided by its largest entry, in 0..1."""
        own = peer.state["gradient"]
        alike = {j: (1 + cosine(own, one.vector, peer.layout)) / 2 for j, one in gradients.items()}
        most = max(alike.values())
        return {j: exp(self.beta * (s - most)) for j, s in alike.items()}

    def drawn(self, peer: Peer, opinions: Mapping[str, float]) -> list[str]:
        """The peers to which this one sends: each with the probability that is its opinion of it."""
        size = len(peer.members)
        draws = peer.shared_generator("mask").random((size, size))[peer.members.index(peer.id)]
        return [i for i, draw in zip(peer.members, draws, strict=True) if i != peer.id and draw < opinions[i]]

    def mix(self, peer: Peer, opinions: Mapping[str, float], received: Mapping[str, Received]) -> None:
        """w ← (w + Σ_j w_ij·w_j) / (1 + Σ_j w_ij) over those that sent."""
        heard: list[tuple[float, Tensor]] = [(opinions[j], received[j].vector) for j in peer.members if j in received]
        total = 1 + sum(opinion for opinion, _ in heard)
        blend(peer.model, 1 / total, [(opinion / total, vector) for opinion, vector in heard])
