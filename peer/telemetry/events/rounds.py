"""What a peer learns, on which data, and what that costs."""

import logging
from dataclasses import dataclass, field
from typing import Annotated, Any

from pydantic import Field, FiniteFloat

from peer.telemetry.events.base import Count, Event, FigureValue, Loss, Note, Number, Share
from peer.text import number


@dataclass(frozen=True, kw_only=True)
class RingOrdered(Event):
    """The ring has a new order."""

    name = "ring"
    order: Annotated[tuple[str, ...], Field(min_length=1)]
    """All ids, round the ring."""
    cost_before: FiniteFloat
    """What the protocol makes small by ordering, in the old order; it has no unit."""
    cost_after: FiniteFloat
    """The same in the new one."""

    def __str__(self) -> str:
        return f"ring order {', '.join(self.order)}; cost {self.cost_before:.4f} before, {self.cost_after:.4f} after"


@dataclass(frozen=True, kw_only=True)
class DataHeld(Event):
    """What the peer trains on from a round on, for programs only: it stays in this peer's own directory."""

    name = "data"
    level = logging.DEBUG
    round: Number
    """The first with these data."""
    samples: int
    """How many it trains on."""
    classes: dict[str, Share] = field(default_factory=dict)
    """The share of each among them, by name; empty where the task has none."""

    def __str__(self) -> str:
        return f"{self.samples} training samples from round {self.round} on, of {len(self.classes)} classes"


@dataclass(frozen=True, kw_only=True)
class DataDrifted(Event):
    """The peer's data are others from this round on."""

    name = "drift"
    round: Number
    """The first with the new data."""
    samples: int
    """How many it trains on now."""

    def __str__(self) -> str:
        return f"the data are others from round {self.round} on: {self.samples} training samples"


@dataclass(frozen=True, kw_only=True)
class Misbehaving(Event):
    """Some peers misbehave because the spec says so: told when the peer starts."""

    name = "behaviour"
    peers: dict[str, str]
    """How, by id."""

    def __str__(self) -> str:
        said = "; ".join(f"{id} ({how})" for id, how in self.peers.items())
        return f"an experiment: by the settings these peers misbehave: {said}"


@dataclass(frozen=True, kw_only=True)
class RoundDone(Event):
    """A round is over. One that is played again after a crash is told again, and the later one counts."""

    name = "round"
    round: Number
    """Which one, from 1."""
    accuracy: dict[str, Share | None] = field(default_factory=dict)
    """By test set (`matched`, `global`, `paper`, `local`), from 0 to 1; empty after a round without an evaluation."""
    figures: dict[str, FigureValue] = field(default_factory=dict)
    """The task's, by name, on the test set; empty after a round without an evaluation."""
    validation: dict[str, FigureValue] = field(default_factory=dict)
    """The task's, by name, on the samples that are held back; left out where none are."""
    loss: Loss = None
    """Mean training loss of the round; null where the peer has not trained, or it is not finite or above 1e100."""
    test_loss: Loss = None
    """On the test set, as the task has it; null where it is not finite or above 1e100."""
    balanced: Share | None = None
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
    """What the protocol noted in the round, a number or several, by name."""

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
    """Told with each `round`: what has passed since the last one, or since the peer started."""

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
    """The peer has trained on for itself, after the last round; its figures now."""

    name = "finetuned"
    accuracy: dict[str, Share | None]
    """As in `round`."""
    figures: dict[str, FigureValue]
    """As in `round`."""
    validation: dict[str, FigureValue] = field(default_factory=dict)
    """As in `round`; empty where no samples are held back."""

    def __str__(self) -> str:
        named = ", ".join(f"{name} {number(value)}" for name, value in self.figures.items())
        return f"fine-tuned on its own samples: {named}"
