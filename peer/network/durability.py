"""Which rounds are on whose disk, as far as is known here, and how far ahead anyone may go (rules R3 and R6).

First-hand is what a peer has said of itself, over its own stream: on that rests what is released (R4), forgotten
(R7), announced and remembered. Hearsay is what anybody says of others: it may hold this peer back, and nothing
else. Where members change and have certificates, each signs what it announces, and only that is passed on: nobody
does away with a state to which all may have to go back because somebody claims that another has a later one.

Peers of one process read of each other on a board what they would hear by hearsay, and tell nobody of a third
(`SharedDurability`). What rests on first-hand words still rests on what a neighbour has said over its own stream.
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
    """What no honest peer says; tells what it was."""


class Durability:
    """The durable round of every peer; values only grow."""

    def __init__(self, id: str, edges: Edges, rounds: int, keyring: Keyring = UNSIGNED, view: int = 0) -> None:
        self._id, self._edges, self._rounds = id, edges, rounds
        self._keyring, self._view = keyring, view
        self.first_hand = {id: NOTHING}
        """This peer's own, and what its present and former neighbours have said of themselves."""
        self._hearsay: dict[str, int] = {}
        self._announced: dict[str, Signed[Announcement]] = {}
        """The last announcement of each, this peer's own too, where they are signed."""
        self._granted: dict[str, int] = {}
        """What a view that was decided says that others have."""
        self._lives: dict[str, int] = {}
        """Of those with whom a handshake was made, which life it was."""
        self.ends = False
        """Whether it is known after which round all end here."""
        self.version = 0
        """Grows with every change."""
        self._changed = asyncio.Event()

    def of(self, peer: str) -> int:
        """What that peer itself has said; NOTHING if it has not spoken."""
        return self.first_hand.get(peer, NOTHING)

    @property
    def own(self) -> int:
        return self.first_hand[self._id]

    def announce(self, round: int) -> None:
        """This peer's own is on disk."""
        if self._keyring.signs and (self._id not in self._announced or round > self.own):
            self._announced[self._id] = self._keyring.sign(Announcement(self._view, max(round, self.own)))
        self.record_first_hand(self._id, round)

    def record_first_hand(self, peer: str, round: int) -> None:
        """A peer's own word; ImpossibleError for one that cannot be.

        Nobody is more than W rounds past what its neighbours have on disk: until this peer is further, a word counts
        no more than that. Who has claimed too much has then only lost what it may ask for in so many rounds.
        """
        self._check(peer, round)
        if peer != self._id:
            round = min(round, self.own + STALENESS_BOUND)
        if peer not in self.first_hand or round > self.first_hand[peer]:
            self.first_hand[peer] = round
            self.notify_changed()

    def grant(self, durable: Mapping[str, int]) -> None:
        """What the members of a view have on disk because it was decided."""
        self._granted |= durable
        self.remember(durable)

    def remember(self, first_hand: Mapping[str, int]) -> None:
        """What had been said in an earlier life."""
        self.first_hand |= {peer: round for peer, round in first_hand.items() if round > self.of(peer)}
        self.notify_changed()

    def lost(self, peer: str, said: Hello | Welcome) -> str | None:
        """From its handshake, in a sentence, that a peer has lost rounds it had on disk; None if it has not.

        Nobody has their messages any more. A peer whose newest checkpoint was damaged is a round further back than it
        was, but not behind what it has announced. While a process lives it loses nothing: what it says on one stream
        may come after what it says later on another.
        """
        had = self.of(peer)
        if self._lives.get(peer) == said.life or not said.durable < had >= said.round:
            self._lives[peer] = said.life
            return None
        return (
            f"{peer} has said that its round {had} is on its disk and is back in round {said.round}, whose messages "
            "nobody has any more; put a copy of its checkpoint/ back and start it again, or begin anew (`--fresh`)"
        )

    def record_relayed(self, teller: str, others: Mapping[str, int]) -> None:
        """What a neighbour says of others; ImpossibleError, and nothing of it is believed, if something cannot be."""
        for peer, round in others.items():
            if peer in (teller, self._id) or not self._edges.is_member(peer):
                raise ImpossibleError(f"it told of `{peer}` what is on whose disk")
            self._check(peer, round)
        news = {peer: at for peer, at in others.items() if at > self._hearsay.get(peer, NOTHING - 1)}
        if news:
            self._hearsay |= news
            self.notify_changed()

    def record_signed(self, peer: str, round: int, signature: str, certificate: str) -> None:
        """What a peer has announced and signed, whoever passes it on; ImpossibleError if it has not, or it cannot be.

        certificate: empty where it is the one it has shown before.
        """
        known = self._announced.get(peer)
        if not self._edges.is_member(peer) or not self._keyring.signs:
            raise ImpossibleError(f"it told of `{peer}` what is on whose disk")
        self._check(peer, round)
        if peer == self._id or (known and known.statement.round >= round):
            return
        shown = certificate or (known.certificate if known else "")
        signed = Signed(peer, Announcement(self._view, round), signature, shown)
        if not self._keyring.is_valid(signed):
            raise ImpossibleError(f"it told of a round {round} of `{peer}` on disk that `{peer}` has not signed")
        self._announced[peer] = signed
        self._hearsay[peer] = max(round, self._hearsay.get(peer, round))
        self.notify_changed()

    def announcements(self) -> Mapping[str, Signed[Announcement]]:
        """What each has announced, to be held against what it promises; where nothing is signed, of neighbours."""
        if self._keyring.signs:
            return self._announced
        return {peer: Signed(peer, Announcement(self._view, at)) for peer, at in self.first_hand.items()}

    def notify_changed(self) -> None:
        """Wake all who wait for a change."""
        self.version += 1
        self._changed.set()

    def relayed_for(self, listener: str) -> dict[str, int]:
        """What this peer can tell a neighbour of others."""
        neighbours = self._edges.current()
        others = [peer for peer in self._edges.members if peer not in (self._id, listener)]
        return {peer: at for peer in others if (at := self._word(peer, neighbours)) is not None}

    def _word(self, peer: str, neighbours: Collection[str]) -> int | None:
        """The best there is on a peer; of this one and of present neighbours only their own word counts."""
        sources = (self.first_hand,) if peer in neighbours or peer == self._id else (self.first_hand, self._hearsay)
        return max((known[peer] for known in sources if peer in known), default=None)

    def _reckoned(self) -> dict[str, int]:
        """Who may hold this peer back. Others of whom there is no word do not: they may have finished and left.

        Where members sign what they announce, a word counts no more than that: who would not sign it could promise less
        when the next view is decided on, and all would go back as far.
        """
        neighbours = self._edges.current()
        words = {peer: self._word(peer, neighbours) for peer in self._edges.members}
        if self._keyring.signs:
            words |= {
                peer: min(at, self._proven(peer))
                for peer, at in words.items()
                if at is not None and not self._has_gone_on(peer)
            }
        return dict.fromkeys(neighbours, NOTHING) | {peer: at for peer, at in words.items() if at is not None}

    def _has_gone_on(self, peer: str) -> bool:
        """Into a later view: it announces nothing any more in this one. Believed once this peer knows of one."""
        neighbour = self._edges.neighbours.get(peer)
        return self.ends and neighbour is not None and neighbour.progress.in_later_view

    @property
    def low_watermark(self) -> int:
        """The least durable round of all, as far as is known here; of present neighbours and this peer never more."""
        return min(self._reckoned().values())

    @property
    def least(self) -> int:
        """The least durable round of all members, as far as is known here: of whom there is no word, none.

        Where members sign what they announce, as far as that proves it."""
        if self._keyring.signs:
            return min(self._proven(peer) for peer in self._edges.members)
        neighbours = self._edges.current()
        words = [self._word(peer, neighbours) for peer in self._edges.members]
        return min(NOTHING if at is None else at for at in words)

    def _proven(self, peer: str) -> int:
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
        """Who is more than W rounds behind `round`, as far as is known here, and the round each has on disk."""
        return {peer: at for peer, at in self._reckoned().items() if at < round - STALENESS_BOUND}

    async def wait_within_bound(self, round: int) -> None:
        """Wait until nobody is more than W rounds behind `round`."""
        while self.behind(round):
            await self.wait_changed(self.version)

    def _check(self, peer: str, round: int) -> None:
        if not NOTHING <= round <= self._rounds:
            raise ImpossibleError(f"it told of a round {round} of `{peer}` on disk, in a run of {self._rounds}")


class SharedDurability(Durability):
    """Reads of others on a board what it would hear of them by the grapevine, and tells nobody of a third.

    What rests on first-hand words still rests on what a neighbour has said over its own stream.
    """

    def __init__(self, id: str, edges: Edges, rounds: int, board: DurabilityBoard) -> None:
        super().__init__(id, edges, rounds)
        self._board = board
        board.post(id, self.own)

    def announce(self, round: int) -> None:
        super().announce(round)
        self._board.post(self._id, self.own)

    def relayed_for(self, listener: str) -> dict[str, int]:
        return {}

    def _word(self, peer: str, neighbours: Collection[str]) -> int | None:
        return self._board.rounds.get(peer)

    async def wait_within_bound(self, round: int) -> None:
        while behind := self.behind(round):
            await self._board.news(next(iter(behind)))
