"""One peer as its events show it."""

from dataclasses import dataclass, field

from launcher.headline import Headline
from peer.telemetry.events import (
    SCHEMA,
    Awaited,
    Cause,
    CertificatesChanged,
    Conflict,
    Damaged,
    Departed,
    Done,
    Event,
    Failed,
    Leaving,
    Left,
    LinkChanged,
    Lost,
    Refused,
    Regressed,
    Resumed,
    Returning,
    RoundDone,
    Shortage,
    Started,
    StateChanged,
    Untold,
    ViewDecided,
    Waiting,
)

PATIENT = 5.0
"""Seconds that a peer may wait for another before a person is told."""
ENDED = ("done", "left", "failed", "stopped", "restarting", "no answer")
"""States in which there is no process, or none that anybody can ask."""
SILENT = ("suspected", "down")
"""States of a link at whose other end nobody is heard."""


@dataclass
class Wait:
    """A wait for one cause: for whom, since when (unix seconds), and of whom a person has been told; how many are
    missed, where it is for members that are to decide."""

    awaited: tuple[Awaited, ...]
    since: float
    told: frozenset[str] = frozenset()
    shortage: Shortage | None = None

    def after(self, event: Waiting) -> "Wait":
        """The same wait when somebody is still waited for, else one that begins now."""
        goes_on = {one.id for one in self.awaited} & {one.id for one in event.awaited}
        since, told = (self.since, self.told) if goes_on else (event.time, frozenset[str]())
        return Wait(event.awaited, since, told, event.shortage)

    def tell(self, now: float) -> tuple[Awaited, ...]:
        """Those of whom a person should be told now: everybody, once the wait is long and nobody of them was named."""
        ids = {one.id for one in self.awaited}
        if now - self.since < PATIENT or ids & self.told:
            return ()
        self.told |= ids
        return self.awaited


@dataclass
class PeerView:
    """One peer as its events show it.

    state: what the peer last said it does, or what became of its process: "starting",
    "restarting", "failed", "stopped".
    history: its `round` events by round; a round that is replayed after a crash replaces itself.
    """

    id: str
    state: str = field(default="starting", init=False)
    round: int = field(default=0, init=False)
    history: dict[int, RoundDone] = field(default_factory=dict, init=False)
    waits: dict[Cause, Wait] = field(default_factory=dict, init=False)
    links: dict[str, str] = field(default_factory=dict, init=False)
    failure: str | None = field(default=None, init=False)
    restarts: int = field(default=0, init=False)
    view: int = field(default=0, init=False)
    """The number of the last view of which it has heard."""
    _moves: bool = field(default=False, init=False)
    """Whether it is on its way into that view."""

    def start(self) -> None:
        """Its process is started, perhaps again: of what it does now nothing is known yet."""
        self.state, self.failure, self.waits, self.links = "starting", None, {}, {}

    def end(self, state: str) -> None:
        """Its process has ended, and is now "done", "left", "failed", "stopped" or "restarting"."""
        self.state, self.waits = state, {}

    @property
    def completed(self) -> int:
        """How many rounds it has behind it."""
        return max(self.history, default=0)

    @property
    def last(self) -> RoundDone | None:
        """Its newest `round` event."""
        return self.history.get(self.completed)

    @property
    def waiting(self) -> list[str]:
        """Ids of all that it waits for, whatever the cause."""
        return list(dict.fromkeys(one.id for wait in self.waits.values() for one in wait.awaited))

    @property
    def shortage(self) -> Shortage | None:
        """How many members are missed, where too few are here to decide."""
        wait = self.waits.get("quorum")
        return wait.shortage if wait and wait.awaited else None

    def figure(self, headline: Headline, round: int | None = None) -> float | None:
        """The one that counts, after `round` (None: the newest); after one without an evaluation, that of before."""
        last = self.completed if round is None else round
        done = (self.history.get(at) for at in range(last, 0, -1))
        return next((headline.value(one) for one in done if one and one.evaluated), None)

    def seconds(self, activity: str) -> float:
        """Seconds spent on "train", "communicate" or "evaluate" in all rounds."""
        return sum(done.seconds.get(activity, 0.0) for done in self.history.values())

    def hear(self, event: Event) -> str | None:
        """Takes one event in; what a person should be told of it, if anything."""
        match event:
            case StateChanged():
                self.state, self.round = event.state, event.round or self.round
                if event.state == "joining":  # started by hand, after a life in which it waited
                    self.waits = {}
                    self._join_anew()
            case RoundDone():
                self.history[event.round] = event
            case ViewDecided():
                self._hear_view(event)
            case Returning() | Leaving():
                return f"{self.id}: {event}"
            case Departed():
                self.end("left")
                return f"{self.id} {event}"
            case Waiting():
                self.waits[event.cause] = self.waits.get(event.cause, Wait((), event.time)).after(event)
            case LinkChanged():
                return self._hear_link(event)
            case Failed():
                self.end("failed")
                self.failure = event.message
                return f"{self.id} failed: {event}"
            case Done():
                self.end("done")
            case Resumed() if self._moves:
                return None  # as all do: the change of view was told
            case Resumed() | Refused():
                return f"{self.id} {event}"
            case Started() if event.schema > SCHEMA:
                return f"{self.id} tells events of version {event.schema}, newer than {SCHEMA}: some are not shown"
            case Lost() | Left() | CertificatesChanged() | Damaged() | Conflict() | Regressed() | Untold():
                return f"{self.id}: {event}"
        return None

    def overdue(self, now: float, somebody_works: bool = False) -> str | None:
        """Says once for whom the peer waits, when it has done so for a while (`now` in unix seconds).

        While somebody trains, a neighbour that sends nothing is no trouble: the others wait for the slowest. Where too
        few members are here to decide, that is told of all who wait for them together.
        """
        if self.shortage:
            return None
        due = {cause: wait for cause, wait in self.waits.items() if cause != "stalled" or not somebody_works}
        named = [str(one) for wait in due.values() for one in wait.tell(now)]
        return f"{self.id} waits for {', '.join(named)}" if named else None

    def _hear_view(self, event: ViewDecided) -> None:
        """What it has done in an earlier view from that round on is void; its links are made anew."""
        self.view = max(self.view, event.number)
        self.history = {round: done for round, done in self.history.items() if round < event.first}
        self.waits, self.links, self._moves = {}, {}, True

    def _join_anew(self) -> None:
        """In the next view: that the links of the one before went down is no news."""
        if self._moves:
            self.links, self._moves = {}, False

    def _hear_link(self, event: LinkChanged) -> str | None:
        before, state = self.links.get(event.neighbour), event.state
        self.links[event.neighbour] = state
        if self._moves or state in (before, "left") or (before in (None, "left") and state == "up"):
            return None
        return f"link {self.id} - {event.neighbour} is {state}" + (f" ({event.reason})" if event.reason else "")
