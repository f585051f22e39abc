"""Sees that a next view is needed, and has it decided; finds out what was decided without this peer."""

import asyncio
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from random import Random

from peer.network.limits import Timeouts
from peer.network.transport import Transport
from peer.runtime.membership.inquiry import Inquiry
from peer.runtime.membership.membership import Membership
from peer.runtime.membership.moving_seat import MovingSeat
from peer.runtime.membership.returning import LeftBehindError
from peer.runtime.membership.votes import Votes
from peer.views.messages import Ballot, Decided, Heard
from peer.views.proposal import Proposal
from peer.views.wish import Wish


@dataclass(frozen=True)
class Loss:
    """When a member counts as lost, and how many may not be."""

    absence: float
    """Seconds of silence."""
    at_least: int
    """Members of every view."""
    patience: float
    """Seconds after which a peer ends whose neighbours have done so without it."""
    start_with: int | None
    """Members with which the run may begin; None: all."""
    rounds: int
    """Of the run: who comes back after the last one has begun is not taken in."""
    order: tuple[str, ...]
    """Everybody's id, as in the spec."""


class Steward:
    """Of one member. Only how long it waits is drawn at random: what is decided never depends on it."""

    def __init__(self, membership: Membership, inquiry: Inquiry, loss: Loss, votes: Votes, timeouts: Timeouts) -> None:
        self._membership, self._inquiry, self._loss, self._votes = membership, inquiry, loss, votes
        self._timeouts = timeouts
        self._clock, self._random = asyncio.get_running_loop().time, Random(membership.id)
        self._outdone_by: Ballot | None = None
        self._held_since: float | None = None
        self._outdone = 0
        """How many attempts in a row have been outdone by others'."""
        self._mine = False
        """Whether the last attempt was this peer's, and came to nothing."""
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
            if membership.order.stands and membership.is_member and (why := self._why_stay(seat)):
                membership.order.refuse(why)
            if not seat or not seat.transport or membership.is_over(seat.view):
                continue
            if not membership.is_member:
                await self._see_off(seat, seat.transport)
            elif wish := self._wish(seat):
                gone = [id for id in self._lost(seat) if seat.has_met(id)]
                await self._propose(wish, gone, seat.transport)

    async def _see_off(self, seat: MovingSeat, transport: Transport) -> None:
        """This peer leaves: all are told, until they know, and nobody waits for who is lost meanwhile."""
        membership = self._membership
        if self._lost(seat):  # those who have a say may not see it: they would not go back
            membership.strand(seat.view)
            return
        if seat.known_to_have_left.is_set() or self._clock() - self._told_all < self._timeouts.ask:
            return
        self._told_all = self._clock()
        decided = Decided(membership.chain.since(seat.view.number))
        told = await self._inquiry.ask_all(dict.fromkeys(decided.views[-1].members, decided), transport, ())
        if all(isinstance(reply, Heard) for reply in told.values()):
            seat.known_to_have_left.set()

    def _wish(self, seat: MovingSeat) -> Wish | None:
        """What this peer would have decided now, if anything."""
        now = self._clock()
        self._held_since = (self._held_since or now) if self._membership.held else None
        if now < self._not_before:
            return None
        held, out = 0.0 if self._held_since is None else now - self._held_since, self._votes.out
        if held and not self._mine and held < self._timeouts.decide and not self._is_held_by(out):
            return None  # somebody else is at it
        if (lost := self._lost(seat)) or held > self._loss.absence or out:
            return self._without(lost, out, seat, patient=held <= self._loss.absence)
        if self._membership.order.stands and not seat.missing:
            own = self._membership.id
            return Wish(frozenset({own}), at_least=self._loss.at_least, unanimous=True, reason=f"{own} leaves")
        if held:
            return Wish(unanimous=True)
        if (entering := self._membership.asks_to_enter) and seat.started < self._loss.rounds:
            return Wish(enter=dict(entering), unanimous=True, reason=f"{', '.join(entering)} taken in")
        return None

    def _is_held_by(self, out: Collection[str]) -> bool:
        """Whether the last promise was given to one of these."""
        promised = self._membership.register.acceptor.slot.promised
        return promised is not None and promised.proposer in out

    def _without(
        self, lost: Collection[str], out: Mapping[str, Collection[str]], seat: MovingSeat, patient: bool
    ) -> Wish:
        """Those who are lost and those who are voted out; patient: whether all others must promise if none is lost."""
        others = [id for id in lost if id not in out]
        # Who is no member any more, and was to play the last rounds before a view that is decided.
        stuck = any(id not in self._membership.chain.current.members for id in lost)
        at_least = self._loss.at_least if seat.has_begun or out else self._loss.start_with or 0
        reasons = [f"{id} voted out by {', '.join(by)}" for id, by in out.items()]
        reasons += [f"{', '.join(others)} silent for {self._loss.absence:g} s"] if others else []
        return Wish(
            expel=frozenset(out),
            at_least=at_least,
            unanimous=bool(out) and patient and not others,
            rollback=stuck,
            reason="; ".join(reasons) or "who was deciding is silent",
        )

    def _why_stay(self, seat: MovingSeat | None) -> str | None:
        """Why this peer cannot leave, in a sentence."""
        order, loss, members = self._membership.order, self._loss, self._membership.chain.current.members
        if len(members) <= loss.at_least:
            return f"there are {len(members)} members, and the protocol needs {loss.at_least}"
        if order.age > loss.patience:
            return f"the others have not agreed within {loss.patience:g} s"
        if seat and seat.network and not seat.has_begun:
            return "the run has not begun, so there is nothing to leave; stop it"
        if seat and seat.started >= loss.rounds:
            return "it is in its last round, and ends by itself"
        return None

    def _lost(self, seat: MovingSeat) -> list[str]:
        """Who counts as lost: before the run has begun nobody, unless it may begin without some."""
        return (
            seat.silent(self._loss.absence, self._inquiry.answered) if seat.has_begun or self._loss.start_with else []
        )

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
        self._mine, self._outdone_by = proposal.state == "short", proposal.outdone_by
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
