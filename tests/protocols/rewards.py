"""Runs of the protocols that reward, and what went in and out of their calls."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from federations import Run, Vector, federate
from torch import Tensor

from peer.learning.training.phase import Phase
from peer.runtime.rounds.local_peer import LocalPeer

DATA = {"name": "digits", "limit": 240, "validation": 0.2, "partition": {"kind": "quantity", "delta": 1}}
ROUNDS = 4
QUICK: dict[str, dict[str, Any]] = {
    "cgsv": {"gamma": 0.4, "alpha": 0.7, "beta": 2, "epochs": 1, "batch_size": 16},
    "rffl": {"gamma": 0.4, "alpha": 0.3, "after": 2, "threshold": 0.9, "epochs": 1, "batch_size": 16},
    "cffl": {"clip": 0.02, "upload": 0.3, "memory": 0.4, "threshold": 0.85, "epochs": 1, "batch_size": 16},
}


@dataclass
class Watched:
    """A run, and what went in and out of its calls: by peer, a round's worth after the other."""

    run: Run | None = None
    changes: dict[str, list[Vector]] = field(default_factory=dict)
    sent: dict[str, list[Vector]] = field(default_factory=dict)
    decisions: dict[str, list[list[bool] | None]] = field(default_factory=dict)

    @property
    def runtimes(self) -> Any:
        assert self.run
        return self.run.runtimes

    def told(self) -> Vector:
        """What went round the ring: (rounds, N, p)."""
        assert self.run
        return np.stack([self.sent[peer] for peer in self.run.ids], axis=1)

    def notes(self, name: str) -> list[Vector]:
        """The first peer's notes, round by round; all others noted the same."""
        assert self.run
        told = {peer: [one["notes"][name] for one in self.run.result(peer)["history"]] for peer in self.run.ids}
        first = told[self.run.ids[0]]
        assert all(one == first for one in told.values())
        return [np.array(one) for one in first]


def watch(directory: Path, protocol: dict[str, Any], peers: int, **keys: Any) -> Watched:
    seen = Watched()
    train, all_gather, agree = LocalPeer.train, LocalPeer.all_gather, LocalPeer.agree

    async def watched_train(self: LocalPeer, *phases: Phase) -> float:
        before = self.model.clone()
        loss = await train(self, *phases)
        seen.changes.setdefault(self.id, []).append((self.model - before).double().numpy())
        return loss

    async def watched_gather(self: LocalPeer, share: str, /, **scalars: float) -> Any:
        seen.sent.setdefault(self.id, []).append(self.state[share].double().numpy())
        return await all_gather(self, share, **scalars)

    async def watched_agree(self: LocalPeer, record: str, decision: Tensor | None) -> None:
        seen.decisions.setdefault(self.id, []).append(None if decision is None else decision.tolist())
        await agree(self, record, decision)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(LocalPeer, "train", watched_train)
        patch.setattr(LocalPeer, "all_gather", watched_gather)
        patch.setattr(LocalPeer, "agree", watched_agree)
        seen.run = federate(directory, protocol, peers, data=DATA, **keys)
    return seen
