"""Which rounds each peer has on disk, as far as is known here, and how far ahead a peer may go (rules R3 and R6).

A *first-hand report* is what a peer has said of itself, over its own stream: on that rests what is released (R4),
forgotten (R7), announced (R3) and remembered. A *relayed report* is what a neighbour says of others: it may hold this
peer back (R6), and nothing else. Where members change and have certificates, each signs what it announces, and only
that is relayed: a member that claims that another has a later state cannot do away with one to which all may have to
go back.

Peers of one process read on a board what relayed reports would tell, and relay nothing (`SharedDurability`).
"""

import asyncio
from collections.abc import Collection, Mapping

from peer.network.neighbours import Edges
from peer.network.transport import DurabilityBoard
from peer.network.wire.messages import Hello, Welcome
from peer.views.signing import UNSIGNED, Keyring
from peer.views.statements import Announcement, Signed
from peer.views.view import STALENESS_BOUND

NOTHING = -1


class ImpossibleError(Exception):
    """Something that no honest peer says; the text says what."""


class Durability:
    """The durable round of every peer; values only grow."""

    def __init__(self, id: str, edges: Edges, rounds: int, keyring: Keyring = UNSIGNED, view: int = 0) -> None:
        self._id, self._edges, self._rounds = id, edges, rounds
        self._keyring, self._view = keyring, view
        self.first_hand = {id: NOTHING}
        """This peer's own, and what its present and former neighbours have said of themselves."""
        self._relayed: dict[str, int] = {}
        self._announced: dict[str, Signed[Announcement]] = {}
        """The last announcement of each, this peer's own too, where they are signed."""
        self._granted: dict[str, int] = {}
        """What others have by a view that was decided."""
        self._incarnations: dict[str, int] = {}
        """By peer, of its last handshake: `life` of the message."""
        self.ends = False
        """It is known after which round all peers end here."""
        self.version = 0
        """Grows with every change."""
        self._changed = asyncio.Event()

    def of(self, peer: str) -> int:
        """By the peer's first-hand report; NOTHING if there is none."""
        return self.first_hand.get(peer, NOTHING)

    @property
    def own(self) -> int:
        return self.first_hand[self._id]

    def announce(self, round: int) -> None:
        """Rounds up to this one are on this peer's disk (R3)."""
        if self._keyring.signs and (self._id not in self._announced or round > self.own):
            self._announced[self._id] = self._keyring.sign(Announcement(self._view, max(round, self.own)))
        self.record_first_hand(self._id, round)

    def record_first_hand(self, peer: str, round: int) -> None:
        """What a peer reports of itself; raises ImpossibleError if that cannot be.

        No peer is more than W rounds past what its neighbours have on disk (R6): until this peer is further, a report
        counts no more than that. A peer that claims too much only loses what it may ask for in so many rounds.
        """
        self._check(peer, round)
        if peer != self._id:
            round = min(round, self.own + STALENESS_BOUND)
        if peer not in self.first_hand or round > self.first_hand[peer]:
            self.first_hand[peer] = round
            self.notify_changed()

    def grant(self, durable: Mapping[str, int]) -> None:
        """What the members of a view have on disk because the view was decided."""
        self._granted |= durable
        self.remember(durable)

    def remember(self, first_hand: Mapping[str, int]) -> None:
        """First-hand reports from before a restart, or from an earlier view."""
        self.first_hand |= {peer: round for peer, round in first_hand.items() if round > self.of(peer)}
        self.notify_changed()

    def lost(self, peer: str, said: Hello | Welcome) -> str | None:
        """A sentence if a peer's handshake shows that it has lost rounds it had on disk; None if it has not.

        Their messages are released everywhere. A peer whose newest checkpoint was damaged is a round further back than
        it was, but not behind what it has announced. While a process lives it loses nothing: what it says on one
        stream may come after what it says later on another.
        """
        had = self.of(peer)
        if self._incarnations.get(peer) == said.life or not said.durable < had >= said.round:
            self._incarnations[peer] = said.life
            return None
        return (
            f"{peer} has said that its round {had} is on its disk and is back in round {said.round}, whose messages "
            "nobody has any more; put a copy of its checkpoint/ back and start it again, or begin anew (`--fresh`)"
        )

    def record_relayed(self, teller: str, others: Mapping[str, int]) -> None:
        """What a neighbour says of others; raises ImpossibleError, and believes none of it, if any cannot be."""
        for peer, round in others.items():
            if peer in (teller, self._id) or not self._edges.is_member(peer):
                raise ImpossibleError(f"it reported durable rounds of `{peer}`")
            self._check(peer, round)
        news = {peer: at for peer, at in others.items() if at > self._relayed.get(peer, NOTHING - 1)}
        if news:
            self._relayed |= news
            self.notify_changed()

    def record_signed(self, peer: str, round: int, signature: str, certificate: str) -> None:
        """What a peer has announced and signed, from any source; raises ImpossibleError for what it has not, or cannot.

        certificate: empty where it is the one it has shown before.
        """
        known = self._announced.get(peer)
        if not self._edges.is_member(peer) or not self._keyring.signs:
            raise ImpossibleError(f"it reported durable rounds of `{peer}`")
        self._check(peer, round)
        if peer == self._id or (known and known.statement.round >= round):
            return
        shown = certificate or (known.certificate if known else "")
        signed = Signed(peer, Announcement(self._view, round), signature, shown)
        if not self._keyring.is_valid(signed):
            raise ImpossibleError(f"it reported round {round} of `{peer}` as durable, which `{peer}` has not signed")
        self._announced[peer] = signed
        self._relayed[peer] = max(round, self._relayed.get(peer, round))
        self.notify_changed()

    def announcements(self) -> Mapping[str, Signed[Announcement]]:
        """What each has announced, to be held against what it promises; where nothing is signed, of neighbours."""
        if self._keyring.signs:
            return self._announced
        return {peer: Signed(peer, Announcement(self._view, at)) for peer, at in self.first_hand.items()}

    def notify_changed(self) -> None:
        """Wake all tasks that wait for a change."""
        self.version += 1
        self._changed.set()

    def relayed_for(self, listener: str) -> dict[str, int]:
        """What this peer can relay to a neighbour."""
        neighbours = self._edges.current()
        others = [peer for peer in self._edges.members if peer not in (self._id, listener)]
        return {peer: at for peer in others if (at := self._latest(peer, neighbours)) is not None}

    def _latest(self, peer: str, neighbours: Collection[str]) -> int | None:
        """The latest report on a peer; of this one and of present neighbours only first-hand ones count."""
        sources = (self.first_hand,) if peer in neighbours or peer == self._id else (self.first_hand, self._relayed)
        return max((known[peer] for known in sources if peer in known), default=None)

    def _bounding(self) -> dict[str, int]:
        """The peers that may hold this one back. Others without a report do not: they may have finished and left.

        Where members sign what they announce, a report counts no more than that: a member that did not sign it could
        promise less when the next view is decided on, and all would go back as far.
        """
        neighbours, found = self._edges.current(), dict[str, int]()
        # Those in a later view announce nothing any more in this one. Believed once this peer knows of a later one.
        gone = [one.id for one in self._edges.neighbours.values() if self.ends and one.progress.in_later_view]
        for peer in self._edges.members:
            if (at := self._latest(peer, neighbours)) is not None:
                signed = self._keyring.signs and peer not in gone
                found[peer] = min(at, self._signed_round(peer)) if signed else at
        return dict.fromkeys(neighbours, NOTHING) | found

    @property
    def low_watermark(self) -> int:
        """The least durable round of all, as far as is known; at most that of present neighbours and this peer."""
        return min(self._bounding().values())

    @property
    def least(self) -> int:
        """The least durable round of all members: NOTHING if there is no report on one.

        Where members sign what they announce, only that counts, and what a decided view says that they have.
        """
        if self._keyring.signs:
            return min(self._signed_round(peer) for peer in self._edges.members)
        neighbours = self._edges.current()
        reports = [self._latest(peer, neighbours) for peer in self._edges.members]
        return min(NOTHING if at is None else at for at in reports)

    def _signed_round(self, peer: str) -> int:
        if peer == self._id:
            return self.own
        announced = self._announced.get(peer)
        return max(announced.statement.round if announced else NOTHING, self._granted.get(peer, NOTHING))

    async def wait_all_durable(self, round: int) -> None:
        """Wait until every member is known to have that round on disk."""
        while self.least < round:
            await self.wait_changed(self.version)

    async def wait_changed(self, version: int) -> None:
        """Wait until something has changed since `version`."""
        while self.version == version:
            self._changed.clear()
            await self._changed.wait()

    def behind(self, round: int) -> dict[str, int]:
        """The peers that are more than W rounds behind `round` (R6), and the round that each has on disk."""
        return {peer: at for peer, at in self._bounding().items() if at < round - STALENESS_BOUND}

    async def wait_within_bound(self, round: int) -> None:
        """Wait until no peer is more than W rounds behind `round` (R6)."""
        while self.behind(round):
            await self.wait_changed(self.version)

    def _check(self, peer: str, round: int) -> None:
        if not NOTHING <= round <= self._rounds:
            raise ImpossibleError(f"it reported round {round} of `{peer}` as durable, in a run of {self._rounds}")


class SharedDurability(Durability):
    """Reads on a board what would be relayed, and relays nothing. First-hand reports still come over streams only."""

    def __init__(self, id: str, edges: Edges, rounds: int, board: DurabilityBoard) -> None:
        super().__init__(id, edges, rounds)
        self._board = board
        board.post(id, self.own)

    def announce(self, round: int) -> None:
        super().announce(round)
        self._board.post(self._id, self.own)

    def relayed_for(self, listener: str) -> dict[str, int]:
        return {}

    def _latest(self, peer: str, neighbours: Collection[str]) -> int | None:
        return self._board.rounds.get(peer)

    async def wait_within_bound(self, round: int) -> None:
        while behind := self.behind(round):
            await self._board.news(next(iter(behind)))
