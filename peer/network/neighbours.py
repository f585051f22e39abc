"""Which peers this one may exchange messages with, in which rounds (`Edges`, rule R7), and what it knows about each.

When the ring is reordered, an edge stays open for repeats until both of its ends have a later round on disk than
the last one in which it was used. `Edges.retire` says which of the two forgets it first, and how the other learns of
it. Membership itself is decided in `peer/views/`, not here.

A `Neighbour` has four parts, which change on different events: whether the two reach each other (`Reach`: dialling,
handshakes), whether it is alive (`SignsOfLife`: heartbeats), whether it accepts what is sent to it (`Delivery`: the
tensor stream), and how far it is in the rounds that it shares with this peer (`Progress`).
"""

import asyncio
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Literal

from peer.errors import FailedError
from peer.network.transport import FORBIDDEN, NO_ROUTE, REFUSED, TIMED_OUT
from peer.network.wire.messages import Obstacle, Resources
from peer.tasks import News
from peer.topology import unreachable_pair_problem

CLOSED_PORT_REASONS = (REFUSED, TIMED_OUT, NO_ROUTE, FORBIDDEN)
"""Reasons for which an address that may be correct does not answer."""
Direction = Literal["send", "receive"]
LinkState = Literal["joining", "up", "suspected", "down", "left"]
ONE_WAY = "it is reached, but has not reached this peer yet"
MAX_RELEASE_CHARACTERS = 64
"""Characters of a release that are kept; it is only shown."""
CORRECT_ADDRESS_HINT = "correct that address"


def _now() -> float:
    return asyncio.get_running_loop().time()


@dataclass
class Problem:
    """Something that is wrong with a neighbour; false while nothing is."""

    reason: str = ""
    since: float = 0.0
    """The loop's time when it began; a change of the reason does not change it."""

    def __bool__(self) -> bool:
        return bool(self.reason)

    def set(self, reason: str) -> None:
        self.since = self.since if self.reason else _now()
        self.reason = reason

    def clear(self) -> None:
        self.reason = ""


@dataclass
class Reach:
    """Whether this peer and a neighbour reach each other."""

    outbound: Problem = field(default_factory=Problem)
    """Why this peer's last attempt to reach it failed."""
    inbound: Problem = field(default_factory=Problem)
    """Why it cannot reach this peer, by its own account, in a sentence."""
    refusal: str | None = None
    """Why one of the two refused the other when they last spoke."""
    handshaken: set[Direction] = field(default_factory=set)
    """The directions in which there was a handshake."""


@dataclass
class SignsOfLife:
    """What a neighbour's heartbeats say."""

    last_heartbeat: float = field(default_factory=_now)
    """The loop's time when the last one came, or when it became a neighbour."""
    alive: bool = False
    """Whether heartbeats are arriving."""
    activity: str = ""
    """What the neighbour is doing, such as "training in round 3"."""
    resources: Resources | None = None


@dataclass
class Delivery:
    """Whether a neighbour accepts what is sent to it."""

    connected_since: float | None = None
    """The loop's time when the present tensor stream to it began; None while there is none."""
    is_stalled: bool = False
    """Whether it gives signs of life, but what is sent to it does not arrive."""
    rejection: Problem = field(default_factory=Problem)
    """Why it accepts nothing of what is sent to it."""
    knows_lost_rounds: bool = False
    """Whether it knows of rounds that this peer had on disk and has lost."""

    def accepted(self) -> None:
        """Note that it accepts what is sent to it."""
        self.rejection.clear()
        self.knows_lost_rounds = False


@dataclass
class Progress:
    """How far a neighbour is in the rounds that it shares with this peer."""

    acked_durable: int = -1
    """The last of this peer's durable rounds that it has heard of."""
    has_forgotten_edge: bool = False
    """Whether it has said that this peer is no longer its neighbour."""
    in_later_view: bool = False
    """Whether it says that it is in a later view (`Edges.gone_on`)."""
    regressed: bool = False
    """Whether its last handshake shows that it has lost rounds, so that no link to it is possible."""


@dataclass
class Neighbour:
    """The peer at the other end of an edge."""

    id: str
    address: str | None
    """The address at which it is dialled; None if it only dials out."""
    state: LinkState = "joining"
    reason: str = ""
    """Why it is in this state."""
    release: str = ""
    """The release that it runs, as its last handshake says; empty before one."""
    reach: Reach = field(default_factory=Reach)
    signs: SignsOfLife = field(default_factory=SignsOfLife)
    delivery: Delivery = field(default_factory=Delivery)
    progress: Progress = field(default_factory=Progress)

    def __post_init__(self) -> None:
        self.reason = self.reason or self.untried

    @property
    def untried(self) -> str:
        return "not yet connected" if self.address else "nobody can dial it, and it has not called yet"

    @property
    def place(self) -> str:
        """Id and address, in words."""
        return f"{self.id} at {self.address}" if self.address else self.id

    @property
    def is_unreachable(self) -> bool:
        """Whether this peer's last attempt to reach it got no answer."""
        return bool(self.address and self.reach.outbound and not self.reach.refusal)

    def note_release(self, release: str) -> None:
        """Take what it says in a handshake that it runs."""
        self.release = release[:MAX_RELEASE_CHARACTERS]

    def mark_refused(self, reason: str) -> None:
        """Note that one of the two has refused the other."""
        self.reach.refusal = reason
        self._fail(reason)

    def mark_unreachable(self, reason: str) -> None:
        """Note that it does not answer now; a refusal before that is kept in the reason, as it says more."""
        refusal = self.reach.refusal
        self._fail(reason if refusal in (None, reason) else f"{reason} (before that: {refusal})")

    def mark_reachable(self) -> None:
        """Note that it has answered, even if with a refusal."""
        if self.reach.refusal:
            self.reach.outbound.set(self.reach.refusal)
        else:
            self.reach.outbound.clear()

    def reactivate(self) -> None:
        """Note that it is a neighbour, perhaps again."""
        self.progress.has_forgotten_edge = False
        if self.state == "left":
            self.state, self.reason, self.signs.last_heartbeat = "joining", self.untried, _now()

    def _fail(self, reason: str) -> None:
        self.reach.outbound.set(reason)
        if self.state != "up":
            self.reason = reason

    def missing_handshake_reason(self, lacking: Collection[Direction]) -> str:
        """Return why there was no handshake in these directions."""
        there = self.signs.alive or "send" in self.reach.handshaken
        if self.reach.refusal or not there:
            return self.reach.outbound.reason or self.untried
        if "send" in lacking:
            return self._cannot_reach() or self.untried
        return self.reach.inbound.reason or ONE_WAY

    def problem(self, before: float) -> str:
        """Return what is wrong with a neighbour that gives signs of life, if it began before that time; else empty."""
        if self.delivery.rejection:
            return self.delivery.rejection.reason
        if self.is_unreachable and self.reach.outbound.since < before:
            return self._cannot_reach()
        return self.reach.inbound.reason if self.reach.inbound.since < before else ""

    def on_complaint(self, complaint: Obstacle | None) -> None:
        """Take its account of why it cannot reach this peer; None: it can."""
        if complaint is None:
            self.reach.inbound.clear()
        else:
            why = _told_with_hint(complaint.address, complaint.reason, "here")
            self.reach.inbound.set(f"it is reached, but it cannot reach this peer at {why}")

    def _cannot_reach(self) -> str:
        if not (self.reach.outbound and self.address):
            return ""
        why = _told_with_hint(self.address, self.reach.outbound.reason, f"at {self.id}")
        return f"it reaches this peer, but this peer cannot reach it at {why}"


def _told_with_hint(address: str, why: str, where: str) -> str:
    """An address that does not answer, why, and what to do about it."""
    opening = f"open port {address.rpartition(':')[2]} {where}, or " if why in CLOSED_PORT_REASONS else ""
    return f"{address}: {why}; {opening}{CORRECT_ADDRESS_HINT}"


@dataclass
class EdgeRounds:
    """The rounds in which an edge is used; `last` is open while the edge is current."""

    first: int
    last: int | None = None

    def includes(self, round: int) -> bool:
        return self.first <= round and (self.last is None or round <= self.last)


class Edges:
    """The edges of the current topology, and older ones until both of their ends are past them."""

    def __init__(self, addresses: Mapping[str, str | None]) -> None:
        self._addresses = addresses
        self._spans: dict[tuple[Direction, str], EdgeRounds] = {}
        self.neighbours: dict[str, Neighbour] = {}
        self.former: dict[str, int] = {}
        """Former neighbours, and how often each has been told since then that it is none any more."""
        self.changed = News()
        """Set on every change of an edge or of what is known about one."""
        self.known = False
        """Whether the edges of the first round, or those in the checkpoint, are known."""
        self.last_round: int | None = None
        """The last round of this view or of the run, once it is settled."""

    def end_after(self, round: int) -> None:
        self.last_round = round
        self.changed.set()

    @property
    def gone_on(self) -> set[str]:
        """The neighbours in a later view, which have all that they needed in this one.

        That is what they say of themselves: they are believed once this peer knows that its view ends.
        """
        settled = self.last_round is not None
        return {id for id, neighbour in self.neighbours.items() if settled and neighbour.progress.in_later_view}

    def use(self, round: int, receivers: Collection[str], senders: Collection[str]) -> None:
        """Use these edges from `round` on; other edges of that round stay open until it is over."""
        self.known = True
        current: list[tuple[Direction, str]] = [("send", peer) for peer in receivers]
        current += [("receive", peer) for peer in senders]
        for edge in current:
            self._spans.setdefault(edge, EdgeRounds(round)).last = None
            self.neighbours.setdefault(edge[1], Neighbour(edge[1], self._addresses[edge[1]])).reactivate()
        for edge in self._spans.keys() - set(current):
            span = self._spans[edge]
            span.last = round if span.last is None else span.last
        self.changed.set()

    def dump(self) -> list[tuple[Direction, str, int, int | None]]:
        """All edges with their rounds, for the checkpoint."""
        return [(way, peer, span.first, span.last) for (way, peer), span in self._spans.items()]

    def load(self, edges: Iterable[tuple[Direction, str, int, int | None]]) -> None:
        self.known = True
        for way, peer, first, last in edges:
            self._spans[way, peer] = EdgeRounds(first, last)
            self.neighbours.setdefault(peer, Neighbour(peer, self._addresses[peer]))
        self.changed.set()

    def retire(self, durable: Mapping[str, int], own: int) -> list[str]:
        """Forget edges of which both ends have a later round on disk (R7); return neighbours without any edge left.

        durable: by first-hand reports. own: this peer's durable round. It must be a later round: an edge that went
        with its last round would go just when one end has the news of that round to pass on over it.
        """
        for edge, span in [*self._spans.items()]:
            if span.last is not None and own > span.last and self._past(edge[1], span.last, durable):
                del self._spans[edge]
        gone = [peer for peer in self.neighbours if not any(peer == other for _, other in self._spans)]
        for peer in gone:
            del self.neighbours[peer]
            self.former[peer] = 0
        self.changed.set()
        return gone

    def _past(self, peer: str, last: int, durable: Mapping[str, int]) -> bool:
        at, neighbour = durable.get(peer, -1), self.neighbours[peer]
        # The end that forgets the edge first tells the other when that one calls. A peer that cannot be called must
        # have acknowledged this peer's last round before.
        knows = neighbour.progress.acked_durable >= last or neighbour.state == "left"
        return (at >= last and neighbour.progress.has_forgotten_edge) or (at > last and knows)

    def last(self, peer: str, rounds: int) -> int:
        """The last round whose messages that neighbour may still ask for. rounds: the last one of the run."""
        lasts = [
            rounds if span.last is None else span.last for (_, other), span in self._spans.items() if other == peer
        ]
        return max(lasts, default=-1)

    def permits(self, direction: Direction, peer: str, round: int) -> bool:
        span = self._spans.get((direction, peer))
        return span is not None and span.includes(round)

    def of(self, direction: Direction, round: int) -> list[str]:
        """The peers with which messages of that round are exchanged."""
        return [peer for (way, peer), span in self._spans.items() if way == direction and span.includes(round)]

    @property
    def members(self) -> Collection[str]:
        """The members of this view; with `graph: none` only this peer."""
        return self._addresses.keys()

    def can_be_dialled(self, peer: str) -> bool:
        return self._addresses.get(peer) is not None

    def refuse_unreachable(self, own: str, others: Iterable[str]) -> None:
        """FailedError if neither this peer nor one of the others can be dialled."""
        apart = [other for other in others if not self.can_be_dialled(other)]
        if apart and not self.can_be_dialled(own):
            raise FailedError(unreachable_pair_problem((own, apart[0])))

    def has(self, direction: Direction, peer: str) -> bool:
        return (direction, peer) in self._spans

    def peers(self, direction: Direction) -> list[str]:
        return [peer for way, peer in self._spans if way == direction]

    def current(self) -> set[str]:
        """The peers with which messages are exchanged now; older neighbours may only ask for repeats."""
        return {peer for (_, peer), span in self._spans.items() if span.last is None}

    def missing(self) -> list[tuple[Neighbour, str]]:
        """The neighbours that lack a handshake in a direction that is used, each with the reason.

        Edges that are only kept for repeats do not count, as their other ends may be past them; nor do neighbours
        that have gone on, without waiting for this peer's restart.
        """
        lacking, gone_on = dict[str, list[Direction]](), self.gone_on
        for (direction, peer), span in self._spans.items():
            there = direction in self.neighbours[peer].reach.handshaken or peer in gone_on
            if span.last is None and not there:
                lacking.setdefault(peer, []).append(direction)
        return [(one := self.neighbours[peer], one.missing_handshake_reason(ways)) for peer, ways in lacking.items()]

    def on_handshake(self, direction: Direction, peer: str) -> None:
        neighbour = self.neighbours[peer]
        neighbour.reach.handshaken.add(direction)
        neighbour.reach.refusal = None
        if direction == "send":
            neighbour.mark_reachable()
        else:
            neighbour.reach.inbound.clear()
        self.changed.set()

    async def wait_complete(self, done: int = -1) -> None:
        """Wait until no neighbour lacks a handshake, or until no round after `done` is left to play: then those that
        have left may never come."""
        await self.changed.until(
            lambda: not self.missing() or (self.last_round is not None and self.last_round <= done)
        )
