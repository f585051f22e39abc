"""FlexiFed: links chosen each round by the machines' resources, models blended by similarity. FlexiFed, Algorithm 1.

Which links of a complete graph stand, from what each machine can give, is stage 1 (Section III).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch

from peer.protocols.base import Peer, Protocol, Received, ResourceSource
from peer.protocols.blocks.training import Epochs, Fraction, KeepMomentum, PlainSGD
from peer.protocols.blocks.vectors import blend, cosine
from peer.protocols.declarations import Record, Share
from peer.topology import Graph

LEVELS = 3
"""Resource levels: high, medium, low."""


@dataclass(frozen=True)
class Capacity:
    """What a peer tells of its machine and its data."""

    cores: float
    """Free ones."""
    memory: float
    """Free GiB."""
    samples: float
    """D: training samples."""
    rates: Mapping[str, float]
    """T: bytes a second to each peer, by id."""


def standing_links(peers: Mapping[str, Capacity], alpha: float) -> dict[str, list[str]]:
    """The neighbours of each peer, in the order given; a link stands if either of its ends keeps it.

    A function of its arguments alone, without a sum whose order could differ: all peers get the same.
    """
    levels = resource_levels(peers, alpha)
    kept = {i: _kept_links(i, peers, levels) for i in peers}
    return {i: [j for j in peers if j in kept[i] or i in kept[j]] for i in peers}


def resource_levels(peers: Mapping[str, Capacity], alpha: float) -> dict[str, float]:
    """Res_i = α·F_i + (1−α)·M_i, cores and memory each divided by the largest there is."""
    cores = max(one.cores for one in peers.values())
    memory = max(one.memory for one in peers.values())
    return {i: alpha * _part(one.cores, cores) + (1 - alpha) * _part(one.memory, memory) for i, one in peers.items()}


def degree(i: str, levels: Mapping[str, float]) -> int:
    """d_i = max(1, ⌈level·deg⌉), level = ⌈3ρ⌉/3, ρ the share of all peers whose Res is at most this one's."""
    size = len(levels)
    at_most = sum(level <= levels[i] for level in levels.values())
    level = _ceil(LEVELS * at_most, size)
    return max(1, _ceil(level * (size - 1), LEVELS))


def _kept_links(i: str, peers: Mapping[str, Capacity], levels: Mapping[str, float]) -> frozenset[str]:
    """The d_i others with the largest Res_ij = Res_j + D_j/ΣD + T_ij/ΣT; of equal ones those whose id comes first."""
    others, rates = [j for j in peers if j != i], peers[i].rates
    samples, rate = sum(peers[j].samples for j in others), sum(rates[j] for j in others)
    worth = {j: levels[j] + _part(peers[j].samples, samples) + _part(rates[j], rate) for j in others}
    return frozenset(sorted(others, key=lambda j: (-worth[j], j))[: degree(i, levels)])


def _part(value: float, whole: float) -> float:
    return value / whole if whole > 0 else 0.0


def _ceil(dividend: int, divisor: int) -> int:
    return -(-dividend // divisor)


class FlexiFed(PlainSGD, Protocol):
    """w_i ← β·w_i + (1−β)·Σ_j s_ij·w_j over the neighbours of this round, s_ij ∝ max(0, cos(w_i, w_j))."""

    name: Literal["flexifed"] = "flexifed"
    epochs: Epochs = 1
    """E: local epochs a round."""
    keep_momentum: KeepMomentum = False
    alpha: Fraction = 0.5
    """Weight of cores, beside memory."""
    beta: Fraction = 0.5
    """Weight of the own model."""
    resources: ResourceSource = "measured"
    """Of cores, memory and rates: measured each round; `machines`; the run in `recording`."""

    paper: ClassVar[str] = "FlexiFed, Algorithm 1"
    records: ClassVar[tuple[Record, ...]] = (Record("machine", 3), Record("rates", "peers"), Record("links"))
    graph: ClassVar[Graph] = "complete"

    @property
    def resources_from(self) -> ResourceSource:  # type: ignore[override]
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
        """Stage 1: the peers with which this one exchanges its model in this round; every peer knows all links."""
        mine = await peer.resources()
        own = torch.tensor([mine.cpus, mine.memory, peer.samples], dtype=torch.float64)
        machines = await peer.gather("machine", own)
        told = await peer.gather("rates", torch.tensor([mine.rates[j] for j in peer.members], dtype=torch.float64))
        capacities = {}
        for i in peer.members:
            cores, memory, samples = machines[i].tolist()
            capacities[i] = Capacity(cores, memory, samples, dict(zip(peer.members, told[i].tolist(), strict=True)))
        chosen = await peer.compute(standing_links, capacities, self.alpha)
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
