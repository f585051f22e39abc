"""What stands in summary.json, and its way there and back."""

import json
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Annotated, Any, Literal, NotRequired, Self

from pydantic import Field, FiniteFloat, TypeAdapter
from typing_extensions import TypedDict  # pydantic takes no other before Python 3.12

from peer.files import MAX_RECORDS_BYTES, read_plain, write_atomically
from peer.records import Many, ManyKept, Named, parsed
from peer.telemetry.results import Figures, Result
from peer.views.view import View

Violation = TypedDict(
    "Violation",
    {
        "round": int | None,
        "from": str,
        "to": str | None,
        "vector": str | None,
        "bytes": int,
        "reason": str,
        "view": NotRequired[int],
    },
)
"""`view` is left out for the first."""


class UnverifiedBytes(TypedDict):
    """Bytes of one vector whose content cannot be verified."""

    vector: str
    why: str
    bytes: int


class Privacy(TypedDict):
    """The verdict on heads and edges; `launcher.reports.privacy` says what each stands for."""

    head_bytes_sent: int
    edges_used: ManyKept[ManyKept[str]]
    violations: ManyKept[Violation]
    on_trust: ManyKept[UnverifiedBytes]
    definitions: Named[bool | None]
    counted: NotRequired[Named[str]]
    """Sentences that say what was counted, by definition; not in summaries of earlier versions."""
    of_data: NotRequired[Named[int]]
    """Bytes that all peers together sent of what is found of columns (`impute`, `standardize`), by vector."""
    unknown: NotRequired[ManyKept[str]]
    """Peers whose audits are not there, or not to the end; written if there are any."""


class Gains(TypedDict):
    """What the peers of a run have gained over training alone, by the headline figure. gain: by id; positive is better,
    even if a lower figure is better."""

    mcg: float
    cgs: float | None
    pearson: float | None
    gain: Named[float]


class Worth(Gains):
    """The gains, the verdict in words, and each peer's figure after training alone."""

    verdict: str
    alone: Named[float]


class AcrossPeers(TypedDict):
    """One of the task's figures over the peers; `better` is "up" or "down", and the worst goes by it."""

    mean: float | None
    worst: float | None
    better: Literal["up", "down"]


@dataclass(frozen=True, kw_only=True)
class PeerSummary(Figures):
    """One peer's part. notes: what the protocol noted, {"round": 1, "gamma": 0.5}, in rounds with notes."""

    notes: Many[dict[str, Any]] = ()

    @classmethod
    def from_result(cls, result: Result) -> Self:
        return cls(**{one.name: getattr(result, one.name) for one in fields(Figures)}, notes=result.notes)


@dataclass(frozen=True, kw_only=True)
class Summary:
    """What a run came to. Accuracies are means over the peers, by test; null where the task has no classes, as are
    gini and r50, which speak of accuracies.

    ring: ids in the last round's order. history: {"round": 1, "matched": 0.9, ...}, or with the task's figures in place
    of accuracies, of rounds with an evaluation. r50: the first of them whose mean accuracy is above one half.
    plateau_sigma: of the headline figure. ring_cost: "before" and "after" ordering.
    """

    name: str
    protocol: str
    task: str = "classification"
    figures: Named[AcrossPeers] = field(default_factory=dict)
    """The task's, by name, on the peers' test sets; the headline first."""
    peers: int
    rounds: int
    seed: int
    ring: Many[str]
    wall_seconds: FiniteFloat
    mean_accuracy: Named[float | None]
    worst_accuracy: float | None
    gini: float | None
    r50: int | None
    plateau_sigma: float | None
    history: Many[Named[int | float | None]]
    ring_cost: Named[FiniteFloat | None]
    restarts: int
    per_peer: Annotated[Many[PeerSummary], Field(min_length=1)]
    privacy: Privacy
    replicated: Named[bool] = field(default_factory=dict)
    """Whether what the protocol declares as equal at all peers was so in the end, by name; written if it does."""
    behaviour: Named[str] = field(default_factory=dict)
    """How peers misbehaved because the spec says so, by id; written if any does."""
    honest_accuracy: float | None = None
    """Mean over all other peers of the headline figure, of accuracies by the spec's test; written with `behaviour`."""
    stopped_early: bool = False
    """Whether all peers agreed to end after `rounds`, earlier than the spec has it; written if they did."""
    missing: Named[str] = field(default_factory=dict)
    """Why peers are in none of the figures, by id; written if any is missing."""
    views: Many[View] = ()
    """All after the first, which has all peers; written, like the next two, if there was any."""
    exact: bool = True
    """Whether the result is that of a run in which no peer was ever lost."""
    absences: Named[ManyKept[tuple[int, int]]] = field(default_factory=dict)
    """The first and last of the rounds in which a peer's data took no part, by id."""

    certificates: Named[FiniteFloat] = field(default_factory=dict)
    """When the certificates of peers expire, in Unix seconds, by id: of those with less than 30 days left; written if
    there are any."""

    rare: Named[FiniteFloat] = field(default_factory=dict)
    """The share of each class so rare that accuracies mislead; written if there are any and the headline is one."""

    worth: Worth | None = None
    """Written if the same peers have trained alone, too (`--beside solo`)."""

    @property
    def outside(self) -> list[str]:
        """Peers excluded and not admitted again: in no figure, and not missing."""
        known = {peer.id for peer in self.per_peer} | self.missing.keys()
        return [id for id in self.absences if id not in known]


SUMMARIES = TypeAdapter(Summary)


def read(path: Path) -> Summary | None:
    """The summary in a file; None if there is none, or none of a finished run that a launcher wrote like that."""
    try:
        summary = parsed(SUMMARIES, read_plain(path, MAX_RECORDS_BYTES))
    except (OSError, ValueError):
        return None
    return None if summary.missing else summary


def dump(summary: Summary) -> str:
    optional = ("replicated", "missing", "stopped_early", "certificates", "rare", "worth")
    unused = {name for name in optional if not getattr(summary, name)}
    unused |= set() if summary.behaviour else {"behaviour", "honest_accuracy"}
    unused |= set() if summary.views else {"views", "exact", "absences"}
    content = SUMMARIES.dump_python(summary, warnings=False, exclude=unused)
    for one, written in zip(summary.per_peer, content["per_peer"], strict=True):
        for name in one.unused:
            del written[name]
    return json.dumps(content, indent=2) + "\n"


def write(path: Path, summary: Summary) -> None:
    write_atomically(path, dump(summary).encode())
