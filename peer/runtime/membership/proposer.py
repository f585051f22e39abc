"""When a member proposes the next view, and which: without who is lost, leaves or is expelled, with who asks to enter.

Only how long it waits is drawn at random: what is decided never depends on it. Where too few members are here for a
decision, it says so, and for whom it waits: that a wait begins, that it lasts, and that it is over (`WaitReporter`).
"""

import asyncio
import itertools
from collections.abc import Collection, Mapping
from math import inf
from random import Random

from peer.errors import FailedError
from peer.network.limits import RateLimiter
from peer.network.transport import Transport
from peer.runtime.lifecycle import ReportIntervals
from peer.runtime.membership.gate import DynamicMembershipGate
from peer.runtime.membership.membership import Membership
from peer.telemetry.events import Report, Shortage, Waiting
from peer.views.decision import Attempt, MembershipChange
from peer.views.statements import (
    Ask,
    AskPromise,
    Ballot,
    Behind,
    Consent,
    Consents,
    Decided,
    Evidence,
    Guilt,
    Heard,
    InvalidError,
    Poll,
    Reply,
    Request,
    Signed,
)

CHANGES, CHANGE_AGAIN = 8, 600.0
"""So many changes of who is waited for are told at once, and one more each time that so many seconds have passed:
members that come and go, whether or not they mean to, make nobody talk without end."""


class WaitReporter:
    """Of one kind of wait. Reminders come at ever longer intervals; they also tell of changes that came too quickly."""

    def __init__(self, report: Report, reminders: ReportIntervals) -> None:
        self._report, self._reminders = report, reminders
        self._clock = asyncio.get_running_loop().time
        self._pace = RateLimiter(CHANGES, CHANGE_AGAIN)
        self._told: list[str] | None = None
        """Who is waited for, as was told last; None while nothing has been told of a wait."""
        self._interval, self._due = 0.0, 0.0

    def look(self, waiting: Waiting) -> None:
        """Takes the wait as it is now; it is over when nobody is awaited."""
        ids = [one.id for one in waiting.awaited]
        if not ids:
            if self._told is not None:
                self._told = None
                self._report(waiting)
            return
        begins, reminds = self._told is None, self._told is not None and self._clock() >= self._due
        if not reminds and (ids == self._told or not self._pace.try_acquire()):
            return
        if begins or reminds:
            longer = min(2 * self._interval, self._reminders.members_longest)
            self._interval = self._reminders.members_again if begins else longer
            self._due = self._clock() + self._interval
        self._told = ids
        self._report(waiting)


RANK, LAST_RANK = 0.3, 6
"""Seconds between two members that begin an attempt, or take one over that has come to nothing; so many wait for
others. Where twenty saw one loss and all began at once, each outdid another, and a decision took 13 s."""


class ExcludedError(FailedError):
    """The others have gone on without this peer, and do not take it in."""


class Proposer:
    """Of one member. `run` is for ever."""

    def __init__(self, membership: Membership, reminders: ReportIntervals) -> None:
        self._membership, self._terms, self._timeouts = membership, membership.terms, membership.timeouts
        self._acceptor, self._order = membership.acceptor, membership.acceptor.rules.ids
        self._clock, self._random = asyncio.get_running_loop().time, Random(membership.id)
        self._consents: dict[tuple[str, str], Signed[Consent]] = {}
        """Of others, by who gives it and against whom."""
        self._guilt: dict[str, Guilt] = {}
        self._unmet = False
        """Whether the last attempt was this peer's, and came to nothing."""
        self._preempted_by: Ballot | None = None
        self._preempted = 0
        """How many attempts in a row have been outdone by others'."""
        self._wish_since: float | None = None
        """Since when it has wanted a decision."""
        self._few_since: float | None = None
        """Since when too few are left for a decision."""
        self._not_before = 0.0
        """When it may propose again, by the loop's clock."""
        self._told_all = float("-inf")
        """When it last told all that it leaves."""
        self._short_since: float | None = None
        """Since when it wants a decision for which too few members are here."""
        self._shortages = WaitReporter(membership.report, reminders)

    async def run(self) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(self._look_for_the_missing())
            group.create_task(self._poll())
            group.create_task(self._decide())

    async def _look_for_the_missing(self) -> None:
        """Whether those who are missed are there all the same, what was decided of which this peer has not heard, and
        whether enough are there to decide.

        Nobody is asked while nobody is missed. Who answers is not silent: it may be busy, or play the view before.
        """
        membership, random = self._membership, Random(self._membership.id)
        while True:
            await asyncio.sleep(self._timeouts.liveness_poll)
            if seat := membership.seat:
                if seat.transport and not membership.is_over(seat.view):
                    away = self._away(seat) if self._wants_decision(seat) else []
                    if missing := {*seat.missing, *away}:
                        others = [id for id in self._order if id != membership.id]
                        ask = Ask(membership.chain.current.number)
                        whom = sorted({*missing, random.choice(others)})
                        await asyncio.gather(*(membership.ask(id, ask, seat.transport) for id in whom))
                self._look_for_a_quorum(seat)

    def _wants_decision(self, seat: DynamicMembershipGate) -> bool:
        """Whether one is due that somebody's absence can keep from being made."""
        membership = self._membership
        if not seat.transport or membership.is_over(seat.view) or not membership.is_member:
            return False
        return bool(self._lost(seat) or self.out) or membership.held_for > self._timeouts.decision_timeout

    def _away(self, seat: DynamicMembershipGate) -> list[str]:
        """Members that have neither given a sign of life for `absence` nor answered, or do not take part."""
        membership, out, before = self._membership, self.out, self._clock() - self._acceptor.rules.absence

        def is_here(id: str) -> bool:
            heard = max(seat.heard(id), membership.answered.get(id, -inf))
            return id == membership.id or (heard >= before and not membership.is_withholding(id))

        return [id for id in membership.chain.current.members if id not in out and not is_here(id)]

    def _look_for_a_quorum(self, seat: DynamicMembershipGate) -> None:
        """Says so, in the log and to whoever asks for this peer's status, where a decision waits for members.

        One look is not enough: whoever is busy answers at the next.
        """
        begun, self._short_since = self._short_since, None
        seat.waiting, over = None, "no decision waits for members any more"
        if self._wants_decision(seat):
            away, now = self._away(seat), self._clock()
            if short := self._shortage(seat, away, 0.0 if begun is None else round(now - begun, 1)):
                self._short_since = now if begun is None else begun
                if begun is None:
                    return
                seat.waiting = Waiting.for_quorum(short, tuple(map(self._membership.awaited, away)))
            else:
                over = "enough members are here for a decision"
        self._shortages.look(seat.waiting or Waiting(cause="quorum", awaited=(), sentence=over))

    def _shortage(self, seat: DynamicMembershipGate, away: Collection[str], seconds: float) -> Shortage | None:
        view, faulty, min_members = self._membership.chain.current, self._acceptor.rules.faulty, self._least(seat)
        out = self.out
        here = [id for id in view.members if id not in away and id not in out]
        if view.is_quorum(here, faulty) and len(here) >= min_members:
            return None
        quorum, tie_breaker = view.needed(here, faulty)
        if min_members >= quorum or tie_breaker in out:
            tie_breaker = ""
        return Shortage(len(here), len(view.members), max(quorum, min_members), tie_breaker, seconds)

    def _least(self, seat: DynamicMembershipGate) -> int:
        """Members that the next view must have."""
        return self._terms.min_members if seat.has_begun or self.out else self._terms.start_with or 0

    async def _poll(self) -> None:
        """Who consents that somebody is voted out, and who is proved guilty, as long as there is such a question."""
        membership = self._membership
        while True:
            memory, present = membership.memory, membership.chain.current
            transport = membership.seat.transport if membership.seat else None
            if (memory.consents or memory.guilt) and transport:
                poll = Poll(present.number)
                others = [id for id in present.members if id != membership.id]
                replies = await asyncio.gather(*(membership.ask(id, poll, transport) for id in others))
                for id, reply in zip(others, replies, strict=True):
                    if isinstance(reply, Consents):
                        self._take(id, reply.evidence)
            self._acceptor.ignored_members = frozenset(self.out)
            for id in self._acceptor.ignored_members:
                membership.turns.end(id)
            await asyncio.sleep(self._timeouts.liveness_poll)

    def _take(self, member: str, evidence: Evidence) -> None:
        """What it says of itself, and what it can prove."""
        most, court = len(self._order), self._acceptor.verifier
        try:
            ids = {*self._order} - {*self._membership.chain.current.expelled}
            for one in [one for one in evidence.consents[:most] if one.signer == member and one.statement.id in ids]:
                court.check_signed(one)
                self._consents[member, one.statement.id] = one
            for guilt in evidence.guilt[:most]:
                court.check_guilt(guilt)
                self._guilt[guilt.id] = guilt
        except InvalidError as error:
            self._membership.report_invalid(member, str(error))

    @property
    def out(self) -> Mapping[str, Evidence]:
        """Who is to be expelled, each with the proof of it; nobody if too few would be left."""
        acceptor, members = self._acceptor, self._membership.chain.current.members
        known = self._consents | {(acceptor.id, one.statement.id): one for one in acceptor.memory.consents}
        guilt = self._guilt | {one.id: one for one in acceptor.memory.guilt}
        found = {id: Evidence(guilt=(guilt[id],)) for id in guilt if id in members}
        for accused in acceptor.consented - found.keys():
            consents = [known[id, accused] for id in members if id != accused and (id, accused) in known]
            if acceptor.verifier.is_quorum(self._membership.chain.current, [one.signer for one in consents]):
                found[accused] = Evidence((*consents,))
        return found if len({*members} - found.keys()) >= self._terms.min_members else {}

    async def _decide(self) -> None:
        looked = self._clock()
        while True:
            await asyncio.sleep(self._timeouts.poll)
            late, looked = self._clock() - looked - self._timeouts.poll, self._clock()
            if (
                late >= self._timeouts.heartbeat_interval
            ):  # what came while this process stood still has not been read yet
                self._not_before = max(self._not_before, looked + self._timeouts.suspect_after)
            seat, membership = self._membership.seat, self._membership
            if membership.order.stands and membership.is_member and (why := self._why_stay(seat)):
                membership.order.refuse(why)
            if not seat or not seat.transport or membership.is_over(seat.view):
                continue
            if not membership.is_member:
                await self._see_off(seat, seat.transport)
            elif wish := self._wish(seat):
                if self._wish_since is None:
                    self._wish_since = self._clock()
                if self._clock() >= max(self._not_before, self._wish_since + self._rank(wish) * RANK):
                    await self._propose(wish, seat, seat.transport)
            else:
                self._wish_since = None

    # What this member would have decided.

    def _lost(self, seat: DynamicMembershipGate) -> list[str]:
        """Who counts as lost: before the run has begun nobody, unless it may begin without some."""
        return seat.silent(self._acceptor.rules.absence, self._membership.answered) if seat.may_exclude else []

    def _wish(self, seat: DynamicMembershipGate) -> MembershipChange | None:
        """What this peer would have decided now, if anything."""
        membership, absence, out = self._membership, self._acceptor.rules.absence, self.out
        held = membership.held_for
        promised = self._acceptor.slot.promised
        held_by_out = promised is not None and promised.proposer in out
        if held and not held_by_out and self._is_anothers(held):
            return None
        if not membership.turns.is_free(self._acceptor.id):
            return None
        if (lost := self._lost(seat)) or held > absence or out:
            return self._without(lost, out, seat, waits=held <= absence)
        if membership.order.stands and not seat.missing:
            return MembershipChange(leaves=True, min_members=self._terms.min_members, unanimous=True)
        if held:
            return MembershipChange(unanimous=True)
        entries = [
            one
            for one in membership.admission_requests.values()
            if one.statement.number == membership.chain.current.number
        ]
        if entries and seat.started < self._acceptor.rules.rounds:
            return MembershipChange(entries=(*entries,), unanimous=True)
        return None

    def _rank(self, wish: MembershipChange) -> int:
        """How many members begin before this one, where all may see the same."""
        if wish.leaves or self._membership.held_for:
            return 0
        own, gone = self._acceptor.id, {*wish.suspects, *self.out}
        before = itertools.takewhile(lambda id: id != own, self._membership.chain.current.members)
        return min(sum(id not in gone for id in before), LAST_RANK)

    def _is_anothers(self, held: float) -> bool:
        """Whether another member is at it, or takes it over before this one."""
        membership, promised = self._membership, self._acceptor.slot.promised
        if not membership.tolerates:
            return not self._unmet and held < self._timeouts.decision_timeout
        members = membership.chain.current.members
        turned = members.index(self._acceptor.id) - (promised.counter if promised else 0)
        rank = min(turned % len(members), LAST_RANK)
        return membership.turns.over_for < rank * RANK or membership.turns.over_for == 0

    def _without(
        self, lost: Collection[str], out: Mapping[str, Evidence], seat: DynamicMembershipGate, waits: bool
    ) -> MembershipChange:
        """Those who are lost and those who are expelled; waits: for all others to promise, if none is lost."""
        others = [id for id in lost if id not in out]
        members = self._membership.chain.current.members
        return MembershipChange(
            min_members=self._least(seat),
            stubborn=frozenset(id for id in members if self._membership.is_withholding(id)),
            unanimous=bool(out) and waits and not others,
            # Who is no member any more, and was to play the last rounds before a view that is decided.
            missing=tuple(id for id in others if id not in members),
            evidence=Evidence(
                tuple(consent for one in out.values() for consent in one.consents),
                tuple(guilt for one in out.values() for guilt in one.guilt),
            ),
            suspects=frozenset(id for id in others if seat.has_met(id)),
        )

    def _why_stay(self, seat: DynamicMembershipGate | None) -> str | None:
        """Why this peer cannot leave, in a sentence."""
        order, terms, members = self._membership.order, self._terms, self._membership.chain.current.members
        if len(members) <= terms.min_members:
            return f"there are {len(members)} members, and the protocol needs {terms.min_members}"
        if order.age > terms.patience:
            return f"the others have not agreed within {terms.patience:g} s"
        if seat and seat.network and not seat.has_begun:
            return "the run has not begun, so there is nothing to leave; stop it"
        if seat and seat.started >= self._acceptor.rules.rounds:
            return "it is in its last round, and ends by itself"
        return None

    # How it has it decided.

    async def _see_off(self, seat: DynamicMembershipGate, transport: Transport) -> None:
        """This peer leaves: all are told, until they know, and nobody waits for who is lost meanwhile."""
        membership = self._membership
        if self._lost(seat):  # those who have a say may not see it: they would not go back
            membership.strand(seat.view)
            return
        if seat.departure_acknowledged.is_set() or self._clock() - self._told_all < self._timeouts.liveness_poll:
            return
        self._told_all = self._clock()
        decided = Decided((*membership.memory.decisions[seat.view.number :],))
        told = await self._ask_all(dict.fromkeys(membership.chain.current.members, decided), transport, ())
        if all(isinstance(reply, Heard) for reply in told.values()):
            seat.departure_acknowledged.set()

    async def _propose(self, wish: MembershipChange, seat: DynamicMembershipGate, transport: Transport) -> None:
        """One attempt."""
        attempt = Attempt(self._acceptor, self._preempted_by, wish)
        attempt.against(self._membership.announcements().values())
        while requests := attempt.requests():
            answers = await self._ask_all(requests, transport, wish.suspects)
            for member, reply in answers.items():
                try:
                    attempt.failed(member) if reply is None else attempt.answered(member, reply)
                except InvalidError as error:
                    self._membership.report_invalid(member, str(error))
        self._unmet, self._preempted_by = attempt.state == "no_quorum", attempt.preempted_by
        for signed in attempt.announced.values():
            seat.add_announcement(signed)
        self._check_others(attempt.state in ("no_quorum", "preempted"))
        # Where many see the same loss at once, each attempt outdoes another: ever fewer of them try.
        self._preempted = self._preempted + 1 if attempt.state == "preempted" else 0
        backoff = self._random.uniform(*self._timeouts.proposal_backoff) * 2 ** min(self._preempted, 5)
        self._not_before = self._clock() + backoff

    async def _ask_all(
        self, requests: Mapping[str, Request], transport: Transport, gone: Collection[str]
    ) -> dict[str, Reply | None]:
        """Everybody's answer, by member; None of whom none came. `gone`: who is silent for good, as it seems."""
        own, asking = self._membership.id, dict[str, asyncio.Task[Reply | None]]()
        async with asyncio.TaskGroup() as group:
            for id in (id for id in requests if id != own):
                ask = self._membership.ask if id in gone else self._ask_patiently
                asking[id] = group.create_task(ask(id, requests[id], transport))
            if own in requests:
                # Whoever hears of a decision closes its connections to move on: so the others hear of it before.
                told = requests[own]
                hearing = (
                    [asking[id] for id in told.decisions[-1].view.members if id in asking]
                    if isinstance(told, Decided)
                    else []
                )
                if hearing:
                    await asyncio.wait(hearing)
                asking[own] = group.create_task(self._membership.ask(own, told, transport))
        return {id: task.result() for id, task in asking.items()}

    async def _ask_patiently(self, member: str, request: Request, transport: Transport) -> Reply | None:
        """Where nobody listens a peer may be on its way from one view to the next, or be starting.

        Whoever promises nothing is left out: so it is asked again, for as long as one is waited for that is silent. Who
        does not know the last views is told of them first.
        """
        membership, until = self._membership, self._clock() + self._timeouts.view_rpc_timeout
        while True:
            reply = await membership.ask(member, request, transport)
            if isinstance(reply, Behind) and reply.number < membership.chain.current.number:
                decided = self._acceptor.since(reply.number, membership.most)
                if isinstance(await membership.ask(member, decided, transport), Heard) and self._clock() < until:
                    continue
            waits = reply is None and isinstance(request, AskPromise) and membership.refused(member)
            if not waits or self._clock() > until:
                return reply
            await asyncio.sleep(self._timeouts.retry[-1])

    def _check_others(self, in_vain: bool) -> None:
        """LeftBehindError once so many have ended for so long that no decision can be expected any more."""
        view = self._membership.chain.current
        there = [id for id in view.members if not self._membership.refused(id)]
        if not in_vain or self._acceptor.verifier.is_quorum(view, there):
            self._few_since = None
            return
        self._few_since = self._few_since or self._clock()
        if self._clock() - self._few_since > self._terms.patience:
            ended = ", ".join(id for id in view.members if id not in there)
            raise ExcludedError(
                f"nobody listens any more at {ended}, and the rest is too few to go on: they have finished without "
                "this peer, or were stopped; if they are not done, start them and this peer again"
            )
