"""All peers of a run as the launcher sees them: by the events that reach it.

    Tail            the lines added to a file that another process writes
    PeerView        one peer as its events show it
    FederationView  all peers, and what a person should be told: each change of view, wait and end once, although every
                    peer tells of it
    Federation      the same for a run on this machine, followed through its peers' `events.jsonl`

Peers that were started elsewhere are polled instead: `polled_federation.py`.
"""

import os
from collections import Counter, deque
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import BinaryIO, Self

from launcher.headline import Headline, mean
from launcher.history import SILENT_LINKS, SOON_S, PeerHistory, expiry_words
from launcher.views import Views, change_in_words, view_of_event
from peer.files import lines, open_plain
from peer.spec.federation import Spec
from peer.telemetry import events
from peer.telemetry.remaining import Remaining
from peer.telemetry.results import EVENTS
from peer.text import plural, printable, shown
from peer.views.view import View


class Tail:
    """The lines added to a file since the last look; finds its way when the file is replaced or cut short."""

    def __init__(self, path: Path):
        self.path = path
        self._file: BinaryIO | None = None
        self._known: os.stat_result | None = None
        """Which file it is that was read up to `_at`."""
        self._at = 0

    def lines(self) -> Iterator[bytes]:
        """The whole lines that are new; a line still being written is kept for the next look."""
        try:
            if self._file and self._replaced(self._file):
                yield from self._rest(self._file)  # what the old file got before it was moved away
                self.close()
                self._known = None
            self._file = self._file or self._open()
            yield from self._rest(self._file)
        except OSError:  # it is not there yet, or a network file system will come back: the next look goes on
            self.close()

    def close(self) -> None:
        if self._file:
            self._file.close()
        self._file = None

    def _open(self) -> BinaryIO:
        file = open_plain(self.path)
        found = os.fstat(file.fileno())
        if not (self._known and os.path.samestat(found, self._known)):
            self._known, self._at = found, 0
        return file

    def _replaced(self, file: BinaryIO) -> bool:
        try:
            return not os.path.samestat(os.fstat(file.fileno()), self.path.stat())
        except FileNotFoundError:
            return True

    def _rest(self, file: BinaryIO) -> Iterator[bytes]:
        if os.fstat(file.fileno()).st_size < self._at:  # cut short: begin again
            self._at = 0
        file.seek(self._at)
        for line in lines(file):
            self._at = file.tell()
            yield line


def last_lines(path: Path, count: int, reach: int = 16384) -> list[str]:
    """The last `count` lines of a text file, of at most its last `reach` bytes; none if it cannot be read."""
    try:
        with open_plain(path) as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - reach))
            last = file.read(reach).decode(errors="replace").splitlines()[-count:]
            return [printable(line) for line in last]  # what code of a user's prints, and what neighbours said
    except OSError:
        return []


PATIENCE_SECONDS = 5.0
"""Seconds that a peer may wait for another before a person is told."""
ENDED = ("done", "left", "failed", "stopped", "restarting", "no answer")
"""States in which there is no process, or none that can be asked."""
BEFORE_ROUNDS = ("starting", "joining")
"""States of a peer that reads its data, or has not met its neighbours; one that is taken up is "starting", too."""


TOLD = {
    *("lost", "left", "certificates", "certificate_expires", "damaged", "conflict", "regressed", "release"),
    *("unrepeatable", "untold", "returning", "leaving"),
}
"""Names of the events of which a person is told in their own words."""


@dataclass
class Wait:
    """A wait for one cause: for whom, since when (Unix seconds), which of them were shown to a person, and, in a wait
    for a decision, how many members are missing."""

    awaited: tuple[events.Awaited, ...]
    since: float
    told: frozenset[str] = frozenset()
    shortage: events.Shortage | None = None

    def after(self, event: events.Waiting) -> "Wait":
        """Return the wait after an event: this one continued if any of its peers is still awaited, else a new one."""
        goes_on = {one.id for one in self.awaited} & {one.id for one in event.awaited}
        since, told = (self.since, self.told) if goes_on else (event.time, frozenset[str]())
        return Wait(event.awaited, since, told, event.shortage)

    def tell(self, now: float) -> tuple[events.Awaited, ...]:
        """Return the peers to show to a person now: all of them, once the wait is long and none was shown yet."""
        ids = {one.id for one in self.awaited}
        if now - self.since < PATIENCE_SECONDS or ids & self.told:
            return ()
        self.told |= ids
        return self.awaited


class PeerView:
    """One peer as its events show it: its history, and what it does at the moment.

    state: what the peer last said it does, or what became of its process: "starting",
    "restarting", "failed", "stopped".
    restarts: as its supervisor counts them; of a peer without one, its history says how often it was restarted.
    """

    def __init__(self, id: str) -> None:
        self.id, self.history = id, PeerHistory(id)
        self.state, self.round, self.restarts = "starting", 0, 0
        self.waits: dict[events.Cause, Wait] = {}
        self.links: dict[str, str] = {}
        self.failure: str | None = None
        """Why the process that runs now cannot go on."""

    def start(self) -> None:
        """Note that the peer's process is started, perhaps again; what it does is not known yet."""
        self.state, self.failure, self.waits, self.links = "starting", None, {}, {}

    def end(self, state: str) -> None:
        """Note that the peer's process has ended and is "done", "left", "failed", "stopped" or "restarting"."""
        self.state, self.waits = state, {}

    @property
    def completed(self) -> int:
        """How many rounds it has behind it."""
        return self.history.completed

    @property
    def waiting(self) -> list[str]:
        """Ids of all that it waits for, whatever the cause."""
        return list(dict.fromkeys(one.id for wait in self.waits.values() for one in wait.awaited))

    @property
    def shortage(self) -> events.Shortage | None:
        """How many members are missed, where too few are here to decide."""
        wait = self.waits.get("quorum")
        return wait.shortage if wait and wait.awaited else None

    def figure(self, headline: Headline, round: int | None = None) -> float | None:
        """The one that counts, after `round` (None: the newest); after one without an evaluation, that of before."""
        judged = self.history.evaluated(self.completed if round is None else round)
        return headline.value(judged) if judged else None

    def apply(self, event: events.Event) -> str | None:
        """Take one event in; return what a person should be told of it, if anything."""
        moved = self.history.moves
        self.history.apply(event)
        moves = self.history.moves
        if moved and not moves:
            self.links = {}  # that the links of the view before went down is no news
        match event:
            case events.StateChanged():
                self.state, self.round = event.state[: events.MAX_STATE_CHARACTERS], event.round or self.round
                if event.state == "joining":  # started by hand, after a process that waited
                    self.waits = {}
            case events.ViewDecided():
                self.waits, self.links = {}, {}  # links are made anew in each view
            case events.Departed():
                self.end("left")
                return f"{self.id} {event}"
            case events.Waiting():
                self.waits[event.cause] = self.waits.get(event.cause, Wait((), event.time)).after(event)
            case events.LinkChanged():
                return self._apply_link(event)
            case events.Failed():
                self.end("failed")
                self.failure = event.message
                return f"{self.id} failed: {event}"
            case events.Done():
                self.end("done")
            case events.Resumed() if moves:
                return None  # as all do: the change of view was told
            case events.Resumed() | events.Rewound() | events.CallerRefused():
                return f"{self.id} {event}"
            case events.Started() if event.schema > events.SCHEMA:
                newer = f"{event.schema}, newer than {events.SCHEMA}"
                return f"{self.id} tells events of version {newer}: some are not shown"
            case _ if event.name in TOLD:
                return f"{self.id}: {event}"
        return None

    def _apply_link(self, event: events.LinkChanged) -> str | None:
        before, state = self.links.get(event.neighbour), event.state
        self.links[event.neighbour] = state
        if self.history.moves or state in (before, "left") or (before in (None, "left") and state == "up"):
            return None
        return f"link {self.id} - {event.neighbour} is {state}" + (f" ({event.reason})" if event.reason else "")

    def overdue(self, now: float, somebody_works: bool = False) -> str | None:
        """Say once for whom the peer waits, when it has done so for a while (`now` in unix seconds).

        While another trains, a neighbour that sends nothing is no trouble: the others wait for the slowest. Where too
        few members are here to decide, that is told of all who wait for them together.
        """
        if self.shortage:
            return None
        due = {cause: wait for cause, wait in self.waits.items() if cause != "stalled" or not somebody_works}
        named = [str(one) for wait in due.values() for one in wait.tell(now)]
        return f"{self.id} waits for {', '.join(named)}" if named else None


OUTSIDE = ("lost", "expelled", "returning")
"""What peers do that are no members of the view."""
RECENT = 6
REMIND_SECONDS = 60.0
"""Seconds after which a decision that waits for members is reported again; this doubles with each report."""
News = tuple[str, events.Event]
"""A peer's id and its event."""
MAX_CLAIMED = 1000
"""How many views of one peer may wait for others that report the same."""
AT_A_TIME = 10_000
"""Events of the past that are taken in together: in memory all of them would be many times their files."""


class FederationView:
    """All peers of a run by what `update` is told of them.

    faulty: how many may lie about who is lost; more must say the same. None: no member can be lost.
    """

    unasked: Collection[str] = ()
    """Peers that tell nothing themselves."""

    def __init__(self, ids: Sequence[str], rounds: int, headline: Headline, faulty: int | None = 0):
        self.rounds, self.headline, self.ending = rounds, headline, False
        self._faulty, self._most = faulty, rounds
        self.peers = {id: PeerView(id) for id in ids}
        self.applied = 0
        """How many events were taken in so far: shows whether anything is new."""
        self.recent = deque[str](maxlen=RECENT)
        """The newest of what happened, each a line for a person."""
        self._later: list[View] = []
        """The views after the first that were reported."""
        self._claimed: dict[str, list[View]] = {id: [] for id in ids}
        """The later views that each peer reports."""
        self._remaining = Remaining()
        self._missed = frozenset[str]()
        """The members that were reported as missing for a decision."""
        self._remind_at = REMIND_SECONDS
        self._early_end: events.StoppedEarly | None = None
        """An early end that is not reported yet."""
        self._last_expiry: tuple[float, int] | None = None
        """When the certificates of the last warning expire, with its threshold in days. One is enough: peers whose
        certificates were made together warn together."""

    def update(self, news: Iterable[News], now: float) -> list[str]:
        """Take in what is new of all; return what to tell a person of it, and of waits. `now` in unix seconds."""
        news, told = iter(news), list[str]()
        while some := [*islice(news, AT_A_TIME)]:
            told += self.apply(some)
        told += self.apply(())
        self._remaining.see(self.round, now)
        works = any(peer.state in ("training", "evaluating") for peer in self.peers.values())
        overdue = [] if self.ending else [peer.overdue(now, works) for peer in self.present]
        told += [shown(line) for line in overdue if line]
        self.recent.extend(told)
        return told

    def apply(self, news: Iterable[News]) -> list[str]:
        """Take in some news; return what a person should be told of them."""
        news = [(id, event) for id, event in news if self._is_possible(event)]
        self.applied += len(news)
        changes = self._take_views([(id, event) for id, event in news if isinstance(event, events.ViewDecided)])
        # All are applied before any line is chosen: that a peer has finished may come later.
        heard = [(id, event, line) for id, event in news if (line := self.peers[id].apply(event))]
        told = [line for id, event, line in heard if not (self._expected(id, event) or self._told_before(event))]
        for _, event in news:
            if isinstance(event, events.StoppedEarly) and event.round < self.rounds:
                self.rounds, self._early_end = event.round, event
        return [*map(shown, changes + told + self._take_shortages(news))]  # a refused caller chooses its own words

    @property
    def views(self) -> Views:
        return Views(tuple(self.peers), self.rounds, tuple(self._later))

    @property
    def view(self) -> View:
        """The last that was decided, as far as it was reported."""
        return self._later[-1] if self._later else View(0, tuple(self.peers), first=0)

    @property
    def present(self) -> Sequence[PeerView]:
        """The members of the view."""
        return [self.peers[id] for id in self.view.members if id in self.peers]

    def status_of(self, id: str) -> str:
        """What a peer does: its state, or that it is lost, voted out or on its way back."""
        state = self.peers[id].state
        if id in self.view.members or state in ("done", "left"):
            return state
        if id in self.view.expelled:
            return "expelled"
        return "returning" if state == "joining" else "lost"

    def _take_views(self, decided: Iterable[tuple[str, events.ViewDecided]]) -> list[str]:
        """Changes of view, of which every peer tells: each is told once."""
        for id, event in decided:
            if event.number > self.view.number and len(self._claimed[id]) < MAX_CLAIMED:
                self._claimed[id].append(view_of_event(event))
        lines = []
        while agreed := self._agreed():
            lines.append(change_in_words(self.view, agreed))
            self._later.append(agreed)
            for id, views in self._claimed.items():
                self._claimed[id] = [one for one in views if one.number > agreed.number]
        return lines

    def _agreed(self) -> View | None:
        """The next view that more peers report than may lie, if there is one."""
        tellers = Counter(view for views in self._claimed.values() for view in {*views})
        able = {*self.view.members}.difference(self.unasked)
        liars = min(self._faulty or 0, len(able) - 2)  # of two, one may be left to tell it
        believed = [view for view, count in tellers.items() if count > liars]
        return min(believed, key=lambda view: view.number, default=None)

    @property
    def shortages(self) -> Sequence[events.Shortage]:
        """Decisions that wait for members, the one with most of them here first: a network may be cut in two."""
        found = {peer.shortage for peer in self.present if peer.shortage and peer.state not in ENDED}
        return sorted(found, key=lambda one: (-one.here, -one.seconds))

    def expiring(self, now: float) -> str:
        """Name the members whose certificates expire soon, the next first, and when that one does; empty if none do.
        `now` in unix seconds."""
        known = {peer.id: peer.history.certificate_expires for peer in self.present if peer.state not in ENDED}
        soon = sorted((at, id) for id, at in known.items() if at is not None and at - now < SOON_S)
        if not soon:
            return ""
        more = f"; that of {plural(len(soon) - 1, 'more peer')} within 30 days" if soon[1:] else ""
        return printable(f"the certificate of {soon[0][1]} {expiry_words(soon[0][0], now)}{more}")

    @property
    def refusals(self) -> Sequence[tuple[str, events.Awaited]]:
        """Peers that a neighbour refuses over its data, where neither has begun, each with the neighbour; two refuse
        each other once. In a later view the others may go on without them."""
        joining = [] if self.view.number else [peer for peer in self.peers.values() if peer.state in BEFORE_ROUNDS]
        waits = {peer.id: peer.waits["join"].awaited for peer in joining if "join" in peer.waits}
        mutual = [(id, one) for id, awaited in waits.items() for one in awaited if one.id in waits]
        refused = [(id, one) for id, one in mutual if events.MAKE_ALIKE_HINT in one.reason]
        return [*{frozenset((id, one.id)): (id, one) for id, one in refused[::-1]}.values()][::-1]

    def _take_shortages(self, news: Iterable[News]) -> list[str]:
        """Report that too few members are left to decide, as each of those says: once, then at growing intervals."""
        lines = []
        for id, event in news:
            if isinstance(event, events.Waiting) and (short := event.shortage):
                awaited = {one.id for one in event.awaited} & self.peers.keys()
                if awaited - self._missed or short.seconds >= self._remind_at:
                    self._missed |= awaited
                    self._remind_at = 2 * max(short.seconds, REMIND_SECONDS / 2)
                    lines.append(f"{id}: {event}")
        if self._missed and not self.shortages:
            self._missed, self._remind_at = frozenset(), REMIND_SECONDS
            lines.append("no decision waits for members any more")
        return lines

    def _told_before(self, event: events.Event) -> bool:
        """Whether this is the warning that another peer has just given; note that it is told now."""
        if not isinstance(event, events.CertificateExpires):
            return False
        before, self._last_expiry = self._last_expiry, (event.expires, event.days)
        return before == self._last_expiry

    def take_early_end(self) -> list[str]:
        """Report once that all peers end early, when all have completed the last round."""
        end = self._early_end if self.round >= self.rounds else None
        self._early_end = None if end else self._early_end
        return [shown(str(end))] if end else []

    def _is_possible(self, event: events.Event) -> bool:
        """Whether it can be of this federation: a peer may be compromised."""
        if isinstance(event, events.ViewDecided):
            among = {*event.members} <= self.peers.keys()
            return among and (len(event.members) == len(self.peers) if self._faulty is None else bool(event.members))
        if isinstance(event, events.StoppedEarly):
            return event.round > 0
        return not isinstance(event, events.RoundDone) or event.round <= self._most

    def _expected(self, id: str, event: events.Event) -> bool:
        """Return whether this is a link that goes down because one end has finished, or is in another view."""
        if not isinstance(event, events.LinkChanged):
            return False
        ends = (self.peers[id], self.peers.get(event.neighbour))
        if any(end is None or end.id not in self.view.members or end.history.view < self.view.number for end in ends):
            return True
        return self.ending or any(end is None or end.state in ("serving", "done") for end in ends)

    @property
    def round(self) -> int:
        """The last round that every peer has completed; 0 before."""
        return min((peer.completed for peer in self.present), default=0)

    def rounds_after(self, last: int) -> Sequence[int]:
        """The rounds after `last` that all peers have completed and that can be reported."""
        return range(last + 1, self.round + 1)

    def mean_figure(self, round: int) -> float | None:
        """The mean of the headline figure after `round`, over the peers that have one."""
        return mean(peer.figure(self.headline, round) for peer in self.present)

    def mean_loss(self, round: int) -> float | None:
        known = [peer.history.rounds.get(round) for peer in self.present]
        return mean(done.loss for done in known if done)

    def suspected_by(self, id: str) -> list[str]:
        """The neighbours that do not hear the peer now."""
        return [
            other.id
            for other in self.peers.values()
            if other.links.get(id) in SILENT_LINKS and other.state not in ENDED
        ]

    def seconds_left(self, now: float) -> float | None:
        """An estimate from the last rounds that were seen to end; None before there are two. `now` in unix seconds."""
        return self._remaining.seconds(self.rounds, now)


def faulty_of(spec: Spec) -> int | None:
    """How many members may lie about who is lost; None where no member can be."""
    # As with certificates: without them, too, all members of a view report it.
    return spec.tolerated(certificates=True) if spec.on_loss == "bypass" else None


class Federation(FederationView):
    """All peers of a run on this machine, followed through their `events.jsonl`."""

    def __init__(
        self, directory: Path, ids: Sequence[str], rounds: int, headline: Headline, faulty: int | None = 0
    ) -> None:
        super().__init__(ids, rounds, headline, faulty)
        self._tails = {id: Tail(directory / id / EVENTS) for id in ids}

    @classmethod
    def from_spec(cls, spec: Spec, directory: Path) -> Self:
        return cls(directory, spec.ids, spec.rounds, Headline.from_spec(spec), faulty_of(spec))

    def look(self, now: float) -> list[str]:
        """Read what is new; return what a person should be told of it. `now` in unix seconds."""
        return self.update((one for id in self.peers for one in self._news(id)), now)

    def look_at(self, id: str) -> list[str]:
        """Read what is new of one peer."""
        return self.apply(self._news(id))

    def _news(self, id: str) -> Iterator[News]:
        return ((id, event) for event in events.read_events(self._tails[id].lines()))

    def last_refusals(self) -> list[str]:
        """Say which peers wait for one that refuses them, by what they last wrote: one that runs says it only once."""
        with closing(self):
            self.look(0.0)
        return [shown(f"{id} was last heard of waiting for {other}") for id, other in self.refusals]

    def forget_past(self) -> None:
        """Take in what an earlier run left, without telling of it or taking its states for the present."""
        self.look(0.0)
        for peer in self.peers.values():
            peer.start()
        self._remaining.begin(self.round)

    def close(self) -> None:
        for tail in self._tails.values():
            tail.close()
