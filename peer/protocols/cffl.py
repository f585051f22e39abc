"""CFFL: sparse uploads scored on public samples, rewarded by credit and size. Lyu et al. (2020), Algorithm 1."""

from collections.abc import Mapping
from typing import Annotated, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor

from peer.errors import InputError
from peer.learning.data.samples import Samples
from peer.learning.training.evaluation import repeating
from peer.protocols.base import Init, Peer, Protocol
from peer.protocols.blocks.training import Fraction, Rate
from peer.protocols.blocks.updates import PeerUpdates, Updates, not_dropped, portions, reputable
from peer.protocols.blocks.vectors import keep_variances, largest, trainable_by
from peer.protocols.declarations import Record, Share


class CFFL(Updates, Protocol):
    """Uploads are the largest tenth of Δ_i clipped to ±.01; every peer adds Σ (n_i/n)·upload_i to a global model.

    i's credit comes of the accuracy on `data.validation` of that global model with i's upload; a peer that falls below
    a third of an even part is dropped, for good: it trains on alone, and relays. The others keep Δ_i and get besides
    the largest ⌊c_i/max c · n_i/max n · |w|⌋ entries of the sum, less their own part of it. Each peer holds
    all uploads and masks its own reward, so the mask is on its honour.
    """

    name: Literal["cffl"] = "cffl"
    clip: Rate = 0.01
    """Maximum magnitude of an update's entries (.001 for CIFAR-10)."""
    upload: Annotated[float, Field(gt=0, le=1)] = 0.1
    """Share of entries uploaded, the largest."""
    memory: Fraction = 0.2
    """Weight of earlier credit."""
    alpha: Annotated[float, Field(gt=0, le=100)] = 5.0
    """Spread of credits, α·(1 + t/T) in round t from 0."""
    threshold: Fraction = 1 / 3
    """Peers with a smaller share than this fraction of an even one are dropped."""

    paper: ClassVar[str] = "Lyu et al. 2020, Algorithm 1 (baseline of CYCle)"
    records: ClassVar[tuple[Record, ...]] = (Record("remaining"),)
    replicated: ClassVar[tuple[str, ...]] = ("credit", "remaining", "global")
    by_peer: ClassVar[Mapping[str, float | bool]] = {"credit": 0.0, "remaining": True}

    def shares(self, rounds: int) -> tuple[Share, ...]:
        return (*super().shares(rounds), Share("global", like="model", rounds=range(0)))  # to admitted peers only

    def why_rounds_are_fixed(self) -> str | None:
        return "α grows until the last round"

    async def start(self, peer: Peer, init: Init) -> None:
        if peer.validation is None:
            raise InputError(
                "`cffl` scores what peers upload on public samples, and `data.validation` sets none aside; write "
                "`validation: 0.2` into `data`"
            )
        await super().start(peer, init)
        peer.state["global"] = peer.model.clone()

    async def round(self, peer: Peer) -> None:
        assert peer.validation
        me, remaining = peer.members.index(peer.id), not_dropped(peer.state["remaining"].cpu())
        change = await self.change(peer)
        upload = trainable_by(self.uploaded, change, peer.layout)
        updates = await self.gather_updates(peer, upload if remaining[me] else torch.zeros_like(upload), self.uploaded)
        scores = await peer.compute(self.scores, peer, updates, remaining, peer.validation)
        credit = self.credited(peer.state["credit"].cpu(), scores, remaining, (peer.round - 1) / peer.rounds)
        still = reputable(credit, remaining, self.threshold)
        await peer.agree("remaining", still if remaining[me] else None)
        credit, remaining = portions(credit, still), still
        parts = portions(updates.samples, remaining)
        total, statistics = await peer.compute(updates.mean, parts)
        rewards = credit / credit.max() * parts / parts.max()
        if remaining[me]:
            reward = await peer.compute(largest, total, int(rewards[me] * total.numel()))
            reward -= float(parts[me]) * updates.vectors[me]  # as it is in the sum, whatever the wire left of it
            change = torch.where(updates.learnt, change + reward, statistics)
        keep_variances(peer.layout, peer.model.add_(change))
        keep_variances(peer.layout, peer.state["global"].add_(total + statistics))
        peer.state["credit"], peer.state["remaining"] = credit, remaining
        peer.note(reputation=credit.tolist(), reward=rewards.tolist(), score=scores.tolist())

    def uploaded(self, update: Tensor) -> Tensor:
        """The largest entries, clipped: in this order, as all entries beyond the clip would count the same."""
        return largest(update, int(self.upload * update.numel())).clamp(-self.clip, self.clip)

    def scores(self, peer: Peer, updates: PeerUpdates, remaining: Tensor, public: Samples) -> Tensor:
        """The task's score of the global model with each upload, float64 (N,); 0 for those that were dropped."""
        found = torch.zeros(len(updates.vectors), dtype=torch.float64)
        for i in remaining.nonzero().flatten().tolist():
            found[i] = score(peer, peer.state["global"] + updates.vectors[i], public)
        return found

    def credited(self, before: Tensor, scores: Tensor, remaining: Tensor, progress: float) -> Tensor:
        """c ← sinh(α·(memory·c + (1 − memory)·score/Σ scores)), made parts of a whole."""
        credit = self.memory * before + (1 - self.memory) * portions(scores, remaining)
        return portions(torch.sinh(self.alpha * (1 + progress) * credit), remaining)


def score(peer: Peer, vector: Tensor, samples: Samples) -> float:
    """The task's score of the model with these weights: for classification, the share of samples it gets right."""
    task = peer.task
    with torch.no_grad(), repeating(task, vector.device):
        rows = [
            task.tally(task.inferred(lambda inputs: peer.logits(vector, inputs), x), y)
            for x, y, _ in samples.in_order(task.evaluation_batch)
        ]
    return task.score(task.judge(torch.cat(rows).double().cpu().numpy()))
