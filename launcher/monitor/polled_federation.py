"""All peers of a run that was started elsewhere: by what they answer when they are polled.

What a peer says of itself is turned into the events that it would have written since it was asked last. So the live
view knows no difference.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from typing import Self

from launcher.headline import Headline, mean
from launcher.monitor.federation import FederationView, PeerView, faulty_of
from peer.network.operator_client import CLOSED_AT_ONCE, UNKNOWN_HOST, LinkStatus, PeerStatus, StatusAnswer
from peer.spec.federation import Spec
from peer.telemetry.events import Awaited, Cause, Event, LinkChanged, RoundDone, StateChanged, ViewDecided, Waiting
from peer.text import printable
from peer.views.view import View

INSIDE = (
    "`docker exec` or `kubectl exec` gives this command inside containers or pods, whose names are known only there "
    "(docs/running.md)"
)


def advice(answers: Iterable[StatusAnswer], secure: bool) -> str:
    """What may be the matter where peers do not answer; empty if it is not known. secure: asked with certificates."""
    silent = {answer for answer in answers if isinstance(answer, str)}
    if UNKNOWN_HOST in silent:
        return f"{INSIDE}."
    if not secure and silent & {CLOSED_AT_ONCE, "connection closed", "connection reset"}:
        return "Peers that have certificates answer only to certificates: give theirs with --certs or --tls."
    return ""


ROUND_OVER = ("ready", "serving", "done")
"""States in which the round that a peer names is over."""


def in_trouble(status: PeerStatus) -> list[LinkStatus]:
    """The neighbours that a peer does not hear, although it should."""
    return [link for link in status.neighbours if link.state not in ("up", "left")]


def events(status: PeerStatus, before: PeerView, headline: Headline, now: float) -> list[Event]:
    """What has happened to a peer since it was `before`, as far as its status tells it. `now` in unix seconds."""
    told = (_state(status, before), _links(status, before), _waits(status, before), _rounds(status, before, headline))
    return [replace(one, time=now) for one in chain.from_iterable(told)]


def _state(status: PeerStatus, before: PeerView) -> Sequence[Event]:
    """Said again, it would be another start of a peer that joins."""
    known = (before.state, before.round) == (status.state, status.round)
    return [] if known else [StateChanged(state=status.state, round=status.round)]


def _links(status: PeerStatus, before: PeerView) -> Sequence[Event]:
    """A link that has never been up is no news; one that is not told of any more is over."""
    told = [one for one in status.neighbours if one.state != "joining" or one.id in before.links]
    over = before.links.keys() - {one.id for one in status.neighbours}
    return [
        *(LinkChanged(neighbour=one.id, state=one.state, reason=one.reason) for one in told),
        *(LinkChanged(neighbour=id, state="left") for id in sorted(over)),
    ]


def _waits(status: PeerStatus, before: PeerView) -> Sequence[Event]:
    """A peer that joins waits for its neighbours, and later on for those that it has lost; and for members, where too
    few are here to decide."""
    awaited = tuple(Awaited(one.id, one.address, one.reason) for one in in_trouble(status))
    cause: Cause = "join" if status.state == "joining" else "stalled"
    waits = [Waiting(cause=cause, awaited=awaited, sentence="")]
    waits += [Waiting.for_quorum(status.shortage, status.awaited)] if status.shortage else []
    over = before.waits.keys() - {one.cause for one in waits}
    return waits + [Waiting(cause=other, awaited=(), sentence="") for other in sorted(over)]


def _rounds(status: PeerStatus, before: PeerView, headline: Headline) -> Sequence[Event]:
    """The event of the last round; those in between were not asked for."""
    done = status.round if status.state in ROUND_OVER else status.round - 1
    if done < 1:
        return []
    told = RoundDone(round=done, **headline.fields(status.figure), bytes_sent=status.bytes_sent)
    known = before.history.rounds.get(done)
    return [] if known and replace(known, time=told.time) == told else [told]


SILENCE_SECONDS = 10.0
"""Seconds after which peers that have all fallen silent are taken to be gone."""
OVER = ("done", "failed")
DIALS_OUT = "dials out"
"""The state of a peer that cannot be asked, as long as it is not known to be done."""


class PolledFederation(FederationView):
    """All peers of a run, followed by their own words.

    A peer that has finished answers no more. It is done if it was last seen serving, or a neighbour has heard
    from it that the last round is on its disk.

    unasked: peers that only dial out. Of these their neighbours tell the last round that is on their disks.
    """

    def __init__(
        self,
        ids: Sequence[str],
        rounds: int,
        headline: Headline,
        unasked: Collection[str] = (),
        faulty: int | None = 0,
    ) -> None:
        super().__init__(ids, rounds, headline, faulty)
        self.unasked = unasked
        for id in unasked:
            self.peers[id].state = DIALS_OUT
        self._silent: dict[str, str] = {}
        """Why peers do not answer, by id."""
        self._durable = dict.fromkeys(ids, -1)
        self.silence: float | None = None
        """Seconds since any peer answered, as far as peers were asked; None: none ever has."""
        self._looked = 0.0

    @classmethod
    def from_spec(cls, spec: Spec) -> Self:
        unasked = [member.id for member in spec.ring if not member.address]
        return cls(spec.ids, spec.rounds, Headline.from_spec(spec), unasked, faulty_of(spec))

    def record(self, answers: Mapping[str, StatusAnswer], now: float) -> list[str]:
        """Take in some peers' answers; return what a person should be told of them. `now` in unix seconds."""
        said = {id: answer for id, answer in answers.items() if isinstance(answer, PeerStatus)}
        back = [id for id in said if self._silent.pop(id, None)]
        lines = [f"{id} answers{' again' if self.peers[id].round else ''}" for id in back]
        if said:
            self.silence = 0.0
        elif self.silence is not None:
            self.silence += min(max(now - self._looked, 0.0), 1.0)  # more pass where the watching was suspended
        self._looked = now
        for status in said.values():
            self._remember(status)
            self.rounds = min(self.rounds, max(status.rounds, 1))  # fewer once they have agreed to end early
        for id in self.unasked:
            self._apply_durable(id)
        news = [(id, one) for id, status in said.items() for one in self._events(id, status, now)]
        unmet = any(peer.state == "starting" for peer in self.present)
        lines += self.update(news, now)
        if unmet:  # how far all are was not known before, and says nothing of when their last round ended
            self._remaining.begin(self.round)
        for id, answer in answers.items():
            if isinstance(answer, str) and (line := self._miss(id, answer)):
                lines.append(line)
        return lines

    def is_over(self, id: str) -> bool:
        """Whether a peer has ended for good, as far as is known."""
        return self.peers[id].state in OVER

    def all_unreachable(self) -> bool:
        """Whether all have ended, or none has answered for a while."""
        return (self.silence or 0.0) > SILENCE_SECONDS or all(self.is_over(peer.id) for peer in self.present)

    @property
    def unfinished(self) -> list[str]:
        return [peer.id for peer in self.present if peer.state != "done"]

    @property
    def outside(self) -> list[str]:
        """Peers that are not in the view."""
        return [id for id in self.peers if id not in self.view.members]

    @property
    def round(self) -> int:
        """The last round that every peer has completed; 0 before."""
        return min((peer.round if peer.id in self.unasked else peer.completed for peer in self.present), default=0)

    def rounds_after(self, last: int) -> Sequence[int]:
        """The newest round, as peers are not asked in every round."""
        return [self.round] if self.round > last else []

    def mean_figure(self, round: int) -> float | None:
        """The mean of each peer's last figure, as peers ahead of the slowest were not asked in its round."""
        return mean(peer.figure(self.headline) for peer in self.present)

    def _remember(self, status: PeerStatus) -> None:
        self.peers[status.id].history.certificate_expires = status.certificate_expires
        for link in status.neighbours:
            if link.id in self._durable:
                self._durable[link.id] = max(self._durable[link.id], link.durable)

    def _events(self, id: str, status: PeerStatus, now: float) -> Sequence[Event]:
        """The events that a status implies. It says who is not in a view, but not whether it was planned, nor why. Of
        a view without it a peer does not tell: its members do."""
        members = tuple(id for id in self.peers if id not in status.outside)
        decided = ViewDecided(**View(status.view, members, status.first).as_json(), time=now)
        if status.view <= self.peers[id].history.view or id not in members or not self._is_possible(decided):
            return events(status, self.peers[id], self.headline, now)
        told = events(status, PeerView(id), self.headline, now)
        there = [one for one in told if not (isinstance(one, LinkChanged) and one.state == "joining")]
        return [decided, StateChanged(state="joining", round=status.round, time=now), *there]

    def _apply_durable(self, id: str) -> None:
        """Apply what the neighbours of a peer that cannot be asked tell of it."""
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
