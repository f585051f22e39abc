"""All peers of a run, as the launcher sees them: by the events that it hears of them, whoever brings these."""

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from launcher.headline import Headline, mean
from launcher.monitor.peer_view import ENDED, SILENT, PeerView
from launcher.monitor.tail import Tail
from launcher.views import Views, change, told
from peer.telemetry.events import (
    Event,
    LinkChanged,
    RoundDone,
    Shortage,
    StoppedEarly,
    ViewDecided,
    Waiting,
    read_event,
)
from peer.telemetry.remaining import Remaining
from peer.telemetry.results import objects
from peer.text import printable
from peer.views.view import View

OUTSIDE = ("lost", "expelled", "returning")
"""What peers do that are no members of the view."""
REMINDED = 60.0
"""Seconds after which it is told once more that a decision waits for members; then after twice as many, and so on."""
News = tuple[str, Event]
"""Whose event, and the event."""


class FederationView:
    """All peers of a run by what `take` is told of them."""

    def __init__(self, ids: Sequence[str], rounds: int, headline: Headline):
        self.rounds, self.headline, self.ending = rounds, headline, False
        self._most = rounds
        self.peers = {id: PeerView(id) for id in ids}
        self.listeners: list[Callable[[Sequence[News]], None]] = []
        """Who else is told of the news."""
        self._later: list[View] = []
        """The views after the first of which somebody has told."""
        self._remaining = Remaining()
        self._missed = frozenset[str]()
        """The members of whom was told that a decision waits for them."""
        self._remind_at = REMINDED

    def take(self, news: Iterable[News], now: float) -> list[str]:
        """Takes in what is new of all; what a person should be told of it, and of waits. `now` in unix seconds."""
        told = self.take_in(news)
        self._remaining.see(self.round, now)
        works = any(peer.state in ("training", "evaluating") for peer in self.peers.values())
        overdue = [] if self.ending else [peer.overdue(now, works) for peer in self.present]
        return told + [printable(line) for line in overdue if line]

    def take_in(self, news: Iterable[News]) -> list[str]:
        """Takes in some news; what a person should be told of them."""
        news = [(id, event) for id, event in news if self._is_possible(event)]
        for listener in self.listeners:
            listener(news)
        changes = self._take_views([event for _, event in news if isinstance(event, ViewDecided)])
        # All are heard before any line is chosen: who has finished may be told later.
        heard = [(id, event, line) for id, event in news if (line := self.peers[id].hear(event))]
        # A refused caller chooses its own words.
        told = [printable(line) for id, event, line in heard if not self._expected(id, event)]
        ends = self._take_end([event for _, event in news if isinstance(event, StoppedEarly)])
        return changes + told + self._take_shortages(news) + ends

    @property
    def views(self) -> Views:
        return Views(tuple(self.peers), self.rounds, tuple(self._later))

    @property
    def view(self) -> View:
        """The last that was decided, as far as anybody has told."""
        return self._later[-1] if self._later else View(0, tuple(self.peers), first=0)

    @property
    def present(self) -> Sequence[PeerView]:
        """The members of the view."""
        return [self.peers[id] for id in self.view.members if id in self.peers]

    def doing(self, id: str) -> str:
        """What a peer does: its state, or that it is lost, voted out or on its way back."""
        state = self.peers[id].state
        if id in self.view.members or state in ("done", "left"):
            return state
        if id in self.view.expelled:
            return "expelled"
        return "returning" if state == "joining" else "lost"

    def _take_views(self, decided: Iterable[ViewDecided]) -> list[str]:
        """Changes of view, of which every peer tells: each is told once."""
        lines = []
        for event in sorted(decided, key=lambda event: event.number):
            if event.number > self.view.number:
                before = self.view
                self._later.append(told(event))
                what = change(before, self.view) or "what was played of them is void"
                why = f" ({event.reason})" if event.reason else ""
                lines.append(printable(f"from round {event.first} on: {what}{why}; view {event.number}"))
        return lines

    @property
    def shortages(self) -> Sequence[Shortage]:
        """Of those who wait for members to decide, the one of whom most are here first: a network may be cut in two."""
        found = {peer.shortage for peer in self.present if peer.shortage and peer.state not in ENDED}
        return sorted(found, key=lambda one: (-one.here, -one.seconds))

    def _take_shortages(self, news: Iterable[News]) -> list[str]:
        """That members are too few to decide, of which each that is left tells: told once, again ever more seldom."""
        lines = []
        for id, event in news:
            if isinstance(event, Waiting) and (short := event.shortage):
                awaited = {one.id for one in event.awaited}
                if awaited - self._missed or short.seconds >= self._remind_at:
                    self._missed |= awaited
                    self._remind_at = 2 * max(short.seconds, REMINDED / 2)
                    lines.append(printable(f"{id}: {event}"))
        if self._missed and not self.shortages:
            self._missed, self._remind_at = frozenset(), REMINDED
            lines.append("no decision waits for members any more")
        return lines

    def _take_end(self, agreed: Sequence[StoppedEarly]) -> list[str]:
        """That all peers end early, which each of them says: told once."""
        new = [event for event in agreed if event.round < self.rounds]
        if new:
            self.rounds = new[0].round
        return [printable(str(event)) for event in new[:1]]

    def _is_possible(self, event: Event) -> bool:
        """Whether it can be of this federation: who writes it may have been taken over."""
        match event:
            case RoundDone():
                return event.round <= self._most
            case ViewDecided():
                return {*event.members} <= self.peers.keys()
        return True

    def _expected(self, id: str, event: Event) -> bool:
        """Whether it is a link that goes down because one of its two ends has finished, or is in another view."""
        if not isinstance(event, LinkChanged):
            return False
        ends = (self.peers[id], self.peers.get(event.neighbour))
        if any(end is None or end.id not in self.view.members or end.view < self.view.number for end in ends):
            return True
        return self.ending or any(end is None or end.state in ("serving", "done") for end in ends)

    @property
    def round(self) -> int:
        """The last round that every peer has completed; 0 before."""
        return min((peer.completed for peer in self.present), default=0)

    def rounds_after(self, last: int) -> Sequence[int]:
        """Those completed by all after the round `last`, of which there is something to tell."""
        return range(last + 1, self.round + 1)

    def mean_figure(self, round: int) -> float | None:
        """Mean over the peers that have one of the headline figure after `round`."""
        return mean(peer.figure(self.headline, round) for peer in self.present)

    def mean_loss(self, round: int) -> float | None:
        return mean(peer.history[round].loss for peer in self.present if round in peer.history)

    def doubted(self, id: str) -> list[str]:
        """The neighbours that do not hear the peer now."""
        return [other.id for other in self.peers.values() if other.links.get(id) in SILENT and other.state not in ENDED]

    def seconds_left(self, now: float) -> float | None:
        """An estimate from the last rounds that were seen to end; None before there are two. `now` in unix seconds."""
        return self._remaining.seconds(self.rounds, now)


class Federation(FederationView):
    """All peers of a run on this machine, followed through their `events.jsonl`."""

    def __init__(self, directory: Path, ids: Sequence[str], rounds: int, headline: Headline):
        super().__init__(ids, rounds, headline)
        self._tails = {id: Tail(directory / id / "events.jsonl") for id in ids}

    def look(self, now: float) -> list[str]:
        """Reads what is new; what a person should be told of it. `now` in unix seconds."""
        return self.take([one for id in self.peers for one in self._news(id)], now)

    def look_at(self, id: str) -> list[str]:
        """Reads what is new of one peer."""
        return self.take_in(self._news(id))

    def _news(self, id: str) -> list[News]:
        events = map(read_event, objects(self._tails[id].lines()))
        return [(id, event) for event in events if event]

    def forget_past(self) -> None:
        """Takes in what an earlier run left, without telling of it or taking its states for the present."""
        self.look(0.0)
        for peer in self.peers.values():
            peer.start()
        self._remaining.begin(self.round)

    def close(self) -> None:
        for tail in self._tails.values():
            tail.close()
