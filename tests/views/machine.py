"""One member in a simulation: what it keeps in memory, and what is on its disk."""

import json
from dataclasses import dataclass, field
from typing import Any

from peer.views.acceptor import Acceptor, Standing
from peer.views.messages import Ballot
from peer.views.proposal import Proposal
from peer.views.view import Chain, View


@dataclass
class Machine:
    """A restart goes back to `disk`; `write` is what the driver does before an answer leaves."""

    id: str
    acceptor: Acceptor
    durable: int | None = -1
    started: int = -1
    private: int = -1
    entered: int = -1
    """After which round the state stands with which it was taken in."""
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
    def base(self) -> int:
        """The last round whose end it has for certain, or will be given."""
        return self.entered if self.durable is None else self.durable

    @property
    def inside(self) -> bool:
        return self.id in self.chain.current.members

    def write(self) -> None:
        kept = {"durable": self.durable, "entered": self.entered, "private": self.private}
        self.disk = {"acceptor": self.acceptor.state_dict(), **kept}

    def restart(self) -> None:
        """Rounds that were played after the last checkpoint are played again."""
        kept = json.loads(json.dumps(self.disk))
        self.acceptor = Acceptor.load(kept["acceptor"])
        self.durable, self.entered, self.private = kept["durable"], kept["entered"], kept["private"]
        self.started = self.base
        self.up, self.proposal, self.above = True, None, None

    @property
    def standing(self) -> Standing:
        return Standing(self.durable, self.started, self.private)

    def enter(self, views: tuple[View, ...]) -> None:
        """Goes on in views that it did not know."""
        for view in views:
            if self.id in dict(view.entrants):
                self.durable, self.started, self.entered = None, view.first - 1, view.first - 1
            elif not view.planned and self.id in view.members:
                self.started = view.first - 1
                self.durable = min(view.first - 1, -1 if self.durable is None else self.durable)
