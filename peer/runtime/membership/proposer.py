"""When a member proposes the next view, and which one: without members that are lost, leave or are expelled, and with
those that ask to enter; and how these ask (`Rejoin`).

Only its pauses, and whom else it asks, are random: what is decided never depends on it. If too few members are there
for a decision, it reports the beginning, the duration and the end of the wait for them (`WaitReporter`).
"""

import asyncio
import itertools
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import suppress
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
    Consent,
    Consents,
    Decided,
    Enter,
    Entry,
    Evidence,
    Guilt,
    Heard,
    InvalidError,
    Poll,
    Reply,
    Request,
    Signed,
)
from peer.views.view import View

CHANGES, CHANGE_AGAIN = 8, 600.0
"""The first CHANGES changes of a wait are reported at once, and then one more every CHANGE_AGAIN seconds, so that
members that come and go do not fill the log."""


class WaitReporter:
    """Reports one kind of wait. Reminders come at growing intervals, and include changes that came too quickly to be
    reported at once."""

    def __init__(self, report: Report, reminders: ReportIntervals) -> None:
        self._report, self._reminders = report, reminders
        self._clock = asyncio.get_running_loop().time
        self._pace = RateLimiter(CHANGES, CHANGE_AGAIN)
        self._reported: list[str] | None = None
        """The members that were last reported as awaited; None while no wait is reported."""
        self._interval, self._due = 0.0, 0.0

    def look(self, waiting: Waiting) -> None:
        """Take the present state of the wait and report it if it is due; the wait is over when no member is awaited."""
        ids = [one.id for one in waiting.awaited]
        begins, reminds = self._reported is None, self._reported is not None and self._clock() >= self._due
        if not ids:
            if not begins:
                self._reported = None
                self._report(waiting)
            return
        if not reminds and (ids == self._reported or not self._pace.try_acquire()):
            return
        if begins or reminds:
            longer = min(2 * self._interval, self._reminders.members_longest)
            self._interval = self._reminders.members_again if begins else longer
            self._due = self._clock() + self._interval
        self._reported = ids
        self._report(waiting)


RANK_DELAY_S, LAST_RANK = 0.3, 6
"""Seconds between the starts of two members that begin an attempt, or take over a failed one; from rank LAST_RANK on,
members begin together. When twenty that saw one loss all began at once, they preempted each other for 13 s."""


class ExcludedError(FailedError):
    """Raised when the others have gone on without this peer, and will not admit it."""


class ExpelledError(FailedError):
    """Raised when the others have expelled this peer."""


class Proposer:
    """Proposes views for one member. `run` never ends."""

    def __init__(self, membership: Membership, reminders: ReportIntervals) -> None:
        self._membership, self._timeouts = membership, membership.timeouts
        self._acceptor, self._rules = membership.acceptor, membership.acceptor.rules
        self._clock, self._random = asyncio.get_running_loop().time, Random(membership.id)
        self._consents: dict[tuple[str, str], Signed[Consent]] = {}
        """Consents received from others, by (signer, accused)."""
        self._guilt: dict[str, Guilt] = {}
        """Proofs of guilt received from others, by the guilty member."""
        self._failed = False
        """Whether this peer's last attempt found no quorum."""
        self._preempted_by: Ballot | None = None
        self._preempted = 0
        """How many attempts in a row were preempted."""
        self._wants_since: float | None = None
        """The time since which it has wanted a change; all times are the loop's."""
        self._few_since: float | None = None
        """The time since which too few members have been left for a decision."""
        self._not_before = 0.0
        """The time before which it does not propose again."""
        self._departure_sent = -inf
        """The time at which it last told all that it leaves."""
        self._short_since: float | None = None
        """The time since which it has wanted a decision for which too few members are there."""
        self._shortages = WaitReporter(membership.report, reminders)

    async def run(self) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(self._look_for_the_missing())
            group.create_task(self._poll())
            group.create_task(self._decide())

    # Which members are there.

    async def _look_for_the_missing(self) -> None:
        """Ask missing members, and another one at random, which views were decided; one that answers is not silent.

        It may just be busy, or still play the view before. While no member is missing, nobody is asked.
        """
        membership, random = self._membership, Random(self._membership.id)
        while True:
            await asyncio.sleep(self._timeouts.liveness_poll)
            if gate := membership.gate:
                if self._takes_part(gate):
                    away = [id for id in membership.others if not self._is_here(gate, id)]
                    if missing := {*gate.missing, *(away if self._wants_decision(gate) else [])}:
                        other = random.choice([id for id in self._rules.ids if id != membership.id])
                        await membership.ask_all(sorted({*missing, other}), Ask(membership.chain.current.number))
                self._look_for_a_quorum(gate)

    def _takes_part(self, gate: DynamicMembershipGate) -> bool:
        return bool(gate.transport) and not self._membership.is_over(gate.view)

    def _wants_decision(self, gate: DynamicMembershipGate) -> bool:
        """Return whether a decision is due that absent members could prevent."""
        membership = self._membership
        if not self._takes_part(gate) or not membership.is_member:
            return False
        return bool(self._lost(gate) or self.to_expel) or membership.deciding_for > self._timeouts.decision_timeout

    def _away(self, gate: DynamicMembershipGate) -> list[str]:
        """Return the members that are not here, but for those to expel."""
        out = self.to_expel
        return [id for id in self._membership.others if id not in out and not self._is_here(gate, id)]

    def _is_here(self, gate: DynamicMembershipGate | None, id: str) -> bool:
        """Return whether a member has sent a heartbeat or an answer within `absence`, and withholds no promise."""
        membership = self._membership
        heard = max(gate.last_heartbeat(id) if gate else -inf, membership.answered.get(id, -inf))
        return heard >= self._clock() - self._rules.absence and not membership.is_withholding(id)

    def _look_for_a_quorum(self, gate: DynamicMembershipGate) -> None:
        """Report, in the log and in this peer's status, a decision that waits for members.

        It takes two looks in a row, as a busy member may answer by the second.
        """
        begun, self._short_since = self._short_since, None
        gate.waiting, over = None, "no decision waits for members any more"
        if self._wants_decision(gate):
            away, now = self._away(gate), self._clock()
            if short := self._shortage(gate, away, 0.0 if begun is None else round(now - begun, 1)):
                self._short_since = now if begun is None else begun
                if begun is None:
                    return
                gate.waiting = Waiting.for_quorum(short, tuple(map(self._membership.awaited, away)))
            else:
                over = "enough members are here for a decision"
        self._shortages.look(gate.waiting or Waiting(cause="quorum", awaited=(), sentence=over))

    def _shortage(self, gate: DynamicMembershipGate, away: Collection[str], seconds: float) -> Shortage | None:
        """Return how many members are short for a decision; None if enough are there. seconds: the wait so far."""
        view, faulty, least, out = self._membership.chain.current, self._rules.faulty, self._least(gate), self.to_expel
        here = [id for id in view.members if id not in away and id not in out]
        if view.is_quorum(here, faulty) and len(here) + len(self._entries(gate)) >= least:
            return None
        quorum, tie_breaker = view.needed(here, faulty)
        if least >= quorum or tie_breaker in out:
            tie_breaker = ""
        return Shortage(len(here), len(view.members), max(quorum, least), tie_breaker, seconds)

    def _least(self, gate: DynamicMembershipGate) -> int:
        """Return how many members the next view must have."""
        return self._rules.min_members if gate.has_begun or self.to_expel else self._rules.start_with or 0

    def _lost(self, gate: DynamicMembershipGate) -> list[str]:
        return gate.lost_neighbours(self._rules.absence, self._membership.answered) if gate.may_exclude else []

    # Which members are to be expelled (V5).

    async def _poll(self) -> None:
        """Ask the others for their consents and proofs for as long as this member has any of its own."""
        membership = self._membership
        while True:
            memory, present = membership.memory, membership.chain.current
            if memory.consents or memory.guilt:
                for id, reply in (await membership.ask_all(membership.others, Poll(present.number))).items():
                    if isinstance(reply, Consents):
                        self._take(id, reply.evidence)
            self._acceptor.ignored_members = frozenset(self.to_expel)
            for id in self._acceptor.ignored_members:
                membership.turns.end(id)
            await asyncio.sleep(self._timeouts.liveness_poll)

    def _take(self, member: str, evidence: Evidence) -> None:
        """Take a member's own consents, and the guilt that it can prove."""
        most, verifier = len(self._rules.ids), self._acceptor.verifier
        try:
            ids = {*self._rules.ids} - {*self._membership.chain.current.expelled}
            for one in [one for one in evidence.consents[:most] if one.signer == member and one.statement.id in ids]:
                verifier.check_signed(one)
                self._consents[member, one.statement.id] = one
            for guilt in evidence.guilt[:most]:
                verifier.check_guilt(guilt)
                self._guilt[guilt.id] = guilt
        except InvalidError as error:
            self._membership.report_invalid(member, str(error))

    @property
    def to_expel(self) -> Mapping[str, Evidence]:
        """The members to expel now, each with the proof: proved liars first, then those who are away, and only as many
        as the rest, if all of them are here, can decide on without them. The others follow in a later view."""
        acceptor, view, gate = self._acceptor, self._membership.chain.current, self._membership.gate
        known = self._consents | {(acceptor.id, one.statement.id): one for one in acceptor.memory.consents}
        guilt = self._guilt | {one.id: one for one in acceptor.memory.guilt}
        found = {id: Evidence(guilt=(guilt[id],)) for id in guilt if id in view.members}
        for accused in acceptor.consented - found.keys():
            consents = [known[id, accused] for id in view.members if id != accused and (id, accused) in known]
            if acceptor.verifier.is_quorum(view, [one.signer for one in consents]):
                found[accused] = Evidence((*consents,))
        rest, out = {*view.members}, dict[str, Evidence]()
        # Who is here may yet promise, so that the rest can do without one that is away.
        here = {id for id in found if self._is_here(gate, id)}
        for id in sorted(found, key=lambda id: (id not in guilt, id in here, self._rules.ids.index(id))):
            left = rest - {id}
            if len(left) >= self._rules.min_members and acceptor.verifier.is_quorum(view, left):
                rest, out[id] = left, found[id]
        return out

    # Which change to propose, and when.

    async def _decide(self) -> None:
        looked = self._clock()
        while True:
            await asyncio.sleep(self._timeouts.poll)
            late, looked = self._clock() - looked - self._timeouts.poll, self._clock()
            # After a pause of this process, heartbeats that arrived meanwhile have not been read yet.
            if late >= self._timeouts.heartbeat_interval:
                self._not_before = max(self._not_before, looked + self._timeouts.suspect_after)
            gate, membership = self._membership.gate, self._membership
            if membership.leave_request.pending and membership.is_member and (reason := self._stay_reason(gate)):
                membership.leave_request.reject(reason)
            if not gate or not self._takes_part(gate):
                continue
            if not membership.is_member:
                await self._announce_departure(gate)
            elif change := self._desired_change(gate):
                if self._wants_since is None:
                    self._wants_since = self._clock()
                if self._clock() >= max(self._not_before, self._wants_since + self._rank(change) * RANK_DELAY_S):
                    await self._propose(change, gate)
            else:
                self._wants_since = None
                if not (membership.deciding_for or self._lost(gate)):
                    self._few_since = None  # another member's attempt has succeeded

    def _desired_change(self, gate: DynamicMembershipGate) -> MembershipChange | None:
        """Return the change to propose now, None for none; the order of the guards is the policy.

        A decision that is under way (`held`: for how many seconds) is left to others first, unless its proposer is to
        be expelled; and nothing is proposed while the others would ignore this member (T3). First comes what the
        training cannot go on without: to exclude lost or expelled members, or whoever does not promise when a decision
        has taken longer than `absence`. All other changes need the promises of all members: to leave; to end a decision
        that is under way, with no change if nothing else follows, as no round begins before; and last to admit peers,
        for which nobody waits, unless too few members would be left without them.
        """
        membership, absence, out = self._membership, self._rules.absence, self.to_expel
        held, promised = membership.deciding_for, self._acceptor.slot.promised
        by_expelled = promised is not None and promised.proposer in out
        if held and not by_expelled and self._is_left_to_others(held):
            return None
        if not membership.turns.is_free(self._acceptor.id):
            return None
        if (lost := self._lost(gate)) or held > absence or out:
            return self._exclusion(lost, out, gate, waits=held <= absence)
        if membership.leave_request.pending and not gate.missing:
            return MembershipChange(leaves=True, min_members=self._rules.min_members, unanimous=True)
        if held:
            return MembershipChange(unanimous=True)
        if entries := tuple(one for one in self._entries(gate) if membership.may_admit(one.signer)):
            return MembershipChange(entries=entries, unanimous=True)
        return None

    def _entries(self, gate: DynamicMembershipGate) -> tuple[Signed[Entry], ...]:
        """Return the requests to be admitted that can be granted in the next view; none in the last round."""
        if gate.started >= self._rules.rounds:
            return ()
        number, requests = self._membership.chain.current.number, self._membership.admission_requests.values()
        return tuple(one for one in requests if one.statement.number == number)

    def _exclusion(
        self, lost: Collection[str], out: Mapping[str, Evidence], gate: DynamicMembershipGate, waits: bool
    ) -> MembershipChange:
        """Return the change that leaves out lost or expelled members. waits: if some are only expelled, all must
        promise."""
        others, members = [id for id in lost if id not in out], self._membership.chain.current.members
        unanimous = bool(out) and waits and not others
        return MembershipChange(
            # Members are expelled only if enough are left (`to_expel`).
            entries=() if unanimous else self._entries(gate),
            min_members=self._least(gate),
            withholding=frozenset(id for id in members if self._membership.is_withholding(id)),
            unanimous=unanimous,
            # Former members that still had rounds before the present view to play.
            missing=tuple(id for id in others if id not in members),
            evidence=Evidence(
                tuple(consent for one in out.values() for consent in one.consents),
                tuple(guilt for one in out.values() for guilt in one.guilt),
            ),
            suspects=frozenset(id for id in others if gate.has_met(id)),
        )

    def _rank(self, change: MembershipChange) -> int:
        """Return how many members begin before this one, for a change that all may want at once.

        It is 0 for a change that only this member may know of: that it leaves, or was asked to admit a peer.
        """
        if change.leaves or (change.entries and change.unanimous) or self._membership.deciding_for:
            return 0
        own, gone = self._acceptor.id, {*change.suspects, *self.to_expel}
        before = itertools.takewhile(lambda id: id != own, self._membership.chain.current.members)
        return min(sum(id not in gone for id in before), LAST_RANK)

    def _is_left_to_others(self, held: float) -> bool:
        """Return whether another member's attempt is under way, or another one is to take over before this one."""
        membership, promised = self._membership, self._acceptor.slot.promised
        if not membership.tolerates:
            return not self._failed and held < self._timeouts.decision_timeout
        members = membership.chain.current.members
        turned = members.index(self._acceptor.id) - (promised.counter if promised else 0)
        rank = min(turned % len(members), LAST_RANK)
        return membership.turns.over_for < rank * RANK_DELAY_S or membership.turns.over_for == 0

    def _stay_reason(self, gate: DynamicMembershipGate | None) -> str | None:
        """Return why this peer cannot leave, in words; None if it can."""
        least, limit, members = self._rules.min_members, self._rules.patience, self._membership.chain.current.members
        if len(members) <= least:
            return f"there are {len(members)} members, and the protocol needs {least}"
        if self._membership.leave_request.age > limit:
            return f"the others have not agreed within {limit:g} s"
        if gate and gate.network and not gate.has_begun:
            return "the run has not begun, so there is nothing to leave; stop it"
        if gate and gate.started >= self._rules.rounds:
            return "it is in its last round, and ends by itself"
        return None

    # How it is decided.

    async def _announce_departure(self, gate: DynamicMembershipGate) -> None:
        """Tell all members that this peer leaves, until they know; give up the view if one is lost meanwhile, or if
        they have given up this peer."""
        membership = self._membership
        if self._lost(gate) or gate.given_up:  # the members may not notice the loss, and so would not roll back
            membership.abandon_view(gate.view)
            return
        if gate.departure_acknowledged.is_set() or self._clock() - self._departure_sent < self._timeouts.liveness_poll:
            return
        self._departure_sent = self._clock()
        decided = Decided((*membership.memory.decisions[gate.view.number :],))
        replies = await self._ask_all(dict.fromkeys(membership.chain.current.members, decided), ())
        if all(isinstance(reply, Heard) for reply in replies.values()):
            gate.departure_acknowledged.set()

    async def _propose(self, change: MembershipChange, gate: DynamicMembershipGate) -> None:
        """Make one attempt to have the change decided, and set when the next may begin."""
        attempt = Attempt(self._acceptor, self._preempted_by, change)
        attempt.hold_against(self._membership.announcements().values())
        while requests := attempt.requests():
            for member, reply in (await self._ask_all(requests, change.suspects)).items():
                try:
                    attempt.on_no_reply(member) if reply is None else attempt.on_reply(member, reply)
                except InvalidError as error:
                    self._membership.report_invalid(member, str(error))
        self._failed, self._preempted_by = attempt.state == "no_quorum", attempt.preempted_by
        for signed in attempt.announced.values():
            gate.add_announcement(signed)
        self._check_others(attempt.state in ("no_quorum", "preempted"))
        # When many see the same loss at once, attempts preempt each other: the growing backoff lets ever fewer try.
        self._preempted = self._preempted + 1 if attempt.state == "preempted" else 0
        backoff = self._random.uniform(*self._timeouts.proposal_backoff) * 2 ** min(self._preempted, 5)
        self._not_before = self._clock() + backoff

    async def _ask_all(self, requests: Mapping[str, Request], gone: Collection[str]) -> dict[str, Reply | None]:
        """Return all replies, by member; None for a member without reply. gone: members that seem silent for good."""
        membership, asking = self._membership, dict[str, asyncio.Task[Reply | None]]()
        async with asyncio.TaskGroup() as group:
            for id in (id for id in requests if id != membership.id):
                ask = membership.ask if id in gone else self._ask_patiently
                asking[id] = group.create_task(ask(id, requests[id]))
            if own := requests.get(membership.id):
                # A peer that learns of a decision closes its connections to move on, so the others must know it first.
                members = own.decisions[-1].view.members if isinstance(own, Decided) else ()
                if hearing := [asking[id] for id in members if id in asking]:
                    await asyncio.wait(hearing)
                asking[membership.id] = group.create_task(membership.ask(membership.id, own))
        return {id: task.result() for id, task in asking.items()}

    async def _ask_patiently(self, member: str, request: Request) -> Reply | None:
        """Ask for a promise again while the connection is refused: that peer may be starting, or changing views.

        A member that does not promise is left out, so it is asked for as long as this peer would wait for a reply; for
        no longer in all, as late answers must not outlast this peer's turn (T1).
        """
        with suppress(TimeoutError):
            async with asyncio.timeout(self._timeouts.view_rpc_timeout):
                while True:
                    reply = await self._membership.ask_informed(member, request)
                    if reply or not (isinstance(request, AskPromise) and self._membership.refused(member)):
                        return reply
                    await asyncio.sleep(self._timeouts.retry[-1])
        return None

    def _check_others(self, in_vain: bool) -> None:
        """Raise ExcludedError when, for `patience`, so many members have been gone that no decision is possible."""
        view = self._membership.chain.current
        there = [id for id in view.members if not self._membership.refused(id)]
        if not in_vain or self._acceptor.verifier.is_quorum(view, there):
            self._few_since = None
            return
        self._few_since = self._few_since or self._clock()
        if self._clock() - self._few_since > self._rules.patience:
            ended = ", ".join(id for id in view.members if id not in there)
            raise ExcludedError(
                f"connections are refused at {ended}, and the other members are too few to go on: those have finished "
                "without this peer, or were stopped; if they are not done, start them and this peer again"
            )


class Rejoin:
    """Asks the members to admit this peer, on connections of its own; it accepts none until it is a member again, but
    where all go back: a member may know of the last views from it alone."""

    def __init__(self, membership: Membership, transport: Callable[[], Transport], reminders: ReportIntervals) -> None:
        self._membership, self._transport, self._reminders = membership, transport, reminders
        self._random = Random(membership.id)

    async def next_view(self, newest: Callable[[], Awaitable[int]]) -> View:
        """Return the view that this peer plays next: at once if it is a member, else once the others have admitted it.

        newest: finds the round of its private state, -1 if there is none; each view that is decided meanwhile may make
        that void.
        """
        membership, number, private = self._membership, -1, -1
        rules, clock = membership.acceptor.rules, asyncio.get_running_loop().time
        begun = clock()
        self._check_expelled()
        if following := membership.chain.after(membership.memory.entered, membership.id):
            return following
        async with membership.connected(self._transport(), listens=bool(rules.rewinds)):
            async for silent in self._poll():
                if following := membership.chain.after(membership.memory.entered, membership.id):
                    break
                # A peer that cannot reach the others would only be lost again. But f silent liars must not keep it out;
                # and after `absence` where no process listens, or after `patience`, the silent may be lost to all:
                # without this peer the others may be too few to leave them out.
                answering = [id for id in membership.others if id not in silent]
                waited = clock() - begun
                unreachable = [id for id in silent if waited < rules.absence or not membership.refused(id)]
                if answering and (waited > rules.patience or len(unreachable) <= membership.tolerates):
                    if number != membership.chain.current.number:
                        number, private = membership.chain.current.number, await newest()
                    entry = membership.keyring.sign(Entry(number, private))
                    await membership.ask(self._random.choice(answering), Enter(entry))
        assert following
        return following

    async def wait_for_exclusion(self) -> None:
        """Wait until the others have gone on without this peer, which has lost what a member needs."""
        async with self._membership.connected(self._transport()):
            async for _ in self._poll():
                if not self._membership.is_member:
                    return

    async def _poll(self) -> AsyncIterator[list[str]]:
        """Learn later views from the members and yield those that do not answer, again and again.

        Raises ExcludedError when none has answered for `patience` seconds, ExpelledError when this peer is expelled.
        """
        membership, clock = self._membership, asyncio.get_running_loop().time
        rules = membership.acceptor.rules
        waits, begun, answered = WaitReporter(membership.report, self._reminders), clock(), dict[str, float]()
        while True:
            # On a busy machine not all members answer every time; that alone does not make them lost.
            ask, awaited = Ask(membership.chain.current.number), membership.acceptor.awaited_view
            asked = membership.others if awaited is None else [id for id in rules.ids if id != membership.id]
            answered |= dict.fromkeys(await membership.ask_all(asked, ask), clock())
            self._check_expelled()
            silent = [id for id in membership.others if clock() - answered.get(id, -inf) > rules.absence]
            if awaited is not None and clock() - begun > rules.patience:
                raise ExcludedError(
                    f"no peer that answers knows view {awaited}, after which all go back by `rewinds`; start one that "
                    "knows it, append the right entry to `rewinds`, or remove `rewinds` where all begin anew"
                )
            if clock() - max(answered.values(), default=begun) > rules.patience:
                raise ExcludedError(
                    f"the others have gone on without this peer since round {membership.chain.current.first}, "
                    f"and none of them has answered for {rules.patience:g} s: they have finished, or are away; "
                    "start it again if they are not done"
                )
            waits.look(self._waiting(silent))
            yield silent
            await asyncio.sleep(membership.timeouts.liveness_poll)

    def _check_expelled(self) -> None:
        id = self._membership.id
        if by := next((view for view in self._membership.chain.since(-1) if id in view.expelled), None):
            reason = f"view {by.number}: {by.reason}"
            raise ExpelledError(f"{id} was voted out of the federation ({reason}), and is not taken in again")

    def _waiting(self, silent: Sequence[str]) -> Waiting:
        awaited = tuple(map(self._membership.awaited, silent))
        sentence = f"to rejoin: waiting for {', '.join(silent)} to answer" if silent else "all members answer"
        return Waiting(cause="join", awaited=awaited, sentence=sentence)
