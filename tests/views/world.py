"""Peers that agree on views in a network that loses, repeats, delays and reorders, and machines that die.

One seed determines everything. What a driver is to do is done here in its simplest form; what must never be is
written down in `World.wrong`.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from random import Random

import judgement
from machine import STALENESS, Machine

from peer.views.acceptor import Acceptor
from peer.views.messages import (
    Accepted,
    Ask,
    Ballot,
    Consents,
    Decided,
    Enter,
    Expel,
    Heard,
    Poll,
    Promise,
    Reply,
    Request,
)
from peer.views.proposal import Proposal
from peer.views.view import Chain, ConflictError, View
from peer.views.wish import Wish


@dataclass(frozen=True)
class Letter:
    """A request on its way, or the answer on its way back."""

    proposal: Proposal | None
    proposer: str
    member: str
    request: Request
    reply: Reply | None = None


class World:
    """One run."""

    def __init__(self, seed: int) -> None:
        self.random = random = Random(seed)
        self.ids = tuple(f"peer{number}" for number in range(random.choice([2, 3, 3, 3, 4, 4, 5, 6, 7])))
        outside = random.choice(["", "", self.ids[-1], random.choice(self.ids)])
        beginning = View(0, tuple(id for id in self.ids if id != outside), 0)
        self.machines = {id: Machine(id, Acceptor(id, Chain([beginning]))) for id in self.ids}
        begun = random.choice([0, 5, 9])
        for machine in self.machines.values():
            if begun:
                machine.have_played(begun + random.randrange(STALENESS))
            machine.write()
        self.decided = {0: beginning}
        self.accepted: dict[tuple[int, Ballot], dict[str, View]] = {}
        self.promised: dict[tuple[str, int], Ballot] = {}
        self.released: set[tuple[int, Ballot]] = set()
        self.letters: list[Letter] = []
        self.cut: frozenset[str] = frozenset()
        """These are on one side of a partition."""
        self.wrong: list[str] = []
        self.ends: dict[str, int] = {}
        self.loss, self.deaths = random.choice([0.0, 0.05, 0.3]), random.choice([0.0, 0.02, 0.1])
        self.votes = random = Random(f"votes {seed}")
        self.accused = random.choice(self.ids) if random.random() < 0.3 else ""
        """Whom others may vote out."""
        self.consenting: set[str] = set()
        self.secretive = self.random.random() < 0.4
        """Nobody tells what was decided, unless it is asked for something else."""

    def run(self) -> list[str]:
        """What was wrong."""
        try:
            self.live(self.random.choice([100, 150, 300]))
            if not self.wrong:
                self.settle()
        except (ConflictError, RuntimeError, ValueError) as error:
            self.wrong.append(f"{type(error).__name__}: {error}")
        return self.wrong

    def live(self, steps: int) -> None:
        actions: list[Callable[[], None]] = [self.play, self.save, self.gossip, self.move]
        actions += [self.propose, self.give_up, self.ask, self.fault]
        weights = self.random.choice([[12, 12, 12, 4, 2, 2, 3, 2], [8, 8, 8, 1, 4, 3, 3, 1], [3, 3, 3, 1, 9, 9, 3, 4]])
        speed = self.random.choice([0.5, 0.7, 0.9])
        for _ in range(steps):
            if self.accused and self.votes.random() < 0.1:
                self.vote()
            if self.letters and self.random.random() < speed:
                self.deliver()
            else:
                self.random.choices(actions, weights)[0]()
            if self.wrong:
                return

    # What happens at a machine.

    def any_up(self) -> Machine | None:
        up = [machine for machine in self.machines.values() if machine.up]
        return self.random.choice(up) if up else None

    def play(self) -> None:
        """Somebody starts a round."""
        machine = self.any_up()
        if not machine or not machine.may_start:
            return
        promised = self.promised.get((machine.id, machine.chain.current.number + 1))
        if promised and (machine.chain.current.number + 1, promised) not in self.released:
            self.wrong.append(f"{machine.id} starts a round though it has promised {promised}")
        machine.started += 1

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
        for id, told in {**teller.heard, teller.id: teller.told}.items():
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
        if self.random.random() < 0.3:
            self.cut = frozenset() if self.cut else frozenset(self.random.sample(self.ids, len(self.ids) // 2))
        down = [machine for machine in self.machines.values() if not machine.up]
        if down and self.random.random() < 0.5:
            machine = self.random.choice(down)
            machine.restart(damaged=self.random.random() < 0.3)
            self.wrong += judgement.of_memory(self, machine)
        elif (machine := self.any_up()) and self.random.random() < 10 * self.deaths:
            machine.up, machine.proposal = False, None

    def ask(self) -> None:
        """Somebody asks another what was decided, or to be taken in."""
        machine, other = self.any_up(), self.any_up()
        if machine and other and machine is not other:
            number = machine.chain.current.number
            request: Request = Ask(number)
            if not machine.inside and self.random.random() < 0.7 and machine.is_over:
                request = Enter(number, machine.id, machine.private)
            self.letters.append(Letter(None, machine.id, other.id, request))

    def vote(self) -> None:
        """Somebody consents that one is voted out, or asks another whether it does."""
        up = [machine for machine in self.machines.values() if machine.up and machine.id != self.accused]
        if not up:
            return
        machine, other = (self.votes.choice(up) for _ in range(2))
        number = machine.chain.current.number
        if self.votes.random() < 0.3:
            if isinstance(machine.acceptor.hear(Expel(number, self.accused)), Heard):
                self.consenting.add(machine.id)
            machine.write()
        elif machine.acceptor.consents and machine is not other:
            self.letters.append(Letter(None, machine.id, other.id, Poll(number)))

    def propose(self) -> None:
        machine = self.any_up()
        if machine and machine.inside and not machine.proposal:
            self.begin(machine, self.wish(machine))

    def wish(self, machine: Machine) -> Wish:
        random, view = self.random, machine.chain.current
        leave = random.sample(view.members, random.choice([0, 0, 0, 1]))
        at_least = random.choice([1, 1, 1, len(view.members)])
        unanimous, rollback = random.random() < 0.3, random.random() < 0.1
        return Wish(frozenset(leave), dict(machine.asks), at_least, unanimous, rollback, expel=machine.out)

    def begin(self, machine: Machine, wish: Wish) -> None:
        ballot = machine.acceptor.next_ballot(machine.above)
        machine.proposal = Proposal(machine.chain, ballot, wish, self.ids)
        machine.waiting = set()
        self.go_on(machine)

    def give_up(self) -> None:
        """Somebody waits no longer for one, or for all, or for anything."""
        machine = self.any_up()
        if not (machine and machine.proposal):
            return
        if machine.waiting and self.random.random() < 0.7:
            late = self.random.choice(sorted(machine.waiting))
            machine.waiting.discard(late)
            machine.proposal.failed(late)
        elif self.random.random() < 0.9:
            for late in sorted(machine.waiting) if machine.proposal.state == "asking" else ():
                machine.waiting.discard(late)
                machine.proposal.failed(late)
        else:
            machine.proposal = None
            return
        self.go_on(machine)

    def go_on(self, machine: Machine) -> None:
        """Sends what a proposal asks for, and notes how it has ended."""
        proposal = machine.proposal
        assert proposal
        for member, request in proposal.requests().items():
            machine.waiting.add(member)
            if self.secretive and isinstance(request, Decided):
                continue
            self.letters.append(Letter(proposal, machine.id, member, request))
            if self.random.random() < 0.2:
                self.letters.append(Letter(proposal, machine.id, self.random.choice(self.ids), request))
        if proposal.over:
            self.ends[proposal.state] = self.ends.get(proposal.state, 0) + 1
            self.ended(machine, proposal)
            machine.proposal = None

    def ended(self, machine: Machine, proposal: Proposal) -> None:
        number, ballot = proposal.number, proposal.ballot
        if proposal.state == "decided":
            assert proposal.view
            voters = {id for id, view in self.accepted.get((number, ballot), {}).items() if view == proposal.view}
            self.decided.setdefault(proposal.view.number, proposal.view)
            self.wrong += judgement.of_view(self, proposal.view, voters)
        elif proposal.state == "released":
            self.released.add((number, ballot))
            members = self.decided[number - 1].members
            if any(self.promised.get((id, number), Ballot(0, "")) < ballot for id in members):
                self.wrong.append(f"{ballot} was given back before all had promised: a lower one may yet be accepted")
        elif proposal.state == "outdated":
            self.learn(machine, Decided(proposal.newer))
        elif proposal.state == "outdone":
            machine.above = proposal.outdone_by

    def learn(self, machine: Machine, decided: Decided) -> Reply:
        before = machine.chain.current.number
        reply = machine.acceptor.hear(decided, machine.standing)
        machine.asks = {id: at for id, at in machine.asks.items() if id not in machine.chain.current.members}
        for view in machine.chain.since(before):
            if self.decided.get(view.number) != view:
                self.wrong.append(f"{machine.id} was told of {view}, which was not decided")
        self.wrong += judgement.of_life(self, machine)
        machine.announce()
        machine.write()
        return reply

    # What happens on the way.

    def deliver(self) -> None:
        """Some letter arrives, or is lost, or arrives and comes once more."""
        place = self.random.randrange(len(self.letters))
        letter, last = self.letters[place], self.letters[-1]
        if self.random.random() < 0.9:
            self.letters[place] = last
            self.letters.pop()
        apart = (letter.proposer in self.cut) != (letter.member in self.cut)
        if not apart and (letter.proposer == letter.member or self.random.random() >= self.loss):
            self.arrive(letter)

    def arrive(self, letter: Letter) -> None:
        if letter.reply is None:
            self.hear(self.machines[letter.member], letter)
            return
        machine = self.machines[letter.proposer]
        if not machine.up:
            return
        if letter.proposal is None and isinstance(letter.reply, Decided):
            self.learn(machine, letter.reply)
        elif isinstance(letter.reply, Consents):
            machine.polled[letter.member] = frozenset(letter.reply.ids)
            machine.acceptor.unheard = machine.out
        elif letter.proposal is machine.proposal and machine.proposal:
            machine.waiting.discard(letter.member)
            machine.proposal.answered(letter.member, letter.reply)
            self.go_on(machine)

    def hear(self, machine: Machine, letter: Letter) -> None:
        if not machine.up:
            return
        dies = self.random.random() < self.deaths
        if dies and self.random.random() < 0.5:
            machine.up, machine.proposal = False, None  # before anything is written
            return
        if isinstance(letter.request, Decided):
            reply = self.learn(machine, letter.request)
        else:
            reply = machine.acceptor.hear(letter.request, machine.standing)
            if isinstance(reply, Promise):
                machine.promised = reply.durable
            elif isinstance(letter.request, Enter) and isinstance(reply, Heard):
                machine.asks[letter.request.id] = letter.request.private
            machine.announce()
            machine.write()
        self.note(machine.id, letter.request, reply)
        if dies:
            machine.up, machine.proposal = False, None
        else:
            self.letters.append(Letter(letter.proposal, letter.proposer, letter.member, letter.request, reply))

    def note(self, id: str, request: Request, reply: Reply) -> None:
        if isinstance(reply, Promise):
            self.promised[id, reply.number] = reply.ballot
        elif isinstance(reply, Accepted):
            self.accepted.setdefault((reply.number, reply.ballot), {})[id] = request.view  # type: ignore[union-attr]

    # After the faults.

    def settle(self) -> None:
        """The network is whole and a quorum of the newest view lives. At first nobody needs to know of it; in the end
        one does, and then they come to a decision."""
        self.loss = self.deaths = 0.0
        self.cut = frozenset()
        for _ in range(3):
            self.revive()
            if inside := [machine for machine in self.machines.values() if machine.up and machine.inside]:
                self.decide(self.random.choice(inside))
        self.secretive = False
        newest = self.decided[max(self.decided)]
        living = self.revive()
        up = [machine for machine in self.machines.values() if machine.up]
        for machine in up:
            views = max((one.chain.since(machine.chain.current.number) for one in up), key=len)
            self.learn(machine, Decided(views))
        proposer = self.machines[self.random.choice(sorted(living))]
        if self.wrong or proposer.chain.current != newest:
            return  # if nobody who lives knows of it, a quorum of the one before need not be alive
        if not self.decide(proposer):
            self.wrong.append(f"{proposer.id} comes to no decision after {proposer.chain.current}")
        elif held := [machine.id for machine in up if machine.inside and machine.acceptor.held]:
            self.wrong.append(f"{held} are held for ever")

    def revive(self) -> set[str]:
        """Some quorum of the newest view is started again, and perhaps others; nothing is on its way."""
        living = self.survivors(self.decided[max(self.decided)])
        for id, machine in self.machines.items():
            machine.up = id in living or self.random.random() < 0.3
            machine.proposal = None
            if machine.up:
                machine.restart()
                self.wrong += judgement.of_memory(self, machine)
        self.letters.clear()
        return living

    def survivors(self, view: View) -> set[str]:
        """Some quorum of it."""
        ids = list(view.members)
        self.random.shuffle(ids)
        most = self.random.randint(1, len(ids))
        return set(ids[: next(n for n in range(most, len(ids) + 1) if view.is_quorum(ids[:n]))])

    def decide(self, proposer: Machine) -> bool:
        """Whether it gets an answer to its question in a few attempts."""
        for _ in range(len(self.ids) + 1):
            if not proposer.inside:
                return False
            self.begin(proposer, Wish(rollback=self.random.random() < 0.2))
            proposal = proposer.proposal
            assert proposal
            while self.letters:
                letter = self.letters.pop(self.random.randrange(len(self.letters)))
                if self.machines[letter.member].up:
                    self.arrive(letter)
                elif proposer.proposal:
                    proposal.failed(letter.member)
                    self.go_on(proposer)
            if proposal.state in ("decided", "released"):
                return True
            proposer.proposal = None
        return False


def violations(seeds: range) -> Iterator[tuple[int, list[str]]]:
    """Seeds with which something was wrong, and what."""
    for seed in seeds:
        if wrong := World(seed).run():
            yield seed, wrong
