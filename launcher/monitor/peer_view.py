"""One peer as its event lines show it."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from statistics import fmean
from typing import Any

from pydantic import BaseModel, Field, ValidationError

Event = Mapping[str, Any]

PATIENT = 5.0
"""Seconds that a peer may wait for another before a person is told."""
ENDED = ("done", "failed", "stopped", "restarting")
"""States in which there is no process."""


class Told(BaseModel):
    """What a line of a peer's events must be like where a view relies on it."""

    event: str
    time: float = 0.0
    round: int | None = None
    loss: float | None = None
    accuracy: dict[str, float | None] | None = None
    seconds: dict[str, float] | None = None
    waits: list[dict[str, str]] = Field(default=[], alias="for")


def is_told(event: Event) -> bool:
    """Whether that is an event as peers tell them, not one that the disk or a hand has spoilt."""
    try:
        Told.model_validate(event, strict=True)
    except ValidationError:
        return False
    return True


@dataclass
class PeerView:
    """One peer as its events show it.

    state: what the peer last said it does, or what became of its process: "starting",
    "restarting", "failed", "stopped".
    history: its `round` events by round; a round that is replayed after a crash replaces itself.
    """

    id: str
    state: str = "starting"
    round: int = 0
    history: dict[int, Event] = field(default_factory=dict)
    waiting: tuple[Mapping[str, str], ...] = ()
    waiting_since: float = 0.0
    links: dict[str, str] = field(default_factory=dict)
    failure: str | None = None
    restarts: int = 0
    stalled: bool = False
    """Whether it waits for a message, which the other may still be at work on."""
    _told_waiting: bool = False

    @property
    def completed(self) -> int:
        """How many rounds it has behind it."""
        return max(self.history, default=0)

    @property
    def last(self) -> Event:
        """Its newest `round` event; empty before the first."""
        return self.history.get(self.completed, {})

    def accuracy(self, test: str, round: int | None = None) -> float | None:
        """Accuracy after `round` (None: the newest): by the test of the spec, or on the peer's own data."""
        event = self.last if round is None else self.history.get(round, {})
        return headline(event.get("accuracy") or {}, test)

    def seconds(self, activity: str) -> float:
        """Seconds spent on "train", "communicate" or "evaluate" in all rounds."""
        return float(sum((event.get("seconds") or {}).get(activity, 0.0) for event in self.history.values()))

    def hear(self, event: Event) -> str | None:
        """Takes one event in; what a person should be told of it, if anything."""
        match event.get("event"):
            case "state":
                self.state = str(event.get("state", self.state))
                self.round = int(event.get("round") or self.round)
                self.waiting = ()
            case "round" if isinstance(event.get("round"), int):
                self.history[event["round"]] = event
            case "waiting":
                self._hear_waiting(event)
            case "link":
                return self._hear_link(str(event.get("neighbour")), str(event.get("state")), event.get("reason"))
            case "resumed":
                return f"{self.id} resumed after round {event.get('round')}"
            case "failed":
                self.state, self.failure = "failed", str(event.get("message"))
                return f"{self.id} failed: {self.failure}"
            case "done":
                self.state = "done"
            case _:
                return self._notice(event)
        return None

    def _notice(self, event: Event) -> str | None:
        """What happened to the peer without changing what it does."""
        match event.get("event"):
            case "lost" | "left" | "certificates":
                return f"{self.id}: {event.get('sentence')}"
            case "damaged":
                what = f"what it kept of round {event.get('round')} is damaged, and it does without"
                return f"{self.id}: {what} ({event.get('reason')})"
            case "conflict":
                what = f"{event.get('sender')} sent two different contents for the same step"
                return f"{self.id}: {what} (round {event.get('round')}, step {event.get('step')}); the first counts"
            case "refused":
                return f"{self.id} refused {event.get('caller')}: {event.get('reason')}"
        return None

    def _hear_waiting(self, event: Event) -> None:
        before = {one.get("id") for one in self.waiting}
        self.waiting, self.stalled = tuple(event.get("for") or ()), event.get("cause") == "stalled"
        if not before & {one.get("id") for one in self.waiting}:
            self.waiting_since, self._told_waiting = float(event.get("time", 0.0)), False

    def overdue(self, now: float, somebody_works: bool = False) -> str | None:
        """Says once for whom the peer waits, when it has done so for a while (`now` in unix seconds).

        While somebody trains, a message that is late is no trouble: the others wait for the slowest.
        """
        if not self.waiting or self._told_waiting or now - self.waiting_since < PATIENT:
            return None
        if self.stalled and somebody_works:
            return None
        self._told_waiting = True
        named = (f"{one.get('id')} at {one.get('address')} ({one.get('reason')})" for one in self.waiting)
        return f"{self.id} waits for {', '.join(named)}"

    def _hear_link(self, neighbour: str, state: str, reason: object) -> str | None:
        before = self.links.get(neighbour)
        self.links[neighbour] = state
        if state in (before, "left") or (before in (None, "left") and state == "up"):
            return None
        return f"link {self.id} - {neighbour} is {state}" + (f" ({reason})" if reason else "")


def headline(accuracy: Mapping[str, float | None], test: str) -> float | None:
    """The accuracy that counts: by the spec's test; a peer with its own data has only `local`."""
    chosen = accuracy.get(test)
    return accuracy.get("local") if chosen is None else chosen


def mean(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return fmean(known) if known else None
