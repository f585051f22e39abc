"""What a peer reports: each kind of event with its fields, its name, its level and its sentence.

An event becomes a JSON line of events.jsonl, for programs, and, where a person cares, a line of the log. Launcher,
reports, metrics, TensorBoard and a user's tracker all go by these events; docs/events.md is made of this file, in its
order: a peer's own life; what it learns, on which data, and what that costs; what it knows of its neighbours; and the
membership. At the end an event is read from a line.
"""

import json
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import AfterValidator, Field, FiniteFloat, TypeAdapter, ValidationError

from peer.text import number

SCHEMA = 1
"""Which version of these events a peer writes; the event `started` has it. It grows when an event or a field goes, or
means something else, and not when one is added: a reader passes over names that it does not know."""
Note = float | list[float | None] | None
"""What a protocol notes of a round; what is not finite is None."""
Ratio = Annotated[float, Field(ge=0, le=1 + 1e-6, allow_inf_nan=False)]
"""An accuracy; a weighted mean may come to a little more than 1."""
LARGEST_FIGURE = 1e100
"""So many of them may be added up and squared."""
FigureValue = Annotated[float, Field(ge=-LARGEST_FIGURE, le=LARGEST_FIGURE)] | None
"""One of a task's figures; None where it is not finite."""


def bounded(value: float | None) -> float | None:
    """None in place of what is no finite number, or is larger than any figure."""
    return value if value is not None and abs(value) <= LARGEST_FIGURE else None


Loss = Annotated[float | None, AfterValidator(bounded)]
"""A model may diverge, and its round counts all the same for all readers: then its loss is None."""
Number = Annotated[int, Field(ge=-1, le=10_000_000)]
"""Of a round or of a view. Bounded, as readers count up to it."""
Count = Annotated[int, Field(ge=0, lt=2**63)]


@dataclass(frozen=True, kw_only=True)
class Event:
    """`str(event)` is its sentence."""

    name: ClassVar[str]
    level: ClassVar[int] = logging.INFO
    time: float = 0.0
    """When it happened, in unix seconds; 0 before it is emitted."""

    def as_json(self) -> dict[str, Any]:
        """Name and fields as they stand in events.jsonl, without the time."""
        fields = adapter(type(self)).dump_python(self, by_alias=True, exclude={"time"}, warnings=False)
        return {"event": self.name, **fields}


@dataclass(frozen=True, kw_only=True)
class FreeTextEvent(Event):
    """An event whose sentence is made where it happens."""

    sentence: str
    """In the log's words."""

    def __str__(self) -> str:
        return self.sentence


Report = Callable[[Event], None]

_ADAPTERS: dict[str, TypeAdapter[Any]] = {}
"""By an event's name."""


def adapter(kind: type[Event]) -> TypeAdapter[Any]:
    """Made when the first such event is emitted or read: making all at every start takes a tenth of a second."""
    if kind.name not in _ADAPTERS:
        _ADAPTERS[kind.name] = TypeAdapter(kind)
    return _ADAPTERS[kind.name]


@dataclass(frozen=True, kw_only=True)
class Started(Event):
    """A peer's process begins: its first event in the file. A tracker may receive others before."""

    name = "started"
    level = logging.DEBUG
    schema: int
    """The version of the events that follow."""
    version: str
    """That of dfl."""
    id: str
    """The peer's."""
    federation: str
    """Its name."""
    protocol: str
    """Its name."""
    rounds: int
    """How many the run has, if it does not end early."""
    restarts: int = 0
    """How often this peer has been started before."""
    seconds: Annotated[float, Field(ge=0, le=1e12)] = 0.0
    """For how long its earlier processes have lived."""
    view: int = 0
    """The view in which it begins."""
    members: tuple[str, ...] = ()
    """All members of that view."""

    def __str__(self) -> str:
        return f"{self.id} of {self.federation} starts ({self.protocol}, {self.rounds} rounds)"


@dataclass(frozen=True, kw_only=True)
class StateChanged(Event):
    """The peer's state has changed, as it does several times a round."""

    name = "state"
    level = logging.DEBUG
    state: str
    """One of those in [architecture.md](architecture.md#a-peers-life)."""
    round: Number
    """The round it is in; 0 before the first, -1 before the set-up."""

    def __str__(self) -> str:
        return f"{self.state} (round {self.round})"


Cause = Literal["join", "staleness", "stalled", "quorum"]
"""Why a peer waits: for neighbours at the start; for one too many rounds behind; for one that lives and is silent; for
enough members to decide on the next view."""
MAX_NAMED = 8
"""In a sentence, of a wait for many."""
LONG_WAIT_S = 10.0
"""Seconds from which on it is said how long a wait for a quorum has lasted."""


@dataclass(frozen=True)
class Awaited:
    """A peer that is waited for, and the reason as far as it is known."""

    id: str
    address: str | None
    """host:port; null for one that dials out."""
    reason: str
    """Why it is not there, as far as is known."""

    def __str__(self) -> str:
        return f"{self.id} at {self.address} ({self.reason})" if self.address else f"{self.id} ({self.reason})"


@dataclass(frozen=True)
class Shortage:
    """Too few members are here to decide on the next view."""

    here: Count
    """How many are, the peer itself included."""
    members: Count
    """How many there are in the present view."""
    needed: Count
    """How many must be here."""
    tie_breaker: str = ""
    """The member with which half is enough; empty where it is not, or that member is here."""
    seconds: FiniteFloat = 0.0
    """For how long it has been so."""

    def __str__(self) -> str:
        half = f" ({self.members // 2} with {self.tie_breaker})" if self.tie_breaker else ""
        return f"too few members for a decision: {self.here} of {self.members} are here, {self.needed} are needed{half}"


@dataclass(frozen=True, kw_only=True)
class Waiting(FreeTextEvent):
    """The peer waits for others for this cause, or the wait is over."""

    name = "waiting"
    cause: Cause
    """`join`: neighbours at the start; `staleness`: one too many rounds behind; `stalled`: one that lives and is
    silent; `quorum`: too few members for a decision."""
    awaited: Annotated[tuple[Awaited, ...], Field(alias="for")]
    """All peers that are waited for now: none, when the wait is over. `{id, address, reason}` each."""
    others: int = 0
    """How many more there are."""
    shortage: Shortage | None = None
    """With `quorum`: `{here, members, needed, tie_breaker, seconds}`; null when the wait is over."""

    @classmethod
    def for_quorum(cls, shortage: Shortage, awaited: tuple[Awaited, ...]) -> Self:
        """awaited: all peers whose return would help."""
        more = len(awaited) - MAX_NAMED
        named = ", ".join(map(str, awaited[:MAX_NAMED])) + (f" and {more} more" if more > 0 else "")
        so_far = f" after {shortage.seconds:.0f} s still" if shortage.seconds >= LONG_WAIT_S else ""
        sentence = f"{shortage};{so_far} waiting for {named}"
        return cls(cause="quorum", awaited=awaited, sentence=sentence, shortage=shortage)


@dataclass(frozen=True, kw_only=True)
class Resumed(Event):
    """The peer resumes from a checkpoint."""

    name = "resumed"
    round: Number
    """The last round in it."""

    def __str__(self) -> str:
        return f"resumed after round {self.round}"


@dataclass(frozen=True, kw_only=True)
class CertificatesChanged(FreeTextEvent):
    """New certificates were found; whether they are used."""

    name = "certificates"


@dataclass(frozen=True, kw_only=True)
class SubscriberDropped(FreeTextEvent):
    """Metrics, TensorBoard or a tracker failed or fell behind, and receives no more events."""

    name = "untold"
    level = logging.ERROR


@dataclass(frozen=True, kw_only=True)
class Stopped(Event):
    """A signal stopped the peer."""

    name = "stopped"
    signal: str
    """Its name, such as SIGTERM."""

    def __str__(self) -> str:
        return f"stopped by {self.signal}"


@dataclass(frozen=True, kw_only=True)
class Failed(Event):
    """The peer cannot go on."""

    name = "failed"
    level = logging.ERROR
    message: str
    """What is wrong, and what to do."""

    def __str__(self) -> str:
        return self.message


@dataclass(frozen=True, kw_only=True)
class Done(Event):
    """The peer has finished."""

    name = "done"

    def __str__(self) -> str:
        return "done"


@dataclass(frozen=True, kw_only=True)
class RingOrdered(Event):
    """The ring has a new order."""

    name = "ring"
    order: Annotated[tuple[str, ...], Field(min_length=1)]
    """All ids, round the ring."""
    cost_before: FiniteFloat
    """What the protocol makes small by ordering; it has no unit."""
    cost_after: FiniteFloat
    """The same in the new order."""

    def __str__(self) -> str:
        return f"ring order {', '.join(self.order)}; cost {self.cost_before:.4f} before, {self.cost_after:.4f} after"


@dataclass(frozen=True, kw_only=True)
class DataSummary(Event):
    """The peer's training data from a round on; stays in its directory."""

    name = "data"
    level = logging.DEBUG
    round: Number
    """The first with these data."""
    samples: int
    """How many it trains on."""
    classes: dict[str, Ratio] = field(default_factory=dict)
    """Share of each class; empty without classes."""

    def __str__(self) -> str:
        return f"{self.samples} training samples from round {self.round} on, of {len(self.classes)} classes"


@dataclass(frozen=True, kw_only=True)
class DataDrifted(Event):
    """The peer's data change."""

    name = "drift"
    round: Number
    """The first with the new data."""
    samples: int
    """How many it trains on."""

    def __str__(self) -> str:
        return f"the data are others from round {self.round} on: {self.samples} training samples"


@dataclass(frozen=True, kw_only=True)
class Misbehaving(Event):
    """Some peers misbehave because the spec says so: emitted when the peer starts."""

    name = "behaviour"
    peers: dict[str, str]
    """How, by id."""

    def __str__(self) -> str:
        said = "; ".join(f"{id} ({how})" for id, how in self.peers.items())
        return f"an experiment: by the settings these peers misbehave: {said}"


@dataclass(frozen=True, kw_only=True)
class RoundDone(Event):
    """A round is over. A replayed round is emitted again, and the later event counts."""

    name = "round"
    round: Number
    """From 1."""
    accuracy: dict[str, Ratio | None] = field(default_factory=dict)
    """By test set (`matched`, `global`, `paper`, `local`); empty without an evaluation."""
    figures: dict[str, FigureValue] = field(default_factory=dict)
    """The task's figures on the test set; empty without an evaluation."""
    validation: dict[str, FigureValue] = field(default_factory=dict)
    """The task's figures on held-back samples; absent without any."""
    loss: Loss = None
    """Mean training loss; null without training, or if not finite."""
    test_loss: Loss = None
    """On the test set; null if not finite."""
    balanced: Ratio | None = None
    """Mean of the classes' accuracies, from 0 to 1."""
    seconds: dict[str, float] = field(default_factory=dict)
    """Spent in this round, by phase: `train`, `communicate`, `evaluate`."""
    bytes_sent: Count = 0
    """Handed to gRPC in all rounds so far."""
    bytes_received: Count = 0
    """Taken from gRPC in all rounds so far."""
    tensor_bytes_sent: Count = 0
    """Of these, the tensors' own values, in all rounds so far."""
    notes: dict[str, Note] = field(default_factory=dict)
    """The protocol's notes."""

    @property
    def single_notes(self) -> dict[str, float | None]:
        """The notes that are one number each."""
        return {name: note for name, note in self.notes.items() if not isinstance(note, list)}

    @property
    def evaluated(self) -> bool:
        """Whether the round has figures at all."""
        return bool(self.accuracy or self.figures)

    def __str__(self) -> str:
        known = ", ".join(f"{kind} {value:.4f}" for kind, value in self.accuracy.items() if value is not None)
        figures = ", ".join(f"{name} {number(value)}" for name, value in self.figures.items())
        loss = "not measured" if self.loss is None else f"{self.loss:.4f}"
        judged = f"accuracy {known}" if known else figures or "accuracy not measured"
        return f"round {self.round} done: {judged}, loss {loss}"

    def as_json(self) -> dict[str, Any]:
        return {key: value for key, value in super().as_json().items() if value or key != "validation"}


@dataclass(frozen=True, kw_only=True)
class BytesPassed(Event):
    """Emitted with each `round`: the traffic since the last one, or since the peer started."""

    name = "traffic"
    level = logging.DEBUG
    round: Number
    """The one that is over."""
    sent: dict[str, int]
    """Bytes handed to gRPC, by neighbour."""
    received: dict[str, int]
    """Bytes taken from gRPC, by neighbour."""

    def __str__(self) -> str:
        return f"{sum(self.sent.values())} B sent, {sum(self.received.values())} B received (round {self.round})"


@dataclass(frozen=True, kw_only=True)
class StoppedEarly(Event):
    """All peers have agreed to end after this round."""

    name = "stopped_early"
    round: Number
    """The last one."""
    best_round: Number
    """That of the best mean of the figure so far."""
    figure: str
    """The name of the figure by which they have decided."""

    def __str__(self) -> str:
        return (
            f"all peers end after round {self.round}: the mean {self.figure} is no better since round {self.best_round}"
        )


@dataclass(frozen=True, kw_only=True)
class FineTuned(Event):
    """The peer has fine-tuned; its figures now."""

    name = "finetuned"
    accuracy: dict[str, Ratio | None]
    """As in `round`."""
    figures: dict[str, FigureValue]
    """As in `round`."""
    validation: dict[str, FigureValue] = field(default_factory=dict)
    """As in `round`; empty where no samples are held back."""

    def __str__(self) -> str:
        named = ", ".join(f"{name} {number(value)}" for name, value in self.figures.items())
        return f"fine-tuned on its own samples: {named}"


@dataclass(frozen=True, kw_only=True)
class LinkChanged(Event):
    """The state of a neighbour has changed."""

    name = "link"
    neighbour: str
    """Its id."""
    state: str
    """`joining`, `up`, `suspected`, `down` or `left`."""
    reason: str = ""
    """Why, as far as is known."""

    def __str__(self) -> str:
        return f"link to {self.neighbour}: {self.state}" + (f" ({self.reason})" if self.reason else "")


@dataclass(frozen=True, kw_only=True)
class EndedUnacknowledged(FreeTextEvent):
    """The peer ends without confirmation that its neighbours have everything."""

    name = "left"


@dataclass(frozen=True, kw_only=True)
class NeighbourLost(FreeTextEvent):
    """A neighbour has been silent for longer than `patience`."""

    name = "lost"
    neighbour: str
    """Its id."""


@dataclass(frozen=True, kw_only=True)
class CallerRefused(Event):
    """A caller was refused, or one of its messages. Each cause is reported once; what unknown callers do is reported
    again each time that it has come ten times as often."""

    name = "refused"
    caller: str
    """A neighbour's id, a name that the caller gave itself, or `a stranger`."""
    origin: str = ""
    """Its address."""
    kind: str = "unknown"
    """A word of the [contract](wire.md): `version`, `identity`, `stranger`, `federation`, `manifest`, `damaged`,
    `undeclared`, `lost`, `stream`, `connections`; or `unknown`, `many others`."""
    reason: str
    """Why; the words may be the caller's."""

    def __str__(self) -> str:
        return f"refused {self.caller}" + (f" from {self.origin}" if self.origin else "") + f": {self.reason}"


@dataclass(frozen=True, kw_only=True)
class Conflict(Event):
    """A neighbour sent two contents under one key (rule R5)."""

    name = "conflict"
    sender: str
    """Its id."""
    round: Number
    """The message's."""
    step: int
    """The message's place in its round."""

    def __str__(self) -> str:
        where = f"(round {self.round}, step {self.step})"
        return f"{self.sender} sent two different contents for the same step {where}; the first counts"


@dataclass(frozen=True, kw_only=True)
class PeerRegressed(FreeTextEvent):
    """A neighbour has lost rounds that it had on disk, by its own words."""

    name = "regressed"
    level = logging.ERROR
    neighbour: str
    """Its id."""


@dataclass(frozen=True, kw_only=True)
class CheckpointDamaged(Event):
    """A checkpoint cannot be read, and is not needed."""

    name = "damaged"
    round: Number
    """The round in it."""
    reason: str
    """What is wrong with it."""

    def __str__(self) -> str:
        return f"the checkpoint of round {self.round} is damaged, and this peer does without it ({self.reason})"


@dataclass(frozen=True, kw_only=True)
class ViewDecided(Event):
    """The members from a round on have been decided; see [views.md](views.md)."""

    name = "view"
    number: Number
    """Of the view, from 1."""
    members: tuple[str, ...]
    """All ids."""
    first: Number
    """The first round that is played in it."""
    planned: bool
    """Whether the rounds before are finished; else those from `first` on are void."""
    entrants: tuple[tuple[str, int], ...]
    """The admitted peers, each with the round after which its private state stands, -1 for a new one."""
    reason: str
    """Why it was decided, in words."""
    expelled: tuple[str, ...] = ()
    """The expelled peers, now or before."""

    def __str__(self) -> str:
        return f"view {self.number} from round {self.first} on: {', '.join(self.members)} ({self.reason})"


@dataclass(frozen=True, kw_only=True)
class ViewConflict(FreeTextEvent):
    """A member has announced another view than the one that was decided, which must never happen."""

    name = "view_conflict"
    level = logging.ERROR


@dataclass(frozen=True, kw_only=True)
class Leaving(FreeTextEvent):
    """The peer is leaving, as requested, or cannot."""

    name = "leaving"


@dataclass(frozen=True, kw_only=True)
class Departed(FreeTextEvent):
    """The peer has left, as requested: the others continue without it."""

    name = "departed"


@dataclass(frozen=True, kw_only=True)
class Returning(FreeTextEvent):
    """The peer has lost its state and waits to be admitted anew."""

    name = "returning"


EVENT_CLASSES = [
    kind
    for kind in list(globals().values())
    if isinstance(kind, type) and issubclass(kind, Event) and kind not in (Event, FreeTextEvent)
]
"""All there are, in the order of the source."""
CLASSES_BY_NAME = {kind.name: kind for kind in EVENT_CLASSES}


def read_event(line: Mapping[str, Any]) -> Event | None:
    """Return the event that a JSON object of events.jsonl stands for; None for one that no peer wrote like that."""
    kind = CLASSES_BY_NAME.get(str(line.get("event")))
    if kind is None:
        return None
    try:
        event: Event = adapter(kind).validate_python(dict(line))
    except ValidationError:
        return None
    return event


def read_events(lines: Iterable[bytes]) -> Iterator[Event]:
    """The events among these lines of events.jsonl; what a crash or the disk has spoilt is passed over."""
    return (event for one in objects(lines) if (event := read_event(one)))


def objects(lines: Iterable[bytes]) -> Iterator[dict[str, Any]]:
    """The JSON objects among these lines; a line that is none is passed over."""
    for line in lines:
        try:
            value = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if isinstance(value, dict):
            yield value
