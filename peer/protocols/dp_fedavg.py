"""DP-FedAvg without a server: McMahan et al. (2018); each peer adds its part of the noise to its clipped update."""

from math import inf, sqrt
from typing import Annotated, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor

from peer.protocols.base import Init, Peer, Protocol
from peer.protocols.blocks.global_model import common_start
from peer.protocols.blocks.privacy import (
    COMMITMENT,
    PART,
    SECRET_BYTES,
    as_secret,
    common_secret,
    dp_accounting,
    draw_secret,
    gaussian_epsilon,
    sampled_epsilon,
    standard_normal,
    stream,
    uniform,
)
from peer.protocols.blocks.training import BatchSize, Fraction, KeepMomentum, PlainSGD
from peer.protocols.blocks.vectors import keep_variances
from peer.protocols.declarations import Record, Share
from peer.topology import Graph


class DPFedAvg(PlainSGD, Protocol):
    """w ← w + Σ_k (Δ_k·min(1, S/‖Δ_k‖) + noise_k)/(qN) over a Poisson sample; each noise_k is N(0, z²S²/m).

    m is the size of the sample. An empty one must look like any other: then all N peers add noise of N(0, z²S²/N).
    """

    name: Literal["dp-fedavg"] = "dp-fedavg"
    participation: Annotated[float, Field(gt=0, le=1)] = 1.0
    """q: probability of drawing each peer in a round."""
    clip_norm: Annotated[float, Field(gt=0, le=1e6)] = 1.0
    """S: maximum norm of an update."""
    noise_multiplier: Annotated[float, Field(ge=0, le=1e6)] = 1.0
    """z: deviation of all noise, divided by S."""
    delta: Annotated[float, Field(gt=0, lt=1)] = 1e-5
    """δ, at which ε is calculated."""
    insecure_reproducible_noise: bool = False
    """Draw the noise from the seed: runs repeat, but nothing is protected."""
    momentum: Fraction = 0.0
    """Momentum of SGD."""
    keep_momentum: KeepMomentum = False
    batch_size: BatchSize = 128

    paper: ClassVar[str] = "McMahan et al. 2018, Algorithm 1 (RI-FedAvg's baseline)"
    records: ClassVar[tuple[Record, ...]] = (COMMITMENT, PART)
    exact: ClassVar[bool] = True  # what the accountant speaks of is the sum as it was noised
    replicated: ClassVar[tuple[str, ...]] = ("sampling",)
    graph: ClassVar[Graph] = "directed ring"

    def why_figures_stay(self) -> str | None:
        return "a figure on samples of a peer's own would leave it without noise, and ε does not count that"

    def shares(self, rounds: int) -> tuple[Share, ...]:
        return (Share("update", rounds=range(1, rounds + 1), like="model"), Share("model", rounds=range(1)))

    def why_members_are_fixed(self) -> str:
        return "rounds that are played again would leave once more, and its ε counts each once"

    async def start(self, peer: Peer, init: Init) -> None:
        dp_accounting()
        peer.state["secret"] = await peer.once(lambda: self.secret(peer))
        # The seed stands in the spec and is easily guessed: a sample drawn from it would not be hidden at all.
        part = stream(peer.state["secret"], "part of the sampling", 0, SECRET_BYTES)
        peer.state["sampling"] = await common_secret(peer, part)
        peer.state["exposure"] = torch.zeros((), dtype=torch.float64)
        await common_start(peer, init)

    def secret(self, peer: Peer) -> Tensor:
        if self.insecure_reproducible_noise:
            return as_secret(peer.shared_generator("secret").bytes(SECRET_BYTES) + peer.id.encode())
        return draw_secret()

    async def round(self, peer: Peer) -> None:
        sample = self.sample(peer)
        w = peer.model.clone()
        if peer.id in sample:
            await peer.train(*self.local())
            peer.state["exposure"] += len(sample)
        noisy = sample or peer.members
        update = peer.state["update"] = peer.model - w
        update.mul_(self.scale(update))
        if peer.id in noisy:
            update.add_(await peer.compute(self.noise, peer), alpha=1 / sqrt(len(noisy)))
        update.div_(self.participation)
        await peer.weighted_mean("update", weight=1)
        del peer.state["update"]  # as long as the model, and of no use in a checkpoint
        keep_variances(peer.layout, peer.model.copy_(w).add_(update))
        await self.account(peer)

    def sample(self, peer: Peer) -> tuple[str, ...]:
        """The peers drawn in this round; the same at every peer, possibly none."""
        draws = uniform(peer.state["sampling"], "sample", peer.round, len(peer.members))
        return tuple(id for id, draw in zip(peer.members, draws, strict=True) if draw < self.participation)

    def scale(self, update: Tensor) -> float:
        """min(1, S/‖Δ‖)."""
        norm = float(torch.linalg.vector_norm(update, dtype=torch.float64))
        return min(1.0, self.clip_norm / norm) if norm else 1.0

    def noise(self, peer: Peer) -> Tensor:
        """This peer's draw of N(0, z²S²) in this round."""
        drawn = standard_normal(peer.state["secret"], "noise", peer.round, peer.model.numel())
        return drawn.mul_(self.noise_multiplier * self.clip_norm).to(peer.model.device)

    async def account(self, peer: Peer) -> None:
        """Note ε after this round: against observers of the models alone, and against all other peers together."""
        outsiders = peers = inf
        if self.noise_multiplier and not self.insecure_reproducible_noise:
            outsiders = await peer.compute(
                sampled_epsilon, self.participation, self.noise_multiplier, peer.round, self.delta
            )
            peers = await peer.compute(self.epsilon_of_peers, float(peer.state["exposure"]))
        peer.note(epsilon_outsiders=outsiders, epsilon_peers=peers)

    def epsilon_of_peers(self, exposure: float) -> float:
        """The others' noise does not count: each round leaves z/√m, and `exposure` is Σ m of the rounds drawn."""
        return gaussian_epsilon(self.noise_multiplier / sqrt(exposure), self.delta) if exposure else 0.0
