"""One member's part in deciding who belongs to the federation from which round on: it answers, checks and remembers.

What is promised is on disk before it is answered, and what is decided before anybody hears of it. How a view is
decided stands at the head of `peer/views/decision.py`; what only this member can know of a proposal is checked here:
whether who is to be left out answers after all, which rounds have begun here, and to which it can go back.
"""

import asyncio
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import asdict
from math import inf
from pathlib import Path

from peer.errors import FailedError
from peer.files import read, sync, write_atomically
from peer.network.streams.handshake import Refusals, RefusedError, Surprises
from peer.network.transport import REFUSED, DisconnectedError, Pipe, Transport
from peer.network.view_rpc import ViewRpc
from peer.runtime.membership.gate import DynamicMembershipGate, MembershipSettings
from peer.spec.recordings import VIEWS, OldVersionError, read_memory
from peer.tasks import in_thread, shielded
from peer.telemetry import events
from peer.telemetry.events import Awaited, Leaving, Report, ViewDecided
from peer.views.decision import NO_PROGRESS, Acceptor, MemberProgress, Memory, Rules, Turns, is_less
from peer.views.signing import Keyring
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
    canonical,
    check_reply,
)
from peer.views.view import View

REFUSAL_LASTS_S = 3.0
"""Seconds for which a refusal to leave is still the answer to whoever asks again and again."""


class ViewStore:
    """views.json in a peer's directory: what a member must never forget of views. `write` blocks."""

    def __init__(self, path: Path, memory: Memory) -> None:
        self.path, self.memory = path, memory

    @classmethod
    def open(cls, directory: Path, id: str) -> "ViewStore":
        """FailedError when it is damaged: a promise that is forgotten could make two federations of one."""
        path = directory / VIEWS
        try:
            text = read(path)
        except FileNotFoundError:
            return cls(path, Memory(id))
        except OSError as error:
            raise FailedError(f"{path}: cannot be read ({error.strerror})") from None
        try:
            memory = read_memory(text)
        except OldVersionError:
            raise FailedError(
                f"{path}: was written by an earlier version of dfl, whose views carry no proof that they were decided; "
                "finish the run with that version, or begin anew in another directory (`--fresh`)"
            ) from None
        except InvalidError as error:
            raise FailedError(
                f"{path}: is damaged ({error}), and what this peer has promised stood there; remove {directory} and "
                "start this peer again: then the others take it in anew"
            ) from None
        if memory.id != id:
            raise FailedError(f"{path}: is that of {memory.id}, and not {id}'s; put {id}'s own in its place")
        return cls(path, memory)

    def content(self) -> bytes:
        """What is to be kept, as it is now."""
        return canonical(asdict(self.memory))

    def write(self, content: bytes) -> None:
        """That is on disk when this returns."""
        write_atomically(self.path, content)
        sync(self.path.parent)


class LeaveRequest:
    """Its operator's, that this member leaves: since when, and what becomes of it if it cannot. Forgotten when the
    process ends."""

    def __init__(self, report: Report) -> None:
        self._report, self._clock = report, asyncio.get_running_loop().time
        self._since: float | None = None
        self._otherwise: Callable[[], None] | None = None
        self._refusal, self._refused_at = "", -inf

    @property
    def stands(self) -> bool:
        return self._since is not None

    @property
    def age(self) -> float:
        """Seconds since it was given."""
        return 0.0 if self._since is None else self._clock() - self._since

    @property
    def refusal(self) -> str:
        """Why the last one came to nothing, for a while."""
        return self._refusal if self._clock() - self._refused_at < REFUSAL_LASTS_S else ""

    def give(self, otherwise: Callable[[], None] | None = None) -> None:
        """Leave; `otherwise` is called if that cannot be."""
        self._otherwise = otherwise or self._otherwise
        if self._since is None:
            self._since = self._clock()
            self._report(Leaving(sentence="told to leave: the others are asked to go on without this peer"))

    def refuse(self, why: str) -> None:
        """It cannot leave: the order stands no more."""
        self._refusal, self._refused_at, self._since = why, self._clock(), None
        self._report(Leaving(sentence=f"this peer cannot leave: {why}"))
        if otherwise := self._otherwise:
            self._otherwise = None
            otherwise()


class Membership:
    """Of one peer, through all its lives."""

    def __init__(
        self, register: ViewStore, acceptor: Acceptor, questions: ViewRpc, report: Report, terms: MembershipSettings
    ) -> None:
        self.register, self.acceptor, self.memory = register, acceptor, register.memory
        self.questions, self.report, self.terms, self.timeouts = questions, report, terms, questions.timeouts
        self.id, self.chain, self.keyring = acceptor.id, acceptor.chain, acceptor.keyring
        self.seat: DynamicMembershipGate | None = None
        """Where this peer is in its present life."""
        self.order = LeaveRequest(report)
        """To leave, if there is one."""
        self.admission_requests: dict[str, Signed[Entry]] = {}
        """Who does."""
        self.answered: dict[str, float] = {}
        """When each member has answered a question last, by the loop's clock."""
        self._failures: dict[str, str] = {}
        """Why the last question to a member was not answered."""
        self._refusing: dict[str, float] = {}
        """Since when a member has answered this one's questions for a promise, and only without one."""
        self._refusals = Refusals(report, questions.limits, acceptor.rules.ids)
        self._surprises = Surprises(questions.limits)
        self._clock = asyncio.get_running_loop().time
        self.turns = Turns(self.timeouts.decision_timeout, self._clock)
        """Where nobody lies all are listened to at any time."""
        self._announced: dict[str, Signed[Announcement]] = {}
        """What members have announced, in this life and before."""
        self._prepare: Signed[Prepare] | None = None
        """The present attempt's."""
        self.held_since: float | None = None
        """By the loop's clock; None while no view is being decided on."""
        self._relayed: tuple[Ballot | None, dict[str, asyncio.Task[Promised | Refused | Behind | None]]] = None, {}
        """What members have answered to the present attempt that this one has asked for its proposer, or for itself."""
        self._changed, self._writing = asyncio.Event(), asyncio.Lock()
        self._written: object = None
        self._told = self.chain.current.number
        self._stranded: int | None = None
        """The number of the view in which it lives and which cannot be played to its end any more."""

    @classmethod
    def open(
        cls,
        directory: Path,
        rules: Rules,
        keyring: Keyring,
        questions: ViewRpc,
        work: tuple[Report, MembershipSettings],
    ) -> "Membership":
        """By what is in its directory; FailedError where that is damaged, or nobody can prove it."""
        register = ViewStore.open(directory, keyring.id)
        for pem in register.memory.authorities:
            keyring.trust(pem)
        try:
            acceptor = Acceptor(register.memory, rules, keyring)
        except InvalidError as error:
            raise FailedError(
                f"{register.path}: holds a view without proof that it was decided ({error}): it was decided without "
                f"certificates or with those of another CA, or is damaged; take the certificates with which the run "
                f"began, or remove {directory} and start this peer again: then the others take it in anew"
            ) from None
        return cls(register, acceptor, questions, *work)

    @property
    def held(self) -> bool:
        """Whether the next view is being decided on: no round may begin."""
        return self.acceptor.held

    @property
    def held_for(self) -> float:
        """Seconds for which a view has been decided on."""
        return 0.0 if self.held_since is None else self._clock() - self.held_since

    @property
    def tolerates(self) -> int:
        """f: how many members of the last view may lie."""
        return self.chain.current.tolerates(self.acceptor.rules.faulty)

    @property
    def view(self) -> View:
        """In which this peer lives, or has last lived."""
        return self.chain.of(self.memory.entered)

    @property
    def is_member(self) -> bool:
        """Whether it is one of the last view."""
        return self.acceptor.is_member

    @property
    def has_left(self) -> bool:
        """Whether it was told to leave, and no view is left in which it is to live."""
        return self.order.stands and not self.is_member and not self.chain.after(self.memory.entered, self.id)

    def announcements(self) -> Mapping[str, Signed[Announcement]]:
        """By member, what it has announced to be on its disk, as far as it has come here: in this life or in one
        before, whichever binds it more."""
        for signed in self.seat.announcements().values() if self.seat else ():
            known = self._announced.get(signed.signer)
            if known is None or self._binds(signed) >= self._binds(known):
                self._announced[signed.signer] = signed
        return self._announced

    def _binds(self, announced: Signed[Announcement]) -> int:
        """Up to which round, now that later views have made some void."""
        ceiling, at = self.chain.last_valid_round(announced.statement.view), announced.statement.round
        return at if ceiling is None else min(at, ceiling)

    def open_gate(self) -> DynamicMembershipGate:
        """For a life in that view."""
        self.announcements()  # what was announced in the life before is not forgotten
        self.seat = DynamicMembershipGate(self.view, self.id, self.terms, self)
        self._tell_seat()
        return self.seat

    async def moved(self, view: View) -> None:
        """Wait until that view is over: its rounds are void, or the others go on without this peer."""
        while not self.is_over(view):
            await self._change()

    def is_over(self, view: View) -> bool:
        """Whether life in that view is of no use any more."""
        return view.number == self._stranded or self.chain.is_over(view.number, self.id)

    def strand(self, view: View) -> None:
        """Who leaves cannot play that view to its end: somebody else is away."""
        self._stranded = view.number
        self._tell_seat()
        self.stir()

    async def enter(self, view: View) -> None:
        """Live there from now on: this is on disk when it returns."""
        self.memory.entered = view.number
        async with self._writing:
            await self._write()

    # Asking.

    def refused(self, member: str) -> bool:
        """Whether nobody listened there when it was asked last."""
        return self._failures.get(member) == REFUSED

    def awaited(self, member: str) -> Awaited:
        """With the reason why it counts as away."""
        why = (
            "it answers, and promises nothing"
            if self.is_withholding(member)
            else self._failures.get(member, "no answer")
        )
        return Awaited(member, self.questions.addresses.get(member), why)

    def is_withholding(self, member: str) -> bool:
        """Whether a member has refused this one every promise for so long that no honest one does: for more than
        `absence` and a few turns of others."""
        since, long = self._refusing.get(member), self.acceptor.rules.absence + 3 * self.timeouts.decision_timeout
        return since is not None and self._clock() - since > long

    async def ask(self, member: str, request: Request, transport: Transport) -> Reply | None:
        """The answer; None where there is none, or one that no member gives."""
        failed = self._failures.pop(member, None)
        try:
            if member == self.id:
                return await self.handle(request)
            reply = await self.questions.ask(transport, member, request)
            check_reply(request, reply)
            if isinstance(reply, Decided):
                await self.handle(reply)
        except TimeoutError:  # this peer itself does not know yet how it stands
            return None
        except (DisconnectedError, RefusedError) as error:
            self._failures[member] = str(error)
            return None
        except InvalidError as error:
            self.report_invalid(member, str(error))
            return None
        except Exception as error:  # noqa: BLE001 (as in `Network._accept`)
            self.report_invalid(member, self._surprises.explain(error))
            return None
        now = self._clock()
        if failed and now - self.answered.get(member, -inf) > self.acceptor.rules.absence:
            self.turns.forget()
        self.answered[member] = now
        if isinstance(request, AskPromise) and isinstance(reply, Refused | Behind):
            self._refusing.setdefault(member, self._clock())
        elif isinstance(reply, Promised):
            self._refusing.pop(member, None)
        return reply

    def report_invalid(self, member: str, what: str) -> None:
        """It has said what no honest member says: counted, and told once."""
        self._refusals.add(events.CallerRefused(caller=member, kind="views", reason=f"{what}; it was not believed"))

    # Answering.

    async def answer(self, pipe: Pipe) -> None:
        """Serve a stream with a question."""
        await self.questions.answer(pipe, self._handle_from)

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
        """The answer, once what follows from it is on disk; InvalidError for what no honest member asks."""
        number, standing = self.chain.current.number, NO_PROGRESS
        match request:
            case Leave():
                return await self._leave(request)
            case Expel() if denied := self._why_not(request):
                return Denied(denied)
            case Relay(prepare, to):
                return await self._relay(prepare, to)
            case AskPromise(prepare) if refused := self._not_its_turn(prepare):
                return refused
            case Yield(ballot=ballot):
                if ballot == self.acceptor.slot.promised:
                    self.turns.end(ballot.proposer)
            case AskPromise():
                standing = await self._standing()
            case Propose(proposal) if objection := await self._objection(proposal):
                return objection
        try:
            reply = self.acceptor.handle(request, standing, self.most)
        except InvalidError:
            if self.chain.current.number != number:
                await shielded(self._take_note)  # what was proved before the rest stands
            raise
        if isinstance(request, AskPromise) and isinstance(reply, Promised):
            self._prepare = request.prepare
            self.memory.promised = reply.promise.statement.durable
        if isinstance(reply, Voted):
            self.turns.advance(reply.vote.statement.ballot.proposer)
        if self.held and self.seat:
            self.seat.block_rounds(self.memory.promised)  # a round that begins from now on is not in the promise
        # One who hears late that it was taken in asks once more: that must not count when it has gone again.
        current = self.chain.current
        if isinstance(request, Enter) and request.entry.signer not in {*current.members, *current.expelled}:
            self.admission_requests[request.entry.signer] = request.entry
        if current.number != number:
            self.turns.forget()
        if not self.held:
            self._refusing.clear()
        await shielded(self._take_note)  # what was heard stands, also where the asker has gone meanwhile
        return reply

    @property
    def most(self) -> int:
        """How many views are told at once, so that they fit into an answer also with the largest keys."""
        return max(1, self.questions.limits.views // (6144 * len(self.acceptor.rules.ids)))

    def _not_its_turn(self, prepare: Signed[Prepare]) -> Refused | None:
        """The answer to one whose new attempt is not listened to now. Where nobody lies all are."""
        slot, ballot = self.acceptor.slot, prepare.statement.ballot
        if prepare.statement.number != slot.number or (slot.promised and ballot <= slot.promised):
            return None
        if prepare.signer != ballot.proposer or prepare.signer not in self.chain.current.members:
            return None  # it is refused as such
        self.acceptor.verifier.check_signed(prepare)
        if self.acceptor.is_beyond(ballot):
            if self.turns.may_raise(prepare.signer):
                self.acceptor.approach(ballot)
        elif not self.tolerates or self.turns.take(prepare.signer):
            return None
        return Refused(slot.number, slot.promised or ballot)

    async def _relay(self, prepare: Signed[Prepare], to: Iterable[str]) -> Reply:
        """What those promise from whom the proposer has no answer."""
        slot, present = self.acceptor.slot, self.chain.current
        if prepare != self._prepare or prepare.statement.ballot != slot.promised:
            return Refused(slot.number, slot.promised or prepare.statement.ballot)
        asked = [id for id in present.members if id in {*to} and id not in (self.id, prepare.signer)]
        found = await asyncio.gather(*(self._promise_of(id, prepare) for id in asked))
        return Relayed(tuple(one for one in found if isinstance(one, Promised)))

    def _promise_of(self, id: str, prepare: Signed[Prepare]) -> "asyncio.Task[Promised | Refused | Behind | None]":
        """Each is asked once in an attempt; its answer, or that there is none, is remembered until the next."""
        ballot, asked = self._relayed
        if ballot != prepare.statement.ballot:
            self._relayed = prepare.statement.ballot, (asked := {})
        if id not in asked:
            asked[id] = asyncio.create_task(self._ask_for_promise(id, prepare))
        return asked[id]

    async def _ask_for_promise(self, id: str, prepare: Signed[Prepare]) -> Promised | Refused | Behind | None:
        """What is no promise of that member is its own fault, and not that of the proposer, who has asked for it."""
        if not (self.seat and self.seat.transport):
            return None
        with suppress(TimeoutError):
            # Less than the proposer waits for this member's answer.
            async with asyncio.timeout(0.75 * self.timeouts.view_rpc_timeout):
                reply = await self.ask(id, AskPromise(prepare), self.seat.transport)
                if isinstance(reply, Behind) and reply.number < self.chain.current.number:
                    await self.ask(id, self.acceptor.since(reply.number, self.most), self.seat.transport)
                    reply = await self.ask(id, AskPromise(prepare), self.seat.transport)
                if isinstance(reply, Promised):
                    return reply if self._is_promise(reply, id, prepare.statement) else None
                return reply if isinstance(reply, Refused | Behind) else None
        return None

    def _is_promise(self, promised: Promised, by: str, asked: Prepare) -> bool:
        """In that ballot, whatever was decided meanwhile."""
        try:
            self.acceptor.verifier.check_promised(self.chain.of(asked.number - 1), promised, by, asked.ballot)
        except InvalidError as error:
            self.report_invalid(by, str(error))
            return False
        return True

    async def _objection(self, proposal: Proposal) -> Objection | None:
        """Why this member does not vote for a view, by what only it knows.

        Where nothing is signed everybody is believed. A view with a lock was voted for by a quorum before.
        """
        view, grounds, slot = proposal.view, proposal.grounds, self.acceptor.slot
        ballot = proposal.vote.statement.ballot
        if view is None or (grounds.lock and grounds.lock.view) or not self.keyring.signs:
            return None
        if proposal.vote.statement.number != slot.number or not slot.allows_ballot(ballot):
            return None
        self.acceptor.verifier.check_proposal(self.chain, proposal)
        if not (self.seat and self.seat.transport):
            return Objection(f"{self.id} has just started, and knows nothing of the others")
        known, promised = self.announcements(), {one.signer: one.statement for one in grounds.promises}
        taken_back = [
            known[id]
            for id, promise in promised.items()
            if id in view.members and id in known and is_less(promise, known[id].statement, self.chain)
        ]
        if taken_back:
            return Objection(f"{taken_back[0].signer} has announced a later round than it promises", (*taken_back,))
        if view.planned and self.seat.started >= view.first:
            return Objection(f"{self.id} has begun round {self.seat.started}")
        goes_back = not view.planned and self.id not in dict(view.entrants)
        if goes_back and view.first - 1 <= self.seat.dropped and self.seat.dropped >= 0:
            return Objection(f"{self.id} cannot go back to round {view.first - 1}")
        omitted = [id for id in self.chain.current.members if id not in {*promised, *view.expelled}]
        if omitted and not self.seat.may_exclude and not self._have_begun(promised.values()):
            return Objection("the run has not begun, so nobody counts as lost")
        away = (*omitted, *grounds.missing)
        answers = await asyncio.gather(*(self._is_there(id, ballot) for id in away))
        there = [id for id, answered in zip(away, answers, strict=True) if answered]
        return Objection(f"{', '.join(there)} answers {self.id}"[:300]) if there else None

    def _have_begun(self, promises: Iterable[Promise]) -> bool:
        """Whether one of those who promise is honest and has begun: then everybody has been there at some time, also if
        this peer was started again meanwhile and knows nothing of it."""
        return sum(promise.started >= 0 for promise in promises) > self.tolerates

    async def _is_there(self, id: str, ballot: Ballot) -> bool:
        """Whether one that is to count as lost answers this member."""
        seat, prepare, rules = self.seat, self._prepare, self.acceptor.rules
        if id == self.id or seat is None or seat.transport is None:
            return id == self.id
        if seat.is_silent(id, rules.absence, self.answered):
            return False
        if id in self.chain.current.members and prepare and prepare.statement.ballot == ballot:
            found = await self._promise_of(id, prepare)
            # One that listens to another ballot, or has not heard of this view, is there; but none holds up the
            # rest by that for ever.
            return isinstance(found, Promised) or (found is not None and not self.is_withholding(id))
        return await self.ask(id, Ask(self.chain.current.number), seat.transport) is not None

    async def _leave(self, request: Leave) -> Reply:
        """Answered when it is decided, or cannot be; else after a while, and the asker asks again."""
        if refusal := self.order.refusal:
            return Denied(refusal)
        if self.is_member:
            self.order.give()
        with suppress(TimeoutError):
            async with asyncio.timeout(self.timeouts.view_rpc_timeout / 2):
                while self.is_member and self.order.stands:
                    await self._change()
        refusal = self.order.refusal
        return Denied(refusal) if refusal else self.acceptor.handle(request, most=self.most)

    def _why_not(self, request: Expel) -> str | None:
        left = {*self.chain.current.members} - {request.id}
        if len(left) >= self.terms.min_members or request.id in self.chain.current.expelled:
            return None
        return (
            f"without {request.id} {len(left)} members would be left, and the protocol needs {self.terms.min_members}"
        )

    async def _standing(self) -> MemberProgress:
        """How this peer stands, once it has found what it had on disk."""
        async with asyncio.timeout(self.timeouts.view_rpc_timeout):  # then nobody waits for the answer any more
            while not (standing := self.seat and self.seat.standing(self.chain)):
                await self._change()
        return standing

    async def _take_note(self) -> None:
        async with self._writing:
            memory = self.memory
            state = (len(memory.decisions), memory.slot, len(memory.consents), len(memory.guilt), memory.promised)
            if state != self._written:
                await self._write()
                self._written = state
        for view in self.chain.since(self._told):
            self._told = view.number
            self.admission_requests.clear()  # who still wants to asks again
            self.report(ViewDecided(**view.as_json()))
        self._tell_seat()
        self.stir()

    async def _write(self) -> None:
        """As it is now, whatever is decided while it is being written."""
        self.memory.authorities = tuple(self.keyring.pems)
        await in_thread(self.register.write, self.register.content())

    def _tell_seat(self) -> None:
        if self.held_since is not None and not self.held:
            self.turns.end()
        self.held_since = (self.held_since or self._clock()) if self.held else None
        if seat := self.seat:
            # In a view that is void nothing more is begun, and nobody hears what is on disk of it.
            seat.block_rounds(self.memory.promised if self.held or self.is_over(seat.view) else None)
            following = self.chain.since(seat.view.number)[:1]
            if following and following[0].planned:
                seat.end_after(following[0].first - 1)
                seat.leaving = self.id not in following[0].members

    def stir(self) -> None:
        """Something has changed."""
        self._changed.set()

    async def _change(self) -> None:
        self._changed.clear()
        await self._changed.wait()
