"""One peer's history, folded from its events: its rounds, its data, when it ran, what went wrong and what recovered.

This is the only fold: the monitor, the live page, the report and the summary all read it. A history grows event by
event, live or from the peer's events.jsonl, and never looks at anything else. Its rules:

- Events with an impossible time are ignored: clocks of other machines are added up later.
- A decided view voids the rounds from its first on. Until the peer has joined again, it is moving into that view: that
  its links go down then, or that it resumes, is neither a failure nor a restart.
- A run of the process begins at `started`, `resumed` or `joining`, whichever is first. A restart is counted when the
  peer joins once more without a decided view in between; so a process that dies before it joins is none.
- An event costs the same however many came before it: a file of some megabytes, from another machine, would hold the
  launcher up for minutes.
- What lasts (a wait, a silent link) stays open until an event closes it, and ends with the last event otherwise.
"""

from bisect import bisect, insort
from collections.abc import Iterable, Iterator
from contextlib import suppress
from copy import copy
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

from peer.files import lines, open_plain
from peer.telemetry import events
from peer.telemetry.results import EVENTS
from peer.text import cut, duration

SILENT_LINKS = ("suspected", "down")
"""States of a link at whose other end no peer is heard."""
MAX_UNIX_SECONDS = 1e11
"""Far from now, and clocks can still be added up."""
MAX_TIMELINE = 100_000
"""Entries of one peer's timeline: a peer that fails in a loop does not fill the launcher's memory."""
SOON_S = 30 * 86_400.0
"""Seconds before a certificate expires from which on people are told."""
ACTIVITIES = ("train", "communicate", "evaluate")
"""What a round's seconds are counted by."""
EventKind = Literal["running", "waits", "not heard", "failure", "recovery", "change of view", "note"]
OF_KIND: dict[EventKind, str] = {
    "failure": "failed lost conflict regressed damaged",
    "recovery": "returning resumed",
    "note": "departed leaving left stopped certificate_expires refused drift stopped_early finetuned rewound release "
    "unrepeatable",
}
KINDS = {name: kind for kind, names in OF_KIND.items() for name in names.split()}
"""What events are that stand on the timeline by themselves, by their names."""


def recorded_events(place: Path, holding: bytes = b"") -> Iterator[events.Event]:
    """The events in a peer's directory, of lines that hold these bytes; none where they cannot be read."""
    with suppress(OSError), open_plain(place / EVENTS) as file:
        yield from events.read_events(line for line in lines(file) if holding in line)


def expiry_words(expires: float, now: float) -> str:
    """Say when a certificate expires, or that it has; both in Unix seconds."""
    day = f"{datetime.fromtimestamp(expires, UTC):%Y-%m-%d %H:%M} UTC"
    return f"expires on {day}, in {duration(expires - now)}" if expires > now else f"expired on {day}"


@dataclass
class TimelineEvent:
    """What happened at `start`, in unix seconds, or lasted until `end`."""

    kind: EventKind
    start: float
    text: str
    end: float | None = None
    about: str = ""
    """The neighbour that it is about, if it is about one."""
    over: bool = False
    """Whether what lasted has come to its end, and not only its teller."""

    def __post_init__(self) -> None:
        self.text = cut(self.text)

    @property
    def seconds(self) -> float:
        return (self.end or self.start) - self.start


@dataclass
class PeerHistory:
    """What one peer's events say, `apply`ed one by one."""

    id: str
    rounds: dict[int, events.RoundDone] = field(default_factory=dict)
    """The `round` events that count, by round; a round that is replayed after a crash replaces its first event."""
    completed: int = 0
    """The last of them."""
    orders: list[events.RingOrdered] = field(default_factory=list)
    views: dict[int, events.ViewDecided] = field(default_factory=dict)
    runs: list[TimelineEvent] = field(default_factory=list)
    """When its process ran, from the first to the last event of each run."""
    version: str = ""
    """The version of dfl that it runs, by its own account."""
    failure: str | None = None
    ended: float | None = None
    """When it was done."""
    certificate_expires: float | None = None
    """Until when its certificates are valid, in Unix seconds; None without any, or if that is not known."""
    moves: bool = False
    """Whether it is on its way into the next view."""
    _counted: bool = False
    """Whether the next two, which each picture of a run asks for, hold all rounds; if not, they are counted anew."""
    _spent: dict[str, float] = field(default_factory=dict)
    """Seconds in all, by activity."""
    _evaluated: list[int] = field(default_factory=list)
    """The rounds after which the model was evaluated, in order."""
    _numbers: list[int] = field(default_factory=list)
    """The numbers of the rounds that count, in order."""
    _data: dict[int, events.DataSummary] = field(default_factory=dict)
    _closed: list[TimelineEvent] = field(default_factory=list)
    _now: float = 0.0
    """The time of the last event."""
    _open: dict[str, TimelineEvent] = field(default_factory=dict)
    """What lasts: waits by their causes, links by their neighbours."""
    _began: bool = False
    """Whether its process has begun, and has not said yet that it joins."""
    _joins: int = 0
    """How often it joined, but for joining the next view."""
    _view_decided: bool = False
    """Whether a view was decided since it joined: then it joins once more, and is not restarted."""

    @classmethod
    def read(cls, id: str, place: Path, holding: bytes = b"") -> "PeerHistory":
        """Read a history from a peer's directory, of the lines that hold these bytes; empty if they cannot be read."""
        found = cls(id)
        for event in recorded_events(place, holding):
            found.apply(event)
        return found

    def copy(self) -> "PeerHistory":
        """A copy for a thread that reads it while this one grows."""
        grows: dict[str, Any] = {name: copy(one) for name, one in vars(self).items() if isinstance(one, dict | list)}
        return replace(self, **grows)

    @property
    def view(self) -> int:
        """The number of the last view of which it has heard."""
        return max(self.views, default=0)

    @property
    def restarts(self) -> int:
        return max(0, self._joins - 1)

    @property
    def alive_seconds(self) -> float:
        """How long its process ran in all, without the pauses between its runs."""
        return sum(run.seconds for run in self.runs)

    @property
    def timeline(self) -> list[TimelineEvent]:
        """All but the runs; what lasts still, up to the last event."""
        return self._closed + [self._up_to_now(copy(one)) for one in self._open.values()]

    @property
    def data(self) -> list[events.DataSummary]:
        """One a stage; the newest of each round."""
        return [*self._data.values()]

    def seconds(self, activity: str) -> float:
        """Seconds spent on one of `ACTIVITIES` in all rounds."""
        self._count_anew()
        return self._spent.get(activity, 0.0)

    def evaluated(self, round: int) -> events.RoundDone | None:
        """The last of the rounds up to this one after which the model was evaluated."""
        self._count_anew()
        before = bisect(self._evaluated, round)
        return self.rounds[self._evaluated[before - 1]] if before else None

    def _count_anew(self) -> None:
        if not self._counted:
            self._spent, self._evaluated, self._counted = {}, [], True
            self._count(self.rounds[round] for round in sorted(self.rounds))

    def _count(self, rounds: Iterable[events.RoundDone]) -> None:
        for done in rounds:
            for activity, seconds in done.seconds.items():
                self._spent[activity] = self._spent.get(activity, 0.0) + seconds
            if done.evaluated:
                self._evaluated.append(done.round)

    def apply(self, event: events.Event) -> None:
        """Take one event in, unless its time is impossible."""
        if not 0 <= event.time <= MAX_UNIX_SECONDS:
            return
        self._follow_process(event)
        self._now = event.time
        self._up_to_now(self.runs[-1])
        match event:
            case events.RoundDone():
                self._add_round(event)
            case events.DataSummary():
                self._data.pop(event.round, None)
                self._data[event.round] = event
            case events.RingOrdered():
                self.orders.append(event)
            case events.ViewDecided():
                self.views[event.number] = event
                self._keep_rounds(event.first - 1)
                self._close_all(over=True)
                self.moves = self._view_decided = True
            case events.Rewound():
                self._keep_rounds(event.round)
            case events.Waiting():
                self._wait(event)
            case events.LinkChanged():
                self._link(event)
            case events.Done() | events.Departed():
                self.ended = event.time
                self._close_all(over=False)
            case events.Failed():
                self.failure = event.message
            case events.Started():
                self.version = event.version
                self.certificate_expires = event.certificate_expires or self.certificate_expires
            case events.CertificatesChanged() | events.CertificateExpires():
                self.certificate_expires = event.expires or self.certificate_expires
        if (kind := KINDS.get(event.name)) and not (self.moves and isinstance(event, events.Resumed)):
            self._add(TimelineEvent(kind, event.time, str(event)))

    def _add_round(self, done: events.RoundDone) -> None:
        if done.round not in self.rounds:
            insort(self._numbers, done.round)
        self.rounds[done.round] = done
        if done.round <= self.completed:  # replayed
            self._counted = False
            return
        self.completed = done.round
        if self._counted:
            self._count([done])

    def _keep_rounds(self, last: int) -> None:
        """Drop the rounds after `last`."""
        kept = bisect(self._numbers, last)
        for number in self._numbers[kept:]:
            del self.rounds[number]
        del self._numbers[kept:]
        self.completed, self._counted = self._numbers[-1] if self._numbers else 0, False

    def _follow_process(self, event: events.Event) -> None:
        """Find where a run of the process begins, and count how often it joins."""
        joins = isinstance(event, events.StateChanged) and event.state == "joining"
        if isinstance(event, events.Started):
            self.moves = self._began = False  # also one that was killed on its way into the next view
        if not self.moves and (joins or isinstance(event, events.Started | events.Resumed)):
            if not self._began:  # what resumes says so before it joins
                self._begin(event)
            self._began = True
        if joins:
            self._joins += not self._view_decided
            self.moves = self._began = self._view_decided = False
        if not self.runs:
            self.runs.append(TimelineEvent("running", event.time, "", event.time))

    def _begin(self, event: events.Event) -> None:
        if self.runs:
            self._close_all(over=True)
            self.failure = self.ended = None
            self._add(TimelineEvent("recovery", event.time, "started again"))
        self.runs.append(TimelineEvent("running", event.time, f"start {len(self.runs) + 1}", event.time))

    def _wait(self, event: events.Waiting) -> None:
        """Take a wait, which peers report again every minute while it lasts."""
        before, about = self._open.get(event.cause), " ".join(one.id for one in event.awaited)
        if before and before.about != about:
            self._add(self._up_to_now(self._open.pop(event.cause)))
        if about and event.cause not in self._open:
            named = ", ".join(map(str, event.awaited)) + (f" and {event.others} more" if event.others else "")
            short = f"{event.shortage}: " if event.shortage else ""
            self._open[event.cause] = TimelineEvent("waits", event.time, f"{short}waits for {named}", event.time, about)

    def _link(self, event: events.LinkChanged) -> None:
        key = f"link {event.neighbour}"
        if event.state in SILENT_LINKS and not self.moves:
            self._open.setdefault(key, TimelineEvent("not heard", event.time, str(event), event.time, event.neighbour))
        elif known := self._open.pop(key, None):
            known.over = True
            self._add(self._up_to_now(known))

    def _close_all(self, *, over: bool) -> None:
        for one in self._open.values():
            one.over = over
            self._add(self._up_to_now(one))
        self._open = {}

    def _up_to_now(self, lasting: TimelineEvent) -> TimelineEvent:
        """Move the end of what lasts to the last event."""
        lasting.end = max(self._now, lasting.start)
        return lasting

    def _add(self, event: TimelineEvent) -> None:
        if len(self._closed) < MAX_TIMELINE:
            self._closed.append(event)
