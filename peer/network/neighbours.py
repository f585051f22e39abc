"""Which peers this one may exchange messages with, in which rounds (`Edges`, rule R7), and what is known of each.

When the ring is reordered, an edge stays open for repeats until both of its ends have a later round on disk than
the last one in which it was used. Which of the two forgets it first, and how the other learns of it, is told at
`Edges.retire`. Membership itself is decided in `peer/views/`, not here.

A `Neighbour` has four parts, each changed by other events: whether the two reach each other (`Reach`: dialling,
handshakes), whether it lives (`SignsOfLife`: heartbeats), whether it takes what is sent to it (`Delivery`: the tensor
stream), and how far it is with the rounds of this peer (`Progress`).
"""

import asyncio
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Literal

from peer.network.transport import FORBIDDEN, NO_ROUTE, REFUSED, TIMED_OUT
from peer.network.wire.messages import Obstacle, Resources

CLOSED_PORT_REASONS = (REFUSED, TIMED_OUT, NO_ROUTE, FORBIDDEN)
"""Why an address that may be right does not answer."""
Direction = Literal["send", "receive"]
LinkState = Literal["joining", "up", "suspected", "down", "left"]
UNTRIED = "not yet connected"
NOT_CALLED = "nobody can dial it, and it has not called yet"
ONE_WAY = "it is reached, but has not reached this peer yet"
CANNOT_REACH = "it reaches this peer, but this peer cannot reach it at {address}: {why}; {hint}"
CANNOT_BE_REACHED = "it is reached, but it cannot reach this peer at {address}: {why}; {hint}"
CORRECT_ADDRESS_HINT = "correct that address"


def _now() -> float:
    return asyncio.get_running_loop().time()


@dataclass
class Problem:
    """Something wrong with a neighbour; it is false while nothing is."""

    reason: str = ""
    since: float = 0.0
    """By the loop's clock; another reason does not change it."""

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
    """Why it cannot reach this peer, as it says itself, in a sentence."""
    refusal: str | None = None
    """Why one of the two turned the other away when they last spoke."""
    handshaken: set[Direction] = field(default_factory=set)
    """In which directions a handshake has been made."""


@dataclass
class SignsOfLife:
    """What its heartbeats say."""

    last_heartbeat: float = field(default_factory=_now)
    """When the last one came, or it became a neighbour, by the loop's clock."""
    alive: bool = False
    """They come."""
    activity: str = ""
    """What it does, such as "training in round 3"."""
    resources: Resources | None = None


@dataclass
class Delivery:
    """Whether it takes what is sent to it."""

    connected_since: float | None = None
    """Since when a stream of tensors to it stands, by the loop's clock; None while there is none."""
    is_stalled: bool = False
    """It gives signs of life, and what is sent to it does not arrive."""
    rejection: Problem = field(default_factory=Problem)
    """Why it takes nothing of it."""
    knows_lost_rounds: bool = False
    """It knows of rounds on this peer's disk that this peer has not got any more."""

    def accepted(self) -> None:
        """It takes what is sent to it."""
        self.rejection.clear()
        self.knows_lost_rounds = False


@dataclass
class Progress:
    """How far it is with the rounds that it shares with this peer."""

    acked_durable: int = -1
    """The last of this peer's durable rounds that it has heard of."""
    released: bool = False
    """It has said that this peer is no longer its neighbour."""
    in_later_view: bool = False
    """It has all that it wanted in this view and is in a later one."""
    regressed: bool = False
    """It has lost rounds, by its last word: no link with it comes about."""


@dataclass
class Neighbour:
    """The peer at the other end of an edge."""

    id: str
    address: str | None
    """Where it is dialled; None for one that dials out."""
    state: LinkState = "joining"
    reason: str = ""
    """Why it is in this state."""
    reach: Reach = field(default_factory=Reach)
    signs: SignsOfLife = field(default_factory=SignsOfLife)
    delivery: Delivery = field(default_factory=Delivery)
    progress: Progress = field(default_factory=Progress)

    def __post_init__(self) -> None:
        self.reason = self.reason or self.untried

    @property
    def untried(self) -> str:
        return UNTRIED if self.address else NOT_CALLED

    @property
    def place(self) -> str:
        """Id and address, for a sentence."""
        return f"{self.id} at {self.address}" if self.address else self.id

    @property
    def is_unreachable(self) -> bool:
        """This peer's last attempt to reach it got no answer."""
        return bool(self.address and self.reach.outbound and not self.reach.refusal)

    def mark_refused(self, reason: str) -> None:
        """One of the two has turned the other away."""
        self.reach.refusal = reason
        self._fail(reason)

    def mark_unreachable(self, reason: str) -> None:
        """It does not answer now; what was said before that tells more."""
        refusal = self.reach.refusal
        self._fail(reason if refusal in (None, reason) else f"{reason} (before that: {refusal})")

    def mark_reachable(self) -> None:
        """It has answered, be it with a refusal."""
        if self.reach.refusal:
            self.reach.outbound.set(self.reach.refusal)
        else:
            self.reach.outbound.clear()

    def reactivate(self) -> None:
        """It is a neighbour, perhaps again."""
        self.progress.released = False
        if self.state == "left":
            self.state, self.reason, self.signs.last_heartbeat = "joining", self.untried, _now()

    def _fail(self, reason: str) -> None:
        self.reach.outbound.set(reason)
        if self.state != "up":
            self.reason = reason

    def missing_handshake_reason(self, lacking: Collection[Direction]) -> str:
        """Why there was no handshake in these directions."""
        there = self.signs.alive or "send" in self.reach.handshaken
        if self.reach.refusal or not there:
            return self.reach.outbound.reason or self.untried
        if "send" in lacking:
            return self._cannot_reach() or self.untried
        return self.reach.inbound.reason or ONE_WAY

    def problem(self, before: float) -> str:
        """What is wrong with a neighbour that gives signs of life, if it began before that time; else empty."""
        if self.delivery.rejection:
            return self.delivery.rejection.reason
        if self.is_unreachable and self.reach.outbound.since < before:
            return self._cannot_reach()
        return self.reach.inbound.reason if self.reach.inbound.since < before else ""

    def on_complaint(self, complaint: Obstacle | None) -> None:
        """It says why it cannot reach this peer, or, with None, that it can."""
        if complaint is None:
            self.reach.inbound.clear()
        else:
            hint = _address_hint(complaint.address, complaint.reason, "here")
            self.reach.inbound.set(CANNOT_BE_REACHED.format(address=complaint.address, why=complaint.reason, hint=hint))

    def _cannot_reach(self) -> str:
        if not (self.reach.outbound and self.address):
            return ""
        why = self.reach.outbound.reason
        hint = _address_hint(self.address, why, f"at {self.id}")
        return CANNOT_REACH.format(address=self.address, why=why, hint=hint)


def _address_hint(address: str, why: str, where: str) -> str:
    """What to do about an address that does not answer."""
    port = address.rpartition(":")[2]
    return (
        f"open port {port} {where}, or {CORRECT_ADDRESS_HINT}" if why in CLOSED_PORT_REASONS else CORRECT_ADDRESS_HINT
    )


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
        """Peers that were neighbours, and how often each has been told since then that it is none any more."""
        self.changed = asyncio.Event()
        """Set by every change: of an edge, or of what is known about one."""

    def use(self, round: int, receivers: Collection[str], senders: Collection[str]) -> None:
        """From `round` on the edges are these; others of that round stay until it is over."""
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
        for way, peer, first, last in edges:
            self._spans[way, peer] = EdgeRounds(first, last)
            self.neighbours.setdefault(peer, Neighbour(peer, self._addresses[peer]))
        self.changed.set()

    def retire(self, durable: Mapping[str, int], own: int) -> list[str]:
        """Forget edges of which both ends have a later round on disk (R7); return the neighbours that have none left.

        durable: by first-hand words; own: this peer's round. Were an edge forgotten with its last round itself, it
        would go in the moment in which an end has the news of that round to pass on; but an end that has forgotten it
        has heard them.
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
        # The end that forgets the edge first tells the other so when that calls. One that cannot be called must have
        # acknowledged this peer's last round before.
        knows = neighbour.progress.acked_durable >= last or neighbour.state == "left"
        return (at >= last and neighbour.progress.released) or (at > last and knows)

    def last(self, peer: str, rounds: int) -> int:
        """The last round, of so many, of which that neighbour may still ask for messages."""
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
        """All members of the federation."""
        return self._addresses.keys()

    def is_member(self, peer: str) -> bool:
        """Whether that is a member of the federation, neighbour or not."""
        return peer in self._addresses

    def can_be_dialled(self, peer: str) -> bool:
        return self._addresses.get(peer) is not None

    def has(self, direction: Direction, peer: str) -> bool:
        return (direction, peer) in self._spans

    def peers(self, direction: Direction) -> list[str]:
        return [peer for way, peer in self._spans if way == direction]

    def current(self) -> set[str]:
        """The peers with which messages are exchanged now; older neighbours only wait for a repeat."""
        return {peer for (_, peer), span in self._spans.items() if span.last is None}

    def missing(self) -> list[tuple[Neighbour, str]]:
        """Neighbours without a handshake in every direction that is used, and why.

        An edge that is only kept for what may be asked for again is not waited for: its other end may be past it.
        """
        lacking: dict[str, list[Direction]] = {}
        for (direction, peer), span in self._spans.items():
            if span.last is None and direction not in self.neighbours[peer].reach.handshaken:
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

    async def wait_complete(self) -> None:
        while self.missing():
            await self.wait_changed()

    async def wait_changed(self) -> None:
        self.changed.clear()
        await self.changed.wait()
