"""What a peer reports: each kind of event with its fields, its name, its level and its sentence.

An event becomes a JSON line of events.jsonl, for programs, and, if it concerns people, a line of the log. Launcher,
reports, metrics, TensorBoard and a user's tracker all use these events. docs/events.md is generated from this file, in
its order: a peer's own life; what it learns, on which data, and what that costs; its neighbours; and the membership.
The functions that read events follow at the end.
"""

import json
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cache
from typing import Annotated, Any, ClassVar, Literal, Self, dataclass_transform

from pydantic import AfterValidator, Field, FiniteFloat, TypeAdapter, ValidationError
from pydantic_core import from_json

from peer.records import Many, ManyKept, Named
from peer.text import duration, number
from peer.versions import EVENTS

SCHEMA = EVENTS.writes
"""The version of these events, which the event `started` states. It grows when an event or a field is removed or
changes its meaning, and not when one is added: readers ignore names that they do not know."""
Note = float | ManyKept[float | None] | None
"""A protocol's note about a round; None stands for a number that is not finite."""
Ratio = Annotated[float, Field(ge=0, le=1 + 1e-6, allow_inf_nan=False)]
"""An accuracy; a weighted mean may slightly exceed 1."""
LARGEST_FIGURE = 1e100
"""The largest figure, small enough for many to be added up and squared."""
FigureValue = Annotated[float, Field(ge=-LARGEST_FIGURE, le=LARGEST_FIGURE)] | None
"""One of a task's figures; None if it is not finite."""


def bounded(value: float | None) -> float | None:
    """Return the value, or None if it is not finite, or beyond LARGEST_FIGURE."""
    return value if value is not None and abs(value) <= LARGEST_FIGURE else None


Loss = Annotated[float | None, AfterValidator(bounded)]
"""A loss; None if it is not finite, as the round of a model that diverges must still be readable."""
Number = Annotated[int, Field(ge=-1, le=10_000_000)]
"""The number of a round or of a view, bounded as readers count up to it."""
Count = Annotated[int, Field(ge=0, lt=2**63)]
LAST_MOMENT = 253_402_300_799
"""The end of the year 9999, in Unix seconds."""
Moment = Annotated[float, Field(ge=0, le=LAST_MOMENT, allow_inf_nan=False)]
"""A time in Unix seconds."""


MAX_STATE_CHARACTERS = 32
"""Characters of another peer's state that are kept."""


CLASSES_BY_NAME: dict[str, "type[Event]"] = {}
"""All kinds of events, in the order of the source."""


@dataclass_transform(frozen_default=True, kw_only_default=True, field_specifiers=(field,))
@dataclass(frozen=True, kw_only=True)
class Event:
    """An event; `str(event)` is its sentence. Each subclass is a dataclass like this one."""

    def __init_subclass__(cls) -> None:
        dataclass(frozen=True, kw_only=True)(cls)
        if "name" in vars(cls):
            CLASSES_BY_NAME[cls.name] = cls

    name: ClassVar[str]
    level: ClassVar[int] = logging.INFO
    time: float = 0.0
    """Unix seconds; 0 before it is emitted."""

    def as_json(self) -> dict[str, Any]:
        """Return name and fields as in events.jsonl, without the time."""
        fields = adapter(self.name).dump_python(self, by_alias=True, exclude={"time"}, warnings=False)
        return {"event": self.name, **fields}


class FreeTextEvent(Event):
    """An event whose sentence is made where it happens."""

    sentence: str
    """What happened, as in the log."""

    def __str__(self) -> str:
        return self.sentence


Report = Callable[[Event], None]


@cache
def adapter(name: str) -> TypeAdapter[Any]:
    """Return the adapter of a kind of event, made at first use, as making all of them takes a tenth of a second."""
    return TypeAdapter(CLASSES_BY_NAME[name])


class Started(Event):
    """A peer's process begins."""

    name = "started"
    level = logging.DEBUG
    schema: int
    """Version of the events that follow."""
    version: str
    """Its version of dfl."""
    id: str
    """The peer."""
    federation: str
    """The federation."""
    protocol: str
    """The protocol."""
    rounds: int
    """Rounds of the run, unless it ends early."""
    restarts: int = 0
    """Earlier starts."""
    seconds: Annotated[float, Field(ge=0, le=1e12)] = 0.0
    """How long its earlier processes ran."""
    view: int = 0
    """Its first view."""
    members: Many[str] = ()
    """That view's members."""
    certificate_expires: Moment | None = None
    """When its certificates expire; null without any."""

    def __str__(self) -> str:
        return f"{self.id} of {self.federation} starts ({self.protocol}, {self.rounds} rounds)"


class StateChanged(Event):
    """The peer's state has changed."""

    name = "state"
    level = logging.DEBUG
    state: str
    """One of [these](architecture.md#a-peers-life)."""
    round: Number
    """Its round; 0 before the first, -1 before the set-up."""

    def __str__(self) -> str:
        return f"{self.state} (round {self.round})"


Cause = Literal["join", "staleness", "stalled", "quorum"]
"""Why a peer waits: for neighbours at the start; for a peer too many rounds behind; for one that sends heartbeats but
no message; for enough members to decide on the next view."""
MAX_NAMED = 8
"""How many peers a sentence names at most."""
MAKE_ALIKE_HINT = "make the two alike"
"""Ends the reason where the data of two peers, or their federations, differ."""
LONG_WAIT_S = 10.0
"""Seconds from which on the length of a wait for a quorum is reported."""


@dataclass(frozen=True)
class Awaited:
    """A peer that is waited for, and the reason as far as it is known."""

    id: str
    address: str | None
    """host:port; null for a peer that only dials out."""
    reason: str
    """Why it is not there, as far as is known."""

    def __str__(self) -> str:
        return f"{self.id} at {self.address} ({self.reason})" if self.address else f"{self.id} ({self.reason})"


@dataclass(frozen=True)
class Shortage:
    """Too few members are here to decide on the next view."""

    here: Count
    """How many members are here, the peer itself included."""
    members: Count
    """How many members the present view has."""
    needed: Count
    """How many must be here."""
    tie_breaker: str = ""
    """The member with which half of all would be enough; empty if there is none, or if it is here."""
    seconds: FiniteFloat = 0.0
    """How long this has lasted."""

    def __str__(self) -> str:
        half = f" ({self.members // 2} with {self.tie_breaker})" if self.tie_breaker else ""
        return f"too few members for a decision: {self.here} of {self.members} are here, {self.needed} are needed{half}"


class Waiting(FreeTextEvent):
    """The peer waits for others, or the wait is over."""

    name = "waiting"
    cause: Cause
    """`join`: neighbours at the start; `staleness`: a peer too many rounds behind; `stalled`: a neighbour that lives
    but sends no message, or has not said that its last round is on disk; `quorum`: members for a decision."""
    awaited: Annotated[Many[Awaited], Field(alias="for")]
    """`{id, address, reason}` each; empty when it is over."""
    others: int = 0
    """How many more."""
    shortage: Shortage | None = None
    """With `quorum`: `{here, members, needed, tie_breaker, seconds}`; null when the wait is over."""

    @classmethod
    def for_quorum(cls, shortage: Shortage, awaited: tuple[Awaited, ...]) -> Self:
        """The event of a wait for a quorum. awaited: all peers whose return would help."""
        more = len(awaited) - MAX_NAMED
        named = ", ".join(map(str, awaited[:MAX_NAMED])) + (f" and {more} more" if more > 0 else "")
        so_far = f" after {shortage.seconds:.0f} s still" if shortage.seconds >= LONG_WAIT_S else ""
        sentence = f"{shortage};{so_far} waiting for {named}"
        return cls(cause="quorum", awaited=awaited, sentence=sentence, shortage=shortage)


class Resumed(Event):
    """The peer resumes from a checkpoint."""

    name = "resumed"
    round: Number
    """The checkpoint's last round."""

    def __str__(self) -> str:
        return f"resumed after round {self.round}"


class Rewound(Event):
    """All peers have agreed to go back, and this one has done so."""

    name = "rewound"
    round: Number
    """The last round that counts."""

    def __str__(self) -> str:
        return f"went back to round {self.round}, as `rewinds` says"


class RoundDurable(Event):
    """Rounds up to this one are on the peer's disk; it will not fall back behind them by itself."""

    name = "durable"
    level = logging.DEBUG
    round: Number
    """The one before the newest checkpoint's; after the last round that one."""

    def __str__(self) -> str:
        return f"round {self.round} is durable"


class CertificatesChanged(FreeTextEvent):
    """New certificates were found; whether they are used."""

    name = "certificates"
    expires: Moment | None = None
    """When they expire; null if they are not used."""


class CertificateExpires(Event):
    """The peer's certificate, or its CA's, expires within 30, 7 or 1 days, or has expired."""

    name = "certificate_expires"
    level = logging.WARNING
    file: str
    """The one that expires first."""
    expires: Moment
    """When it expires."""
    days: Count
    """The threshold in days; 0 once it has expired."""
    left: FiniteFloat
    """Seconds until then."""

    def __str__(self) -> str:
        at = f"{datetime.fromtimestamp(self.expires, UTC):%Y-%m-%d %H:%M} UTC"
        if self.left > 0:
            return f"{self.file} expires on {at}, in {duration(self.left)}; copy new certificates over the old ones"
        return (
            f"{self.file} expired on {at}: other peers refuse each new connection until there are new certificates in "
            "place of the old ones"
        )


class SubscriberDropped(FreeTextEvent):
    """Metrics, TensorBoard or a tracker failed or fell behind, and gets no more events."""

    name = "untold"
    level = logging.ERROR


class Stopped(Event):
    """A signal stopped the peer."""

    name = "stopped"
    signal: str
    """Such as SIGTERM."""

    def __str__(self) -> str:
        return f"stopped by {self.signal}"


class Failed(Event):
    """The peer cannot go on."""

    name = "failed"
    level = logging.ERROR
    message: str
    """What is wrong, and what to do."""

    def __str__(self) -> str:
        return self.message


class Done(Event):
    """The peer has finished."""

    name = "done"

    def __str__(self) -> str:
        return "done"


class RingOrdered(Event):
    """The ring has a new order."""

    name = "ring"
    order: Annotated[Many[str], Field(min_length=1)]
    """All ids, round the ring."""
    cost_before: FiniteFloat
    """Cost of the old order."""
    cost_after: FiniteFloat
    """Cost of the new order."""

    def __str__(self) -> str:
        return f"ring order {', '.join(self.order)}; cost {self.cost_before:.4f} before, {self.cost_after:.4f} after"


class DataSummary(Event):
    """The peer's training data from a round on; stays in its directory."""

    name = "data"
    level = logging.DEBUG
    round: Number
    """The first with these data."""
    samples: Count
    """Its training samples."""
    classes: Named[Ratio] = field(default_factory=dict)
    """Share of each class; empty without classes."""

    def __str__(self) -> str:
        return f"{self.samples} training samples from round {self.round} on, of {len(self.classes)} classes"


class DataDrifted(Event):
    """The peer's data change."""

    name = "drift"
    round: Number
    """The first round with the new data."""
    samples: Count
    """Its training samples."""

    def __str__(self) -> str:
        return f"this peer has new data from round {self.round} on: {self.samples} training samples"


class Unrepeatable(Event):
    """The peer's data set or transforms draw from what cannot be seeded."""

    name = "unrepeatable"
    level = logging.WARNING
    data: str
    """The data set."""

    def __str__(self) -> str:
        return UNREPEATABLE.format(data=self.data)


UNREPEATABLE = (
    "{data} gives different samples when it is read again with the same seed, so this run will not repeat its bits, "
    "not even after a crash; draw from `random`, `numpy.random`, torch or a generator that the data set keeps"
)


class Misbehaving(Event):
    """Some peers misbehave because the spec says so."""

    name = "behaviour"
    peers: Named[str]
    """How each misbehaves, by id."""

    def __str__(self) -> str:
        said = "; ".join(f"{id} ({how})" for id, how in self.peers.items())
        return f"an experiment: the settings make these peers misbehave: {said}"


class RoundDone(Event):
    """A round is over. Of a replayed one the later event counts."""

    name = "round"
    round: Number
    """Its number, from 1."""
    accuracy: Named[Ratio | None] = field(default_factory=dict)
    """Accuracy by test set (`matched`, `global`, `paper`, `local`); empty without an evaluation."""
    figures: Named[FigureValue] = field(default_factory=dict)
    """The task's figures on the test set; empty without an evaluation."""
    validation: Named[FigureValue] = field(default_factory=dict)
    """The same on held-back samples; absent without any."""
    loss: Loss = None
    """Mean training loss; null without training."""
    test_loss: Loss = None
    """Loss on the test set."""
    balanced: Ratio | None = None
    """Mean of the classes' accuracies, from 0 to 1."""
    seconds: Named[float] = field(default_factory=dict)
    """Seconds by phase: `train`, `communicate`, `evaluate`."""
    bytes_sent: Count = 0
    """Bytes handed to gRPC so far."""
    bytes_received: Count = 0
    """Bytes taken from gRPC so far."""
    tensor_bytes_sent: Count = 0
    """Bytes of tensor values sent so far."""
    notes: Named[Note] = field(default_factory=dict)
    """The protocol's notes."""

    @property
    def single_notes(self) -> dict[str, float | None]:
        """The notes that are one number each."""
        return {name: note for name, note in self.notes.items() if not isinstance(note, list)}

    @property
    def evaluated(self) -> bool:
        """Whether the model was evaluated after this round."""
        return bool(self.accuracy or self.figures)

    def __str__(self) -> str:
        known = ", ".join(f"{kind} {value:.4f}" for kind, value in self.accuracy.items() if value is not None)
        figures = ", ".join(f"{name} {number(value)}" for name, value in self.figures.items())
        loss = "not measured" if self.loss is None else f"{self.loss:.4f}"
        judged = f"accuracy {known}" if known else figures or "accuracy not measured"
        return f"round {self.round} done: {judged}, loss {loss}"

    def as_json(self) -> dict[str, Any]:
        return {key: value for key, value in super().as_json().items() if value or key != "validation"}


class BytesPassed(Event):
    """Traffic since the last `round`."""

    name = "traffic"
    level = logging.DEBUG
    round: Number
    """The round that is over."""
    sent: Named[int]
    """Bytes handed to gRPC, by neighbour."""
    received: Named[int]
    """Bytes taken from gRPC, by neighbour."""

    def __str__(self) -> str:
        return f"{sum(self.sent.values())} B sent, {sum(self.received.values())} B received (round {self.round})"


class StoppedEarly(Event):
    """All peers have agreed to end after this round."""

    name = "stopped_early"
    round: Number
    """The last round."""
    best_round: Number
    """The round with its best mean."""
    figure: str
    """The figure that decided."""

    def __str__(self) -> str:
        return (
            f"all peers end after round {self.round}: the mean {self.figure} is no better since round {self.best_round}"
        )


class FineTuned(Event):
    """The peer has fine-tuned its model."""

    name = "finetuned"
    accuracy: Named[Ratio | None]
    """Accuracy by test set, as in `round`."""
    figures: Named[FigureValue]
    """The task's figures on the test set."""
    validation: Named[FigureValue] = field(default_factory=dict)
    """The same on held-back samples; empty without any."""
    balanced: Ratio | None = None
    """Mean of the classes' accuracies, from 0 to 1."""

    def __str__(self) -> str:
        named = ", ".join(f"{name} {number(value)}" for name, value in self.figures.items())
        return f"fine-tuned on its own samples: {named}"


class LinkChanged(Event):
    """The state of a neighbour has changed."""

    name = "link"
    neighbour: str
    """The neighbour."""
    state: str
    """Its state: `joining`, `up`, `suspected`, `down` or `left`."""
    reason: str = ""
    """The reason, as far as known."""

    def __str__(self) -> str:
        return f"link to {self.neighbour}: {self.state}" + (f" ({self.reason})" if self.reason else "")


class ReleaseSeen(Event):
    """A neighbour runs another release of dfl than this peer, or than before."""

    name = "release"
    level = logging.WARNING
    neighbour: str
    """The neighbour."""
    release: str
    """Its release, as it says."""
    own: str
    """This peer's."""

    def __str__(self) -> str:
        like = "as this peer does" if self.release == self.own else f"and this peer {self.own}"
        return f"{self.neighbour} runs dfl {self.release}, {like}"


class Halted(Event):
    """The peer's event loop stood still, so that no heartbeat left."""

    name = "halted"
    level = logging.WARNING
    seconds: Annotated[float, Field(ge=0, le=1e12)]
    """How long."""

    def __str__(self) -> str:
        return (
            f"this peer stood still for {self.seconds:.1f} s, which its neighbours take for silence: its process was "
            "paused, the machine has too much to do, or code of your own blocks the event loop (in a protocol, "
            "give long work to `peer.compute`)"
        )


class EndedUnacknowledged(FreeTextEvent):
    """The peer ends without confirmation that its neighbours have everything."""

    name = "left"


class NeighbourLost(FreeTextEvent):
    """A neighbour has been silent for longer than `patience`."""

    name = "lost"
    neighbour: str
    """The neighbour."""


class CallerRefused(Event):
    """A caller or its message was refused: each cause once, of unknown callers again at ten times as many."""

    name = "refused"
    caller: str
    """A neighbour, a name that the caller gave itself, or `a stranger`."""
    origin: str = ""
    """The caller's address."""
    kind: str = "unknown"
    """A word of the [contract](wire.md): `version`, `identity`, `stranger`, `federation`, `manifest`, `damaged`,
    `undeclared`, `lost`, `stream`, `connections`; or `unknown`, `many others`."""
    reason: str
    """Why, perhaps in the caller's words."""

    def __str__(self) -> str:
        return f"refused {self.caller}" + (f" from {self.origin}" if self.origin else "") + f": {self.reason}"


class Conflict(Event):
    """A neighbour sent two contents under one key (rule R5)."""

    name = "conflict"
    sender: str
    """The neighbour."""
    round: Number
    """The message's round."""
    step: int
    """Its place in the round."""

    def __str__(self) -> str:
        where = f"(round {self.round}, step {self.step})"
        return f"{self.sender} sent two different contents for the same step {where}; the first counts"


class PeerRegressed(FreeTextEvent):
    """A neighbour says that it has lost rounds."""

    name = "regressed"
    level = logging.ERROR
    neighbour: str
    """The neighbour."""


class CheckpointDamaged(Event):
    """A checkpoint cannot be read, and is not needed."""

    name = "damaged"
    round: Number
    """Its round."""
    reason: str
    """What is wrong."""

    def __str__(self) -> str:
        return f"the checkpoint of round {self.round} is damaged ({self.reason}); this peer goes on without it"


class ViewDecided(Event):
    """The members from a round on have been decided; see [views](views.md)."""

    name = "view"
    number: Number
    """Its number, from 1."""
    members: Many[str]
    """All members."""
    first: Number
    """Its first round."""
    planned: bool
    """Whether earlier rounds are finished; else those from `first` on are void."""
    entrants: Many[tuple[str, int]]
    """Peers admitted, each with the round of its private state or -1."""
    reason: str
    """Why, in words."""
    expelled: Many[str] = ()
    """Peers expelled now or before."""

    def __str__(self) -> str:
        return f"view {self.number} from round {self.first} on: {', '.join(self.members)} ({self.reason})"


class Leaving(FreeTextEvent):
    """The peer is leaving, as requested, or cannot."""

    name = "leaving"


class Departed(FreeTextEvent):
    """The peer has left, as requested."""

    name = "departed"


class Returning(FreeTextEvent):
    """The peer has lost its state and waits to be admitted anew."""

    name = "returning"


def read_event(line: Mapping[str, Any]) -> Event | None:
    """Return the event of a JSON object of events.jsonl; None if it is not one that a peer writes."""
    if (name := str(line.get("event"))) not in CLASSES_BY_NAME:
        return None
    try:
        event: Event = adapter(name).validate_python(dict(line))
    except ValidationError:
        return None
    return event


def read_events(lines: Iterable[bytes]) -> Iterator[Event]:
    """The events in these lines of events.jsonl; lines that a crash or the disk has spoilt are skipped."""
    return (event for one in objects(lines) if (event := read_event(one)))


def objects(lines: Iterable[bytes]) -> Iterator[dict[str, Any]]:
    """The JSON objects in these lines; other lines are skipped."""
    for line in lines:
        try:
            value = from_json(line)  # in a third of the time of json.loads, which also takes lone surrogates
        except ValueError:
            try:
                value = json.loads(line)
            except (ValueError, RecursionError):
                continue
        if isinstance(value, dict):
            yield value
