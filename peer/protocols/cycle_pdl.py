"""CYCle on private decentralised learning: peers answer those that they learn from. CYCle paper, Algorithms 1 and 2."""

from collections.abc import Mapping
from typing import Annotated, ClassVar, Literal, Self

import torch
from pydantic import Field, model_validator

from peer.protocols.base import Peer, Protocol
from peer.protocols.blocks.distillation import Predictions
from peer.protocols.blocks.predictions import SharedPredictions, others
from peer.protocols.blocks.training import Fraction

UNMEASURED = "unmeasured"


class CyclePDL(SharedPredictions, Protocol):
    """Loss CE + λ0 Σ_k r_nk DL_nk, the teachers as they were at the end of the round before.

    r_nk, n's opinion of k, follows how well the gradients of CE and DL_nk agree; n answers k with that probability.
    """

    name: Literal["cycle-pdl"] = "cycle-pdl"
    tau_opt: Fraction = 0.25
    """Misalignment of gradients up to which a peer counts in full."""
    tau_max: Fraction = 0.75
    """Misalignment from which it does not count."""
    alpha: Fraction = 0.5
    """Weight of earlier reputation."""
    reputation_every: Annotated[int, Field(ge=1, le=100_000)] = 5
    """R: rounds between measurements of reputation."""

    paper: ClassVar[str] = "CYCle, Algorithms 1 and 2"
    by_peer: ClassVar[Mapping[str, float]] = {"reputation": 1.0}

    @model_validator(mode="after")
    def _thresholds(self) -> Self:
        if self.tau_opt >= self.tau_max:
            raise ValueError(f"`tau_opt` ({self.tau_opt}) must be below `tau_max` ({self.tau_max}); lower it")
        return self

    def begin_late(self, peer: Peer) -> None:
        """Until it has measured, a peer that is admitted during the run learns from nobody and answers nobody."""
        peer.state["reputation"] = torch.zeros(len(peer.members), dtype=torch.float64)
        peer.state[UNMEASURED] = torch.tensor(True)

    async def round(self, peer: Peer) -> None:
        await self.warm_up_once(peer)
        measuring = (peer.round - 1) % self.reputation_every == 0
        predictions = await self.predictions_of(peer, to=others(peer) if measuring else self.answered(peer))
        if measuring:
            await self.measure(peer, predictions)
        reputation = dict(zip(peer.members, peer.state["reputation"].tolist(), strict=True))
        peer.note(reputation=[*reputation.values()], answers=len(predictions))
        await peer.train(*self.distilling(peer, reputation, predictions))

    def answered(self, peer: Peer) -> list[str]:
        """The peers that this one answers: each with the probability of its reputation here."""
        drawn = peer.shared_generator("answers").random((len(peer.members),) * 2)[peer.members.index(peer.id)]
        likely = zip(peer.members, drawn, peer.state["reputation"].tolist(), strict=True)
        return [k for k, u, r in likely if u < r and k != peer.id]

    async def measure(self, peer: Peer, predictions: Predictions) -> None:
        """r ← αr + (1−α)h(s), and r = h(s) at first; h(s) is 0 of a peer that did not answer."""
        misalignment = await peer.compute(self.misalignment, peer, predictions)
        found = [self.trust(misalignment[k]) if k in misalignment else 0.0 for k in peer.members]
        measured = torch.tensor(found, dtype=torch.float64)
        first = peer.round == 1 or peer.state.pop(UNMEASURED, None) is not None
        before = measured if first else peer.state["reputation"].cpu()
        peer.state["reputation"] = self.alpha * before + (1 - self.alpha) * measured

    def trust(self, misalignment: float) -> float:
        """h(s): Equation 7."""
        return min(1.0, max(0.0, (misalignment - self.tau_max) / (self.tau_opt - self.tau_max)))
