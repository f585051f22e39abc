"""A member's part in deciding on views: it answers, checks, remembers, and asks the others.

A promise is on disk before it is sent, and a decision before any other peer hears of it (rule V1). The head of
`peer/views/decision.py` says how a view is decided; this module checks what only this member can know about a proposal
(rule V2): whether a member that is to be left out answers after all, which rounds have begun here, and which one it can
go back to.
"""

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager, suppress
from math import inf

from peer.files import make_private
from peer.network.limits import RateLimiter
from peer.network.streams.handshake import Identity, Refusals, RefusedError, Surprises
from peer.network.streams.incoming import IncomingStreams
from peer.network.transport import REFUSED, DisconnectedError, Pipe, Transport
from peer.network.view_rpc import ViewRpc
from peer.runtime.lifecycle import RuntimeLimits
from peer.runtime.membership.gate import DynamicMembershipGate
from peer.runtime.membership.view_store import ViewStore, view_keyring
from peer.runtime.setup import Setup
from peer.tasks import News, background, shielded, within
from peer.telemetry.events import Awaited, CallerRefused, Leaving, Report, ViewDecided
from peer.views.decision import NO_PROGRESS, Acceptor, MemberProgress, Rules, Turns, is_less
from peer.views.statements import (
    Announcement,
    Ask,
    AskPromise,
    Ballot,
    Behind,
    Decided,
    Denied,
    Enter,
    Entry,
    Expel,
    InvalidError,
    Leave,
    Objection,
    Prepare,
    Promise,
    Promised,
    Proposal,
    Propose,
    Refused,
    Relay,
    Relayed,
    Reply,
    Request,
    Signed,
    Voted,
    Yield,
    check_reply,
)
from peer.views.view import View

REFUSAL_LASTS_S = 3.0
"""Seconds for which a refusal to leave remains the answer to repeated requests."""
ADMISSIONS, ADMIT_AGAIN_S = 8, 300.0
"""Where members may lie, a peer is admitted again ADMISSIONS times at once, and then once every ADMIT_AGAIN_S seconds:
each time costs all members two decisions, which they keep for ever."""


class LeaveRequest:
    """An operator's request that this member leave, which is not kept on disk."""

    def __init__(self, report: Report) -> None:
        self._report, self._clock = report, asyncio.get_running_loop().time
        self._since: float | None = None
        self._otherwise: Callable[[], object] | None = None
        self._refusal, self._refused_at = "", -inf

    @property
    def pending(self) -> bool:
        return self._since is not None

    @property
    def age(self) -> float:
        """Seconds since the request was submitted; 0 if there is none."""
        return 0.0 if self._since is None else self._clock() - self._since

    @property
    def refusal(self) -> str:
        """Why the last request was rejected, for REFUSAL_LASTS_S; empty otherwise."""
        return self._refusal if self._clock() - self._refused_at < REFUSAL_LASTS_S else ""

    def submit(self, otherwise: Callable[[], object] | None = None) -> None:
        """Request to leave; `otherwise` is called if that is not possible."""
        self._otherwise = otherwise or self._otherwise
        if self._since is None:
            self._since = self._clock()
            self._report(Leaving(sentence="leave requested: asking the others to continue without this peer"))

    def reject(self, reason: str) -> None:
        self._refusal, self._refused_at, self._since = reason, self._clock(), None
        self._report(Leaving(sentence=f"this peer cannot leave: {reason}"))
        otherwise, self._otherwise = self._otherwise, None
        if otherwise:
            otherwise()


class Membership:
    """One peer's membership, across all views."""

    def __init__(self, store: ViewStore, acceptor: Acceptor, rpc: ViewRpc, report: Report) -> None:
        self.store, self.acceptor, self.memory = store, acceptor, store.memory
        self.rpc, self.report, self.timeouts = rpc, report, rpc.timeouts
        self.id, self.chain, self.keyring = acceptor.id, acceptor.chain, acceptor.keyring
        self.gate: DynamicMembershipGate | None = None
        """The gate of the present view."""
        self._between: Transport | None = None
        """The transport while this peer plays no view, if it has one then."""
        self.leave_request = LeaveRequest(report)
        self.admission_requests: dict[str, Signed[Entry]] = {}
        """The entries of peers that ask to be admitted, by peer."""
        self._admitted = defaultdict[str, RateLimiter](lambda: RateLimiter(ADMISSIONS, ADMIT_AGAIN_S))
        """How often each peer may still be admitted; not kept on disk."""
        self.answered: dict[str, float] = {}
        """When each member last answered a request, by the loop's clock."""
        self._failures: dict[str, str] = {}
        """Why the last request to a member was not answered."""
        self._withholding: dict[str, float] = {}
        """The time since which a member has answered this one's requests for a promise without giving one."""
        self.refusals = Refusals(report, rpc.limits, acceptor.rules.ids)
        self.surprises = Surprises(rpc.limits)
        self._clock = asyncio.get_running_loop().time
        self.turns = Turns(self.timeouts.decision_timeout, self._clock)
        """The turns of members. Used only if members may lie; otherwise every attempt is accepted."""
        self._announced: dict[str, Signed[Announcement]] = {}
        """The most binding announcement of each member, made in this view or before."""
        self._prepare: Signed[Prepare] | None = None
        """The request of the present attempt that this member has promised."""
        self._deciding_since: float | None = None
        """The time since which the next view has been decided on; None if it is not."""
        self._relayed: tuple[Prepare | None, dict[str, asyncio.Task[Promised | Refused | Behind | None]]] = None, {}
        """The present ballot, and members' answers to it that this one has asked for, for its proposer or itself."""
        self._changed, self._writing = News(), asyncio.Lock()
        self._written: object = None
        self._reported = self.chain.current.number
        self._abandoned: int | None = None
        """The number of the view that this peer plays, if it cannot be played to its end any more."""

    @classmethod
    def open(cls, setup: Setup, bounds: RuntimeLimits, report: Report) -> "Membership":
        """Go on from views.json; FailedError if it is damaged or a view in it is not proved."""
        make_private(setup.out)
        config, spec, agreement = setup.config, setup.spec, setup.spec.link_agreement
        identity = Identity(config.id, agreement.digests, manifest="", settings=agreement.content)
        addresses = {id: at for id, at in spec.addresses.items() if at}
        rules = Rules(
            spec.ids,
            spec.rounds,
            faulty=spec.tolerated(config.tls is not None),
            min_members=spec.protocol.least_members(len(spec.ids)),
            absence=spec.absence,
            patience=spec.patience,
            start_with=spec.start_with,
            hands_over=bool(spec.protocol.state_contract.handed_over or spec.found_together),
            rewinds=spec.rewind_views,
        )
        keyring, store = view_keyring(setup), ViewStore.open(setup.out, config.id)
        rpc = ViewRpc(identity, addresses, bounds.limits, bounds.timeouts)
        return cls(store, store.acceptor(rules, keyring), rpc, report)

    @property
    def is_deciding(self) -> bool:
        """Whether the next view is being decided on, so that no round may begin."""
        return self.acceptor.held

    @property
    def deciding_for(self) -> float:
        """Seconds since the decision on the next view began; 0 if none is under way."""
        return 0.0 if self._deciding_since is None else self._clock() - self._deciding_since

    @property
    def tolerates(self) -> int:
        """f: how many members of the last view may lie."""
        return self.chain.current.tolerates(self.acceptor.rules.faulty)

    @property
    def view(self) -> View:
        """The view that this peer plays, or has played last."""
        return self.chain.of(self.memory.entered)

    @property
    def is_member(self) -> bool:
        """Whether this peer is a member of the last view."""
        return self.acceptor.is_member

    @property
    def has_left(self) -> bool:
        """Whether this peer was asked to leave, and has no view left to play; one that is expelled has not left."""
        out = not self.is_member and self.id not in self.chain.current.expelled
        return self.leave_request.pending and out and not self.chain.after(self.memory.entered, self.id)

    def may_admit(self, id: str) -> bool:
        """Return whether a peer may be admitted now, however often it has come and gone."""
        return not (self.acceptor.rules.faulty and self._admitted[id].wait)

    def announcements(self) -> Mapping[str, Signed[Announcement]]:
        """Return the announcement of each member that binds it most, made in this view or before, as far as known."""
        for signed in self.gate.announcements().values() if self.gate else ():
            known = self._announced.get(signed.signer)
            if known is None or self._binds(signed) >= self._binds(known):
                self._announced[signed.signer] = signed
        return self._announced

    def _binds(self, announced: Signed[Announcement]) -> int:
        """Return the last round that an announcement still covers, as later views may have made some void."""
        return self.chain.valid(announced.statement.round, announced.statement.view)

    # Playing views.

    async def follow_rewinds(self) -> None:
        """Go on to the views that the operators have set since; they are on disk when the method returns."""
        if self.acceptor.follow_rewinds():
            self._reported = self.chain.current.number  # a runtime reports it, once it writes events
            await self._persist()

    def open_gate(self) -> DynamicMembershipGate:
        self.announcements()  # keeps those of the view before
        known = self.gate.progress(self.chain) if self.gate else None
        self._forget_answers()
        self.gate = DynamicMembershipGate(self.view, self.acceptor, self.answer, self._changed.set, known)
        self._update_gate()
        return self.gate

    async def wait_view_over(self, view: View) -> None:
        """Wait until the view's rounds are void, or the others go on without this peer."""
        await self._changed.until(lambda: self.is_over(view))

    def is_over(self, view: View) -> bool:
        """Return whether there is no point any more in playing that view."""
        waits = self.acceptor.has_forgotten or self.acceptor.awaited_view is not None
        return waits or view.number == self._abandoned or self.chain.is_over(view.number, self.id)

    def abandon_view(self, view: View) -> None:
        """Give up that view, which this leaving member cannot play to its end, as another member is lost."""
        self._abandoned = view.number
        self._update_gate()
        self._changed.set()

    async def enter(self, view: View) -> None:
        """Play that view from now on; this is on disk when the method returns."""
        self.memory.entered = view.number
        async with self._writing:
            await self._write()

    # Asking.

    def refused(self, member: str) -> bool:
        """Return whether that member refused the connection when it was last asked."""
        return self._failures.get(member) == REFUSED

    def awaited(self, member: str) -> Awaited:
        """Return the member, with its address and the reason why it counts as away."""
        withholding = "it answers, and promises nothing"
        reason = withholding if self.is_withholding(member) else self._failures.get(member, "no answer")
        return Awaited(member, self.rpc.addresses.get(member), reason)

    def is_withholding(self, member: str) -> bool:
        """Return whether a member has refused this one all promises for longer than an honest member does, which is
        `absence` plus a few turns of others."""
        since, limit = self._withholding.get(member), self.acceptor.rules.absence + 3 * self.timeouts.decision_timeout
        return since is not None and self._clock() - since > limit

    @property
    def transport(self) -> Transport | None:
        """What other members are asked over; None if they cannot be asked now."""
        return (self.gate.transport if self.gate else None) or self._between

    @asynccontextmanager
    async def connected(self, transport: Transport, listens: bool = False) -> AsyncIterator[None]:
        """Ask others over that transport during the block. listens: answer their questions about views, too."""
        try:
            async with background() as group:
                group.create_task(transport.run())  # new certificates count meanwhile, too
                with self.between_views(transport):
                    if listens:
                        incoming = IncomingStreams({"Views": self.answer}, self.refusals, self.surprises)
                        await transport.listen(incoming.serve)
                        group.create_task(incoming.watch())
                    yield
        finally:
            await transport.close()

    @contextmanager
    def between_views(self, transport: Transport) -> Iterator[None]:
        """Ask over that transport during the block, in which no view is played."""
        self._forget_answers()
        self._between = transport
        try:
            yield
        finally:
            self._between = None

    def _forget_answers(self) -> None:
        """Ask again for the promises that others have given or not: that there was none may be this peer's doing."""
        self._relayed = None, {}

    async def ask(self, member: str, request: Request) -> Reply | None:
        """Return the reply; None if there is none, or none that an honest member gives."""
        transport = self.transport
        if transport is None and member != self.id:
            return None
        try:
            if member == self.id or transport is None:
                return await self.handle(request)
            reply = await self.rpc.ask(transport, member, request)
            check_reply(request, reply)
            if isinstance(reply, Decided):
                await self.handle(reply)
        except TimeoutError:  # this peer does not know its own progress yet
            return None
        except (DisconnectedError, RefusedError) as error:
            self._failures[member] = str(error)
            return None
        except Exception as error:  # noqa: BLE001 (as in `IncomingStreams`)
            self._failures.pop(member, None)
            self.report_invalid(
                member, str(error) if isinstance(error, InvalidError) else self.surprises.explain(error)
            )
            return None
        now, failed = self._clock(), self._failures.pop(member, None)
        silent = now - self.answered.get(member, -inf) > self.acceptor.rules.absence
        if failed and silent and member in self.chain.current.members:
            self.turns.on_return(member)
        self.answered[member] = now
        if isinstance(request, AskPromise) and isinstance(reply, Refused | Behind):
            self._withholding.setdefault(member, now)
        elif isinstance(reply, Promised):
            self._withholding.pop(member, None)
        return reply

    async def ask_informed(self, member: str, request: Request) -> Reply | None:
        """Ask; a member that is behind is sent the views that it lacks and asked again, as long as it makes progress
        and the time for a question lasts, so that a liar cannot keep catching up for ever."""
        known, until = -1, self._clock() + self.timeouts.view_rpc_timeout
        while True:
            reply = await self.ask(member, request)
            if not isinstance(reply, Behind) or self._clock() > until:
                return reply
            if not known < reply.number < self.chain.current.number:
                return reply
            known = reply.number
            await self.ask(member, self.acceptor.since(known, self.most))

    async def ask_all(self, members: Iterable[str], request: Request) -> dict[str, Reply]:
        """Return the replies, by member, without members that do not answer."""
        asked = [*members]
        replies = await asyncio.gather(*(self.ask(id, request) for id in asked))
        return {id: reply for id, reply in zip(asked, replies, strict=True) if reply}

    def report_invalid(self, member: str, what: str) -> None:
        """Count a message that no honest member sends, and report it once."""
        self.refusals.add(CallerRefused(caller=member, kind="views", reason=f"{what}; it was not believed"))

    @property
    def others(self) -> list[str]:
        """The other members of the last view."""
        return [id for id in self.chain.current.members if id != self.id]

    # Answering.

    async def answer(self, pipe: Pipe) -> None:
        await self.rpc.answer(pipe, self._handle_from)

    async def _handle_from(self, sender: str, request: Request) -> Reply:
        try:
            match request:
                case Relay(Signed(signer=proposer)) | Yield(ballot=Ballot(proposer=proposer)) if proposer != sender:
                    raise InvalidError("an attempt in the name of another")
            return await self.handle(request)
        except InvalidError as error:
            self.report_invalid(sender, str(error))
            return Denied(str(error)[:300])

    async def handle(self, request: Request) -> Reply:
        """Answer a request, once its effects are on disk; raises InvalidError for what no honest member asks."""
        progress = NO_PROGRESS
        match request:  # the cases that need more than the acceptor knows
            case Leave():
                return await self._leave(request)
            case Expel() if problem := self._expulsion_problem(request):
                return Denied(problem)
            case Relay(prepare, to):
                return await self._relay(prepare, to)
            case AskPromise(prepare):
                if refused := self._not_its_turn(prepare):
                    return refused
                progress = await self._progress()
            case Yield(ballot=ballot) if ballot == self.acceptor.slot.promised:
                self.turns.end(ballot.proposer)
            case Propose(proposal) if objection := await self._objection(proposal):
                return objection
        number = self.chain.current.number
        try:
            reply = self.acceptor.handle(request, progress, self.most)
        except InvalidError:
            if self.chain.current.number != number:
                await shielded(self._persist)  # what was proved before the error still counts
            raise
        self._note(request, reply)
        if self.chain.current.number != number:
            self.turns.forget()
        await shielded(self._persist)  # what was handled counts, even if the asker has gone meanwhile
        return reply

    def _note(self, request: Request, reply: Reply) -> None:
        """Apply the effects of an answer to this peer, before anything else can happen."""
        if isinstance(request, AskPromise) and isinstance(reply, Promised):
            self._prepare = request.prepare
            self.memory.promised = reply.promise.statement.durable
        if isinstance(reply, Voted):
            self.turns.advance(reply.vote.statement.ballot.proposer)
        if self.is_deciding and self.gate:
            self.gate.block_rounds(self.memory.promised)  # V1: a round begun from now on would not be in the promise
        # A peer that learns late that it was admitted asks once more; that must not count when it is out again.
        current = self.chain.current
        if isinstance(request, Enter) and request.entry.signer not in {*current.members, *current.expelled}:
            self.admission_requests[request.entry.signer] = request.entry
            if not self.may_admit(request.entry.signer):
                why = f"comes and goes, so it is admitted again only {ADMIT_AGAIN_S:g} s after the last time"
                self.refusals.add(CallerRefused(caller=request.entry.signer, kind="views", reason=why))
        if not self.is_deciding:
            self._withholding.clear()

    @property
    def most(self) -> int:
        """How many views are sent at once, so that they fit into an answer even with the largest keys."""
        return max(1, self.rpc.limits.views // (6144 * len(self.acceptor.rules.ids)))

    def _not_its_turn(self, prepare: Signed[Prepare]) -> Refused | None:
        """Return the answer to a new attempt that is not accepted now (rule T1); None if it is."""
        slot, ballot = self.acceptor.slot, prepare.statement.ballot
        if prepare.statement.number != slot.number or (slot.promised and ballot <= slot.promised):
            return None
        if prepare.signer != ballot.proposer or prepare.signer not in self.chain.current.members:
            return None  # the acceptor refuses it
        self.acceptor.verifier.check_signed(prepare)
        if self.acceptor.is_beyond(ballot):
            if self.turns.may_raise(prepare.signer):
                self.acceptor.approach(ballot)
        elif not self.tolerates or self.turns.try_acquire(prepare.signer):
            return None
        return Refused(slot.number, slot.promised or ballot)

    async def _relay(self, prepare: Signed[Prepare], to: Iterable[str]) -> Reply:
        """Answer with promises of members from which the proposer has none."""
        slot, present = self.acceptor.slot, self.chain.current
        if self.transport is None:
            return Relayed(())
        if prepare != self._prepare or prepare.statement.ballot != slot.promised:
            return Refused(slot.number, slot.promised or prepare.statement.ballot)
        asked = [id for id in present.members if id in {*to} and id not in (self.id, prepare.signer)]
        found = await asyncio.gather(*(self._promise_of(id, prepare) for id in asked))
        return Relayed(tuple(one for one in found if isinstance(one, Promised)))

    def _promise_of(self, id: str, prepare: Signed[Prepare]) -> "asyncio.Future[Promised | Refused | Behind | None]":
        """Ask each member once per attempt; its answer, or that there was none, is kept until the next attempt."""
        attempt, asked = self._relayed
        if attempt != prepare.statement:  # with its number: ballots begin anew with each view
            self._relayed = prepare.statement, (asked := {})
        if id not in asked:
            asked[id] = asyncio.create_task(self._ask_for_promise(id, prepare))
        # Shielded: a liar that resets its question must not cancel what the others, this proposer included, wait for.
        return asyncio.shield(asked[id])

    async def _ask_for_promise(self, id: str, prepare: Signed[Prepare]) -> Promised | Refused | Behind | None:
        with suppress(TimeoutError):
            async with asyncio.timeout(self._voter_timeout):
                reply = await self.ask_informed(id, AskPromise(prepare))
                if isinstance(reply, Promised):
                    return reply if self._is_promise(reply, id, prepare.statement) else None
                return reply if isinstance(reply, Refused | Behind) else None
        return None

    def _is_promise(self, promised: Promised, by: str, asked: Prepare) -> bool:
        """Return whether it is a valid promise for that ballot, whatever was decided meanwhile. If not, that member is
        at fault, not the proposer that has asked for it."""
        try:
            self.acceptor.verifier.check_promised(self.chain.of(asked.number - 1), promised, by, asked.ballot)
        except InvalidError as error:
            self.report_invalid(by, str(error))
            return False
        return True

    async def _objection(self, proposal: Proposal) -> Objection | None:
        """Return why this member does not vote for a view, given what only it knows (rules V2 to V4); None if it does.

        Without signatures all members are believed. A locked view has already had the votes of a quorum.
        """
        view, grounds, slot = proposal.view, proposal.grounds, self.acceptor.slot
        ballot = proposal.vote.statement.ballot
        if view is None or (grounds.lock and grounds.lock.view) or not self.keyring.signs:
            return None
        if proposal.vote.statement.number != slot.number or not slot.allows_ballot(ballot):
            return None
        self.acceptor.verifier.check_proposal(self.chain, proposal)
        if not (gate := self.gate) or not (transport := self.transport):
            return Objection(f"{self.id} has just started, and knows nothing of the others")
        known, promised = self.announcements(), {one.signer: one.statement for one in grounds.promises}
        taken_back = [
            known[id]
            for id, promise in promised.items()
            if id in view.members and id in known and is_less(promise, known[id].statement, self.chain)
        ]
        if taken_back:
            return Objection(f"{taken_back[0].signer} has announced a later round than it promises", (*taken_back,))
        if view.planned and gate.started >= view.first:
            return Objection(f"{self.id} has begun round {gate.started}")
        goes_back = not view.planned and self.id not in dict(view.entrants)
        if goes_back and view.first - 1 <= gate.dropped and gate.dropped >= 0:
            return Objection(f"{self.id} cannot go back to round {view.first - 1}")
        omitted = [id for id in self.chain.current.members if id not in {*promised, *view.expelled}]
        if omitted and not gate.may_exclude and not self._have_begun(promised.values()):
            return Objection("the run has not begun, so no member counts as lost")
        away = (*omitted, *grounds.missing)
        answers = await asyncio.gather(*(self._is_there(id, ballot) for id in away))
        if self.transport is not transport:  # who did not answer may have been asked on connections that were closing
            return Objection(f"{self.id} goes from one view to another")
        there = [id for id, answered in zip(away, answers, strict=True) if answered]
        return Objection(f"{', '.join(there)} answers {self.id}"[:300]) if there else None

    def _have_begun(self, promises: Iterable[Promise]) -> bool:
        """Return whether at least one honest member that promises has begun a round: then all were there at some time,
        even if this peer was restarted meanwhile and does not know it."""
        return sum(promise.started >= 0 for promise in promises) > self.tolerates

    async def _is_there(self, id: str, ballot: Ballot) -> bool:
        """Return whether a member that is to count as lost does answer this one."""
        gate, prepare = self.gate, self._prepare
        if id == self.id or gate is None or self.transport is None:
            return id == self.id
        if id in gate.lost_neighbours(self.acceptor.rules.absence, self.answered):
            return False
        if id in self.chain.current.members and prepare and prepare.statement.ballot == ballot:
            found = await self._promise_of(id, prepare)
            # A member that has accepted another ballot, or does not know this view, is there; but it must not block
            # the rest in that way for ever.
            return isinstance(found, Promised) or (found is not None and not self.is_withholding(id))
        with suppress(TimeoutError):
            async with asyncio.timeout(self._voter_timeout):
                return await self.ask(id, Ask(self.chain.current.number)) is not None
        return False

    @property
    def _voter_timeout(self) -> float:
        """Seconds for which this member asks another before it answers a proposer, which must not wait in vain."""
        return 0.75 * self.timeouts.view_rpc_timeout

    async def _leave(self, request: Leave) -> Reply:
        """Answer when leaving is decided or impossible, or else after a while: then the asker asks again."""
        order = self.leave_request
        if order.refusal:
            return Denied(order.refusal)
        if self.is_member:
            order.submit()
        settled = self._changed.until(lambda: not (self.is_member and order.pending))
        await within(self.timeouts.view_rpc_timeout / 2, settled)
        refusal = order.refusal
        return Denied(refusal) if refusal else self.acceptor.handle(request, most=self.most)

    def _expulsion_problem(self, request: Expel) -> str | None:
        left, least = len({*self.chain.current.members} - {request.id}), self.acceptor.rules.min_members
        if left >= least or request.id in self.chain.current.expelled:
            return None
        return f"without {request.id} {left} members would be left, and the protocol needs {least}"

    async def _progress(self) -> MemberProgress:
        """Return this peer's progress, once it has found what it had on disk; TimeoutError if that takes too long."""
        async with asyncio.timeout(self.timeouts.view_rpc_timeout):  # after that the asker waits no longer
            while not (progress := self.gate and self.gate.progress(self.chain)):
                # A handshake, after which it may answer, is no news to this object.
                await within(self.timeouts.poll, self._changed.next())
        return progress

    async def _persist(self) -> None:
        async with self._writing:
            memory = self.memory
            state = (len(memory.decisions), memory.slot, len(memory.consents), len(memory.guilt), memory.promised)
            if state != self._written:
                await self._write()
                self._written = state
        for view in self.chain.since(self._reported):
            self._reported = view.number
            self.admission_requests.clear()  # peers that still want to be admitted ask again
            for id in {*view.members} - {*self.chain.of(view.number - 1).members}:
                self._admitted[id].try_acquire()
            self.report(ViewDecided(**view.as_json()))
        self._update_gate()
        self._changed.set()

    async def _write(self) -> None:
        self.memory.authorities = tuple(self.keyring.pems)
        await self.store.save()

    def _update_gate(self) -> None:
        if self._deciding_since is not None and not self.is_deciding:
            self.turns.end()
        self._deciding_since = (self._deciding_since or self._clock()) if self.is_deciding else None
        if gate := self.gate:
            # In a void view no round begins, and none on disk is announced.
            if self.is_deciding or self.is_over(gate.view):
                gate.block_rounds(self.memory.promised)
            else:
                gate.allow_rounds()
            following = self.chain.since(gate.view.number)[:1]
            if following and following[0].planned:
                gate.end_after(following[0].first - 1)
                gate.leaving = self.id not in following[0].members
