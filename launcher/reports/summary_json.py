"""What stands in summary.json, and its way there and back."""

import json
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Self

from pydantic import TypeAdapter

from peer.files import write_atomically
from peer.telemetry.results import Figures, Result


@dataclass(frozen=True, kw_only=True)
class PeerSummary(Figures):
    """One peer's part. notes: what the protocol noted, {"round": 1, "gamma": 0.5}, in rounds with notes."""

    notes: tuple[dict[str, Any], ...] = ()

    @classmethod
    def of(cls, result: Result) -> Self:
        return cls(**{one.name: getattr(result, one.name) for one in fields(Figures)}, notes=result.notes)


@dataclass(frozen=True, kw_only=True)
class Summary:
    """What a run came to. Accuracies are means over the peers, by test.

    ring: ids in the last round's order. history: {"round": 1, "matched": 0.9, ...}. r50: the first round whose mean
    accuracy is above one half. ring_cost: "before" and "after" ordering. privacy: see `launcher.reports.privacy`.
    """

    name: str
    protocol: str
    peers: int
    rounds: int
    seed: int
    ring: tuple[str, ...]
    wall_seconds: float
    mean_accuracy: dict[str, float | None]
    worst_accuracy: float | None
    gini: float | None
    r50: int | None
    plateau_sigma: float | None
    history: tuple[dict[str, float | None], ...]
    ring_cost: dict[str, float | None]
    restarts: int
    per_peer: tuple[PeerSummary, ...]
    privacy: dict[str, Any]
    replicated: dict[str, bool] = field(default_factory=dict)
    """By name: whether what the protocol declares as equal at all peers was so in the end; written if it does."""


SUMMARIES = TypeAdapter(Summary)


def read(path: Path) -> Summary | None:
    """The summary in a file; None if there is none, or none that a launcher wrote like that."""
    try:
        return SUMMARIES.validate_python(json.loads(path.read_bytes()))
    except (OSError, ValueError):
        return None


def write(path: Path, summary: Summary) -> None:
    content = SUMMARIES.dump_python(summary, warnings=False, exclude=None if summary.replicated else {"replicated"})
    write_atomically(path, (json.dumps(content, indent=2) + "\n").encode())
