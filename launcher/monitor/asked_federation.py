"""All peers of a run that somebody else has started: by what they answer when they are asked."""

from collections.abc import Collection, Mapping, Sequence

from launcher.headline import Headline, mean
from launcher.monitor.federation_view import FederationView
from launcher.monitor.peer_view import PeerView
from launcher.monitor.status_feed import events
from peer.network.transport.asking import Answer, PeerStatus
from peer.telemetry.events import Event, LinkChanged, StateChanged, ViewDecided
from peer.text import printable

SILENCE = 10.0
"""Seconds after which peers that have all fallen silent are taken to be gone."""
OVER = ("done", "failed")
DIALS_OUT = "dials out"
"""The state of a peer that nobody can ask, as long as it is not known to be done."""


class AskedFederation(FederationView):
    """All peers of a run, followed by their own words.

    A peer that has finished goes, and answers nobody. It is done if it was last seen serving, or a neighbour has heard
    from it that the last round is on its disk.

    unasked: peers that only dial out. Of these their neighbours tell the last round that is on their disks.
    """

    def __init__(self, ids: Sequence[str], rounds: int, headline: Headline, unasked: Collection[str] = ()):
        super().__init__(ids, rounds, headline)
        self.unasked = unasked
        for id in unasked:
            self.peers[id].state = DIALS_OUT
        self._silent: dict[str, str] = {}
        """By id, why a peer does not answer."""
        self._durable = dict.fromkeys(ids, -1)
        self._heard: float | None = None
        """When somebody answered last, in unix seconds."""

    def hear(self, answers: Mapping[str, Answer], now: float) -> list[str]:
        """Takes in some peers' answers; what a person should be told of them. `now` in unix seconds."""
        said = {id: answer for id, answer in answers.items() if isinstance(answer, PeerStatus)}
        lines = [self._met(id) for id in said if self._silent.pop(id, None)]
        if said:
            self._heard = now
        for status in said.values():
            self._remember(status)
            self.rounds = min(self.rounds, max(status.rounds, 1))  # fewer once they have agreed to end early
        for id in self.unasked:
            self._hear_of(id)
        news = [(id, one) for id, status in said.items() for one in self._events(id, status, now)]
        unmet = any(peer.state == "starting" for peer in self.present)
        lines += self.take(news, now)
        if unmet:  # how far all are was not known before, and says nothing of when their last round ended
            self._remaining.begin(self.round)
        for id, answer in answers.items():
            if isinstance(answer, str) and (line := self._miss(id, answer)):
                lines.append(line)
        return lines

    def is_over(self, id: str) -> bool:
        """Whether a peer has ended for good, as far as anybody can tell."""
        return self.peers[id].state in OVER

    def gone(self, now: float) -> bool:
        """Whether everybody has ended, or nobody has answered for a while."""
        silent = self._heard is not None and now - self._heard > SILENCE
        return silent or all(self.is_over(peer.id) for peer in self.present)

    @property
    def met(self) -> bool:
        """Whether anybody has ever answered."""
        return self._heard is not None

    @property
    def unfinished(self) -> list[str]:
        return [peer.id for peer in self.present if peer.state != "done"]

    @property
    def outside(self) -> list[str]:
        """Who was lost, and the others have gone on without."""
        return [id for id in self.peers if id not in self.view.members]

    @property
    def round(self) -> int:
        """The last round that every peer has completed; 0 before."""
        return min((peer.round if peer.id in self.unasked else peer.completed for peer in self.present), default=0)

    def rounds_after(self, last: int) -> Sequence[int]:
        """Nobody was asked in each round: only the newest."""
        return [self.round] if self.round > last else []

    def mean_figure(self, round: int) -> float | None:
        """Of what each peer said last: those ahead of the slowest were not asked in its round."""
        return mean(peer.figure(self.headline) for peer in self.present)

    def _met(self, id: str) -> str:
        return f"{id} answers again" if self.peers[id].round else f"{id} answers"

    def _remember(self, status: PeerStatus) -> None:
        for link in status.neighbours:
            if link.id in self._durable:
                self._durable[link.id] = max(self._durable[link.id], link.durable)

    def _events(self, id: str, status: PeerStatus, now: float) -> Sequence[Event]:
        """Of a view it is told who is not in it; whether it was planned, and why, nobody says here."""
        if status.view <= self.peers[id].view:
            return events(status, self.peers[id], self.headline, now)
        told = events(status, PeerView(id), self.headline, now)
        members = tuple(id for id in self.peers if id not in status.outside)
        there = [one for one in told if not (isinstance(one, LinkChanged) and one.state == "joining")]
        return [
            ViewDecided(
                number=status.view,
                members=members,
                first=status.first,
                planned=False,
                entrants=(),
                reason="",
                time=now,
            ),
            StateChanged(state="joining", round=status.round, time=now),
            *there,
        ]

    def _hear_of(self, id: str) -> None:
        """What the neighbours of a peer that nobody can ask tell of it."""
        peer = self.peers[id]
        peer.round = max(0, self._durable[id])
        if peer.round >= self.rounds:
            peer.end("done")

    def _miss(self, id: str, why: str) -> str | None:
        """A peer does not answer; what a person should be told of that, once."""
        peer = self.peers[id]
        if peer.state in ("serving", *OVER) or self._durable[id] >= self.rounds:
            peer.end("failed" if peer.state == "failed" else "done")
            return None
        peer.end("no answer")
        before, self._silent[id] = self._silent.get(id), why
        return None if before == why else printable(f"{id} does not answer: {why}")
