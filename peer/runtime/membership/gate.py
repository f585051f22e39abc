"""The gate between rounds and a membership that changes: rounds begin only while no view is being decided on (V1).

To the runtime it is a `MembershipGate`; it tells the membership this peer's progress, and what it knows of its
neighbours.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from math import inf

from peer.network.durability import NOTHING, Durability, ImpossibleError
from peer.network.neighbours import Neighbour
from peer.network.network import Network
from peer.network.transport import Pipe, Transport
from peer.runtime.lifecycle import MembershipGate, drain
from peer.tasks import within
from peer.views.decision import Acceptor, MemberProgress
from peer.views.statements import Announcement, Signed
from peer.views.view import View, ViewChain

LEAVE_TIMEOUT_S = 5.0
"""The longest time that a leaving member waits for all others to know."""


class DynamicMembershipGate(MembershipGate):
    """The gate of one view of a run whose members change."""

    can_be_excluded = True

    def __init__(
        self,
        view: View,
        acceptor: Acceptor,
        answer: Callable[[Pipe], Awaitable[None]],
        changed: Callable[[], None],
        known: MemberProgress | None = None,
    ) -> None:
        """answer: serves a stream with a request about views. changed: called when this peer's progress is known.
        known: the progress from the view before; None if the process has just started."""
        super().__init__(view, acceptor.rules.patience)
        self._chain, self._absence = acceptor.chain, acceptor.rules.absence
        self._id, self._partial_start = acceptor.id, acceptor.rules.start_with is not None
        self._answer, self._on_change, self._known = answer, changed, known
        self.last_rounds, self.keyring = acceptor.chain.last_rounds(view.number), acceptor.keyring
        self.network: Network | None = None
        """The network, once the peer has found what it had on disk."""
        self.transport: Transport | None = None
        """The transport, while the peer takes part in this view."""
        self.started = view.first - 1
        """The last round that this peer has begun."""
        self._all_came = False
        """Whether there was a handshake with every neighbour."""
        self._durable = view.first - 1
        """The last durable round."""
        self._resumed = -1
        """The round of the checkpoint that was resumed: this peer can go back to it, too."""
        self.dropped = -1
        """The last round whose state may be gone, as all members were known to have later ones."""
        self.leaving = False
        """Whether this peer is not a member of the next view, and ends with this one."""
        self.departure_acknowledged = asyncio.Event()
        """Set when all members know that this peer leaves."""
        self._promised: int | None = None
        self._last: int | None = None
        self._free = asyncio.Event()

    # For the runtime.

    def attach(self, network: Network, done: int) -> None:
        self.network, self.transport = network, network.transport
        self.started, self._resumed = max(self.started, done), done
        if self._last is not None:
            network.set_last_round(self._last)
        self._on_change()

    def announce(self, network: Network, durable: int) -> None:
        """Announce a durable round, but none beyond the promised one while a view is being decided on (V1): a member
        that knew of a later round might drop the state that all are to go back to."""
        self._durable = max(self._durable, durable)
        network.announce(durable if self._promised is None else min(durable, self._promised))

    def oldest_needed_round(self, durability: Durability) -> int:
        """Return the least durable round of all members, as all go back together. While a view is being decided on
        nothing is dropped, as a member may promise an early round and announce a later one right after."""
        if self._promised is not None:
            return NOTHING
        self.dropped = max(self.dropped, durability.least - 1)
        return durability.least

    def join_timeout(self, done: int) -> float:
        """No limit, as a member that does not come is lost after `absence`; but nobody is before the run begins."""
        return inf if done >= 0 or self._last is not None or self._partial_start else self._patience

    async def wait_to_start(self, round: int) -> None:
        self._all_came = True
        while not self._free.is_set():  # the gate may be closed again before this task runs
            await self._free.wait()
        if self._last is None or round <= self._last:
            self.started = round

    async def wait_to_end(self, network: Network, finished: bool) -> None:
        """A finished peer is needed until all have finished: if a member is lost now, all others go back. It waits for
        at most `patience`, as relayed reports of members that are not its neighbours end when others leave. A leaving
        member waits until all others know, who might otherwise wait for its answer for ever."""
        if finished:
            await within(self._patience, network.durability.wait_all_durable(network.last_round))
            return
        # A member that leaves may be gone before it announces its last round. No round is missing here any more.
        await drain(network, self._absence, lambda: self._chain.current.members)
        if self.leaving:
            await within(LEAVE_TIMEOUT_S, self.departure_acknowledged.wait())
            await network.close_gracefully()

    async def answer(self, pipe: Pipe) -> None:
        await self._answer(pipe)

    # For the membership.

    def block_rounds(self, promised: int) -> None:
        """Let no round begin, and announce none beyond the promised one (V1)."""
        self._promised = promised
        self._free.clear()

    def allow_rounds(self) -> None:
        self._promised = None
        self._free.set()
        if self.transport and self.network:
            self.network.announce(self._durable)

    def end_after(self, round: int) -> None:
        """End this view after that round, as the next view is planned."""
        self._last = round
        if self.network:
            self.network.set_last_round(round)

    def leave(self) -> None:
        """End this peer's part in the view."""
        self.transport = None

    def progress(self, chain: ViewChain) -> MemberProgress | None:
        """Return this peer's progress for the next decision; None while it is unknown or must not be stated.

        A peer that has nothing on disk may have forgotten a promise, so it states nothing until a neighbour has
        accepted its handshake (peers that have lost rounds are refused), unless the run may begin without some members.
        """
        following = chain.after(self.view.number, self._id)
        if following and self._id in dict(following.entrants):
            before = following.first - 1
            return MemberProgress(chain.valid(before, following.number), before)
        welcome = self.may_exclude or any("send" in one.reach.handshaken for one in self._neighbours)
        if self.network is None and self._known:  # it still loads what it has on disk
            return MemberProgress(chain.valid(self._known.durable, self.view.number), self.started)
        if self.network is None or not welcome:
            return None
        durable = chain.valid(max(self.network.durability.own, self._resumed), self.view.number)
        return MemberProgress(durable, chain.valid(self.started, self.view.number))

    @property
    def has_begun(self) -> bool:
        """Whether the run has begun, as far as this peer can tell.

        This includes a peer that waits for a decision before round 0 and has met all its neighbours: if peers disagreed
        on whether the run has begun, they could never agree on which member is lost. It also includes one that was
        restarted without a round on disk and knows that this view has an end.
        """
        return self.view.number > 0 or self.started >= 0 or self._all_came or self._last is not None

    @property
    def may_exclude(self) -> bool:
        """Whether members can count as lost yet: not before the run has begun, unless it may begin without some."""
        return self.has_begun or self._partial_start

    @property
    def given_up(self) -> bool:
        """Whether a neighbour has gone on without the last rounds of this peer, which leaves: it was away for too long,
        and nobody sends it any more what it lacks."""
        behind = self._last is not None and self._durable < self._last
        return behind and any(one.id in self._gone_on for one in self._neighbours)

    @property
    def missing(self) -> list[str]:
        """The neighbours that are away or have not come yet."""
        return [one.id for one in self._neighbours if one.state not in ("up", "left")]

    def lost_neighbours(self, seconds: float, answered: Mapping[str, float]) -> list[str]:
        """Return the neighbours that have sent no heartbeat for so many seconds, or that have lost rounds; nothing is
        known of other members without asking them.

        answered: when each member last answered a request, by the loop's clock.
        """
        before = asyncio.get_running_loop().time() - seconds
        around = [one for one in self._neighbours if one.state != "left" and one.id not in self._gone_on]
        return [
            one.id
            for one in around
            if max(one.signs.last_heartbeat, answered.get(one.id, 0.0)) < before or one.progress.regressed
        ]

    def last_heartbeat(self, member: str) -> float:
        """Return when a neighbour's last heartbeat came, by the loop's clock; -inf for other members."""
        return next((one.signs.last_heartbeat for one in self._neighbours if one.id == member), -inf)

    def has_met(self, member: str) -> bool:
        """Return whether that neighbour has been there in this view."""
        return any(one.id == member and one.reach.handshaken for one in self._neighbours)

    def announcements(self) -> Mapping[str, Signed[Announcement]]:
        """Return the announcements of durable rounds that this peer knows, by member."""
        return self.network.durability.announcements() if self.network else {}

    def add_announcement(self, signed: Signed[Announcement]) -> None:
        """Take up a member's announcement that another member raised in an objection."""
        if self.network and signed.statement.view == self.view.number:
            with suppress(ImpossibleError):
                durability = self.network.durability
                durability.record_signed(signed.signer, signed.statement.round, signed.signature, signed.certificate)

    @property
    def _gone_on(self) -> set[str]:
        return self.network.edges.gone_on if self.network else set()

    @property
    def _neighbours(self) -> list[Neighbour]:
        """The present neighbours; none before the peer takes part in the view, and none after it."""
        edges = self.network.edges if self.network and self.transport else None
        return [edges.neighbours[id] for id in sorted(edges.current())] if edges else []
