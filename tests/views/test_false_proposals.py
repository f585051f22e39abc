"""Proposals and releases of one liar of four for which nobody votes, whatever they say that they follow from."""

from dataclasses import replace

import pytest
from assembly import Assembly, kept
from keyrings import keyring

from peer.views.decision import Attempt, MembershipChange
from peer.views.statements import (
    Ballot,
    Confirm,
    Consent,
    Entry,
    Evidence,
    Grounds,
    InvalidError,
    Lock,
    Promise,
    Promised,
    Proposal,
    Propose,
    Release,
    Signed,
    Vote,
)
from peer.views.view import View

IDS = ("a", "b", "c", "d")
BALLOT, EARLIER, LATER = Ballot(5, "d"), Ballot(2, "b"), Ballot(3, "b")
WITHOUT_B = View(1, ("a", "c", "d"), 6, reason="b silent for 30 s")


def promises(*ids: str, ballot: Ballot = BALLOT, locked: Ballot | None = None) -> tuple[Signed[Promise], ...]:
    return tuple(keyring(id).sign(Promise(1, ballot, 5, 7, locked)) for id in ids)


def lock(view: View | None, ballot: Ballot, by: str = "abc") -> Lock:
    digest = Assembly().acceptors["a"].verifier.digest(View(0, IDS, 0), view)
    return Lock(1, ballot, view, tuple(keyring(id).sign(Vote("accept", 1, ballot, digest)) for id in by))


def proposal(view: View | None, grounds: Grounds) -> Propose:
    digest = Assembly().acceptors["a"].verifier.digest(View(0, IDS, 0), view)
    return Propose(Proposal(view, keyring("d").sign(Vote("accept", 1, BALLOT, digest)), grounds))


LOCKED = (*promises("a", "d"), *promises("c", locked=LATER))
PROPOSALS: dict[str, tuple[View | None, Grounds, str]] = {
    "another view": (replace(WITHOUT_B, first=0), Grounds(promises("a", "c", "d")), "a view that does not follow"),
    "too few": (View(1, ("a", "d"), 6, reason="b, c silent for 30 s"), Grounds(promises("a", "d")), "too few promises"),
    "one twice": (WITHOUT_B, Grounds(promises("a", "d", "d")), "two promises by one member"),
    "of another ballot": (
        WITHOUT_B,
        Grounds((*promises("a", "d"), *promises("c", ballot=EARLIER))),
        "a promise of another ballot",
    ),
    "unsigned": (
        WITHOUT_B,
        Grounds((*promises("a", "d"), replace(promises("c")[0], signature=""))),
        "the signature is not c's",
    ),
    "without the lock": (WITHOUT_B, Grounds(LOCKED), "not the highest lock"),
    "with a lower lock": (WITHOUT_B, Grounds(LOCKED, lock(WITHOUT_B, EARLIER)), "not the highest lock"),
    "with a lock by too few": (
        WITHOUT_B,
        Grounds(LOCKED, lock(WITHOUT_B, LATER, by="d")),
        "votes by too few members",
    ),
    "no change instead of the lock": (
        None,
        Grounds(LOCKED, lock(WITHOUT_B, LATER)),
        "it does not carry on the highest lock",
    ),
    "another view than the lock's": (
        replace(WITHOUT_B, first=0),
        Grounds(LOCKED, lock(WITHOUT_B, LATER)),
        "a view that does not follow",
    ),
    "an entry by another": (
        View(1, IDS, 8, planned=True),
        Grounds(promises(*IDS), entries=(replace(keyring("d").sign(Entry(0, -1)), signer="b"),)),
        "the signature is not b's",
    ),
}


@pytest.mark.parametrize("name", PROPOSALS)
def test_nobody_votes_for_what_does_not_follow(name: str) -> None:
    acceptor, (view, grounds, why) = Assembly().acceptors["a"], PROPOSALS[name]
    before = kept(acceptor)
    with pytest.raises(InvalidError, match=why):
        acceptor.handle(proposal(view, grounds))
    assert kept(acceptor) == before


def test_nobody_votes_for_a_proposal_in_the_name_of_another() -> None:
    honest = proposal(WITHOUT_B, Grounds(promises("a", "c", "d"))).proposal
    for vote in (replace(honest.vote, signer="c"), replace(honest.vote, signature="")):
        with pytest.raises(InvalidError, match=r"not its proposer's|the signature is not d's"):
            Assembly().acceptors["a"].handle(Propose(replace(honest, vote=vote)))


def test_nobody_goes_back_for_one_that_promises_less_than_a_view_says_that_it_has() -> None:
    assembly = Assembly().begin_with(View(1, IDS, 4))
    assembly.standing["d"] = replace(assembly.standing["d"], durable=-1)
    decided = assembly.attempt(MembershipChange()).decision
    assert decided
    assert (decided.view.members, decided.view.first) == (("a", "b", "c"), 6)


@pytest.mark.parametrize("by", ["", "d", "dd", "ad"])
def test_nobody_is_released_or_committed_by_too_few(by: str) -> None:
    assembly = Assembly()
    attempt = Attempt(assembly.acceptors["b"], None, MembershipChange())
    while attempt.state == "asking":
        assembly.pass_on(attempt)
    acceptor, ballot = assembly.acceptors["a"], attempt.ballot
    assert acceptor.held
    before, locked = kept(acceptor), lock(WITHOUT_B, ballot, by)
    commit = Vote("commit", 1, ballot, acceptor.verifier.digest(assembly.present, None))
    signed = tuple(keyring(id).sign(commit) for id in by)
    for said in (Release(1, ballot, signed), Confirm(locked)):
        with pytest.raises(InvalidError, match="votes by too few members"):
            acceptor.handle(said)
    assert kept(acceptor) == before


def test_a_lock_of_no_change_brings_no_evidence_that_nobody_has_signed() -> None:
    """It is kept and goes with every promise, which a megabyte of it would make too long to be read."""
    assembly = Assembly()
    attempt = Attempt(assembly.acceptors["d"], None, MembershipChange())
    while attempt.state != "confirming":
        assembly.pass_on(attempt)
    acceptor, locked = assembly.acceptors["a"], attempt.lock
    assert locked
    assert locked.view is None
    before = kept(acceptor)
    with pytest.raises(InvalidError, match="the signature is not b's"):
        acceptor.handle(Confirm(replace(locked, evidence=Evidence((Signed("b", Consent("c")),)))))
    assert kept(acceptor) == before


@pytest.mark.parametrize("given", [None, EARLIER, LATER])
def test_a_promise_comes_with_the_lock_that_it_names(given: Ballot | None) -> None:
    """Without it a liar could hold up what was decided, or keep a proposer from proposing anything."""
    assembly = Assembly()
    attempt = Attempt(assembly.acceptors["a"], Ballot(4, "a"), MembershipChange())
    assembly.pass_on(attempt)
    named = None if given == LATER else LATER
    lie = promises("d", ballot=attempt.ballot, locked=named)[0]
    with pytest.raises(InvalidError, match="a promise without the lock that it names"):
        attempt.on_reply("d", Promised(lie, lock(WITHOUT_B, given) if given else None))
