"""What a peer tells of its life: each kind of event with its fields, its name, its level and its sentence.

An event becomes a JSON line of events.jsonl, for programs, and, where a person cares, a line of the log.
"""

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, TypeAdapter, ValidationError

from peer.text import number

Note = float | list[float | None] | None
"""What a protocol notes of a round; what is not finite is None."""
Share = Annotated[float, Field(ge=0, le=1 + 1e-6, allow_inf_nan=False)]
"""An accuracy; a weighted mean may come to a little more than 1."""
LARGEST_FIGURE = 1e100
"""So many of them may be added up and squared."""
FigureValue = Annotated[float, Field(ge=-LARGEST_FIGURE, le=LARGEST_FIGURE)] | None
"""One of a task's figures; None where it is not finite."""
Cause = Literal["join", "staleness", "stalled"]
"""Why a peer waits: for neighbours at the start; for one too many rounds behind; for one that lives and is silent."""


@dataclass(frozen=True, kw_only=True)
class Event:
    """`str(event)` is its sentence. time: when it was written, in unix seconds; 0 before."""

    name: ClassVar[str]
    level: ClassVar[int] = logging.INFO
    time: float = 0.0

    def as_json(self) -> dict[str, Any]:
        """Name and fields as they stand in events.jsonl, without the time."""
        fields = ADAPTERS[self.name].dump_python(self, by_alias=True, exclude={"time"}, warnings=False)
        return {"event": self.name, **fields}


@dataclass(frozen=True, kw_only=True)
class Worded(Event):
    """One whose sentence is made where it happens."""

    sentence: str

    def __str__(self) -> str:
        return self.sentence


Report = Callable[[Event], None]


@dataclass(frozen=True, kw_only=True)
class StateChanged(Event):
    """For programs only: a state changes several times a round."""

    name = "state"
    level = logging.DEBUG
    state: str
    round: int

    def __str__(self) -> str:
        return f"{self.state} (round {self.round})"


@dataclass(frozen=True)
class Awaited:
    """Somebody who is waited for, and what is known of why."""

    id: str
    address: str | None
    reason: str

    def __str__(self) -> str:
        return f"{self.id} at {self.address} ({self.reason})" if self.address else f"{self.id} ({self.reason})"


@dataclass(frozen=True, kw_only=True)
class Waiting(Worded):
    """Everybody who is waited for now for this cause: nobody, when that wait is over.

    others: how many there are besides, where only some are named.
    """

    name = "waiting"
    cause: Cause
    awaited: Annotated[tuple[Awaited, ...], Field(alias="for")]
    others: int = 0


@dataclass(frozen=True, kw_only=True)
class LinkChanged(Event):
    """What is known of a neighbour's life: joining, up, suspected, down or left."""

    name = "link"
    neighbour: str
    state: str
    reason: str = ""

    def __str__(self) -> str:
        return f"link to {self.neighbour}: {self.state}" + (f" ({self.reason})" if self.reason else "")


@dataclass(frozen=True, kw_only=True)
class RingOrdered(Event):
    """The ring has a new order, with its cost before and after."""

    name = "ring"
    order: tuple[str, ...]
    cost_before: float
    cost_after: float

    def __str__(self) -> str:
        return f"ring order {', '.join(self.order)}; cost {self.cost_before:.4f} before, {self.cost_after:.4f} after"


@dataclass(frozen=True, kw_only=True)
class Misbehaving(Event):
    """Who misbehaves because the spec says so, and how, by id."""

    name = "behaviour"
    peers: dict[str, str]

    def __str__(self) -> str:
        said = "; ".join(f"{id} ({how})" for id, how in self.peers.items())
        return f"an experiment: by the settings these peers misbehave: {said}"


@dataclass(frozen=True, kw_only=True)
class DataDrifted(Event):
    """The data are others from this round on; so many training samples now."""

    name = "drift"
    round: int
    samples: int

    def __str__(self) -> str:
        return f"the data are others from round {self.round} on: {self.samples} training samples"


@dataclass(frozen=True, kw_only=True)
class RoundDone(Event):
    """A round is over. Accuracies in 0..1, seconds of this round, bytes of all rounds so far.

    figures: the task's, by name, on the test set; validation: on the samples that are held back, written if any are.
    Both are empty after a round without an evaluation, and so is accuracy. notes: what the protocol noted in the round.
    """

    name = "round"
    round: int
    accuracy: dict[str, Share | None] = field(default_factory=dict)
    figures: dict[str, FigureValue] = field(default_factory=dict)
    validation: dict[str, FigureValue] = field(default_factory=dict)
    loss: float | None = None
    test_loss: float | None = None
    balanced: float | None = None
    seconds: dict[str, float] = field(default_factory=dict)
    bytes_sent: int = 0
    bytes_received: int = 0
    tensor_bytes_sent: int = 0
    notes: dict[str, Note] = field(default_factory=dict)

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
class StoppedEarly(Event):
    """All peers have agreed to end after this round. best_round: that of the best mean of the figure so far."""

    name = "stopped_early"
    round: int
    best_round: int
    figure: str

    def __str__(self) -> str:
        return (
            f"all peers end after round {self.round}: the mean {self.figure} is no better since round {self.best_round}"
        )


@dataclass(frozen=True, kw_only=True)
class FineTuned(Event):
    """The peer has trained on for itself, after the last round; its figures now, as those of a round."""

    name = "finetuned"
    accuracy: dict[str, Share | None]
    figures: dict[str, FigureValue]
    validation: dict[str, FigureValue] = field(default_factory=dict)

    def __str__(self) -> str:
        named = ", ".join(f"{name} {number(value)}" for name, value in self.figures.items())
        return f"fine-tuned on its own samples: {named}"


@dataclass(frozen=True, kw_only=True)
class Resumed(Event):
    """The peer goes on from a checkpoint."""

    name = "resumed"
    round: int

    def __str__(self) -> str:
        return f"resumed after round {self.round}"


@dataclass(frozen=True, kw_only=True)
class Refused(Event):
    """A caller was turned away, or one of its messages. origin: its address."""

    name = "refused"
    caller: str
    origin: str = ""
    reason: str

    def __str__(self) -> str:
        return f"refused {self.caller}" + (f" from {self.origin}" if self.origin else "") + f": {self.reason}"


@dataclass(frozen=True, kw_only=True)
class Conflict(Event):
    """A neighbour sent two contents under one key (rule R5)."""

    name = "conflict"
    sender: str
    round: int
    step: int

    def __str__(self) -> str:
        where = f"(round {self.round}, step {self.step})"
        return f"{self.sender} sent two different contents for the same step {where}; the first counts"


@dataclass(frozen=True, kw_only=True)
class Regressed(Worded):
    """A neighbour has lost rounds that it had on disk, by its own words."""

    name = "regressed"
    level = logging.ERROR
    neighbour: str


@dataclass(frozen=True, kw_only=True)
class Damaged(Event):
    """What was kept of a round cannot be read, and is not needed."""

    name = "damaged"
    round: int
    reason: str

    def __str__(self) -> str:
        return f"the checkpoint of round {self.round} is damaged, and this peer does without it ({self.reason})"


@dataclass(frozen=True, kw_only=True)
class Left(Worded):
    """The peer ends without having heard that its neighbours have all they need."""

    name = "left"


@dataclass(frozen=True, kw_only=True)
class Lost(Worded):
    """A neighbour has been silent for longer than `patience`."""

    name = "lost"
    neighbour: str


@dataclass(frozen=True, kw_only=True)
class CertificatesChanged(Worded):
    """New certificates were found: they are used, or it says why not."""

    name = "certificates"


@dataclass(frozen=True, kw_only=True)
class ViewDecided(Event):
    """Who belongs to the federation from round `first` on.

    planned: the rounds before are played to their end; else those from `first` on are void and are played again.
    entrants: who is taken in, each with the round after which its private state stands, -1 for a new one.
    expelled: who was voted out, now or before.
    """

    name = "view"
    number: int
    members: tuple[str, ...]
    first: int
    planned: bool
    entrants: tuple[tuple[str, int], ...]
    reason: str
    expelled: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"view {self.number} from round {self.first} on: {', '.join(self.members)} ({self.reason})"


@dataclass(frozen=True, kw_only=True)
class ViewConflict(Worded):
    """A member has told of another view than the one that this peer knows to be decided, which must never be."""

    name = "view_conflict"
    level = logging.ERROR


@dataclass(frozen=True, kw_only=True)
class Leaving(Worded):
    """The peer was told to leave, or cannot."""

    name = "leaving"


@dataclass(frozen=True, kw_only=True)
class Departed(Worded):
    """The peer has left, as it was told to: the others go on without it, and nobody waits for it."""

    name = "departed"


@dataclass(frozen=True, kw_only=True)
class Returning(Worded):
    """The peer has nothing left from which it could go on as a member, and waits to be taken in anew."""

    name = "returning"


@dataclass(frozen=True, kw_only=True)
class Stopped(Event):
    """A signal ended the peer in good order."""

    name = "stopped"
    signal: str

    def __str__(self) -> str:
        return f"stopped by {self.signal}"


@dataclass(frozen=True, kw_only=True)
class Failed(Event):
    """The peer cannot go on."""

    name = "failed"
    level = logging.ERROR
    message: str

    def __str__(self) -> str:
        return self.message


@dataclass(frozen=True, kw_only=True)
class Done(Event):
    """The peer has finished."""

    name = "done"

    def __str__(self) -> str:
        return "done"


KINDS = [kind for kind in (*Event.__subclasses__(), *Worded.__subclasses__()) if kind is not Worded]
ADAPTERS: dict[str, TypeAdapter[Event]] = {kind.name: TypeAdapter(kind) for kind in KINDS}


def read_event(line: Mapping[str, Any]) -> Event | None:
    """The event that a JSON object of events.jsonl stands for; None for one that no peer wrote like that."""
    adapter = ADAPTERS.get(str(line.get("event")))
    if adapter is None:
        return None
    try:
        return adapter.validate_python(dict(line))
    except ValidationError:
        return None
