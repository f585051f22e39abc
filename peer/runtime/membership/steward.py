"""Sees that a next view is needed, and has it decided; finds out what was decided without this peer."""

import asyncio
from collections.abc import Collection
from random import Random

from peer.network.limits import Timeouts
from peer.network.transport import Transport
from peer.runtime.membership.inquiry import Inquiry
from peer.runtime.membership.membership import Membership
from peer.runtime.membership.moving_seat import MovingSeat
from peer.runtime.membership.needs import Loss, Needs
from peer.runtime.membership.returning import LeftBehindError
from peer.runtime.membership.votes import Votes
from peer.views.messages import Ballot, Decided, Heard
from peer.views.proposal import Proposal
from peer.views.wish import Wish


class Steward:
    """Of one member. Only how long it waits is drawn at random: what is decided never depends on it."""

    def __init__(self, membership: Membership, inquiry: Inquiry, loss: Loss, votes: Votes, timeouts: Timeouts) -> None:
        self._membership, self._inquiry, self._loss, self._timeouts = membership, inquiry, loss, timeouts
        self._needs = Needs(membership, inquiry, loss, votes, timeouts.decide)
        self._clock, self._random = asyncio.get_running_loop().time, Random(membership.id)
        self._outdone_by: Ballot | None = None
        self._outdone = 0
        """How many attempts in a row have been outdone by others'."""
        self._few_since: float | None = None
        """Since when too few are left for a decision."""
        self._not_before = 0.0
        """When it may propose again, by the loop's clock."""
        self._told_all = float("-inf")
        """When it last told all that it leaves."""

    async def run(self) -> None:
        """For ever."""
        looked = self._clock()
        while True:
            await asyncio.sleep(self._timeouts.poll)
            late, looked = self._clock() - looked - self._timeouts.poll, self._clock()
            if late >= self._timeouts.beat:  # what came while this process stood still has not been read yet
                self._not_before = max(self._not_before, looked + self._timeouts.suspect)
            seat, membership = self._membership.seat, self._membership
            if membership.order.stands and membership.is_member and (why := self._needs.why_stay(seat)):
                membership.order.refuse(why)
            if not seat or not seat.transport or membership.is_over(seat.view):
                continue
            if not membership.is_member:
                await self._see_off(seat, seat.transport)
            elif (wish := self._needs.wish(seat)) and self._clock() >= self._not_before:
                gone = [id for id in self._needs.lost(seat) if seat.has_met(id)]
                await self._propose(wish, gone, seat.transport)

    async def _see_off(self, seat: MovingSeat, transport: Transport) -> None:
        """This peer leaves: all are told, until they know, and nobody waits for who is lost meanwhile."""
        membership = self._membership
        if self._needs.lost(seat):  # those who have a say may not see it: they would not go back
            membership.strand(seat.view)
            return
        if seat.known_to_have_left.is_set() or self._clock() - self._told_all < self._timeouts.ask:
            return
        self._told_all = self._clock()
        decided = Decided(membership.chain.since(seat.view.number))
        told = await self._inquiry.ask_all(dict.fromkeys(decided.views[-1].members, decided), transport, ())
        if all(isinstance(reply, Heard) for reply in told.values()):
            seat.known_to_have_left.set()

    async def _propose(self, wish: Wish, gone: Collection[str], transport: Transport) -> None:
        """One attempt; `gone`: who was there in this view and is silent."""
        acceptor = self._membership.register.acceptor
        proposal = Proposal(acceptor.chain, acceptor.next_ballot(self._outdone_by), wish, self._loss.order)
        while requests := proposal.requests():
            answers = await self._inquiry.ask_all(requests, transport, gone)
            for member, reply in answers.items():
                if reply is None:
                    proposal.failed(member)
                else:
                    proposal.answered(member, reply)
        self._needs.unmet, self._outdone_by = proposal.state == "short", proposal.outdone_by
        self._check_others(proposal)
        if proposal.newer:
            await self._membership.learn(proposal.newer)
        # Where many see the same loss at once, each attempt outdoes another: ever fewer of them try.
        self._outdone = self._outdone + 1 if proposal.state == "outdone" else 0
        self._not_before = self._clock() + self._random.uniform(*self._timeouts.again) * 2 ** min(self._outdone, 5)

    def _check_others(self, proposal: Proposal) -> None:
        """LeftBehindError once so many have ended for so long that no decision can be expected any more."""
        view = self._membership.chain.current
        there = [id for id in view.members if not self._inquiry.refused(id)]
        if proposal.state != "short" or view.is_quorum(there):
            self._few_since = None
            return
        self._few_since = self._few_since or self._clock()
        if self._clock() - self._few_since > self._loss.patience:
            ended = ", ".join(id for id in view.members if id not in there)
            raise LeftBehindError(
                f"nobody listens any more at {ended}, and the rest is too few to go on: they have finished without "
                "this peer, or were stopped; if they are not done, start them and this peer again"
            )
