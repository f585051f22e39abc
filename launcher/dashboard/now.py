"""What all peers do at one moment, and what has changed since another."""

from collections import defaultdict
from dataclasses import dataclass, field
from typing import Any, Self

from launcher.dashboard.signs import sign_of
from launcher.monitor.federation_view import FederationView
from launcher.monitor.peer_view import ENDED, SILENT
from launcher.page.sectors import neighbours
from peer.text import duration, number, plural, printable

Row = dict[str, Any]


@dataclass(frozen=True)
class Now:
    """peers: by id what each does. order: as they sit on the ring. broken: neighbours of whom one does not hear the
    other. said: how far all are."""

    peers: dict[str, Row] = field(default_factory=dict)
    order: tuple[str, ...] = ()
    broken: tuple[tuple[str, str], ...] = ()
    said: str = ""

    @classmethod
    def of(cls, federation: FederationView, order: tuple[str, ...], now: float) -> Self:
        """`now` in unix seconds."""
        doubters = defaultdict[str, list[str]](list)
        for peer in federation.peers.values():
            for other, state in peer.links.items() if peer.state not in ENDED else ():
                if state in SILENT:
                    doubters[other].append(peer.id)
        rows = {id: _row(federation, id, doubters[id]) for id in order}
        pairs = neighbours(order)
        broken = [pair for pair in pairs if pair[0] in doubters[pair[1]] or pair[1] in doubters[pair[0]]]
        return cls(rows, order, tuple(broken), _said(federation, now))

    def since(self, before: "Now") -> Row:
        """What is different, as JSON; empty where nothing is."""
        news: Row = {}
        if changed := [row for id, row in self.peers.items() if before.peers.get(id) != row]:
            news["peers"] = changed
        if (self.order, self.broken) != (before.order, before.broken):
            news |= {"order": self.order, "pairs": neighbours(self.order), "broken": self.broken}
        if self.said != before.said:
            news["said"] = self.said
        return news


def _row(federation: FederationView, id: str, doubters: list[str]) -> Row:
    peer = federation.peers[id]
    sign, tone, words = sign_of(federation, id, doubters)
    return {
        "peer": id,
        "sign": sign,
        "tone": tone,
        "words": words,
        "round": peer.round or peer.completed,
        "figure": number(peer.figure(federation.headline)),
        "restarts": peer.restarts,
    }


def _said(federation: FederationView, now: float) -> str:
    left = federation.seconds_left(now)
    ending = f", {duration(left)} left" if left else ""
    view = f", view {federation.view.number}" if federation.view.number else ""
    said = f"Round {federation.round} of {federation.rounds}, {plural(len(federation.peers), 'peer')}{view}{ending}."
    return " ".join([said, *(f"{printable(str(short)).capitalize()}." for short in federation.shortages[:1])])
