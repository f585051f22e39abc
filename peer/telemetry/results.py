"""What a run leaves behind besides its model: one line a round, and the result."""

import json
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from math import ceil
from pathlib import Path
from typing import Annotated, Any, NamedTuple

from pydantic import Field, FiniteFloat, TypeAdapter

from peer.files import (
    LineFile,
    open_plain,
    read,
    read_plain,
    retry_without_descriptors,
    sync,
    write_atomically,
)
from peer.records import Many, Named, parsed
from peer.telemetry.events import (
    Count,
    Failed,
    FigureValue,
    Ratio,
    Rewound,
    RoundDone,
    Started,
    SubscriberDropped,
    read_events,
)

AUDIT, EVENTS, RESULT = "audit.jsonl", "events.jsonl", "result.json"
MODEL, BEST_MODEL = "model.safetensors", "model.best.safetensors"
PREDICTIONS = "predictions.csv"
"""Of each test sample; not among WANTED: it stays where the peer ran."""
WANTED = (AUDIT, MODEL, BEST_MODEL, RESULT)
"""A peer's files that are brought back from other machines, besides its events and traces."""


def traced(round: int) -> str:
    """A round's vectors, written with `trace`."""
    return f"trace/round-{round:04d}.safetensors"


MAX_FIGURES, MAX_CLASSES = 64, 100
"""More classes are told neither one by one nor by which is taken for which: a result has some 150 kB of 100."""
OfClass = Annotated[Named[FigureValue], Field(max_length=MAX_FIGURES)]
Intervals = Annotated[Named[tuple[FiniteFloat, FiniteFloat] | None], Field(max_length=MAX_FIGURES)]
Counts = Annotated[Many[Count], Field(max_length=MAX_CLASSES)]
Seconds = Annotated[float, Field(ge=0, le=1e12, allow_inf_nan=False)]


@dataclass(frozen=True, kw_only=True)
class Best:
    """The round whose model was the best on the samples that are held back."""

    round: int
    figure: float
    """The task's headline figure there."""
    model_sha256: str


@dataclass(frozen=True, kw_only=True)
class ModelFigures:
    """Figures of one model. Accuracies in 0..1, `test_loss` the task's."""

    accuracy: Named[Ratio | None]
    figures: Named[FigureValue] = field(default_factory=dict)
    """The task's, by name."""
    balanced: float | None = None
    test_loss: float | None = None
    validation: Named[FigureValue] = field(default_factory=dict)
    """The task's on the samples that are held back; written if any are."""


@dataclass(frozen=True, kw_only=True)
class FinalFigures:
    """The closer look at the last model that `final_evaluation` asks for."""

    intervals: Intervals
    """The 95 % interval of each of the task's figures; None where it is mostly not defined."""
    classes: Annotated[Named[OfClass], Field(max_length=MAX_CLASSES)] = field(default_factory=dict)
    """Figures of each class or label, by its name or number, where there are at most MAX_CLASSES."""
    class_intervals: Annotated[Named[Intervals], Field(max_length=MAX_CLASSES)] = field(default_factory=dict)
    """Those of these figures."""
    confusion: Annotated[Many[Counts], Field(max_length=MAX_CLASSES)] = ()
    """How many test samples of each class (rows) were taken for each class (columns)."""


@dataclass(frozen=True, kw_only=True)
class Figures:
    """What a peer came to. Accuracies in 0..1, `test_loss` the task's, `bytes_sent` handed to gRPC."""

    id: str
    samples: Count
    accuracy: Named[Ratio | None]
    figures: Named[FigureValue] = field(default_factory=dict)
    """The task's, by name."""
    balanced: float | None = None
    test_loss: float | None = None
    model_sha256: str
    """The SHA-256 of all parameters and buffers, in the order of their names."""
    bytes_sent: Count
    bytes_received: Count
    tensor_bytes_sent: Count
    sent_to: Named[Count]
    seconds: Named[Seconds]
    validation: Named[FigureValue] = field(default_factory=dict)
    """The task's on the samples that are held back; written if any are."""
    best: Best | None = None
    """Written if samples are held back."""
    before_finetuning: ModelFigures | None = None
    """What the model was worth after the last round; written if it was fine-tuned afterwards."""
    final: FinalFigures | None = None
    """Written with `final_evaluation`."""

    @property
    def unused(self) -> set[str]:
        """What is not written."""
        return {name for name in ("validation", "best", "before_finetuning", "final") if not getattr(self, name)}


@dataclass(frozen=True, kw_only=True)
class Result(Figures):
    """result.json: a peer's figures, and how it came to them. history: one a round, as far as they can be read; of
    more than MAX_ROUNDS, every n-th, the first and the last."""

    rounds: int
    ring: Many[str]
    ring_cost: Named[FiniteFloat | None]
    history: Many[RoundDone]
    replicated: Named[str] = field(default_factory=dict)
    """A digest of each state that the protocol declares as equal at all peers."""
    stopped_early: bool = False
    """Whether all peers agreed to end before the last round of the spec; written if so."""

    def is_of(self, rounds: int) -> bool:
        """Whether it is the end of a run of so many rounds."""
        return self.rounds == rounds or (self.stopped_early and self.rounds < rounds)

    @property
    def unused(self) -> set[str]:
        return super().unused | (set() if self.stopped_early else {"stopped_early"})

    @property
    def notes(self) -> tuple[dict[str, Any], ...]:
        """What the protocol noted, {"round": 1, "gamma": 0.5}; rounds without notes are left out."""
        return tuple({"round": one.round, **one.notes} for one in self.history if one.notes)


RESULTS = TypeAdapter(Result)


def close_torn_lines(out: Path) -> None:
    """End a line that a crash left unfinished, so that it does not swallow the next one."""
    for path in (out / AUDIT, out / EVENTS):
        if path.exists() and not path.read_bytes().endswith(b"\n"):
            with path.open("a") as file:
                file.write("\n")


def sync_lines(out: Path) -> None:
    """Put the lines written so far on disk: a checkpoint must not outlive them."""
    for path in (out / AUDIT, out / EVENTS):
        if path.exists():
            sync(path)


def append_audit(file: LineFile, line: dict[str, Any]) -> None:
    """One round; replayed after a crash it appears again, and of each view its last line counts."""
    retry_without_descriptors(file.append, json.dumps(line))


def history(out: Path) -> tuple[RoundDone, ...]:
    """The `round` events of this peer that count, one per round in order, as far as they are in events.jsonl."""
    rounds: dict[int, RoundDone] = {}
    for event in read_events(_event_lines(out)):
        if isinstance(event, RoundDone):
            rounds[event.round] = event
        elif isinstance(event, Rewound):
            rounds = {round: one for round, one in rounds.items() if round <= event.round}
    return tuple(rounds[number] for number in sorted(rounds))


class EarlierProcesses(NamedTuple):
    """A peer's processes so far: how many, and for how many seconds they lived in all."""

    starts: int
    seconds: float


def earlier(out: Path) -> EarlierProcesses:
    """Earlier processes by events.jsonl, each from `started` to its last event; the time between does not count."""
    lines = _event_lines(out)
    named = (at for at, line in enumerate(lines) if Started.name.encode() in line)
    starts = [at for at in named if isinstance(next(read_events([lines[at]]), None), Started)]
    lives = [lines[first:following] for first, following in pairwise([*starts, len(lines)])]
    return EarlierProcesses(
        len(starts), sum(max(0.0, _first_time(reversed(life)) - _first_time(life)) for life in lives)
    )


def _event_lines(out: Path) -> list[bytes]:
    try:
        return read(out / EVENTS).splitlines()
    except FileNotFoundError:
        return []


def _first_time(lines: Iterable[bytes]) -> float:
    """When the first event that can be read was emitted, in unix seconds."""
    return next((event.time for event in read_events(lines)), 0.0)


TAIL_BYTES = 16384
"""Bytes at the end of events.jsonl that hold the last events."""


def gave_up(out: Path) -> bool:
    """Return whether the peer itself has said last that it cannot go on, so that a restart would not help."""
    try:
        with open_plain(out / EVENTS) as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - TAIL_BYTES))
            lines = file.read(TAIL_BYTES).splitlines()
    except OSError:
        return False
    last = (next(read_events([line]), None) for line in reversed(lines))
    # A tracker that hangs is given up after the end.
    return isinstance(next((event for event in last if not isinstance(event, SubscriberDropped)), None), Failed)


MAX_ROUNDS = 2000
"""Rounds in the history of a result, so that it stays small after years."""


MAX_RESULT_BYTES = 32 << 20
"""16 kB for each of these rounds; without notes one takes 0.75 kB, and each figure and number noted 45 bytes more."""


def thinned(history: Sequence[RoundDone]) -> tuple[RoundDone, ...]:
    """The rounds that a result holds. It depends on the last round alone, so that peers hold the same ones."""
    last = history[-1].round if history else 0
    every = max(1, ceil(last / MAX_ROUNDS))
    return tuple(one for one in history if one.round % every == 0 or one.round in (1, last))


def write_result(out: Path, result: Result) -> None:
    result = replace(result, history=thinned(result.history))
    content = RESULTS.dump_python(result, exclude={"history": {"__all__": {"time"}}}, warnings=False)
    for name in result.unused:
        del content[name]
    for one in content["history"]:
        if not one["validation"]:
            del one["validation"]
    write_atomically(out / RESULT, json.dumps(content, indent=1).encode())


def read_result(out: Path) -> Result | None:
    """The result in a peer's directory; None if there is none, or none that a peer wrote like that."""
    try:
        return parsed(RESULTS, read_plain(out / RESULT, MAX_RESULT_BYTES))
    except (OSError, ValueError):
        return None
