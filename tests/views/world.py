"""Peers that agree on views in a network that loses, repeats, delays and reorders, machines that die, and liars.

One seed determines everything. What a driver is to do is done here in its simplest form; what must never be is
written down in `World.wrong`.
"""

import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from random import Random
from typing import Any

import judgement
from assembly import promise_kept
from gang import Gang
from machine import SECONDS, STALENESS, Machine, Secret

from peer.views.decision import Acceptor, Attempt, MembershipChange, Memory, Rules
from peer.views.signing import Keyring
from peer.views.statements import (
    Announcement,
    Ask,
    AskPromise,
    Ballot,
    Behind,
    Consents,
    Decided,
    Decision,
    Denied,
    Enter,
    Entry,
    Expel,
    Heard,
    InvalidError,
    Leave,
    Objection,
    Poll,
    Prepare,
    Promised,
    Proposal,
    Propose,
    Refused,
    Relay,
    Relayed,
    Reply,
    Request,
    Signed,
    Vote,
    Voted,
    Yield,
    read_reply,
    read_request,
    written,
)
from peer.views.view import View, view_rounds


@dataclass(frozen=True)
class Letter:
    """A request on its way, or the answer on its way back."""

    proposal: Attempt | None
    proposer: str
    member: str
    request: Request
    reply: Reply | None = None
    tries: int = 0


class World:
    """One run."""

    def __init__(self, seed: int) -> None:
        self.random = random = Random(seed)
        self.ids = tuple(f"peer{number}" for number in range(random.choice([3, 3, 3, 4, 4, 4, 5, 5, 6, 7])))
        self.faulty = random.choice([0, 1, 1, 1, 2]) if len(self.ids) > 3 else 0
        self.faulty = min(self.faulty, (len(self.ids) - 1) // 3)
        self.signed = self.faulty > 0 or random.random() < 0.6
        lying = random.sample(self.ids, random.choice([self.faulty, self.faulty, random.randint(0, self.faulty)]))
        self.liars = frozenset(lying)
        least = 3 * self.faulty + 1 if lying and random.random() < 0.7 else 1
        self.rules = Rules(self.ids, rounds=60, faulty=self.faulty, min_members=least)
        signatures: dict[tuple[str, Any], str] = {}
        keyrings = [Secret(id, signatures) if self.signed else Keyring(id, "simulated") for id in self.ids]
        made = {one.id: Acceptor(Memory(one.id), self.rules, one) for one in keyrings}
        self.machines = {id: Machine(acceptor, clock=lambda: self.clock or 0.0) for id, acceptor in made.items()}
        self.honest = [machine for id, machine in self.machines.items() if id not in self.liars]
        self.decided = {0: View(0, self.ids, 0)}
        self.committed: dict[Vote, set[str]] = {}
        """Which honest members have."""
        self.promised: dict[tuple[str, int], Ballot] = {}
        self.told_of: set[Vote] = set()
        self.refusing: set[tuple[str, int]] = set()
        """Honest members that have promised a higher ballot, so that they were of no use in a lower one."""
        self.leaving: set[tuple[str, int]] = set()
        self.letters: list[Letter] = []
        self.cut: frozenset[str] = frozenset()
        """These are on one side of a partition."""
        self.wrong: list[str] = []
        self.ends: dict[str, int] = {}
        self.loss, self.deaths = random.choice([0.0, 0.05, 0.3]), random.choice([0.0, 0.02, 0.1])
        self.reliable = {machine.id for machine in self.honest} if not self.loss else set[str]()
        """The members that always answer everybody."""
        self.votes = random = Random(f"votes {seed}")
        self.accused = random.choice(self.ids) if random.random() < 0.3 else ""
        """Whom others may vote out."""
        self.consenting: set[str] = set()
        self.secretive = self.random.random() < 0.4
        """Nobody tells what was decided, unless it is asked for something else."""
        self.most = self.random.choice([1, 64])
        """Views that are told at once."""
        self.wire = self.random.random() < 0.15
        """Whether everything is written and read on its way; what liars change always is."""
        self.clock: int | None = None
        """Attempts take turns from when it is set."""
        self.over = False
        """More members lie than the view of so few can bear: of the rest nothing can be said."""
        self.gang, self.operators = Gang(self, seed), Random(f"operators {seed}")
        self._begin()

    def _begin(self) -> None:
        """With one outside, or that leaves, or in the midst of the run."""
        random, outside = self.random, self.random.choice(["", "", self.ids[-1], self.random.choice(self.ids)])
        begun = random.choice([0, 5, 9])
        leaves = bool(self.liars and begun) and self.gang.random.random() < 0.5
        if outside and len(self.ids) > self.rules.min_members:
            rest = tuple(id for id in self.ids if id != outside)
            view = View(1, rest, begun + STALENESS, planned=True) if leaves else View(1, rest, 0)
            digest = self.machines[outside].acceptor.verifier.digest(self.decided[0], view)
            vote = Vote("commit", 1, Ballot(1, view.members[0]), digest)
            votes = tuple(one.acceptor.keyring.sign(vote) for one in self.machines.values())
            self.committed[vote] = {one.signer for one in votes}
            self.learned(Decision(view, vote.ballot, votes), {*self.ids})
            for machine in self.machines.values():
                promise_kept(machine.acceptor, 1)
                machine.acceptor.handle(Decided((Decision(view, vote.ballot, votes),)))
                machine.memory.entered = int(machine.id in view.members and not leaves)
        for machine in self.machines.values():
            if begun:
                machine.have_played(begun + random.randrange(STALENESS))
                for id in machine.view.members:
                    durable = Announcement(machine.lives, begun - 2)
                    machine.hear_of(self.machines[id].acceptor.keyring.sign(durable))
            machine.announce()
            machine.write()

    def run(self) -> list[str]:
        """What was wrong."""
        try:
            self.live(self.random.choice([100, 150, 300]))
            if not self.wrong and not self.over and self.operators.random() < 0.2 and self.go_back():
                self.live(100)
            if not self.wrong and not self.over:
                self.settle()
            for machine in self.honest:
                self.wrong += judgement.of_size(self, machine)
        except (
            InvalidError,
            RuntimeError,
            ValueError,
            LookupError,
            TypeError,
            AttributeError,
            AssertionError,
        ) as error:
            self.wrong.append(f"{type(error).__name__}: {error}")
        return self.wrong

    def live(self, steps: int) -> None:
        actions: list[Callable[[], None]] = [self.play, self.save, self.gossip, self.move]
        actions += [self.propose, self.give_up, self.ask, self.fault]
        weights = self.random.choice([[12, 12, 12, 4, 2, 2, 3, 2], [8, 8, 8, 1, 4, 3, 3, 1], [3, 3, 3, 1, 9, 9, 3, 4]])
        speed, zeal = self.random.choice([0.5, 0.7, 0.9]), self.random.choice([0.05, 0.15, 0.3]) if self.liars else 0.0
        for _ in range(steps):
            if self.accused and self.votes.random() < 0.1:
                self.vote()
            if self.gang.random.random() < zeal:
                self.gang.act()
            if self.letters and self.random.random() < speed:
                self.deliver()
            else:
                self.random.choices(actions, weights)[0]()
            if self.wrong or self.over:
                return

    def go_back(self) -> bool:
        """All are stopped, perhaps brought back from backups that know fewer views, and their operators have them go
        back to a round that its members hold; if there is one."""
        known = max((machine.disk.decisions for machine in self.honest), key=len)
        if known and self.operators.random() < 0.5:
            known = known[: self.operators.randrange(len(known))]
        views = [self.decided[0], *(one.view for one in known)]  # others are forgotten
        newest = max(machine.newest for machine in self.honest)
        for span in reversed(view_rounds(views, newest)):
            members = [self.machines[id] for id in span.view.members if id not in views[-1].expelled]
            held = {*span.rounds} if members else set[int]()
            for one in members:
                void = min((self.decided[n].first for n in range(one.lives + 1, len(self.decided))), default=newest + 1)
                held &= {round for round in one.kept if round < void}
            if held and len(members) >= max(1, self.rules.min_members):
                break
        else:
            return False
        ids, round = tuple(one.id for one in members), self.operators.choice(sorted(held))
        self.rules = replace(self.rules, rewinds=(View(len(views), ids, round + 1),))
        signatures: dict[tuple[str, Any], str] = {}
        for id, machine in self.machines.items():
            again = Secret(id, signatures, self.rules.rewinds) if self.signed else Keyring(id, "simulated")
            machine.go_back(self.rules, again, len(known))
        self._forget(len(views))
        back = self.honest[0].acceptor.verifier.rewind_after(views[-1])
        assert back
        self.wrong += judgement.of_votes(self, views[-1], back.view)
        self.decided = dict(enumerate([*views, back.view]))
        self.over |= len(self.liars & {*ids}) > back.view.tolerates(self.faulty)
        return True

    def _forget(self, number: int) -> None:
        """Count nothing that was said of views of that number or a later one."""
        self.letters.clear()
        self.gang.memories = [one for one in self.gang.memories if len(one[1].decisions) < number]
        self.committed = {vote: ids for vote, ids in self.committed.items() if vote.number < number}
        self.promised = {key: ballot for key, ballot in self.promised.items() if key[1] < number}
        self.leaving = {one for one in self.leaving if one[1] < number}
        self.refusing = {one for one in self.refusing if one[1] < number}
        self.consenting = {one.id for one in self.honest if self.accused in one.acceptor.consented}

    # What happens at a machine.

    def any_up(self) -> Machine | None:
        up = [machine for machine in self.machines.values() if machine.up]
        return self.random.choice(up) if up else None

    def play(self) -> None:
        """Somebody starts a round."""
        machine = self.any_up()
        if not machine or not machine.may_start or machine.started >= self.rules.rounds:
            return
        present = machine.chain.current
        promised = self.promised.get((machine.id, present.number + 1))
        if machine in self.honest and promised and not self.is_released(present, promised):
            self.wrong.append(f"{machine.id} starts a round though it has promised {promised}")
        machine.started += 1

    def is_released(self, present: View, ballot: Ballot) -> bool:
        """Whether a quorum has committed to no change in that ballot or a higher one."""
        digest = self.honest[0].acceptor.verifier.digest(present, None)
        return any(
            vote.number == present.number + 1 and vote.ballot >= ballot and vote.digest == digest
            for vote, ids in self.committed.items()
            if present.is_quorum(ids | self.liars, self.faulty)
        )

    def save(self) -> None:
        """Somebody's checkpoint is on disk."""
        machine = self.any_up()
        if machine and not machine.is_over:
            machine.save()

    def gossip(self) -> None:
        """Somebody hears what another has told, and has heard, of what is on disk."""
        teller, listener = self.any_up(), self.any_up()
        if not (teller and listener) or teller is listener or teller.lives != listener.lives or not teller.tells:
            return
        if teller.id in self.liars:
            listener.hear_of(self.gang.announcement(teller))
        elif self.signed:
            for announced in [*teller.announced.values()]:
                listener.hear_of(announced)
        else:
            listener.hear_of(Signed(teller.id, Announcement(teller.lives, teller.told)))
            for id, told in teller.heard.items():
                if id in listener.view.members and id != listener.id:
                    listener.heard[id] = max(told, listener.heard.get(id, -1))
        listener.prune()

    def move(self) -> None:
        """Somebody begins to live in its next view, if it can."""
        if machine := self.any_up():
            self.wrong += judgement.of_life(self, machine)
            machine.move()

    def fault(self) -> None:
        """A machine dies, or starts again; the network is cut in two, or is whole again."""
        if self.random.random() < 0.3 and self.loss:
            self.cut = frozenset() if self.cut else frozenset(self.random.sample(self.ids, len(self.ids) // 2))
        down = [machine for machine in self.machines.values() if not machine.up]
        if down and self.random.random() < 0.5:
            dead = self.random.choice(down)
            dead.restart(damaged=self.random.random() < 0.3)
            self.wrong += judgement.of_memory(self, dead)
        elif (machine := self.any_up()) and self.random.random() < 10 * self.deaths:
            self.die(machine)

    def die(self, machine: Machine) -> None:
        machine.up, machine.proposal = False, None
        self.reliable.discard(machine.id)

    def ask(self) -> None:
        """Somebody asks another what was decided, or to be taken in."""
        machine, other = self.any_up(), self.any_up()
        if machine and other and machine is not other:
            number = machine.chain.current.number
            request: Request = Ask(number)
            if not machine.inside and self.random.random() < 0.7 and machine.is_over:
                request = Enter(machine.acceptor.keyring.sign(Entry(number, machine.private)))
            self.post(None, machine.id, other.id, request)

    def vote(self) -> None:
        """Somebody consents that one is voted out, or asks another whether it does."""
        up = [machine for machine in self.machines.values() if machine.up and machine.id != self.accused]
        if not up:
            return
        machine, other = (self.votes.choice(up) for _ in range(2))
        number = machine.chain.current.number
        if self.votes.random() < 0.3:
            if isinstance(machine.acceptor.handle(Expel(number, self.accused)), Heard):
                self.consenting.add(machine.id)
            machine.write()
        elif machine is not other:
            self.post(None, machine.id, other.id, Poll(number))

    def propose(self) -> None:
        machine = self.any_up()
        if machine and machine.inside and not machine.proposal:
            self.begin(machine, self.wish(machine))

    def wish(self, machine: Machine) -> MembershipChange:
        random, view, out = self.random, machine.chain.current, machine.out
        number = view.number
        away = [one.id for one in self.machines.values() if not one.up or one.id in self.cut]
        evidence = [*out.values()]
        playing = {id for earlier in machine.chain.last_rounds(number) for id in machine.chain.of(earlier).members}
        return MembershipChange(
            leaves=random.random() < 0.25,
            entries=tuple(one for one in machine.asks.values() if one.statement.number == number),
            min_members=random.choice([1, 1, 1, len(view.members)]),
            unanimous=random.random() < 0.3,
            missing=tuple(id for id in away if id in playing - {*view.members}) if random.random() < 0.2 else (),
            evidence=judgement.joined(evidence),
            suspects=frozenset(away) & {*view.members} if random.random() < 0.5 else frozenset(),
        )

    def begin(self, machine: Machine, wish: MembershipChange) -> None:
        machine.proposal = attempt = Attempt(machine.acceptor, machine.above, wish)
        attempt.hold_against(machine.announced.values())
        if wish.leaves:
            self.leaving.add((machine.id, attempt.number))
        machine.waiting = {}
        self.go_on(machine)

    def give_up(self) -> None:
        """Somebody waits no longer for one, or for all, or for anything."""
        machine = self.any_up()
        if not (machine and machine.proposal):
            return
        if machine.waiting and self.random.random() < 0.7:
            late = self.random.choice(sorted(machine.waiting))
            del machine.waiting[late]
            machine.proposal.on_no_reply(late)
        elif self.random.random() < 0.9:
            self.wait_no_longer(machine)
        else:
            machine.proposal = None
            return
        self.go_on(machine)

    def wait_no_longer(self, machine: Machine) -> None:
        for late in sorted(machine.waiting):
            machine.waiting.pop(late)
            if machine.proposal:
                machine.proposal.on_no_reply(late)

    def go_on(self, machine: Machine) -> None:
        """Sends what a proposal asks for, and notes how it has ended."""
        attempt = machine.proposal
        assert attempt
        for member, request in attempt.requests().items():
            machine.waiting[member] = request
            if self.secretive and isinstance(request, Decided):
                continue
            self.post(attempt, machine.id, member, request)
            if self.random.random() < 0.2:
                self.post(attempt, machine.id, self.random.choice(self.ids), request)
        if attempt.over:
            self.ends[attempt.state] = self.ends.get(attempt.state, 0) + 1
            machine.above, machine.proposal = attempt.preempted_by, None
            for announced in attempt.announced.values():
                machine.hear_of(announced)
            if attempt.decision and machine in self.honest:
                self.learned(attempt.decision, set())

    def learned(self, decision: Decision, those: set[str]) -> None:
        """An honest member knows that this was decided."""
        number = decision.view.number
        if self.decided.setdefault(number, decision.view) != decision.view:
            self.wrong.append(f"two views of one number: {self.decided[number]} and {decision.view}")
        elif len(self.decided) == number + 1 and number > 0 and not those and number not in self.set_views:
            self.wrong += judgement.of_view(self, decision)
        self.over |= len(self.liars & {*decision.view.members}) > decision.view.tolerates(self.faulty)

    @property
    def set_views(self) -> set[int]:
        """The numbers of the views that the operators have set."""
        return {view.number for view in self.rules.rewinds}

    def told(self, machine: Machine, teller: str, decided: Decided) -> Reply:
        before = machine.chain.current.number
        reply = self.judged(machine, teller, decided)
        if machine.chain.current.number > before:
            machine.asks.clear()
            machine.turns.forget()
        if machine in self.honest:
            for decision in machine.memory.decisions[before:]:
                if decision.view.number not in self.decided and teller not in self.liars and teller != machine.id:
                    self.wrong.append(f"{machine.id} was told of {decision.view}, which was not decided")
                self.learned(decision, set())
            if not self.over:
                self.wrong += judgement.of_life(self, machine)
        machine.announce()
        machine.write()
        return reply

    # What happens on the way.

    def post(self, proposal: Attempt | None, sender: str, to: str, request: Request, tries: int = 0) -> None:
        """A liar's words are other than they should be, and some do not come at all."""
        said = self.gang.request(request) if sender in self.liars else request
        if said:
            self.letters.append(Letter(proposal, sender, to, said, tries=tries))

    def letter(self, sender: str, to: str, request: Request) -> Letter:
        return Letter(None, sender, to, request)

    def deliver(self) -> None:
        """Some letter arrives, or is lost, or arrives and comes once more."""
        place = self.random.randrange(len(self.letters))
        letter, last = self.letters[place], self.letters[-1]
        if self.random.random() < 0.9:
            self.letters[place] = last
            self.letters.pop()
        if letter.proposer == letter.member or (
            not self.apart(letter.proposer, letter.member) and self.random.random() >= self.loss
        ):
            self.arrive(letter)

    def apart(self, one: str, other: str) -> bool:
        return (one in self.cut) != (other in self.cut)

    def arrive(self, letter: Letter) -> None:
        if letter.reply is None:
            self.handle(letter)
            return
        machine, reply, attempt = self.machines[letter.proposer], letter.reply, letter.proposal
        if self.wire:
            assert read_reply(written(reply)) == reply
        if machine.id in self.liars:
            self.gang.note(reply)
        if not machine.up:
            return
        if isinstance(reply, Decided):
            self.told(machine, letter.member, reply)
        if isinstance(reply, Consents):
            self.polled(machine, letter.member, reply)
        elif attempt and attempt is machine.proposal and machine.waiting.get(letter.member) is letter.request:
            current = machine.chain.current.number
            if isinstance(reply, Behind) and reply.number < current and letter.tries < 3:
                views = machine.acceptor.since(reply.number, self.most)
                self.post(None, machine.id, letter.member, views)
                self.post(attempt, machine.id, letter.member, letter.request, letter.tries + 1)
                return
            machine.waiting.pop(letter.member)
            try:
                attempt.on_reply(letter.member, reply)
            except InvalidError as error:
                self.named(machine, letter.member, reply, error)
            self.go_on(machine)

    def polled(self, machine: Machine, teller: str, reply: Consents) -> None:
        court, evidence = machine.acceptor.verifier, reply.evidence
        try:
            for one in [one for one in evidence.consents if one.signer == teller]:
                court.check_signed(one)
                machine.polled[teller, one.statement.id] = one
            for guilt in evidence.guilt:
                court.check_guilt(guilt)
                machine.guilt[guilt.id] = guilt
        except InvalidError as error:
            self.named(machine, teller, reply, error)
        machine.acceptor.ignored_members = frozenset(machine.out)

    def named(self, machine: Machine, liar: str, said: object, error: InvalidError) -> None:
        """One says of another that it lies."""
        if machine in self.honest and liar not in self.liars:
            self.wrong.append(f"{machine.id} takes {liar} for a liar: {error}: {said}"[:600])

    def handle(self, letter: Letter) -> None:
        machine = self.machines[letter.member]
        if not machine.up:
            return
        dies = self.random.random() < self.deaths
        if dies and self.random.random() < 0.5:
            self.die(machine)  # before anything is written
            return
        if self.wire:
            assert read_request(written(letter.request)) == letter.request
        if machine.id in self.liars:
            self.gang.note(letter.request)
        honest = self.answer(machine, letter.proposer, letter.request)
        if dies:
            self.die(machine)
            return
        lies = machine.id in self.liars and letter.proposer not in self.liars
        if reply := self.gang.reply(machine, letter.request, honest) if lies else honest:
            answer = Letter(letter.proposal, letter.proposer, letter.member, letter.request, reply, letter.tries)
            self.letters.append(answer)

    def answer(self, machine: Machine, sender: str, request: Request) -> Reply:
        """What the machine's driver answers, once it is on disk."""
        current = machine.chain.current
        match request:
            case Decided():
                return self.told(machine, sender, request)
            case Leave() | Expel():
                return Denied("in the name of another")
            case Enter(entry) if entry.signer != sender:
                return Denied("in the name of another")
            case AskPromise(prepare) if self.clock is not None and current.tolerates(self.faulty):
                slot, ballot = machine.acceptor.slot, prepare.statement.ballot
                is_new = prepare.statement.number == slot.number and (slot.promised is None or ballot > slot.promised)
                heard = machine.acceptor.keyring.is_valid(prepare) if is_new else True
                if is_new and not (heard and machine.turns.try_acquire(sender)):
                    return Refused(slot.number, slot.promised or ballot)
            case Yield(ballot=ballot) if ballot.proposer == sender and ballot == machine.acceptor.slot.promised:
                machine.turns.end(sender)
        reply = self.judged(machine, sender, request)
        current = machine.chain.current
        if not machine.acceptor.held:
            machine.turns.end()
        match request, reply:
            case _, Voted(Signed(statement=vote)):
                machine.turns.advance(vote.ballot.proposer)
            case AskPromise(prepare), Promised(promise):
                machine.prepare, machine.memory.promised = prepare, promise.statement.durable
            case AskPromise(prepare), Refused():
                self.refusing.add((machine.id, prepare.statement.number))
            case Enter(entry), _ if entry.signer not in {*current.members, *current.expelled}:
                machine.asks[entry.signer] = entry
        machine.announce()
        machine.write()
        if machine in self.honest:
            self.note(machine, reply)
            self.wrong += judgement.of_size(self, machine)
        return reply

    def judged(self, machine: Machine, sender: str, request: Request) -> Reply:
        try:
            match request:
                case Relay(prepare, to):
                    return self.relay(machine, sender, prepare, to)
                case Propose(proposal) if (objection := self.objection(machine, proposal)) is not None:
                    return objection
            return machine.acceptor.handle(request, machine.standing, self.most)
        except InvalidError as error:
            self.named(machine, sender, request, error)
            return Denied(str(error)[:300])

    def relay(self, machine: Machine, sender: str, prepare: Signed[Prepare], to: tuple[str, ...]) -> Reply:
        slot = machine.acceptor.slot
        if prepare.signer != sender:
            raise InvalidError("an attempt in the name of another")
        if prepare.statement.number != slot.number or prepare.statement.ballot != slot.promised:
            return Refused(slot.number, slot.promised or prepare.statement.ballot)
        members = [id for id in machine.chain.current.members if id in to and id not in (machine.id, sender)]
        found = [self.promise_of(machine, id, prepare) for id in members]
        return Relayed(tuple(one for one in found if one))

    def promise_of(self, machine: Machine, id: str, prepare: Signed[Prepare]) -> Promised | None:
        """What another promises if this one asks it now; what it cannot have said counts as none."""
        reply = self.reach(machine, id, AskPromise(prepare))
        if not isinstance(reply, Promised):
            return None
        named, court, present = reply.promise.statement.locked, machine.acceptor.verifier, machine.chain.current
        try:
            court.check_promise(present, reply.promise, prepare.statement.ballot)
            if reply.promise.signer != id or (reply.lock.ballot if reply.lock else None) != named:
                return None
            if reply.lock:
                court.check_lock(present, reply.lock)
        except InvalidError as error:
            self.named(machine, id, reply, error)
            return None
        return reply

    def reach(self, machine: Machine, id: str, request: Request) -> Reply | None:
        """Another's answer at once, if there is one."""
        other = self.machines[id]
        if not other.up or self.apart(machine.id, id) or self.random.random() < self.loss:
            return None
        sender = request.prepare.signer if isinstance(request, AskPromise) else machine.id
        reply = self.answer(other, sender, request)
        return self.gang.reply(other, request, reply) if id in self.liars else reply

    def objection(self, machine: Machine, proposal: Proposal) -> Objection | None:
        """Why the machine does not vote for a view, by what only it knows."""
        view, grounds, slot = proposal.view, proposal.grounds, machine.acceptor.slot
        number, ballot = proposal.vote.statement.number, proposal.vote.statement.ballot
        carried = grounds.lock and grounds.lock.view
        if view is None or carried or not self.signed or number != slot.number or not slot.allows_ballot(ballot):
            return None
        machine.acceptor.verifier.check_proposal(machine.chain, proposal)
        if found := machine.objection(proposal):
            return found
        there_or_out = {*view.expelled, *(one.signer for one in grounds.promises)}
        away = [id for id in (*machine.chain.current.members, *grounds.missing) if id not in there_or_out]
        if len({*away}) < len(away):
            self.wrong.append(f"{machine.id} asks {len(away)} times whether one of {len({*away})} is there")
            return None
        there = [id for id in away if self.answers(machine, id, ballot)]
        return Objection(f"{', '.join(there)} answers") if there else None

    def answers(self, machine: Machine, id: str, ballot: Ballot) -> bool:
        """Whether one that is to count as lost answers this machine."""
        if id == machine.id:
            return True
        if id in machine.chain.current.members and machine.prepare and machine.prepare.statement.ballot == ballot:
            return self.promise_of(machine, id, machine.prepare) is not None
        return self.reach(machine, id, Ask(machine.chain.current.number)) is not None

    def note(self, machine: Machine, reply: Reply) -> None:
        """What an honest member has promised and committed to."""
        match reply:
            case Promised(promise):
                number, ballot = promise.statement.number, promise.statement.ballot
            case Voted(vote):
                number, ballot = vote.statement.number, vote.statement.ballot
                if vote.statement.phase == "commit":
                    self.committed.setdefault(vote.statement, set()).add(machine.id)
            case _:
                return
        self.promised[machine.id, number] = max(ballot, self.promised.get((machine.id, number), ballot))

    # After the faults.

    def settle(self) -> None:
        """The network is whole and a quorum of the newest view lives. At first nobody needs to know of it; in the end
        all who are honest live, and come to a decision, whatever the others do."""
        self.loss, self.deaths, self.clock = 0.0, 0.0, 0
        self.cut = frozenset()
        for _ in range(3):
            self.revive()
            if inside := [machine for machine in self.honest if machine.up and machine.inside]:
                self.decide(self.random.choice(inside))
        if self.wrong or self.over:
            return
        self.secretive = False
        self.revive(everybody=True)
        for machine in self.honest:
            for other in self.honest:
                self.told(machine, other.id, Decided((*other.memory.decisions,)))
        newest = self.decided[max(self.decided)]
        inside = [machine for machine in self.honest if machine.id in newest.members]
        if self.wrong or self.over or not inside or len(inside) < self.rules.min_members:
            return  # of fewer than 3f + 1 who lie, all are needed
        for _ in range(2 * len(self.ids)):
            held = [machine for machine in self.honest if machine.inside and machine.acceptor.held]
            inside = [machine for machine in self.honest if machine.inside]
            if not inside or self.over or len(inside) < self.rules.min_members:
                return
            if not self.decide(proposer := self.random.choice(held or inside)):
                self.wrong.append(f"{proposer.id} comes to no decision after {proposer.chain.current}")
            if self.wrong or not held:
                return
        self.wrong.append(f"{[machine.id for machine in held]} are held for ever")

    def revive(self, everybody: bool = False) -> None:
        """Some quorum of the newest view is started again, and perhaps others; nothing is on its way."""
        newest = self.decided[max(self.decided)]
        living = {*self.ids} if everybody else self.survivors(newest)
        for id, machine in self.machines.items():
            machine.up = id in living or self.random.random() < 0.3
            machine.proposal = None
            if machine.up:
                machine.restart()
                self.wrong += judgement.of_memory(self, machine)
        self.reliable = set()
        self.letters.clear()

    def survivors(self, view: View) -> set[str]:
        """Some quorum of it."""
        ids = list(view.members)
        self.random.shuffle(ids)
        most = self.random.randint(1, len(ids))
        return set(ids[: next(n for n in range(most, len(ids) + 1) if view.is_quorum(ids[:n], self.faulty))])

    def decide(self, proposer: Machine) -> bool:
        """Whether it gets an answer to its question before liars can have had so many turns at each that they wait."""
        number = proposer.chain.current.number
        for _ in range(4 * len(self.ids) + 1):
            if not proposer.inside or self.over:
                return self.over
            assert self.clock is not None
            self.clock += 2 * SECONDS
            self.begin(proposer, MembershipChange(min_members=self.rules.min_members))
            attempt = proposer.proposal
            assert attempt
            while self.letters or not attempt.over:
                self.clock += 1
                if self.liars and self.gang.random.random() < 0.1:
                    self.gang.act(quick=True)
                if self.letters:
                    letter = self.letters.pop(self.random.randrange(len(self.letters)))
                    if self.machines[letter.member].up:
                        self.arrive(letter)
                    elif letter.proposal is proposer.proposal and proposer.proposal:
                        proposer.waiting.pop(letter.member, None)
                        proposer.proposal.on_no_reply(letter.member)
                        self.go_on(proposer)
                elif proposer.proposal:
                    self.wait_no_longer(proposer)
                    self.go_on(proposer)
            if attempt.state in ("decided", "released") or proposer.chain.current.number > number:
                return True
            proposer.proposal = None
        return False


def violations(seeds: range) -> Iterator[tuple[int, list[str]]]:
    """Seeds with which something was wrong, and what."""
    for seed in seeds:
        if wrong := World(seed).run():
            yield seed, wrong


if __name__ == "__main__":
    first, many = (int(argument) for argument in sys.argv[1:])
    for seed, wrong in violations(range(first, first + many)):
        print(f"World({seed}).run(): {wrong}", flush=True)
