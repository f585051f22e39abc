"""One peer's history, folded from its events: its rounds, its data, when it ran, what went wrong and what recovered.

A history grows event by event, live or from the peer's events.jsonl, and never looks at anything else. Three rules:

- Events with an impossible time are ignored: clocks of other machines are added up later.
- A decided view voids the rounds from its first on. Until the peer has joined again it is on its way into that view:
  that its links go down then, or that it resumes, is neither a failure nor a restart.
- What lasts (a wait, a silent link) stays open until an event closes it, and ends with the last event otherwise.
"""

from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from launcher.monitor.federation import SILENT
from peer.files import lines, open_plain
from peer.telemetry.events import (
    CallerRefused,
    CheckpointDamaged,
    Conflict,
    DataDrifted,
    DataSummary,
    Departed,
    Done,
    EndedUnacknowledged,
    Event,
    Failed,
    FineTuned,
    Leaving,
    LinkChanged,
    NeighbourLost,
    PeerRegressed,
    Resumed,
    Returning,
    RingOrdered,
    RoundDone,
    Started,
    StateChanged,
    Stopped,
    StoppedEarly,
    ViewConflict,
    ViewDecided,
    Waiting,
    read_events,
)
from peer.telemetry.results import EVENTS

EventKind = Literal["running", "waits", "not heard", "failure", "recovery", "change of view", "note"]


@dataclass
class TimelineEvent:
    """What happened at `start`, in unix seconds, or lasted until `end`."""

    kind: EventKind
    start: float
    text: str
    end: float | None = None
    about: str = ""
    """Of which neighbour it tells, if of one."""
    over: bool = False
    """Whether what lasted has come to its end, and not only its teller."""


MAX_UNIX_SECONDS = 1e11
"""Unix seconds; far from now, and clocks can be added up."""


@dataclass
class PeerHistory:
    """What `hear` was told of one peer, event by event."""

    id: str
    history: dict[int, RoundDone] = field(default_factory=dict)
    data: list[DataSummary] = field(default_factory=list)
    """One a stage; the newest of each round."""
    orders: list[RingOrdered] = field(default_factory=list)
    views: dict[int, ViewDecided] = field(default_factory=dict)
    lives: list[TimelineEvent] = field(default_factory=list)
    moments: list[TimelineEvent] = field(default_factory=list)
    failure: str | None = None
    ended: float | None = None
    """When it was done."""
    _open: dict[str, TimelineEvent] = field(default_factory=dict)
    """What lasts: waits by their causes, links by their neighbours."""
    _moves: bool = False
    """Whether it is on its way into the next view."""
    _begun: bool = False
    """Whether its process has begun, and has not said yet that it joins."""

    @classmethod
    def read(cls, id: str, place: Path) -> "PeerHistory":
        """From a peer's directory; empty where its events cannot be read."""
        found = cls(id)
        with suppress(OSError), open_plain(place / EVENTS) as file:
            for event in read_events(lines(file)):
                found.hear(event)
        return found

    @property
    def completed(self) -> int:
        return max(self.history, default=0)

    @property
    def all_moments(self) -> list[TimelineEvent]:
        """With what lasts still, up to the last event."""
        return self.moments + list(self._open.values())

    def hear(self, event: Event) -> None:
        """Takes one event in; none that says to be of a time that cannot be."""
        if not 0 <= event.time <= MAX_UNIX_SECONDS:
            return
        if isinstance(event, Started):
            self._moves = False
            self._begin(event)
            self._begun = True
        elif isinstance(event, Resumed) and not self._moves:  # told before it joins
            if not self._begun:
                self._begin(event)
            self._begun = True
        elif isinstance(event, StateChanged) and event.state == "joining":
            if not self._begun:
                self._begin(event)
            self._moves = self._begun = False
        if not self.lives:
            self.lives.append(TimelineEvent("running", event.time, "", event.time))
        self._last_until(event.time)
        match event:
            case RoundDone():
                self.history[event.round] = event
            case DataSummary():
                self.data = [one for one in self.data if one.round != event.round] + [event]
            case RingOrdered():
                self.orders.append(event)
            case ViewDecided():
                self._move(event)
            case Waiting():
                self._wait(event)
            case LinkChanged():
                self._link(event)
            case Done() | Departed():
                self.ended = event.time
                self._close(over=False)
            case Failed():
                self.failure = event.message
        self._note(event)

    def _note(self, event: Event) -> None:
        """Those that are moments of their own."""
        match event:
            case Failed() | NeighbourLost() | Conflict() | PeerRegressed() | CheckpointDamaged() | ViewConflict():
                self.moments.append(TimelineEvent("failure", event.time, str(event)))
            case Resumed() if not self._moves:
                self.moments.append(TimelineEvent("recovery", event.time, str(event)))
            case Returning():
                self.moments.append(TimelineEvent("recovery", event.time, str(event)))
            case (
                Departed()
                | Leaving()
                | EndedUnacknowledged()
                | Stopped()
                | CallerRefused()
                | DataDrifted()
                | StoppedEarly()
                | FineTuned()
            ):
                self.moments.append(TimelineEvent("note", event.time, str(event)))

    def _begin(self, event: Event) -> None:
        """A start of its process, unless it is that of the next view in the same one."""
        if self._moves:
            return
        if self.lives:
            self._close(over=True)
            self.failure = self.ended = None
            self.moments.append(TimelineEvent("recovery", event.time, "started again"))
        self.lives.append(TimelineEvent("running", event.time, f"start {len(self.lives) + 1}", event.time))

    def _move(self, event: ViewDecided) -> None:
        """What it has done in an earlier view from that round on is void; its links are made anew."""
        self.views[event.number] = event
        self.history = {round: done for round, done in self.history.items() if round < event.first}
        self._close(over=True)
        self._moves = True

    def _wait(self, event: Waiting) -> None:
        """One that goes on is told again every minute."""
        before, about = self._open.get(event.cause), " ".join(one.id for one in event.awaited)
        if before and before.about != about:
            self.moments.append(self._open.pop(event.cause))
        if about and event.cause not in self._open:
            named = ", ".join(map(str, event.awaited)) + (f" and {event.others} more" if event.others else "")
            short = f"{event.shortage}: " if event.shortage else ""
            self._open[event.cause] = TimelineEvent("waits", event.time, f"{short}waits for {named}", event.time, about)

    def _link(self, event: LinkChanged) -> None:
        key = f"link {event.neighbour}"
        if event.state in SILENT and not self._moves:
            self._open.setdefault(key, TimelineEvent("not heard", event.time, str(event), event.time, event.neighbour))
        elif known := self._open.pop(key, None):
            known.over = True
            self.moments.append(known)

    def _last_until(self, time: float) -> None:
        for one in (self.lives[-1], *self._open.values()):
            one.end = max(time, one.start)

    def _close(self, *, over: bool) -> None:
        for one in self._open.values():
            one.over = over
            self.moments.append(one)
        self._open = {}
