"""With whom this peer may speak, about which rounds (rule R7), and what is known of each neighbour.

When the ring is reordered, an edge stays open for repeats until both of its ends have a later round on disk than
the last one in which it was used. Which of the two forgets it first, and how the other learns of it, is told at
`Edges.retire`. Who is a member at all is decided in `peer/views/`, not here.
"""

import asyncio
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Literal

from peer.network.transport import FORBIDDEN, NO_ROUTE, REFUSED, TIMED_OUT
from peer.network.wire.messages import Obstacle, Resources

CLOSED_PORT_REASONS = (REFUSED, TIMED_OUT, NO_ROUTE, FORBIDDEN)
"""Why nobody can be reached at an address that may be right."""
Direction = Literal["send", "receive"]
LinkState = Literal["joining", "up", "suspected", "down", "left"]
UNTRIED = "not yet connected"
NOT_CALLED = "nobody can dial it, and it has not called yet"
ONE_WAY = "it is reached, but has not reached this peer yet"
CANNOT_REACH = "it reaches this peer, but this peer cannot reach it at {address}: {why}; {way_out}"
CANNOT_BE_REACHED = "it is reached, but it cannot reach this peer at {address}: {why}; {way_out}"
CORRECT_ADDRESS_HINT = "correct that address"


@dataclass
class Neighbour:
    """What is known of the peer at the other end of an edge."""

    id: str
    address: str | None
    """Where it is dialled; None for one that dials out."""
    state: LinkState = "joining"
    reason: str = ""
    """Why it is in this state."""
    obstacle: str = ""
    """Why this peer's last attempt to reach it failed; empty after one that did not."""
    obstructed: float = 0.0
    """Since when none has succeeded, by the loop's clock."""
    complaint: Obstacle | None = None
    """Why it cannot reach this peer, as it says itself."""
    complaining: float = 0.0
    """Since when it has said so, by the loop's clock."""
    resources: Resources | None = None
    doing: str = ""
    """What it last said that it does, such as "training in round 3"."""
    alive: bool = False
    """It gives signs of life."""
    stuck: bool = False
    """It does, and what is sent to it does not arrive."""
    heard: float = field(default_factory=lambda: asyncio.get_running_loop().time())
    """When its last sign of life came, or it became a neighbour, by the loop's clock."""
    stands: float | None = None
    """Since when a stream of tensors to it stands, by the loop's clock; None while there is none."""
    has_heard: int = -1
    """The last of this peer's rounds of which it says to know that it is on disk here."""
    introduced: set[Direction] = field(default_factory=set)
    """In which directions a handshake has been made."""
    refusal: str | None = None
    """Why the two did not go together when they last spoke."""
    released: bool = False
    """It has said that this peer is no neighbour of its any more."""
    rejects: str = ""
    """Why it does not take what is sent to it; empty if it does."""
    rejecting: float = 0.0
    """Since when, by the loop's clock."""
    gone_on: bool = False
    """It lives in a later view, as one that has all that it wanted in this one."""
    ahead: bool = False
    """It knows of rounds on this peer's disk that this peer knows nothing of."""

    def __post_init__(self) -> None:
        self.reason = self.reason or self.untried

    @property
    def untried(self) -> str:
        return UNTRIED if self.address else NOT_CALLED

    @property
    def place(self) -> str:
        """Who it is, and where, for a sentence."""
        return f"{self.id} at {self.address}" if self.address else self.id

    @property
    def cannot_be_reached(self) -> bool:
        """Nobody answered this peer's last attempt."""
        return bool(self.address and self.obstacle and not self.refusal)

    def refused(self, why: str) -> None:
        """One of the two has turned the other away."""
        self.refusal = why
        self._fail(why)

    def returned(self) -> None:
        """It is a neighbour, perhaps again."""
        self.released = False
        if self.state == "left":
            self.state, self.reason, self.heard = "joining", self.untried, asyncio.get_running_loop().time()

    def reached(self) -> None:
        """It has answered."""
        self.obstacle = self.refusal or ""

    def unreachable(self, why: str) -> None:
        """Nobody answers now; what was said before that tells more."""
        if not self.obstacle:
            self.obstructed = asyncio.get_running_loop().time()
        self._fail(why if self.refusal in (None, why) else f"{why} (before that: {self.refusal})")

    def takes_nothing(self, why: str, now: float) -> None:
        """It has been reached and has said that what is sent to it is wrong."""
        self.rejecting = self.rejecting if self.rejects else now
        self.rejects = why

    def takes_all(self) -> None:
        """What is sent to it arrives."""
        self.rejects = ""
        self.ahead = False

    def _fail(self, why: str) -> None:
        self.obstacle = why
        if self.state != "up":
            self.reason = why

    def absence(self, lacking: Collection[Direction]) -> str:
        """Why a handshake lacks in these directions."""
        there = self.alive or "send" in self.introduced
        if self.refusal or not there:
            return self.obstacle or self.untried
        if "send" in lacking:
            return self._cannot_reach() or self.untried
        return self._cannot_be_reached() or ONE_WAY

    def trouble(self, since: float) -> str:
        """What is wrong with a neighbour that gives signs of life, if it has been so since before that; else empty."""
        if self.rejects:
            return self.rejects
        if self.cannot_be_reached and self.obstructed < since:
            return self._cannot_reach()
        return self._cannot_be_reached() if self.complaint and self.complaining < since else ""

    def hear_complaint(self, complaint: Obstacle | None, now: float) -> None:
        """Why it cannot reach this peer, or that it can."""
        self.complaining = self.complaining if self.complaint else now
        self.complaint = complaint

    def _cannot_reach(self) -> str:
        if not (self.obstacle and self.address):
            return ""
        way_out = _address_hint(self.address, self.obstacle, f"at {self.id}")
        return CANNOT_REACH.format(address=self.address, why=self.obstacle, way_out=way_out)

    def _cannot_be_reached(self) -> str:
        if not (said := self.complaint):
            return ""
        way_out = _address_hint(said.address, said.reason, "here")
        return CANNOT_BE_REACHED.format(address=said.address, why=said.reason, way_out=way_out)


def _address_hint(address: str, why: str, where: str) -> str:
    """What to do where nobody answers at an address."""
    port = address.rpartition(":")[2]
    return (
        f"open port {port} {where}, or {CORRECT_ADDRESS_HINT}" if why in CLOSED_PORT_REASONS else CORRECT_ADDRESS_HINT
    )


@dataclass
class EdgeRounds:
    """The rounds in which an edge is used; `last` is open while the edge is current."""

    first: int
    last: int | None = None

    def holds(self, round: int) -> bool:
        return self.first <= round and (self.last is None or round <= self.last)


class Edges:
    """The edges of the current topology, and older ones until both of their ends are past them."""

    def __init__(self, addresses: Mapping[str, str | None]) -> None:
        self._addresses = addresses
        self._spans: dict[tuple[Direction, str], EdgeRounds] = {}
        self.neighbours: dict[str, Neighbour] = {}
        self.former: dict[str, int] = {}
        """Who was one, and how often it has been told since then that it is none any more."""
        self.changed = asyncio.Event()
        """Set by every change: of an edge, or of what is known about one."""

    def use(self, round: int, receivers: Collection[str], senders: Collection[str]) -> None:
        """From `round` on the edges are these; others of that round stay until it is over."""
        current: list[tuple[Direction, str]] = [("send", peer) for peer in receivers]
        current += [("receive", peer) for peer in senders]
        for edge in current:
            self._spans.setdefault(edge, EdgeRounds(round)).last = None
            self.neighbours.setdefault(edge[1], Neighbour(edge[1], self._addresses[edge[1]])).returned()
        for edge in self._spans.keys() - set(current):
            span = self._spans[edge]
            span.last = round if span.last is None else span.last
        self.changed.set()

    def dump(self) -> list[tuple[Direction, str, int, int | None]]:
        """All edges with their rounds, for the checkpoint."""
        return [(way, peer, span.first, span.last) for (way, peer), span in self._spans.items()]

    def load(self, edges: Iterable[tuple[Direction, str, int, int | None]]) -> None:
        """Take over what `dump` gave."""
        for way, peer, first, last in edges:
            self._spans[way, peer] = EdgeRounds(first, last)
            self.neighbours.setdefault(peer, Neighbour(peer, self._addresses[peer]))
        self.changed.set()

    def retire(self, durable: Mapping[str, int], own: int) -> list[str]:
        """Forget edges when both ends have a round after their last on disk; the neighbours with which none is left.

        With the last round itself an edge would go in the moment in which its end has that round's news to pass on;
        but when the other end has forgotten it, it has heard them.
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
        # Who forgets an edge tells why to who calls; one that nobody can call must have been heard before.
        knows = neighbour.has_heard >= last or neighbour.state == "left"
        return (at >= last and neighbour.released) or (at > last and knows)

    def last(self, peer: str, rounds: int) -> int:
        """The last round, of so many, of which that neighbour may still ask for messages."""
        lasts = [
            rounds if span.last is None else span.last for (_, other), span in self._spans.items() if other == peer
        ]
        return max(lasts, default=-1)

    def allows(self, direction: Direction, peer: str, round: int) -> bool:
        span = self._spans.get((direction, peer))
        return span is not None and span.holds(round)

    def of(self, direction: Direction, round: int) -> list[str]:
        """With whom messages of that round are exchanged."""
        return [peer for (way, peer), span in self._spans.items() if way == direction and span.holds(round)]

    @property
    def members(self) -> Collection[str]:
        """Of the federation."""
        return self._addresses.keys()

    def knows(self, peer: str) -> bool:
        """Whether that is a member of the federation, neighbour or not."""
        return peer in self._addresses

    def can_be_dialled(self, peer: str) -> bool:
        """Whether that member has an address."""
        return self._addresses.get(peer) is not None

    def has(self, direction: Direction, peer: str) -> bool:
        return (direction, peer) in self._spans

    def peers(self, direction: Direction) -> list[str]:
        return [peer for way, peer in self._spans if way == direction]

    def current(self) -> set[str]:
        """With whom messages are exchanged now; older neighbours only wait for a repeat."""
        return {peer for (_, peer), span in self._spans.items() if span.last is None}

    def missing(self) -> list[tuple[Neighbour, str]]:
        """Neighbours with whom a handshake has not been made in every direction that is used, and why.

        An edge that is only kept for what may be asked for again is not waited for: its other end may be past it.
        """
        lacking: dict[str, list[Direction]] = {}
        for (direction, peer), span in self._spans.items():
            if span.last is None and direction not in self.neighbours[peer].introduced:
                lacking.setdefault(peer, []).append(direction)
        return [(one, one.absence(ways)) for one, ways in ((self.neighbours[peer], lacking[peer]) for peer in lacking)]

    def introduce(self, direction: Direction, peer: str) -> None:
        """A handshake has been made."""
        self.neighbours[peer].introduced.add(direction)
        self.neighbours[peer].refusal = None
        if direction == "send":
            self.neighbours[peer].reached()
        else:
            self.neighbours[peer].complaint = None
        self.changed.set()

    async def complete(self) -> None:
        """Wait until none is missing."""
        while self.missing():
            await self.change()

    async def change(self) -> None:
        """Wait for the next change."""
        self.changed.clear()
        await self.changed.wait()
