"""Which rounds each peer has on disk, as far as this peer knows, and how far ahead a peer may go (rules R3 and R6).

A *first-hand report* is what a peer has said about itself, over its own stream: release (R4), forgetting (R7),
announcing (R3) and checkpoints rest on these. A *relayed report* is what a neighbour says about others: it can hold
this peer back (R6), and nothing else. If members change and have certificates, each signs what it announces, and only
that is relayed: so no member can claim that another has a later state, and thereby make peers drop a state that all may
have to go back to. Without certificates `least` rests on relayed reports: by it peers drop states, and end.

Peers of one process read on a board what relayed reports would say, and relay nothing (`SharedDurability`).
"""

from collections.abc import Collection, Mapping

from peer.network.neighbours import Edges
from peer.network.transport import DurabilityBoard
from peer.network.wire.messages import Hello, Welcome
from peer.tasks import News
from peer.views.signing import UNSIGNED, Keyring
from peer.views.statements import Announcement, Signed
from peer.views.view import STALENESS_BOUND

NOTHING = -1


class ImpossibleError(Exception):
    """Raised for a report that no honest peer makes; the text says what it is."""


class Durability:
    """The durable round of every peer; values only grow."""

    def __init__(self, id: str, edges: Edges, rounds: int, keyring: Keyring = UNSIGNED, view: int = 0) -> None:
        self._id, self._edges, self._rounds = id, edges, rounds
        self._keyring, self._view = keyring, view
        self.first_hand = {id: NOTHING}
        """The durable rounds of this peer and, by their own reports, of its present and former neighbours; of the
        other members of a view, what its decision says (`grant`)."""
        self._relayed: dict[str, int] = {}
        """The durable rounds of others by relayed reports."""
        self._announced: dict[str, Signed[Announcement]] = {}
        """The last announcement of each peer, this one included, if announcements are signed."""
        self._granted: dict[str, int] = {}
        """The rounds that others have on disk by a decided view."""
        self._incarnations: dict[str, int] = {}
        """The incarnation of each peer in its last handshake (`life` of the message)."""
        self.changed = News()
        """Set at every change, and for those who wait here for something else."""

    def of(self, peer: str) -> int:
        """The durable round of a peer by its first-hand report; NOTHING if there is none."""
        return self.first_hand.get(peer, NOTHING)

    @property
    def own(self) -> int:
        return self.first_hand[self._id]

    def announce(self, round: int) -> None:
        """Announce that rounds up to this one are on this peer's disk (R3)."""
        if self._keyring.signs and (self._id not in self._announced or round > self.own):
            self._announced[self._id] = self._keyring.sign(Announcement(self._view, max(round, self.own)))
        self.record_first_hand(self._id, round)

    def record_first_hand(self, peer: str, round: int) -> None:
        """Take a peer's report about itself; ImpossibleError if it cannot be true.

        No peer is more than W rounds past what its neighbours have on disk (R6), so no report counts for more until
        this peer is further. A peer that claims too much only loses what it could still ask for within that bound.
        """
        self._check(peer, round)
        if peer != self._id:
            round = min(round, self.own + STALENESS_BOUND)
        if peer not in self.first_hand or round > self.first_hand[peer]:
            self.first_hand[peer] = round
            self.changed.set()

    def grant(self, durable: Mapping[str, int]) -> None:
        """Take what the members of a view have on disk because the view was decided."""
        self._granted |= durable
        self.remember(durable)

    def remember(self, first_hand: Mapping[str, int]) -> None:
        """Take first-hand reports from before a restart, or from an earlier view."""
        self.first_hand |= {peer: round for peer, round in first_hand.items() if round > self.of(peer)}
        self.changed.set()

    def lost(self, peer: str, said: Hello | Welcome) -> str | None:
        """A sentence if a peer's handshake shows that it has lost rounds that it had on disk; None if it has not.

        Their messages are released everywhere. A peer whose newest checkpoint was damaged is a round further back than
        before, but not behind what it has announced. A live process loses nothing: it only seems so when an older
        message of one stream arrives after a newer one of another.
        """
        had = self.of(peer)
        if self._incarnations.get(peer) == said.life or not said.durable < had >= said.round:
            self._incarnations[peer] = said.life
            return None
        return (
            f"{peer} has said that its round {had} is on its disk and is back in round {said.round}, whose messages "
            f"nobody has any more; put back a copy of its directory with round {had} or a later one, or have all peers "
            "go back (`dfl-launch rewind`)"
        )

    def record_relayed(self, teller: str, others: Mapping[str, int]) -> None:
        """Take a neighbour's reports about others; ImpossibleError, and none of them counts, if one cannot be true."""
        for peer, round in others.items():
            if peer in (teller, self._id) or peer not in self._edges.members:
                raise ImpossibleError(f"it reported durable rounds of `{peer}`")
            self._check(peer, round)
        news = {peer: at for peer, at in others.items() if at > self._relayed.get(peer, NOTHING - 1)}
        if news:
            self._relayed |= news
            self.changed.set()

    def record_signed(self, peer: str, round: int, signature: str, certificate: str) -> None:
        """Take a peer's signed announcement, from any source; ImpossibleError if it is not signed or cannot be true."""
        known = self._announced.get(peer)
        if peer not in self._edges.members or not self._keyring.signs:
            raise ImpossibleError(f"it reported durable rounds of `{peer}`")
        self._check(peer, round)
        if peer == self._id or (known and known.statement.round >= round):
            return
        signed = Signed(peer, Announcement(self._view, round), signature, certificate)
        if not self._keyring.is_valid(signed):
            raise ImpossibleError(f"it reported round {round} of `{peer}` as durable, which `{peer}` has not signed")
        self._announced[peer] = signed
        self._relayed[peer] = max(round, self._relayed.get(peer, round))
        self.changed.set()

    def announcements(self) -> Mapping[str, Signed[Announcement]]:
        """The announcement of each peer, to compare with its promise; if nothing is signed, only of neighbours."""
        if self._keyring.signs:
            return self._announced
        return {peer: Signed(peer, Announcement(self._view, at)) for peer, at in self.first_hand.items()}

    def relayed_for(self, listener: str) -> dict[str, int]:
        """The durable rounds of other peers that this peer can relay to a neighbour."""
        neighbours = self._edges.current()
        others = [peer for peer in self._edges.members if peer not in (self._id, listener)]
        return {peer: at for peer in others if (at := self._latest(peer, neighbours)) is not None}

    def passed_on(self, listener: str) -> dict[str, int]:
        """The durable rounds that a neighbour is told: where members sign, all that were announced, this peer's
        included."""
        if self._keyring.signs:
            return {peer: one.statement.round for peer, one in self._announced.items() if peer != listener}
        return self.relayed_for(listener)

    def _latest(self, peer: str, neighbours: Collection[str]) -> int | None:
        """The latest report on a peer; on this peer and on present neighbours only first-hand ones count."""
        sources = (self.first_hand,) if peer in neighbours or peer == self._id else (self.first_hand, self._relayed)
        return max((known[peer] for known in sources if peer in known), default=None)

    def _bounding(self) -> dict[str, int]:
        """The durable rounds of the peers that may hold this one back. Peers without a report do not, unless they are
        neighbours: they may have finished and left.

        If members sign announcements, a report counts for no more than these: a member could promise less than it has
        signed for when the next view is decided on, and all would go back that far.
        """
        neighbours, found = self._edges.current(), dict[str, int]()
        gone = self._edges.gone_on  # they announce nothing in this view
        for peer in self._edges.members:
            if (at := self._latest(peer, neighbours)) is not None:
                signed = self._keyring.signs and peer not in gone
                found[peer] = min(at, self._signed_round(peer)) if signed else at
        return dict.fromkeys(neighbours, NOTHING) | found

    @property
    def low_watermark(self) -> int:
        """The smallest durable round of the peers that bound this one, present neighbours and itself included."""
        return min(self._bounding().values())

    @property
    def least(self) -> int:
        """The smallest durable round of all members: NOTHING if there is no report on one.

        If members sign announcements, only these count, and what a decided view says that they have.
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
        await self.changed.until(lambda: self.least >= round)

    def behind(self, round: int) -> dict[str, int]:
        """The peers that are more than W rounds behind `round` (R6), each with its durable round; none if that round
        will not be played, as the others may be in the next view."""
        if (last := self._edges.last_round) is not None and round > last:
            return {}
        return {peer: at for peer, at in self._bounding().items() if at < round - STALENESS_BOUND}

    async def wait_within_bound(self, round: int) -> None:
        """Wait until no peer is more than W rounds behind `round` (R6)."""
        await self.changed.until(lambda: not self.behind(round))

    def _check(self, peer: str, round: int) -> None:
        if not NOTHING <= round <= self._rounds:
            raise ImpossibleError(f"it reported round {round} of `{peer}` as durable, in a run of {self._rounds}")


class SharedDurability(Durability):
    """Reads from a board what would be relayed, and relays nothing. First-hand reports still come over streams."""

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

    @property
    def low_watermark(self) -> int:
        is_complete = all(peer in self._board.rounds for peer in self._edges.current())
        return self._board.least if is_complete else NOTHING

    def behind(self, round: int) -> dict[str, int]:
        return super().behind(round) if self.low_watermark < round - STALENESS_BOUND else {}

    async def wait_within_bound(self, round: int) -> None:
        while behind := self.behind(round):
            await self._board.news(next(iter(behind)))
