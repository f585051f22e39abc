"""One member in a simulation: what it keeps in memory, and what is on its disk."""

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from hashlib import sha256
from typing import Any

from peer.views.decision import Acceptor, Attempt, MemberProgress, Memory, Rules, Slot, Turns, is_less
from peer.views.signing import Keyring
from peer.views.statements import (
    Announcement,
    Ballot,
    Consent,
    Entry,
    Evidence,
    Guilt,
    Objection,
    Prepare,
    Proposal,
    Request,
    Signed,
    Statement,
    canonical,
    read,
)
from peer.views.view import View, ViewChain

STALENESS = 4
"""Rounds that a peer may be ahead of the least durable one of which it knows."""
SECONDS = 10_000
"""That a phase of a decision may take."""


class Secret(Keyring):
    """Signs with a secret of the member's own."""

    signs = True

    def __init__(self, id: str, signatures: dict[tuple[str, Any], str], rewinds: tuple[View, ...] = ()) -> None:
        """signatures: of everybody, that were worked out before."""
        super().__init__(id, "simulated", rewinds=rewinds)
        self._signatures = signatures

    def sign(self, statement: Statement) -> Signed[Statement]:
        return Signed(self.id, statement, self._signature(self.id, statement))

    def is_valid(self, signed: Signed[Statement]) -> bool:
        return signed.signature == self._signature(signed.signer, signed.statement)

    def _signature(self, signer: str, statement: Any) -> str:
        if (found := self._signatures.get((signer, statement))) is None:
            text = f"secret of {signer}: {self._signed_text(signer, statement).decode()}"
            found = self._signatures[signer, statement] = sha256(text.encode()).hexdigest()
        return found


@dataclass(eq=False)
class Machine:
    """A restart goes back to `disk` and `kept`; `write` is what the driver does before an answer leaves."""

    acceptor: Acceptor
    kept: set[int] = field(default_factory=set)
    """Rounds after which it has the state on disk; that before round 0 is nowhere lost."""
    started: int = -1
    durable: int = -1
    """The last round to whose end it can go back for certain."""
    told: int = -1
    """The last of which others may have heard."""
    whole: int = -1
    """The checkpoint that was read back at the start of this life."""
    heard: dict[str, int] = field(default_factory=dict)
    """What others that live in that view have told, as far as it has come here."""
    announced: dict[str, Signed[Announcement]] = field(default_factory=dict)
    """The announcement of each member in that view, to compare with its promise."""
    asks: dict[str, Signed[Entry]] = field(default_factory=dict)
    """The entries of those that ask to be admitted after the current view."""
    polled: dict[tuple[str, str], Signed[Consent]] = field(default_factory=dict)
    """Consents received from others, by (signer, accused)."""
    guilt: dict[str, Guilt] = field(default_factory=dict)
    """Proofs of guilt received from others, by the guilty member."""
    prepare: Signed[Prepare] | None = None
    """The present attempt's."""
    clock: Callable[[], float] = float
    up: bool = True
    proposal: Attempt | None = None
    above: Ballot | None = None
    waiting: dict[str, Request] = field(default_factory=dict)
    """Members whose answers the proposal waits for, each with what it was asked."""
    disk: Memory = field(default_factory=lambda: Memory(""))

    def __post_init__(self) -> None:
        self.turns = Turns(SECONDS, self.clock)

    @property
    def id(self) -> str:
        return self.acceptor.id

    @property
    def memory(self) -> Memory:
        return self.acceptor.memory

    @property
    def lives(self) -> int:
        """The number of the view in which it lives, or has last lived."""
        return self.memory.entered

    @property
    def chain(self) -> ViewChain:
        return self.acceptor.chain

    @property
    def inside(self) -> bool:
        return self.id in self.chain.current.members

    @property
    def out(self) -> Mapping[str, Evidence]:
        """The members to expel, each with the proof."""
        acceptor, members = self.acceptor, self.chain.current.members
        known = self.polled | {(self.id, one.statement.id): one for one in self.memory.consents}
        guilt = self.guilt | {one.id: one for one in self.memory.guilt}
        found = {id: Evidence(guilt=(guilt[id],)) for id in guilt if id in members}
        for accused in sorted(acceptor.consented - found.keys()):
            consents = [known[id, accused] for id in members if id != accused and (id, accused) in known]
            if acceptor.verifier.is_quorum(self.chain.current, [one.signer for one in consents]):
                found[accused] = Evidence((*consents,))
        return found if len({*members} - found.keys()) >= acceptor.rules.min_members else {}

    @property
    def view(self) -> View:
        return self.chain.since(self.lives - 1)[0]

    @property
    def following(self) -> View | None:
        """The view to live in next, if there is one."""
        return self.chain.after(self.lives, self.id) if self.lives < self.chain.current.number else None

    @property
    def tells(self) -> bool:
        """Whether others hear anything of it in its view."""
        return not self.is_over

    @property
    def is_over(self) -> bool:
        """Whether what it begins in its view is void, or done without it."""
        return self.chain.is_over(self.lives, self.id)

    @property
    def newest(self) -> int:
        """The last round of its view that is on disk."""
        return max([self.view.first - 1, *self.kept])

    @property
    def last(self) -> int | None:
        """The last round that is played in its view, once that is known."""
        later = self.chain.since(self.lives)
        return later[0].first - 1 if later and not self.is_over else None

    @property
    def ceiling(self) -> int:
        """The last round of those on its disk that is not void."""
        ceiling = self.chain.last_valid_round(self.lives)
        return max([-1, *self.kept, self.told]) if ceiling is None else ceiling

    @property
    def private(self) -> int:
        """After which round the private state stands with which it would be taken in."""
        return max([-1, *(round for round in self.kept if round <= self.ceiling)])

    @property
    def standing(self) -> MemberProgress:
        following = self.following
        if following and self.id in dict(following.entrants):
            before, ceiling = following.first - 1, self.chain.last_valid_round(following.number)
            return MemberProgress(before if ceiling is None else min(before, ceiling), before)
        return MemberProgress(min(self.able, self.ceiling), self.started)

    @property
    def able(self) -> int:
        """The last round to which it can go back. While it is held it promises no more than before."""
        able = max(self.told, self.whole)
        return min(able, max(self.told, self.memory.promised)) if self.acceptor.held else able

    @property
    def least(self) -> int:
        """The last round that is on the disk of every member, as far as it has heard."""
        return min([self.told, *(self.heard.get(id, -1) for id in self.view.members if id != self.id)])

    # Playing.

    def have_played(self, rounds: int) -> None:
        """So many, and nothing of them is done away with."""
        self.kept, self.started = {*range(rounds)}, rounds - 1
        self.durable = self.told = rounds - 2

    @property
    def may_start(self) -> bool:
        if self.acceptor.held or self.is_over or self.started == self.last:
            return False
        return self.started < self.least + STALENESS

    def save(self) -> None:
        """The next round that was played is on disk; of the last one it is made sure that it is whole."""
        if self.newest < self.started - (self.started != self.last):
            self.kept.add(self.newest + 1)
        self.durable = max(self.durable, self.certain())
        self.announce()
        self.prune()

    def certain(self) -> int:
        return self.newest if self.newest == self.last else max(self.view.first - 1, self.newest - 1)

    def read_back(self) -> int:
        """What is certain after a restart: never less than was told before."""
        return self.newest

    def announce(self) -> None:
        """Others may hear of what is on disk; of void rounds they never do."""
        if not self.is_over:
            self.told = max(self.told, self.tellable())
            if self.id not in self.announced or self.told > self.announced[self.id].statement.round:
                self.announced[self.id] = self.acceptor.keyring.sign(Announcement(self.lives, self.told))

    def tellable(self) -> int:
        return min(self.durable, self.memory.promised) if self.acceptor.held else self.durable

    def hear_of(self, announced: Signed[Announcement]) -> None:
        """What a member has announced, whoever tells of it."""
        id, said = announced.signer, announced.statement
        if said.view != self.lives or id not in self.view.members or not self.acceptor.keyring.is_valid(announced):
            return
        if said.round <= self.acceptor.rules.rounds and said.round > self.heard.get(id, -2) and id != self.id:
            self.heard[id] = said.round
        if id not in self.announced or said.round > self.announced[id].statement.round:
            self.announced[id] = announced

    def prune(self) -> None:
        """Does away with what nobody can be to go back to: nothing while a view is decided on."""
        if self.acceptor.held or self.is_over:
            return
        last_resort = max((round for round in self.kept if round <= self.least), default=-1)
        self.kept = {round for round in self.kept if round >= last_resort}

    # Answering.

    def objection(self, proposal: Proposal) -> Objection | None:
        """Why it does not vote for a view, by what is known here without asking anybody."""
        view, promised = proposal.view, {one.signer: one.statement for one in proposal.grounds.promises}
        assert view
        less = [
            announced
            for id, announced in self.announced.items()
            if id in view.members and is_less(promised.get(id), announced.statement, self.chain)
        ]
        if less:
            return Objection("a later round was announced", (*less,))
        return Objection("it has begun") if view.planned and self.started >= view.first else None

    # Moving.

    def move(self) -> None:
        """Into the next view, as soon as there is nothing left to do in the one before."""
        following = self.following
        if self.last is not None and self.durable < self.last:
            return
        if not following:
            self.leave()
            return
        entrants = dict(following.entrants)
        last = entrants.get(self.id, self.ceiling)
        self.kept = {round for round in self.kept if round <= last}
        fresh, self.memory.entered = self.is_over, following.number
        self.started = self.durable = following.first - 1
        if fresh:
            self.told = self.durable
        self.heard, self.announced, self.whole = self.known_before(), {}, -1
        self.announce()
        self.write()

    def leave(self) -> None:
        """Its last view is over: what it has stays, and counts if it comes back."""
        if self.last is not None:
            self.memory.entered += 1
            self.write()

    def known_before(self) -> dict[str, int]:
        """What the view itself tells: only of one that is not planned all have the round before it on disk."""
        return {} if self.view.planned else self.all_have()

    def all_have(self) -> dict[str, int]:
        return dict.fromkeys((id for id in self.view.members if id != self.id), self.view.first - 1)

    # Dying and starting again.

    def go_back(self, rules: Rules, keyring: Keyring, views: int) -> None:
        """Start anew with what the operators have agreed on. views: of how many decisions what is on disk still knows;
        if it comes from a backup, what was promised is not in it."""
        if views < len(self.disk.decisions):
            self.disk = replace(self.disk, decisions=self.disk.decisions[:views], slot=Slot(1), promised=-1)
            self.disk.entered = min(views, self.disk.entered)
        self.kept = {one for one in self.kept if one < rules.rewinds[0].first}
        self.acceptor = Acceptor(read(Memory, canonical(asdict(self.disk))), rules, keyring)
        self.acceptor.follow_rewinds()
        self.write()
        self.restart()
        self.move()  # a peer answers nobody before that

    def write(self) -> None:
        now = self.memory
        self.disk = replace(now, decisions=[*now.decisions], consents=[*now.consents], guilt=[*now.guilt])

    def reread(self) -> None:
        """What is on disk is all it knows."""
        memory = read(Memory, canonical(asdict(self.disk)))
        self.acceptor = Acceptor(memory, self.acceptor.rules, self.acceptor.keyring)

    def restart(self, damaged: bool = False) -> None:
        """Rounds that were played after the last checkpoint are played again; a damaged one is gone."""
        self.reread()
        if damaged and self.inside and self.newest > self.durable:
            self.kept.discard(self.newest)
        self.durable = self.read_back()
        self.started, self.told, self.whole = self.newest, min(self.tellable(), self.ceiling), self.newest
        self.heard, self.asks, self.polled, self.guilt = self.known_before(), {}, {}, {}
        self.announce()
        self.up, self.proposal, self.above, self.turns = True, None, None, Turns(SECONDS, self.clock)
