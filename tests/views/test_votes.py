"""Members that leave, and members that are expelled: what comes of it in one attempt, and what is kept."""

from dataclasses import replace

import pytest
from assembly import ONE, Assembly, restarted
from keyrings import keyring

from peer.views.decision import Attempt, MembershipChange
from peer.views.statements import (
    AskPromise,
    Ballot,
    Consent,
    Consents,
    Decided,
    Denied,
    Entry,
    Evidence,
    Expel,
    Grounds,
    Guilt,
    Heard,
    InvalidError,
    Leave,
    Poll,
    Prepare,
    Proposal,
    Propose,
    Refused,
    Signed,
    Vote,
    Voted,
)
from peer.views.view import View, ViewChain

IDS = ("a", "b", "c", "d")


def consents(to: str, *by: str) -> Evidence:
    return Evidence(tuple(keyring(id).sign(Consent(to)) for id in by))


OUT = consents("c", "a", "b", "d")
"""All others consent that c is voted out."""


def test_who_leaves_plays_its_last_view_to_the_end_and_who_is_lost_does_not() -> None:
    planned, without = View(1, IDS, 5, planned=True), View(2, ("a", "b"), 8, planned=True)
    chain = ViewChain([View(0, IDS, 0), planned, without])
    assert [chain.is_over(number, "c") for number in range(3)] == [False, False, True]
    assert [chain.is_over(number, "a") for number in range(3)] == [False, False, False]
    chain.extend(View(3, ("a",), 7))
    assert [chain.is_over(number, id) for number in range(3) for id in "ac"] == [True] * 6, "then its rounds are void"
    assert chain.after(1, "c") is None


def test_who_is_voted_out_has_no_say_in_it_and_is_never_taken_in_again() -> None:
    members = Assembly()
    members.standing["c"] = replace(members.standing["c"], durable=0, started=20)
    out = members.attempt(MembershipChange(evidence=OUT)).decision
    assert out
    assert out.view == View(1, ("a", "b", "d"), 6, reason="c voted out by a, b, d", expelled=("c",))
    assert members.acceptors["c"].chain.current == out.view, "it is told"
    asks = members.keyrings["c"].sign(Entry(1, 5))
    assert members.attempt(MembershipChange(entries=(asks,))).state == "released"
    with_it = replace(out.view, number=2, members=IDS, expelled=())
    assert members.refuses("a", members.decision(with_it)) == "an expulsion that is forgotten"
    assert members.refuses("a", members.decision(replace(with_it, expelled=("c",)))) == "an expelled member"


def test_who_is_away_can_be_voted_out() -> None:
    members = Assembly().begin_with(View(1, ("a", "b", "d"), 5))
    out = members.attempt(MembershipChange(evidence=OUT)).decision
    assert out
    assert (out.view.members, out.view.planned, out.view.expelled) == (("a", "b", "d"), True, ("c",))
    assert members.attempt(MembershipChange(evidence=OUT)).state == "released", "it is out already"


def test_who_is_voted_out_after_it_has_left_holds_up_no_view_that_it_still_plays() -> None:
    members = Assembly().begin_with(View(1, ("a", "b", "d"), 5, planned=True))
    out = members.attempt(MembershipChange(evidence=OUT)).decision
    assert out
    assert (out.view.first, out.view.planned, out.view.expelled) == (6, False, ("c",)), "nobody waits for its rounds"
    assert [members.acceptors["a"].chain.is_over(number, "a") for number in (0, 1)] == [True, True]


def test_a_consent_is_kept_and_told_and_over_when_its_one_is_out() -> None:
    members = Assembly()
    acceptor = members.acceptors["a"]
    assert acceptor.handle(Expel(0, "c")) == Heard()
    assert acceptor.handle(Expel(0, "c")) == Heard()
    assert isinstance(acceptor.handle(Expel(0, "a")), Denied)
    acceptor = restarted(acceptor)
    told = acceptor.handle(Poll(0))
    assert isinstance(told, Consents)
    assert [(one.signer, one.statement) for one in told.evidence.consents] == [("a", Consent("c"))]
    assert not acceptor.held
    view = View(1, ("a", "b", "d"), 5, expelled=("c",))
    out = Decided((members.decision(view, evidence=OUT),))
    acceptor.handle(out)
    assert acceptor.handle(Poll(1)) == Consents(Evidence())
    assert acceptor.handle(Poll(0)) == acceptor.handle(Expel(0, "c")) == out


def test_nobody_consents_that_a_stranger_is_voted_out() -> None:
    with pytest.raises(InvalidError, match="mallory is no member of the federation"):
        Assembly().acceptors["a"].handle(Expel(0, "mallory"))


@pytest.mark.parametrize(
    "evidence",
    [
        consents("c", "a", "b"),
        consents("c", "a", "b", "c"),
        consents("c", "a", "b", "b"),
        Evidence((*consents("c", "a", "b").consents, Signed("d", Consent("c")))),
        Evidence((*consents("c", "a", "b").consents, keyring("d", federation="another").sign(Consent("c")))),
        Evidence((*consents("c", "a", "b").consents, keyring("d").sign(Consent("b")))),
    ],
    ids=["of-two", "and-its-own", "twice", "unsigned", "of-another-federation", "to-another's"],
)
def test_fewer_than_a_quorum_expel_nobody(evidence: Evidence) -> None:
    members = Assembly()
    assert members.attempt(MembershipChange(evidence=evidence)).state == "no_quorum"
    out = View(1, ("a", "b", "d"), 6, reason="c voted out by a, b, d", expelled=("c",))
    members.refuses("a", members.decision(out, evidence=evidence))


def test_nobody_is_held_by_one_that_enough_have_voted_out() -> None:
    acceptor, liar = Assembly().acceptors["a"], keyring("c")
    acceptor.ignored_members = frozenset("c")
    ballot = Ballot(9, "c")
    assert acceptor.handle(AskPromise(liar.sign(Prepare(1, ballot)))) == Refused(1, ballot)
    vote = liar.sign(Vote("accept", 1, ballot, "0" * 64))
    assert acceptor.handle(Propose(Proposal(View(1, ("c",), 0), vote, Grounds(())))) == Refused(1, ballot)
    assert not acceptor.held


def test_an_attempt_to_vote_one_out_is_not_outdone_by_that_one() -> None:
    members = Assembly()
    made = Attempt(members.acceptors["a"], None, MembershipChange(evidence=OUT))
    assert made.requests().keys() == {"a"}
    prepare = AskPromise(members.keyrings["a"].sign(Prepare(1, made.ballot)))
    made.on_reply("a", members.acceptors["a"].handle(prepare, members.standing["a"]))
    assert made.requests().keys() == {"b", "d"}
    made.on_reply("c", Refused(1, Ballot(9, "c")))
    assert (made.state, made.preempted_by) == ("asking", None), "it was not asked"
    for id in "bd":
        made.on_reply(id, members.acceptors[id].handle(prepare, members.standing[id]))
    while not made.over:
        members.pass_on(made)
    assert made.decision
    assert made.decision.view.expelled == ("c",)


def test_who_leaves_hears_that_it_has_left() -> None:
    members = Assembly()
    acceptor = members.acceptors["c"]
    assert acceptor.handle(Leave(0)) == Heard()
    without = Decided((members.decision(View(1, ("a", "b", "d"), 5, planned=True)),))
    acceptor.handle(without)
    assert acceptor.handle(Leave(0)) == without


# Guilt.


def vote(
    signer: str = "c", digest: str = "1", counter: int = 1, number: int = 1, phase: str = "accept"
) -> Signed[Vote]:
    said = Vote(phase, number, Ballot(counter, "c"), digest * 64)  # type: ignore[arg-type]
    return keyring(signer).sign(said)


PROVED = Evidence(guilt=(Guilt(vote(digest="1"), vote(digest="2")),))


def test_two_votes_in_one_ballot_expel_who_has_signed_them_and_nobody_else() -> None:
    members = Assembly()
    out = members.attempt(MembershipChange(evidence=PROVED)).decision
    assert out
    why = "c expelled: it has signed two votes that contradict each other"
    assert out.view == View(1, ("a", "b", "d"), 6, reason=why, expelled=("c",))
    assert all(acceptor.chain.current == out.view for acceptor in members.acceptors.values())


@pytest.mark.parametrize(
    ("one", "other", "why"),
    [
        (vote(), vote(), "no contradiction"),
        (vote("b", "1"), vote("c", "2"), "votes by two members"),
        (vote(digest="1"), vote(digest="2", counter=2), "no contradiction"),
        (vote(digest="1"), vote(digest="2", number=2), "no contradiction"),
        (vote(digest="1"), vote(digest="2", phase="commit"), "no contradiction"),
        (vote(digest="1"), replace(vote("b", "2"), signer="c"), "the signature is not c's"),
        (vote(digest="1"), Signed("c", vote(digest="2").statement), "the signature is not c's"),
        (vote(digest="1"), replace(vote(digest="1"), statement=vote(digest="2").statement), "the signature is not c's"),
    ],
    ids=["equal", "two-members", "two-ballots", "two-numbers", "two-phases", "another's", "unsigned", "changed"],
)
def test_other_votes_prove_nothing(one: Signed[Vote], other: Signed[Vote], why: str) -> None:
    members, evidence = Assembly(), Evidence(guilt=(Guilt(one, other),))
    with pytest.raises(InvalidError, match=why):
        members.acceptors["a"].verifier.check_guilt(evidence.guilt[0])
    assert members.attempt(MembershipChange(evidence=evidence)).state == "no_quorum"
    out = View(1, ("a", "b", "d"), 6, expelled=("c",))
    assert members.refuses("a", members.decision(out, evidence=evidence)) == why


def test_where_nothing_is_signed_nobody_is_proved_guilty() -> None:
    members = Assembly(signed=False)
    out = members.decision(View(1, ("a", "b", "d"), 6, expelled=("c",)), evidence=PROVED)
    assert members.refuses("a", out) == "without certificates no lie can be proved"


def test_one_guilty_member_does_not_have_another_expelled() -> None:
    members = Assembly()
    both = members.decision(View(1, ("a", "d"), 6, expelled=("b", "c")), evidence=PROVED)
    assert members.refuses("a", both) == "an expulsion without proof"


def test_a_proposer_of_two_views_in_one_ballot_is_found_out_by_who_has_seen_both() -> None:
    """b votes for one view, and a for the other; so neither is decided, and who hears of both has the proof."""
    members, liar = Assembly(), keyring("c")
    members.standing["c"] = replace(members.standing["c"], durable=3)
    made = Attempt(members.acceptors["c"], None, MembershipChange(leaves=True))
    while made.state == "asking":
        members.pass_on(made)
    leaves = made.requests()["b"]
    assert isinstance(leaves, Propose)
    assert isinstance(members.acceptors["b"].handle(leaves), Voted)
    digest = members.acceptors["a"].verifier.digest(members.present, None)
    nothing = Proposal(None, liar.sign(Vote("accept", 1, made.ballot, digest)), leaves.proposal.grounds)
    assert isinstance(members.acceptors["a"].handle(Propose(nothing)), Voted)
    assert isinstance(members.acceptors["b"].handle(Propose(nothing)), Refused), "it votes once"
    told = members.acceptors["b"].handle(Poll(0))
    assert isinstance(told, Consents)
    (guilt,) = told.evidence.guilt
    assert guilt.id == "c"
    members.acceptors["a"].verifier.check_guilt(guilt)
    assert restarted(members.acceptors["b"]).memory.guilt == [guilt]
    out = members.attempt(MembershipChange(evidence=Evidence(guilt=(guilt,))), by="b").decision
    assert out
    assert out.view.expelled == ("c",)
    assert not members.acceptors["b"].memory.guilt, "it is over"


def test_an_honest_member_is_never_its_own_proof_of_guilt() -> None:
    """Whatever it is asked, also after a restart, it votes once in a ballot."""
    members = Assembly()
    made = Attempt(members.acceptors["a"], None, MembershipChange())
    while made.state == "asking":
        members.pass_on(made)
    request = made.requests()["b"]
    first = members.acceptors["b"].handle(request)
    again = restarted(members.acceptors["b"]).handle(request)
    assert isinstance(first, Voted)
    assert isinstance(again, Voted)
    with pytest.raises(InvalidError, match="no contradiction"):
        members.acceptors["a"].verifier.check_guilt(Guilt(first.vote, again.vote))
    assert first.vote.statement.ballot == ONE
