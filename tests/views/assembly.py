"""A few members that decide on views in one process, each with a certificate and a key, or all without."""

from collections.abc import Iterable, Mapping
from dataclasses import asdict

from keyrings import FEDERATION, keyring

from peer.views.decision import NO_EVIDENCE, Acceptor, Attempt, MemberProgress, MembershipChange, Memory, Rules, Slot
from peer.views.signing import Keyring
from peer.views.statements import Ballot, Decided, Decision, Evidence, InvalidError, Promise, Vote, canonical, read
from peer.views.view import View

AT_FIVE = MemberProgress(durable=5, started=7)
"""The progress of a member that was never admitted late."""
ONE = Ballot(1, "a")


def kept(acceptor: Acceptor) -> bytes:
    """What it never forgets, as views.json has it."""
    return canonical(asdict(acceptor.memory))


def restarted(acceptor: Acceptor) -> Acceptor:
    """A member after a restart, with what it had on disk."""
    return Acceptor(read(Memory, kept(acceptor)), acceptor.rules, acceptor.keyring)


def promise_kept(acceptor: Acceptor, number: int) -> None:
    """Let it remember a promise for the view of that number, as all members of two views in a row do."""
    promise = acceptor.keyring.sign(Promise(number, ONE, durable=-1, started=-1))
    acceptor.memory.slot = Slot(number, ONE, promise=promise)


class Assembly:
    """All members of a federation; `faulty` of them may lie. With certificates unless `signed` is False."""

    def __init__(self, ids: str = "abcd", faulty: int = 1, signed: bool = True, min_members: int = 1) -> None:
        self.rules = Rules((*ids,), rounds=60, faulty=faulty, min_members=min_members)
        self.keyrings: dict[str, Keyring] = {id: keyring(id) if signed else Keyring(id, FEDERATION) for id in ids}
        self.acceptors = {id: Acceptor(Memory(id), self.rules, one) for id, one in self.keyrings.items()}
        self.standing = dict.fromkeys(ids, AT_FIVE)

    @property
    def present(self) -> View:
        """The last view of which the first member knows."""
        return next(iter(self.acceptors.values())).chain.current

    def decision(
        self, view: View, by: Iterable[str] = (), before: View | None = None, evidence: Evidence = NO_EVIDENCE
    ) -> Decision:
        """With the votes of these members, or of all: what would be if they had decided it."""
        court = self.acceptors[self.rules.ids[0]].verifier
        vote = Vote("commit", view.number, ONE, court.digest(before or self.present, view))
        votes = tuple(self.keyrings[id].sign(vote) for id in (by or (before or self.present).members))
        return Decision(view, ONE, votes, evidence)

    def begin_with(self, *views: View) -> "Assembly":
        """All know that these were decided."""
        for view in views:
            decided = Decided((self.decision(view),))
            for acceptor in self.acceptors.values():
                promise_kept(acceptor, view.number)
                acceptor.handle(decided)
        return self

    def attempt(
        self,
        wish: MembershipChange,
        by: str = "a",
        lost: Iterable[str] = (),
        standing: Mapping[str, MemberProgress] | None = None,
    ) -> Attempt:
        """One from its beginning to its end; the lost do not answer."""
        attempt = Attempt(self.acceptors[by], None, wish)
        while not attempt.over:
            self.pass_on(attempt, lost, standing)
        self.pass_on(attempt, lost, standing)
        return attempt

    def pass_on(
        self, attempt: Attempt, lost: Iterable[str] = (), standing: Mapping[str, MemberProgress] | None = None
    ) -> None:
        """All that it asks for now, once."""
        said = {**self.standing, **(standing or {})}
        for id, request in attempt.requests().items():
            if id in lost:
                attempt.on_no_reply(id)
            else:
                attempt.on_reply(id, self.acceptors[id].handle(request, said[id]))

    def refuses(self, id: str, decision: Decision) -> str:
        """Why a member does not believe that; nothing of it may be kept."""
        acceptor = self.acceptors[id]
        before = kept(acceptor), acceptor.chain.since(-1)
        try:
            acceptor.handle(Decided((decision,)))
        except InvalidError as error:
            assert (kept(acceptor), acceptor.chain.since(-1)) == before
            return str(error)
        raise AssertionError("it was believed")
