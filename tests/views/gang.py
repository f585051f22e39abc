"""Members that lie together: they share their keys, and all that any of them has heard.

Most lies are nearly right: what one of them has heard, or would say, with one thing changed, or to another than it is
meant for, or too late. What they say is within the grammar: the rest is refused where it is read.
"""

from collections.abc import Callable
from dataclasses import fields, is_dataclass, replace
from functools import cache
from random import Random
from typing import TYPE_CHECKING, Any

from peer.views.decision import MembershipChange, Memory, next_view
from peer.views.statements import (
    Announcement,
    AskPromise,
    Ballot,
    Confirm,
    Consent,
    Consents,
    Decided,
    Decision,
    Evidence,
    Grounds,
    Guilt,
    InvalidError,
    Lock,
    Prepare,
    Promise,
    Promised,
    Proposal,
    Propose,
    Release,
    Reply,
    Request,
    Signed,
    Vote,
    read_reply,
    read_request,
    written,
)
from peer.views.view import View

if TYPE_CHECKING:
    from machine import Machine
    from world import World

MOST = 40
"""How many pieces of each kind are remembered."""

MANY = 2000
"""How many pieces of a kind they put where few can be needed."""

FAR = 1000
"""No counter of theirs is higher: `test_views` tells what comes of one that is."""


@cache
def names(kind: Any) -> tuple[str, ...]:
    return tuple(one.name for one in fields(kind))


def kind(value: Any) -> Any:
    return (Signed, type(value.statement)) if isinstance(value, Signed) else type(value)


class Gang:
    """All of them."""

    def __init__(self, world: "World", seed: int) -> None:
        self.world, self.random = world, Random(f"lies {seed}")
        self.liars = [world.machines[id] for id in world.ids if id in world.liars]
        self.seen: dict[Any, list[Any]] = {}
        """What they have heard and said, with all its pieces."""
        self.requests: list[Request] = []
        self.replies: list[Reply] = []
        self.views: dict[str, tuple[View | None, Evidence]] = {}
        """By their digests."""
        self.memories: list[tuple[Machine, Memory]] = []
        """What some have once known, to which they go back as if the rest had not been."""

    # What they know.

    def note(self, said: Request | Reply) -> None:
        self._remember(self.requests if isinstance(said, Request) else self.replies, said)
        self._take_apart(said)

    def _remember(self, those: list[Any], one: Any) -> None:
        if len(those) < MOST:
            those.append(one)
        else:
            those[self.random.randrange(MOST)] = one

    def _take_apart(self, value: Any) -> None:
        if isinstance(value, tuple):
            for one in value[:MOST]:
                self._take_apart(one)
        elif is_dataclass(value):
            self._remember(self.seen.setdefault(kind(value), []), value)
            if isinstance(value, Proposal):
                self.views[value.vote.statement.digest] = value.view, value.grounds.evidence
            if isinstance(value, Lock | Decision) and value.votes:
                self.views[value.votes[0].statement.digest] = value.view, value.evidence
            those: Any = type(value)
            for name in names(those):
                if name not in ("ballot", "vote", "signature"):
                    self._take_apart(getattr(value, name))

    def any(self, kind: Any, otherwise: Any = None) -> Any:
        return self.random.choice(self.seen[kind]) if self.seen.get(kind) else otherwise

    # What they say.

    def request(self, honest: Request) -> Request | None:
        """What one says instead of what its driver would."""
        self.note(honest)
        draw = self.random.random()
        if draw < 0.65:
            return Confirm(self.padded(honest.lock)) if isinstance(honest, Confirm) and draw < 0.3 else honest
        return self._read(read_request, self.changed(honest)) if draw < 0.85 else None

    def reply(self, machine: "Machine", request: Request, honest: Reply) -> Reply | None:
        self.note(honest)
        draw, random = self.random.random(), self.random
        if isinstance(request, Confirm) and random.random() < 0.5:  # before others have heard it
            self.send(machine, Confirm(self.padded(request.lock)))
        if draw < 0.5:
            return honest
        if draw < 0.6 and isinstance(honest, Promised):
            lock = self.any(Lock) if random.random() < 0.6 else None
            lock = self.padded(lock) if lock and random.random() < 0.3 else lock
            promise = replace(honest.promise.statement, locked=lock.ballot if lock else None)
            return Promised(machine.acceptor.keyring.sign(promise), lock)
        if draw < 0.6 and isinstance(honest, Consents):
            return Consents(self.evidence(machine))
        if draw < 0.8:
            read_back: Reply | None = self._read(read_reply, self.changed(honest))
            return read_back
        if draw >= 0.85:
            return None
        other: Reply = random.choice([*self.replies, honest])
        return other

    def evidence(self, machine: "Machine") -> Evidence:
        """Consents of its own, and guilt made of votes that it has seen."""
        random = self.random
        consents = tuple(machine.acceptor.keyring.sign(Consent(id)) for id in random.sample(self.world.ids, 2))
        votes = random.sample(those, 2) if len(those := self.seen.get((Signed, Vote), [])) > 1 else []
        honest = [
            Guilt(one, other) for one in those for other in those[:5] if one.signer == other.signer and one != other
        ]
        guilt = tuple(honest[:1]) or ((Guilt(*votes),) if votes else ())
        return Evidence(consents, guilt if random.random() < 0.5 else ())

    def padded(self, lock: Lock) -> Lock:
        """With evidence that proves nothing, as nobody, or only one, has signed it."""
        random, liar = self.random, self.random.choice(self.liars)
        unsigned = (Signed(random.choice(self.world.ids), Consent(random.choice(self.world.ids))),)
        return replace(lock, evidence=random.choice([Evidence(unsigned * MANY), self.evidence(liar)]))

    def announcement(self, teller: "Machine") -> Signed[Announcement]:
        random = self.random
        if random.random() < 0.4 and teller.announced:
            return random.choice([*teller.announced.values()])
        round = max(-1, random.choice([teller.told, teller.told + random.randint(-3, 5), random.randint(-1, 60)]))
        return teller.acceptor.keyring.sign(Announcement(teller.lives, round))

    # What they do of their own accord.

    def act(self, quick: bool = False) -> None:
        """quick: nothing that takes more than one message."""
        random, liar = self.random, self.random.choice(self.liars)
        acts: list[Callable[[Machine], None]] = [
            self.repeat,
            self.change,
            self.raise_ballot,
            self.forge,
            self.equivocate,
        ]
        acts += [self.forge, self.equivocate, self.forget]
        if not quick:
            acts += [self.propose, self.forget]
        random.choice(acts)(liar)

    def propose(self, liar: "Machine") -> None:
        """Propose a view as an honest member would, on its own grounds."""
        if not (liar.up and liar.inside and not liar.proposal):
            return
        evidence = self.evidence(liar) if self.random.random() < 0.1 else Evidence()
        missing = tuple(id for id in self.world.ids if id not in liar.chain.current.members)
        some = missing if self.random.random() < 0.3 else ()
        entries = tuple(one for one in liar.asks.values())
        least = self.random.choice([1, len(liar.chain.current.members)])  # or it admits and excludes in one view
        leaves = self.random.random() < 0.2
        self.world.begin(liar, MembershipChange(leaves, entries, least, missing=some, evidence=evidence))

    def repeat(self, liar: "Machine") -> None:
        if self.requests:
            self.send(liar, self.random.choice(self.requests))

    def change(self, liar: "Machine") -> None:
        if self.requests:
            self.send(liar, self._read(read_request, self.changed(self.random.choice(self.requests))))

    def raise_ballot(self, liar: "Machine") -> None:
        """To some only; far above what can be, now and then."""
        slot = liar.acceptor.slot
        most = max([one.counter for one in self.seen.get(Ballot, [])] + [slot.promised.counter if slot.promised else 0])
        counter = most + self.random.choice([1, 1, 2, 3])
        if counter < 2 * FAR:
            self.send(liar, AskPromise(liar.acceptor.keyring.sign(Prepare(slot.number, Ballot(counter, liar.id)))))

    def forget(self, liar: "Machine") -> None:
        """Goes back to what it knew before; so it votes and promises twice."""
        liar.write()
        self._remember(self.memories, (liar, liar.disk))
        those = [liar.disk, *(memory for one, memory in self.memories if one is liar)]
        if self.random.random() < 0.6:
            now, liar.disk = liar.disk, self.random.choice(those)
            liar.reread()
            if self.random.random() < 0.3:
                liar.disk = now
        liar.up = True

    def forge(self, liar: "Machine") -> None:
        """Votes that were seen with those of all liars: a lock, a decision, or that nothing changes."""
        if not (seen := self.any((Signed, Vote))):
            return
        vote: Vote = seen.statement
        if self.random.random() < 0.4:
            vote = replace(vote, phase="commit", digest=self.random.choice([vote.digest, *self.views]))
        by = {one.signer: one for one in self.seen[Signed, Vote] if one.statement == vote}
        by |= {one.id: one.acceptor.keyring.sign(vote) for one in self.liars}
        if self.random.random() < 0.1:
            by |= {id: replace(by[liar.id], signer=id) for id in self.world.ids}
        votes, (view, evidence) = (*by.values(),), self.views.get(vote.digest, (None, Evidence()))
        if vote.phase == "accept":
            lock = Lock(vote.number, vote.ballot, view, votes, evidence)
            lock = self.padded(lock) if self.random.random() < 0.3 else lock
            self._take_apart(lock)
            self.send(liar, Confirm(lock))
        elif view:
            self.send(liar, Decided((Decision(view, vote.ballot, votes, evidence),)))
        else:
            self.send(liar, Release(vote.number, vote.ballot, votes))

    def equivocate(self, liar: "Machine") -> None:
        """Another proposal in a ballot of theirs, on other grounds, to others."""
        random, chain = self.random, liar.chain
        number = chain.current.number + 1
        promises = [one for one in self.seen.get((Signed, Promise), []) if one.statement.number == number]
        ballots = sorted(
            {one.statement.ballot for one in promises if one.statement.ballot.proposer in self.world.liars}
        )
        if not ballots:
            return
        ballot = random.choice(ballots)
        given = {one.signer: one for one in promises if one.statement.ballot == ballot}
        for one in self.liars:
            known = given.get(one.id)
            lock = self.any(Lock) if random.random() < 0.4 else None
            durable, started = (random.randint(-1, 20) for _ in range(2))
            made = Promise(number, ballot, durable, max(durable, started), lock.ballot if lock else None)
            if known is None or random.random() < 0.5:
                given[one.id] = one.acceptor.keyring.sign(made)
        some = [given[id] for id in sorted(given)]
        while len(some) > 1 and random.random() < 0.5:
            some.remove(random.choice(some))
        named = {one.statement.locked for one in some} - {None}
        locks = [one for one in self.seen.get(Lock, []) if one.ballot in named]
        lock = max(locks, key=lambda one: one.ballot, default=None)
        if locks and random.random() < 0.2:
            lock = random.choice(locks)
        announced = (
            tuple(random.sample(those, min(len(those), random.choice([0, 0, 2]))))
            if (those := self.seen.get((Signed, Announcement), []))
            else ()
        )
        playing = {id for one in chain.last_rounds(number - 1) for id in chain.of(one).members}
        left = sorted(playing - {*chain.current.members})
        missing = (random.choice(left),) * random.choice([0, 1, 2, MANY]) if left else ()
        grounds = Grounds((*some,), lock, announced, leaves=random.random() < 0.3, missing=missing)
        try:
            view = lock.view if lock and lock.view else next_view(chain, ballot.proposer, grounds, self.world.rules)
        except ValueError:
            return
        view = random.choice([view, view, view, None, self.any(View)])
        keyring = self.world.machines[ballot.proposer].acceptor.keyring
        digest = liar.acceptor.verifier.digest(chain.current, view)
        request = Propose(Proposal(view, keyring.sign(Vote("accept", number, ballot, digest)), grounds))
        self.send(liar, self._read(read_request, self.changed(request)) if random.random() < 0.1 else request)

    def send(self, liar: "Machine", request: Request | None) -> None:
        """To some."""
        if request is None:
            return
        self.note(request)
        others = [machine.id for machine in self.world.honest]
        for id in self.random.sample(others, self.random.randint(1, len(others))):
            self.world.letters.append(self.world.letter(liar.id, id, request))

    # How they change things.

    def _read(self, read: Any, said: Any) -> Any:
        """What arrives; None if nobody would take it for anything."""
        try:
            return read(written(said))
        except (InvalidError, TypeError, AttributeError):
            return None

    def changed(self, value: Any) -> Any:
        """With one thing changed somewhere."""
        random = self.random
        if is_dataclass(value) and not isinstance(value, type):
            if random.random() < 0.2 and (other := self.any(kind(value))):
                return other
            if not names(type(value)):
                return value
            statement = isinstance(value, Signed)
            name = "statement" if statement and random.random() < 0.9 else random.choice(names(type(value)))
            value = replace(value, **{name: self.changed(getattr(value, name))})
            signer = self.world.machines.get(value.signer) if statement else None
            if signer and signer.id in self.world.liars and random.random() < 0.95:
                value = signer.acceptor.keyring.sign(value.statement)
            return value
        match value:
            case bool():
                return not value
            case int():
                return random.choice([value + 1, value - 1, 0, -1, random.randint(0, 60), FAR])
            case tuple() if value:
                place = random.randrange(len(value))
                one, rest = value[place], (*value[:place], *value[place + 1 :])
                return random.choice(
                    [rest, (*value, one), (*rest, one), (*rest, self.changed(one)), (*rest, self.changed(one))]
                )
            case tuple():
                return (random.choice(self.world.ids),) if random.random() < 0.3 else ()
            case str() if len(value) == 64:
                return random.choice([*self.views, "0" * 64])
            case str():
                return random.choice(self.world.ids)
        return self.any(random.choice([Lock, View, Ballot]))
