"""FlexiFed: links chosen each round by the machines' resources, models blended by similarity. FlexiFed, Algorithm 1."""

from collections.abc import Mapping, Sequence
from typing import ClassVar, Literal

import torch
from torch import Tensor

from peer.protocols.base import Peer, Protocol, Received, Record, ResourceSource, Share
from peer.protocols.blocks.blend import blend
from peer.protocols.blocks.cosine import cosine
from peer.protocols.blocks.resource_links import Capacity, links
from peer.protocols.blocks.training import Epochs, Fraction, KeepMomentum, PlainSGD
from peer.topology.graphs import Graph


class FlexiFed(PlainSGD, Protocol):
    """w_i ← β·w_i + (1−β)·Σ_j s_ij·w_j over the neighbours of this round, s_ij ∝ max(0, cos(w_i, w_j))."""

    name: Literal["flexifed"] = "flexifed"
    epochs: Epochs = 1
    """Local epochs a round."""
    keep_momentum: KeepMomentum = False
    alpha: Fraction = 0.5
    """α: how much cores count for a machine's resource level, beside memory."""
    beta: Fraction = 0.5
    """β: how much of its own model a peer keeps."""
    resources: ResourceSource = "measured"
    """Whence a machine's free cores, memory and rates are: measured each round; pinned by `machines`, or by a peer's
    `machine`; replayed from an earlier run, the `recording`. Measured ones differ from run to run."""

    paper: ClassVar[str] = "FlexiFed, Algorithm 1"
    records: ClassVar[tuple[Record, ...]] = (Record("machine", 3), Record("rates", "peers"), Record("links"))

    @property
    def graph(self) -> Graph:
        return "complete"

    @property
    def resources_from(self) -> ResourceSource:
        return self.resources

    def shares(self, rounds: int) -> tuple[Share, ...]:
        return (Share("model"),)

    async def round(self, peer: Peer) -> None:
        await peer.train(*self.local())
        neighbours = await self.neighbours(peer)
        received = await peer.exchange("model", to=neighbours, of=neighbours)
        similar = await peer.compute(self.blend, peer, received)
        peer.note(links=[peer.members.index(j) for j in neighbours], similarity=similar)

    async def neighbours(self, peer: Peer) -> list[str]:
        """Stage 1: with whom this peer exchanges its model in this round; every peer knows all links."""
        mine = await peer.resources()
        own = torch.tensor([mine.cpus, mine.memory, peer.samples], dtype=torch.float64)
        machines = await peer.gather("machine", own)
        rates = await peer.gather("rates", torch.tensor([mine.rates[j] for j in peer.members], dtype=torch.float64))
        told = {i: capacity(machines[i], rates[i], peer.members) for i in peer.members}
        chosen = await peer.compute(links, told, self.alpha)
        await peer.agree("links", torch.tensor([[j in chosen[i] for j in peer.members] for i in peer.members]))
        return chosen[peer.id]

    def blend(self, peer: Peer, received: Mapping[str, Received]) -> list[float]:
        """Stage 2, in place; the similarities max(0, cos) in the order of the members, not yet normalised."""
        vectors = [received[j].vector for j in peer.members if j in received]
        similar = [max(0.0, cosine(peer.model, vector, peer.layout)) for vector in vectors]
        total = sum(similar)
        if total > 0:
            weights = [(1 - self.beta) * s / total for s in similar]
            blend(peer.model, self.beta, zip(weights, vectors, strict=True))
        return similar


def capacity(machine: Tensor, rates: Tensor, members: Sequence[str]) -> Capacity:
    """What a peer told, from its two records."""
    cores, memory, samples = machine.tolist()
    return Capacity(cores, memory, samples, dict(zip(members, rates.tolist(), strict=True)))
