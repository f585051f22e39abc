"""What a federation would need, before any of it is started: figures, also as data."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from launcher.plan import Plan
from peer.runtime.disk import disk_needed, rehearse


@dataclass(frozen=True)
class Needs:
    """What a plan comes to.

    sent: bytes of tensors and records that a peer sends at the start, then in each round that was counted, by id; of
    the first peers of a larger federation: the others are like them.
    lacking: what `run` would refuse, a sentence each.
    """

    made: Plan
    sent: Mapping[str, Sequence[int]]
    lacking: Sequence[str] = ()

    @property
    def a_round(self) -> float:
        """Bytes that a peer sends in a round, by the mean."""
        return float(np.mean([np.mean(rounds) for _, *rounds in self.sent.values()]))

    @property
    def sent_in_all(self) -> float:
        """Bytes that all peers send in the whole run."""
        spec = self.made.spec
        start = np.mean([setup for setup, *_ in self.sent.values()])
        return float(len(spec.ids) * (start + self.a_round * spec.rounds))

    @property
    def disk(self) -> int:
        """Bytes on disk that a peer needs at most, by estimate."""
        made = self.made
        rehearsed = rehearse(made.spec, made.spec.ids[0], made.rehearsal(made.spec.ids[0]))
        busiest = max(max(counts) for counts in self.sent.values())
        return disk_needed(made.spec, made.sizes["model"], rehearsed._replace(busiest=busiest))

    def plain(self) -> dict[str, Any]:
        """For programs: the model in values, all else in bytes."""
        made, spec, disk = self.made, self.made.spec, self.disk
        return {
            "name": spec.name,
            "protocol": spec.protocol.name,
            "peers": len(spec.ids),
            "rounds": spec.rounds,
            "seed": spec.seed,
            "data": spec.data.name,
            "model": {"name": spec.model.name, **made.sizes},
            "edges": spec.protocol.graph,
            "bytes": {"a_round": self.a_round, "in_all": self.sent_in_all},
            "disk": {"a_peer": disk, "together": disk * len(spec.ids)},
            "lacking": [*self.lacking],
            "per_peer": [
                {
                    "id": id,
                    "samples": len(made.shards[id]),
                    "classes": int(np.count_nonzero(made.counts[id])) if spec.task.has_classes else None,
                    "sends": {"start": start, "a_round": float(np.mean(rounds)), "at_most": max(rounds)},
                }
                for id, (start, *rounds) in self.sent.items()
            ],
        }
