"""Between rounds and membership, where members change: rounds begin only while no next view is being decided on.

To the runtime it is a `MembershipGate`; to the membership it tells what this peer knows of its neighbours and how far
it is itself.
"""

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from math import inf
from typing import Protocol

from peer.network.durability import NOTHING, Durability, ImpossibleError
from peer.network.neighbours import Neighbour
from peer.network.network import Network
from peer.network.transport import Pipe, Transport
from peer.runtime.lifecycle import MembershipGate
from peer.views.decision import MemberProgress
from peer.views.signing import Keyring
from peer.views.statements import Announcement, Signed
from peer.views.view import View, ViewChain

LEAVE_TIMEOUT_S = 5.0
"""Seconds for which one that leaves waits until all others know."""


class GateOwner(Protocol):
    """Whose seat it is."""

    chain: ViewChain
    keyring: Keyring

    async def answer(self, pipe: Pipe) -> None:
        """Serve a stream with a question."""

    def stir(self) -> None:
        """Something has changed."""


@dataclass(frozen=True)
class MembershipSettings:
    """Of a run whose members change."""

    patience: float
    """Seconds for which a peer waits for somebody who cannot be lost."""
    min_members: int
    """Members of every view."""
    start_with: int | None = None
    """Members with which the run may begin; None: all."""


class DynamicMembershipGate(MembershipGate):
    """Rounds begin here only while no next view is being decided on."""

    can_be_lost = True

    def __init__(self, view: View, id: str, terms: MembershipSettings, owner: GateOwner) -> None:
        super().__init__(view, terms.patience)
        self._id, self._partial_start, self._owner = id, terms.start_with is not None, owner
        self.passed, self.keyring = owner.chain.last_rounds(view.number), owner.keyring
        self.network: Network | None = None
        """Since the peer has taken part in this view."""
        self.transport: Transport | None = None
        """While it does."""
        self.started = view.first - 1
        """The last round that this peer has begun."""
        self._all_came = False
        """Whether a handshake was made with every neighbour."""
        self._durable = view.first - 1
        """The last round that is on disk for good."""
        self.dropped = -1
        """States up to that round may be gone: all were known to have later ones."""
        self._whole = -1
        """The round of the checkpoint that was read back at the start of this life: it can go back there, too."""
        self.leaving = False
        """Whether this peer is no member of the next view, and ends with this one."""
        self._promised: int | None = None
        self._last: int | None = None
        self._free = asyncio.Event()
        self.departure_acknowledged = asyncio.Event()

    def take(self, network: Network, done: int) -> None:
        self.network, self.transport, self.started = network, network.transport, max(self.started, done)
        self._whole = done
        if self._last is not None:
            network.set_last_round(self._last)
        self._owner.stir()

    def block_rounds(self, promised: int | None) -> None:
        """No round may begin, and nobody hears of later ones on disk than the one promised; None: both may be again.

        Whoever heard of a later one might do away with the state to which all are to go back.
        """
        self._promised = promised
        if promised is not None:
            self._free.clear()
            return
        self._free.set()
        if self.transport and self.network:
            self.network.announce(self._durable)

    def tellable(self, durable: int) -> int:
        self._durable = max(self._durable, durable)
        return durable if self._promised is None else min(durable, self._promised)

    def told_before(self, whole: Sequence[int]) -> int:
        """No less than this peer may have told before, as others do away with the states before that."""
        return whole[0]

    def least_wanted(self, durability: Durability) -> int:
        """That of any member: all go back together. While a view is decided on nothing is dropped: a member may promise
        little and announce more right after."""
        if self._promised is not None:
            return NOTHING
        self.dropped = max(self.dropped, durability.least - 1)
        return durability.least

    def patience(self, done: int) -> float:
        """For ever: who does not come is lost after `absence`. Only before the run has begun nobody is."""
        return inf if done >= 0 or self._partial_start else self._patience

    async def may_finish(self, network: Network) -> None:
        """Who has finished is needed until all have: should somebody be lost now, the rest goes back.

        Of who is no neighbour only hearsay tells, which ends where others have left; so not for longer than `patience`.
        """
        with suppress(TimeoutError):
            async with asyncio.timeout(self._patience):
                await network.durability.wait_all_durable(network.last_round)

    async def may_pass_on(self, network: Network) -> None:
        """Who leaving waits for a while until all know it: else they could wait for this peer's answer for ever."""
        await super().may_pass_on(network)
        if self.leaving:
            with suppress(TimeoutError):
                async with asyncio.timeout(LEAVE_TIMEOUT_S):
                    await self.departure_acknowledged.wait()
            await network.close_gracefully()

    async def may_start(self, round: int) -> None:
        self._all_came = True
        while not self._free.is_set():  # it may be held again before it is woken up
            await self._free.wait()
        if self._last is None or round <= self._last:
            self.started = round

    def leave(self) -> None:
        """The life in this view is over."""
        self.transport = None

    async def answer(self, pipe: Pipe) -> None:
        await self._owner.answer(pipe)

    def end_after(self, round: int) -> None:
        """The next view is planned, and this one is over then."""
        self._last = round
        if self.network:
            self.network.set_last_round(round)

    def standing(self, chain: ViewChain) -> MemberProgress | None:
        """How this peer stands for the next decision; None before it knows, or may not say.

        Who has nothing at all may have forgotten a promise: it says nothing before a neighbour has welcomed it, which
        would refuse one that has had something, unless the run may begin without some.
        """
        following = chain.after(self.view.number, self._id) if chain.current.number > self.view.number else None
        taken_in, private = self._taken_in(chain, (following or self.view).number)
        oldest = taken_in.first if taken_in else 0
        if following and following is taken_in:
            before = following.first - 1
            return MemberProgress(
                self._at_most(before, chain.last_valid_round(following.number)), oldest, before, private
            )
        if self.network is None or not (self.has_begun or self._partial_start or self._is_welcome(self.network)):
            return None
        durable = self._at_most(max(self.network.durability.own, self._whole), chain.last_valid_round(self.view.number))
        return MemberProgress(durable, oldest, self.started, private)

    def _is_welcome(self, network: Network) -> bool:
        return any("send" in one.reach.handshaken for one in self._around(network))

    def _taken_in(self, chain: ViewChain, until: int) -> tuple[View | None, int]:
        """The last view, up to that number, by which this peer was taken in, and the round of the state it brought."""
        for view in reversed(chain.since(-1)[: until + 1]):
            if self._id in (entrants := dict(view.entrants)):
                return view, entrants[self._id]
        return None, -1

    @staticmethod
    def _at_most(round: int, ceiling: int | None) -> int:
        return round if ceiling is None else min(round, ceiling)

    @property
    def has_begun(self) -> bool:
        """Whether everybody has been there at some time, as far as this peer can tell.

        Who only waits for a decision before the first round has met all its neighbours, too: if it held that the run
        has not begun, and others that it has, they would never agree on who is lost.
        """
        return self.view.number > 0 or self.started >= 0 or self._all_came

    @property
    def missing(self) -> list[str]:
        """Neighbours that are away, or have not come yet."""
        if self.network is None:
            return []
        return [one.id for one in self._around(self.network) if one.state not in ("up", "left")]

    @property
    def may_exclude(self) -> bool:
        """Whether anybody counts as lost yet: before the run has begun nobody, unless it may begin without some."""
        return self.has_begun or self._partial_start

    def announcements(self) -> Mapping[str, Signed[Announcement]]:
        """What members have announced to be on their disks, as far as it has come here."""
        return self.network.durability.announcements() if self.network else {}

    def add_announcement(self, signed: Signed[Announcement]) -> None:
        """What a member has announced, as another holds against it."""
        if self.network and signed.statement.view == self.view.number:
            with suppress(ImpossibleError):
                durability = self.network.durability
                durability.record_signed(signed.signer, signed.statement.round, signed.signature, signed.certificate)

    def is_silent(self, member: str, seconds: float, answered: Mapping[str, float]) -> bool:
        """Whether a neighbour has given no sign of life for so long; of others nothing is known without asking."""
        return (
            self.network is not None
            and member in self.network.edges.current()
            and member in self.silent(seconds, answered)
        )

    def silent(self, seconds: float, answered: Mapping[str, float]) -> list[str]:
        """Neighbours that have given no sign of life for so long, have not come, or have lost what they had.

        answered: when each has answered a question last, by the loop's clock.
        """
        if self.network is None:
            return []
        before = asyncio.get_running_loop().time() - seconds
        # Who says that it has gone on into a later view is believed once this peer knows of one.
        gone_on = [
            one.id for one in self._around(self.network) if one.progress.in_later_view and self._last is not None
        ]
        around = [one for one in self._around(self.network) if one.state != "left" and one.id not in gone_on]
        return [
            one.id
            for one in around
            if max(one.signs.last_heartbeat, answered.get(one.id, 0.0)) < before or one.progress.regressed
        ]

    def heard(self, member: str) -> float:
        """When a neighbour has given its last sign of life, by the loop's clock; of others nothing is known here."""
        around = self._around(self.network) if self.network else []
        return next((one.signs.last_heartbeat for one in around if one.id == member), -inf)

    def has_met(self, member: str) -> bool:
        """Whether that neighbour has been there in this view."""
        return self.network is not None and bool(self.network.edges.neighbours[member].reach.handshaken)

    def _around(self, network: Network) -> list[Neighbour]:
        return [network.edges.neighbours[id] for id in sorted(network.edges.current())]
