"""One member in a simulation: what it keeps in memory, and what is on its disk."""

import json
from dataclasses import dataclass, field
from typing import Any

from peer.views.acceptor import Acceptor, Standing
from peer.views.messages import Ballot
from peer.views.proposal import Proposal
from peer.views.view import Chain, View

STALENESS = 4
"""Rounds that a peer may be ahead of the least durable one of which it knows."""


@dataclass
class Machine:
    """A restart goes back to `disk` and `kept`; `write` is what the driver does before an answer leaves."""

    id: str
    acceptor: Acceptor
    lives: int = 0
    """The number of the view in which it lives, or has last lived."""
    kept: set[int] = field(default_factory=set)
    """Rounds after which it has the state on disk; that before round 0 is nowhere lost."""
    started: int = -1
    durable: int = -1
    """The last round to whose end it can go back for certain."""
    told: int = -1
    """The last of which others may have heard."""
    promised: int = -1
    """To which round it has last promised to be able to go back."""
    heard: dict[str, int] = field(default_factory=dict)
    """What others that live in that view have told, as far as it has come here."""
    asks: dict[str, int] = field(default_factory=dict)
    """Who asks to be taken in after the current view, and with which private state."""
    polled: dict[str, frozenset[str]] = field(default_factory=dict)
    """To whose voting out others have said that they consent."""
    up: bool = True
    proposal: Proposal | None = None
    above: Ballot | None = None
    waiting: set[str] = field(default_factory=set)
    """Members whose answers the proposal waits for."""
    disk: dict[str, Any] = field(default_factory=dict)

    @property
    def chain(self) -> Chain:
        return self.acceptor.chain

    @property
    def inside(self) -> bool:
        return self.id in self.chain.current.members

    @property
    def out(self) -> frozenset[str]:
        """Who is to be voted out, as far as it knows."""
        said = self.polled | {self.id: self.acceptor.consents}
        by = {id: [one for one in said if id in said[one] and one != id] for id in said[self.id]}
        return frozenset(id for id in by if self.chain.current.is_quorum(by[id]))

    @property
    def view(self) -> View:
        return self.chain.since(self.lives - 1)[0]

    @property
    def following(self) -> View | None:
        """The view to live in next, if there is one."""
        return self.chain.after(self.lives, self.id) if self.lives < self.chain.current.number else None

    @property
    def tells(self) -> bool:
        """Whether others hear anything of it in its view."""
        return not self.is_over

    @property
    def is_over(self) -> bool:
        """Whether what it begins in its view is void, or done without it."""
        return self.chain.is_over(self.lives, self.id)

    @property
    def newest(self) -> int:
        """The last round of its view that is on disk."""
        return max([self.view.first - 1, *self.kept])

    @property
    def last(self) -> int | None:
        """The last round that is played in its view, once that is known."""
        later = self.chain.since(self.lives)
        return later[0].first - 1 if later and not self.is_over else None

    @property
    def ceiling(self) -> int:
        """The last round of those on its disk that is not void."""
        ceiling = self.chain.ceiling(self.lives)
        return max([-1, *self.kept, self.told]) if ceiling is None else ceiling

    @property
    def private(self) -> int:
        """After which round the private state stands with which it would be taken in."""
        return max([-1, *(round for round in self.kept if round <= self.ceiling)])

    @property
    def standing(self) -> Standing:
        following = self.following
        if following and self.id in dict(following.entrants):
            before = following.first - 1
            return Standing(before, following.first, before, dict(following.entrants)[self.id])
        durable = min(self.told, self.ceiling)
        if not (entry := self.entry):
            return Standing(durable, 0, self.started, -1)
        return Standing(durable, entry.first, self.started, dict(entry.entrants)[self.id])

    @property
    def entry(self) -> View | None:
        """The view by which it was last taken in: it lives in that one still, or in a later one."""
        return max(
            (view for view in self.past if self.id in dict(view.entrants)), key=lambda view: view.number, default=None
        )

    @property
    def past(self) -> tuple[View, ...]:
        """The views to the one in which it lives."""
        return self.chain.since(-1)[: self.lives + 1]

    # Playing.

    def have_played(self, rounds: int) -> None:
        """So many, and nothing of them is done away with."""
        self.kept, self.started = {*range(rounds)}, rounds - 1
        self.durable = self.told = rounds - 2

    @property
    def may_start(self) -> bool:
        if self.acceptor.held or self.is_over or self.started == self.last:
            return False
        return self.started < min([self.told, *self.heard.values()]) + STALENESS

    def save(self) -> None:
        """The next round that was played is on disk; of the last one it is made sure that it is whole."""
        if self.newest < self.started - (self.started != self.last):
            self.kept.add(self.newest + 1)
        self.durable = max(self.durable, self.certain())
        self.announce()
        self.prune()

    def certain(self) -> int:
        return self.newest if self.newest == self.last else max(self.view.first - 1, self.newest - 1)

    def read_back(self) -> int:
        """What is certain after a restart: never less than was told before."""
        return self.newest

    def announce(self) -> None:
        """Others may hear of what is on disk; of void rounds they never do."""
        if not self.is_over:
            self.told = max(self.told, self.tellable())

    def tellable(self) -> int:
        return min(self.durable, self.promised) if self.acceptor.held else self.durable

    def prune(self) -> None:
        """Does away with what nobody can be to go back to."""
        least = min([self.told, *(self.heard.get(id, -1) for id in self.view.members if id != self.id)])
        last_resort = max((round for round in self.kept if round <= least), default=-1)
        self.kept = {round for round in self.kept if round >= last_resort}

    # Moving.

    def move(self) -> None:
        """Into the next view, as soon as there is nothing left to do in the one before."""
        following = self.following
        if self.last is not None and self.durable < self.last:
            return
        if not following:
            self.leave()
            return
        entrants = dict(following.entrants)
        last = entrants.get(self.id, self.ceiling)
        self.kept = {round for round in self.kept if round <= last}
        fresh, self.lives = self.is_over, following.number
        self.started = self.durable = following.first - 1
        if fresh:
            self.told = self.durable
        self.heard = self.known_before()
        self.announce()
        self.write()

    def leave(self) -> None:
        """Its last view is over: what it has stays, and counts if it comes back."""
        if self.last is not None:
            self.lives += 1
            self.write()

    def known_before(self) -> dict[str, int]:
        """What the view itself tells: only of one that is not planned all have the round before it on disk."""
        return {} if self.view.planned else self.all_have()

    def all_have(self) -> dict[str, int]:
        return dict.fromkeys((id for id in self.view.members if id != self.id), self.view.first - 1)

    # Dying and starting again.

    def write(self) -> None:
        self.disk = {"acceptor": self.acceptor.state_dict(), "lives": self.lives, "promised": self.promised}

    def restart(self, damaged: bool = False) -> None:
        """Rounds that were played after the last checkpoint are played again; a damaged one is gone."""
        kept = json.loads(json.dumps(self.disk))
        self.acceptor = Acceptor.load(kept["acceptor"])
        self.lives, self.promised = kept["lives"], kept["promised"]
        if damaged and self.inside and self.newest > self.durable:
            self.kept.discard(self.newest)
        self.durable = self.read_back()
        self.started, self.told = self.newest, min(self.tellable(), self.ceiling)
        self.heard, self.asks, self.polled = self.known_before(), {}, {}
        self.up, self.proposal, self.above = True, None, None
