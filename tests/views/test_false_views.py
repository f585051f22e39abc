"""What one liar of four can say about views, and that nobody believes it."""

import subprocess
import sys
import tracemalloc
from base64 import b64decode, b64encode
from collections.abc import Callable
from contextlib import suppress
from dataclasses import fields, is_dataclass, replace

import pytest
from assembly import AT_FIVE, ONE, Assembly, kept
from cryptography import x509
from keyrings import FEDERATION, ca, keyring

from peer.views import statements
from peer.views.decision import Attempt, MemberProgress, MembershipChange, Memory, next_view
from peer.views.signing import CertifiedKeyring, Keyring
from peer.views.statements import (
    HIGHEST,
    JUMP,
    Announcement,
    Ask,
    AskPromise,
    Ballot,
    Consent,
    Decided,
    Decision,
    Enter,
    Entry,
    Evidence,
    Grounds,
    InvalidError,
    Objection,
    Prepare,
    Promise,
    Promised,
    Proposal,
    Propose,
    Refused,
    Signed,
    Vote,
    Voted,
    read,
    read_reply,
    read_request,
    written,
)
from peer.views.view import View

IDS = ("a", "b", "c", "d")
INVENTED = View(1, ("d",), 0, reason="a, b, c silent for 30 s")
"""By d, which would be alone."""
WITHOUT_D = View(1, ("a", "b", "c"), 6, reason="d silent for 30 s")


# 1. Decisions without proof.


def votes_of(assembly: Assembly, view: View, *rings: Keyring, **changes: object) -> tuple[Signed[Vote], ...]:
    digest = assembly.acceptors["a"].verifier.digest(assembly.present, view)
    vote = replace(Vote("commit", view.number, ONE, digest), **changes)  # type: ignore[arg-type]
    return tuple(ring.sign(vote) for ring in rings)


def of(*ids: str, **made: str) -> tuple[Keyring, ...]:
    return tuple(keyring(id, **made) for id in ids)


def made_out_to_two(id: str) -> Keyring:
    holder = ca("CA").issue(x509.DNSName(id), x509.DNSName("d"))
    return CertifiedKeyring(id, FEDERATION, lambda: (ca("CA").shown, holder.shown, holder.private))


Forgery = Callable[[Assembly], tuple[Signed[Vote], ...]]
OTHER_DIGEST = "0" * 64
FORGERIES: dict[str, tuple[Forgery, str]] = {
    "no votes": (lambda _: (), "votes by too few members"),
    "unsigned": (lambda all: votes_of(all, INVENTED, *(Keyring(id, "") for id in IDS)), "the signature is not a's"),
    "too few": (lambda all: votes_of(all, INVENTED, *of("a", "d")), "votes by too few members"),
    "one again and again": (lambda all: votes_of(all, INVENTED, *of("d", "d", "d")), "votes by too few members"),
    "one in the name of all": (
        lambda all: tuple(replace(votes_of(all, INVENTED, *of("d"))[0], signer=id) for id in IDS),
        "the signature is not a's",
    ),
    "another's certificate": (
        lambda all: votes_of(all, INVENTED, *of("d"), *(keyring(id, name="d") for id in "abc")),
        "the signature is not a's",
    ),
    "a certificate for two": (
        lambda all: votes_of(all, INVENTED, *of("d"), *(made_out_to_two(id) for id in "abc")),
        "the signature is not a's",
    ),
    "another CA": (lambda all: votes_of(all, INVENTED, *of(*IDS, issuer="another")), "the signature is not a's"),
    "another federation": (
        lambda all: votes_of(all, INVENTED, *of(*IDS, federation="another")),
        "the signature is not a's",
    ),
    "another number": (
        lambda all: votes_of(all, INVENTED, *of(*IDS), number=2),
        "votes that are not for the same",
    ),
    "another view": (
        lambda all: votes_of(all, INVENTED, *of(*IDS), digest=OTHER_DIGEST),
        "votes that are not for the same",
    ),
    "another ballot": (
        lambda all: votes_of(all, INVENTED, *of(*IDS), ballot=Ballot(2, "d")),
        "votes that are not for the same",
    ),
    "another phase": (
        lambda all: votes_of(all, INVENTED, *of(*IDS), phase="accept"),
        "votes that are not for the same",
    ),
    "a stranger": (
        lambda all: votes_of(all, INVENTED, *of("d", "a", "mallory")),
        "votes by too few members",
    ),
    "a stranger more": (
        lambda all: votes_of(all, INVENTED, *of("mallory", "a", "b", "d")),
        "mallory is no member of the federation",
    ),
    "a vote changed": (
        lambda all: tuple(
            replace(one, statement=replace(one.statement, ballot=ONE))
            for one in votes_of(all, INVENTED, *of(*IDS), ballot=Ballot(2, "d"))
        ),
        "the signature is not a's",
    ),
}


@pytest.mark.parametrize("forgery", FORGERIES)
def test_a_view_without_the_votes_of_a_quorum_is_not_believed(forgery: str) -> None:
    assembly, (forge, why) = Assembly(), FORGERIES[forgery]
    assert assembly.refuses("a", Decision(INVENTED, ONE, forge(assembly))) == why


def test_votes_for_a_view_after_another_one_count_for_nothing() -> None:
    """Votes of a number that were given when another view was before it."""
    assembly, other = Assembly(), Assembly().begin_with(View(1, IDS, 3))
    later = other.decision(View(2, ("a", "b", "c"), 6))
    assembly.begin_with(View(1, IDS, 4))
    assert assembly.refuses("a", later) == "votes that are not for the same"


@pytest.mark.parametrize(
    ("view", "why"),
    [
        (View(1, ("b", "a", "c"), 0), "members in another order"),
        (View(1, ("a", "b", "mallory"), 0), "members in another order"),
        (View(1, ("a", "a", "b"), 0), "members in another order"),
        (View(1, (), 0), "members in another order"),
        (View(1, ("a", "b", "c"), 62), "a view from round 62 on"),
        (View(1, ("a", "b", "c"), 3, entrants=(("d", 1),)), "strangers taken in"),
        (View(1, IDS, 3, entrants=(("d", 1), ("d", 2))), "strangers taken in"),
        (View(1, IDS, 3, entrants=(("d", 3),)), "an entrant from a later round"),
        (View(1, ("a", "b", "c"), 3, expelled=("d",)), "an expulsion without proof"),
        (View(1, ("a", "b", "c"), 3, expelled=("mallory",)), "expelled members in another order"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_no_honest_members_would_have_decided_is_not_believed(view: View, why: str) -> None:
    """Not even with the votes of all."""
    assembly = Assembly()
    assert assembly.refuses("a", assembly.decision(view)) == why


# 2. and 3. Different views for different members.


def test_neither_half_believes_a_view_of_its_own() -> None:
    """d tells a and b of one view, and c of another, with its own vote and all votes that it has got by an attempt."""
    assembly, without_a = Assembly(), View(1, ("b", "c", "d"), 6, reason="a silent for 30 s")
    attempt = Attempt(assembly.acceptors["d"], None, MembershipChange(leaves=True))
    while attempt.state != "confirming":
        assembly.pass_on(attempt)
    confirm = attempt.requests()["a"]
    voted = assembly.acceptors["a"].handle(confirm)
    assert isinstance(voted, Voted)
    assert attempt.lock
    assert attempt.lock.view
    for view, half in ((attempt.lock.view, "ab"), (without_a, "c")):
        votes = (*votes_of(assembly, view, *of("d"), ballot=attempt.ballot), voted.vote)
        for id in half:
            assembly.refuses(id, Decision(view, attempt.ballot, votes))
    assert assembly.present.number == 0


@pytest.mark.parametrize(
    "view", [View(0, ("d",), 0), View(0, IDS, 1), INVENTED, replace(WITHOUT_D, first=0)], ids=["0", "0-later", "d", "1"]
)
def test_another_chain_is_not_believed_by_who_asks(view: View) -> None:
    assembly = Assembly().begin_with(WITHOUT_D)
    asked = assembly.acceptors["d"].handle(Ask(0))
    assert isinstance(asked, Decided)
    other = replace(asked.decisions[0], view=view)
    assert f"another view {view.number}" in assembly.refuses("a", other)
    votes = votes_of(Assembly(), view, *of("d"))
    assert f"another view {view.number}" in assembly.refuses("a", replace(other, votes=votes))


def test_two_decisions_of_one_number_are_said_to_be_more_than_can_be_borne() -> None:
    assembly = Assembly().begin_with(WITHOUT_D)
    both = assembly.decision(replace(WITHOUT_D, first=0), before=View(0, IDS, 0))
    assert assembly.refuses("a", both).startswith("two views of number 1 were decided: more members lie than")


def test_a_proposer_is_not_outdated_by_a_view_that_was_not_decided() -> None:
    assembly = Assembly()
    attempt = Attempt(assembly.acceptors["a"], None, MembershipChange())
    assembly.pass_on(attempt)
    requests = attempt.requests()
    with pytest.raises(InvalidError, match="too few"):
        attempt.on_reply("d", Decided((Decision(INVENTED, ONE, votes_of(assembly, INVENTED, *of("d"))),)))
    for id in "bc":
        attempt.on_reply(id, assembly.acceptors[id].handle(requests[id], AT_FIVE))
    while not attempt.over:
        assembly.pass_on(attempt)
    assert attempt.decision
    assert attempt.decision.view == WITHOUT_D, "it counts as silent"


def test_of_true_views_and_false_ones_the_true_ones_stand() -> None:
    assembly = Assembly()
    false = replace(WITHOUT_D, number=2, members=("c",))
    told = Decided((assembly.decision(WITHOUT_D), Decision(false, ONE, votes_of(assembly, false, *of("d")))))
    with pytest.raises(InvalidError):
        assembly.acceptors["a"].handle(told)
    assert assembly.acceptors["a"].chain.current == WITHOUT_D
    assert assembly.acceptors["a"].memory.decisions == [told.decisions[0]]


# 6. Many views at once.


def test_forty_invented_views_at_once_change_nothing() -> None:
    assembly = Assembly()
    views = [View(number, ("d",), number % 60) for number in range(1, 41)]
    told = Decided(tuple(Decision(view, ONE, votes_of(assembly, view, *of("d"))) for view in views))
    for decisions in (told.decisions, told.decisions[1:], told.decisions[::-1]):
        before = [kept(acceptor) for acceptor in assembly.acceptors.values()]
        for acceptor in assembly.acceptors.values():
            try:
                acceptor.handle(Decided(decisions))
            except InvalidError:
                continue
            assert decisions[0].view.number > 1, "it knows too little to tell"
        assert [kept(acceptor) for acceptor in assembly.acceptors.values()] == before
    assert assembly.present.number == 0


# 4. Ballots.


def asked(counter: int) -> AskPromise:
    return AskPromise(keyring("d").sign(Prepare(1, Ballot(counter, "d"))))


@pytest.mark.parametrize("counter", [HIGHEST, HIGHEST - 1, JUMP + 1])
def test_a_ballot_far_above_all_others_is_refused_and_holds_nobody(counter: int) -> None:
    assembly = Assembly()
    for id in "abc":
        before = kept(assembly.acceptors[id])
        assert isinstance(assembly.acceptors[id].handle(asked(counter), AT_FIVE), Refused)
        assert kept(assembly.acceptors[id]) == before
        assert not assembly.acceptors[id].held
    assert assembly.attempt(MembershipChange(), lost="d").decision


@pytest.mark.parametrize("counter", [HIGHEST + 1, 1 << 63, 1 << 70, 0, -1])
def test_a_ballot_out_of_bounds_is_not_read(counter: int) -> None:
    with pytest.raises(InvalidError, match=r"ballot\.counter"):
        read_request(written(asked(counter)))
    with pytest.raises(InvalidError, match=r"promised\.counter"):
        read_reply(written(Refused(1, Ballot(counter, "d"))))


LISTS = [
    (kind, one.name)
    for kind in (*vars(statements).values(), Memory)
    if isinstance(kind, type) and is_dataclass(kind)
    for one in fields(kind)
    if "tuple[" in str(one.type) or "list[" in str(one.type)
]


@pytest.mark.parametrize(("kind", "name"), LISTS)
def test_of_a_list_of_errors_one_is_told(kind: type, name: str) -> None:
    """All those of a megabyte took seconds, in which a peer is silent, and a gigabyte of memory."""
    text = f'{{"{name}":[{",".join(["0"] * 20_000)}]}}'.encode()
    tracemalloc.start()
    with pytest.raises(InvalidError):
        read(kind, text)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 100 * len(text)


SMALL = """
from resource import RLIMIT_DATA, setrlimit
from peer.views.statements import InvalidError, read_request
text = b'Confirm {"lock":{"votes":[{"statement":{"more":[' + b",".join([b"[]"] * 340_000) + b"]}}]}}"
setrlimit(RLIMIT_DATA, (200 << 20, 200 << 20))
try:
    read_request(text)
except InvalidError as error:
    print(error)
"""


def test_an_error_takes_no_copies_of_what_is_around_it() -> None:
    told = subprocess.run([sys.executable, "-c", SMALL], capture_output=True, text=True, check=False)
    assert told.stdout == "lock.number: Field required\n", told.stderr[-300:]


@pytest.mark.parametrize("number", ['"1"', "true", "1.0", "NaN", "[1]", "1" * 5000, "[" * 9000])
def test_a_number_is_written_as_a_number(number: str) -> None:
    with pytest.raises(InvalidError):
        read_request(f'Ask {{"number":{number}}}'.encode())


@pytest.mark.parametrize("planned", ['"true"', "1", "0"])
def test_yes_and_no_are_written_as_such(planned: str) -> None:
    with pytest.raises(InvalidError, match="planned"):
        read(View, f'{{"number":1,"members":["a"],"first":1,"planned":{planned}}}'.encode())


def test_after_the_highest_jump_the_next_attempt_can_be_sent_and_decides() -> None:
    assembly = Assembly()
    for id in "abc":
        assert isinstance(assembly.acceptors[id].handle(asked(JUMP), AT_FIVE), Promised)
    attempt = assembly.attempt(MembershipChange(), lost="d")
    assert attempt.ballot.counter == JUMP + 1
    assert attempt.decision
    decided = Decided((attempt.decision,))
    assert read_request(written(decided)) == decided


def test_who_is_outdone_by_the_highest_ballot_goes_on_with_one_that_all_take() -> None:
    assembly = Assembly()
    attempt = Attempt(assembly.acceptors["a"], None, MembershipChange())
    assembly.pass_on(attempt)
    attempt.on_reply("d", Refused(1, Ballot(HIGHEST, "d")))
    assert attempt.preempted_by == Ballot(HIGHEST, "d")
    later = Attempt(assembly.acceptors["a"], attempt.preempted_by, MembershipChange())
    assert later.ballot.counter <= JUMP + 1
    while not later.over:
        for id, request in later.requests().items():
            if id == "d":
                later.on_no_reply(id)
                continue
            assert read_request(written(request)) == request
            later.on_reply(id, read_reply(written(assembly.acceptors[id].handle(request, AT_FIVE))))
    assert later.decision
    assert later.decision.view == WITHOUT_D


def test_who_has_missed_many_ballots_takes_part_again_after_a_few() -> None:
    """One liar could raise the others' ballots while a member is away: nobody would listen to both ever after."""
    acceptor, prepare = Assembly().acceptors["c"], keyring("a").sign(Prepare(1, Ballot(5 * JUMP, "a")))
    before = kept(acceptor)
    for _ in range(4):
        assert isinstance(acceptor.handle(AskPromise(prepare), AT_FIVE), Refused)
        assert kept(acceptor) == before
    assert isinstance(acceptor.handle(AskPromise(prepare), AT_FIVE), Promised)


def test_nobody_asks_in_the_name_of_another() -> None:
    acceptor, ballot = Assembly().acceptors["a"], Ballot(1, "b")
    for prepare in (
        Signed("b", Prepare(1, ballot)),
        replace(keyring("d").sign(Prepare(1, ballot)), signer="b"),
        keyring("d").sign(Prepare(1, ballot)),
        keyring("b", federation="another").sign(Prepare(1, ballot)),
    ):
        with pytest.raises(InvalidError, match=r"the signature is not b's|in the name of another"):
            acceptor.handle(AskPromise(prepare), AT_FIVE)
    assert not acceptor.held


# 5. Promises.


@pytest.mark.parametrize("name", ["started", "durable"])
@pytest.mark.parametrize("round", [1 << 62, 4_294_967_290, 61, -2])
def test_rounds_that_never_come_are_not_taken_for_a_promise(name: str, round: int) -> None:
    assembly = Assembly()
    attempt = Attempt(assembly.acceptors["a"], None, MembershipChange())
    assembly.pass_on(attempt)
    lie = replace(Promise(1, attempt.ballot, 5, 7), **{name: round})  # type: ignore[arg-type]
    with pytest.raises(InvalidError, match=rf"{name}|tells of round 61 in a run of 60"):
        attempt.on_reply("d", read_reply(written(Promised(keyring("d").sign(lie)))))
    attempt.on_no_reply("d")
    for id, request in attempt.requests().items():
        if id != "d":
            attempt.on_reply(id, assembly.acceptors[id].handle(request, AT_FIVE))
    while not attempt.over:
        assembly.pass_on(attempt, lost="d")
    assert attempt.decision
    assert attempt.decision.view == WITHOUT_D


@pytest.mark.parametrize(
    ("lie", "first"),
    [({"started": 60}, 5 + 4 + 4 + 1), ({"durable": 60}, 8)],
    ids=lambda value: ",".join(value) if isinstance(value, dict) else "",
)
def test_a_lie_within_the_run_moves_a_planned_view_by_a_few_rounds_at_most(lie: dict[str, int], first: int) -> None:
    """e asks to enter while all others are in round 7."""
    assembly = Assembly("abcde").begin_with(View(1, IDS, 0))
    assembly.standing["d"] = replace(AT_FIVE, **lie)
    entry = assembly.keyrings["e"].sign(Entry(1, -1))
    decided = assembly.attempt(MembershipChange(entries=(entry,))).decision
    assert decided
    assert (decided.view.planned, decided.view.first) == (True, first)
    assert decided.view.entrants == (("e", -1),)


def test_who_asks_to_enter_makes_up_for_the_lost_where_too_few_would_be_left_and_waits_otherwise() -> None:
    for least, members, entrants in ((2, "ab", {}), (3, "abe", {"e": -1})):
        assembly = Assembly("abcde", min_members=least).begin_with(View(1, ("a", "b", "c"), 0))
        entry = assembly.keyrings["e"].sign(Entry(1, -1))
        decided = assembly.attempt(MembershipChange(entries=(entry,)), lost="c").decision
        assert decided
        assert (decided.view.members, dict(decided.view.entrants)) == ((*members,), entrants)
        assert (decided.view.planned, decided.view.first) == (False, 6), "the others go back"


def test_an_entry_from_a_round_that_never_comes_is_refused_at_once() -> None:
    """Else it would be in every proposal of who has heard it, for which nobody votes."""
    assembly = Assembly("abcde").begin_with(View(1, IDS, 0))
    entry = assembly.keyrings["e"].sign(Entry(1, 61))
    with pytest.raises(InvalidError, match="e brings a round that never was"):
        assembly.acceptors["a"].handle(Enter(entry))


# 7. Less than was announced, and members that are left out.


def announced(id: str, round: int, view: int = 0) -> Signed[Announcement]:
    return keyring(id).sign(Announcement(view, round))


def test_nobody_goes_back_for_one_that_promises_less_than_it_has_announced() -> None:
    assembly = Assembly()
    assembly.standing["d"] = replace(AT_FIVE, durable=-1)
    attempt = Attempt(assembly.acceptors["a"], None, MembershipChange())
    attempt.hold_against([announced("d", 5)])
    while not attempt.over:
        assembly.pass_on(attempt)
    assert attempt.decision
    view = attempt.decision.view
    assert (view.members, view.first) == (("a", "b", "c"), 6)
    assert view.reason == "d without the rounds it had announced"


def test_one_objection_is_enough_to_hold_an_announcement_against_a_promise() -> None:
    assembly = Assembly()
    assembly.standing["d"] = replace(AT_FIVE, durable=-1)
    attempt = Attempt(assembly.acceptors["a"], None, MembershipChange(leaves=True))
    while attempt.state != "proposing":
        assembly.pass_on(attempt)
    attempt.requests()
    attempt.on_reply("b", read_reply(written(Objection("d has announced more", (announced("d", 5),)))))
    for id in "acd":
        attempt.on_no_reply(id)
    assert attempt.over
    assert attempt.announced["d"].statement == Announcement(0, 5)
    again = Attempt(assembly.acceptors["a"], None, MembershipChange())
    again.hold_against(attempt.announced.values())
    while not again.over:
        assembly.pass_on(again)
    assert again.decision
    assert again.decision.view.members == ("a", "b", "c")


@pytest.mark.parametrize(
    "lie",
    [
        Signed("b", Announcement(0, 50)),
        replace(announced("d", 50), signer="b"),
        keyring("b", federation="another").sign(Announcement(0, 50)),
        replace(announced("b", 5), statement=Announcement(0, 50)),
    ],
    ids=["unsigned", "of-another", "another-federation", "changed"],
)
def test_nobody_is_left_out_for_what_it_has_not_announced(lie: Signed[Announcement]) -> None:
    assembly = Assembly()
    attempt = Attempt(assembly.acceptors["d"], None, MembershipChange())
    attempt.hold_against([lie])
    while not attempt.over:
        assembly.pass_on(attempt)
    assert (attempt.state, assembly.present.number) == ("no_quorum", 0)
    assembly = Assembly()
    grounds = Grounds(tuple(assembly.keyrings[id].sign(Promise(1, ONE, 5, 7)) for id in IDS), announced=(lie,))
    view = next_view(assembly.acceptors["a"].chain, "a", grounds, assembly.rules)
    court = assembly.acceptors["a"].verifier
    own = keyring("a").sign(Vote("accept", 1, ONE, court.digest(assembly.present, view)))
    with pytest.raises(InvalidError, match="the signature is not b's"):
        assembly.acceptors["c"].handle(Propose(Proposal(view, own, grounds)))


@pytest.mark.parametrize("planned", [True, False])
def test_nobody_goes_back_for_one_that_was_to_play_no_rounds(planned: bool) -> None:
    """Only who has left by a planned view, and is lost before its last round, can be missing. Else a liar could have
    all go back again and again, for a member that has long been away."""
    assembly = Assembly("abcde").begin_with(View(1, IDS, 9, planned=planned))
    made = assembly.attempt(MembershipChange(missing=("e",)))
    assert made.state == ("decided" if planned else "no_quorum")
    if planned:
        assert assembly.attempt(MembershipChange(missing=("e",))).state == "no_quorum", "once is enough"


def test_nobody_is_missing_that_was_in_no_view_that_is_being_played() -> None:
    views = (View(1, ("a", "b", "c", "e"), 5), View(2, IDS[:3], 7, planned=True))
    assembly = Assembly("abcde").begin_with(*views)
    assert assembly.attempt(MembershipChange(missing=("d",))).state == "no_quorum"
    assert assembly.attempt(MembershipChange(missing=("e",))).state == "decided"


def test_one_that_is_missing_is_named_once() -> None:
    """Each voter asks the missing, all at once: a hundred thousand times the same would stop it for minutes."""
    assembly = Assembly("abcde").begin_with(View(1, IDS, 9, planned=True))
    assert assembly.attempt(MembershipChange(missing=("e", "e"))).state == "no_quorum"
    assert assembly.attempt(MembershipChange(missing=("e",))).state == "decided"


# What a careful reader found.


def test_a_certificate_that_no_parser_takes_is_none() -> None:
    """With another version than there are its parser raises what is no ValueError."""
    signed = keyring("b").sign(Consent("c"))
    content = bytearray(b64decode(signed.certificate))
    place = content.index(bytes.fromhex("a003020102")) + 4
    for version in (1, 3, 200):
        content[place] = version
        assert not keyring("a").is_valid(replace(signed, certificate=b64encode(content).decode()))


def test_after_a_planned_view_nobody_goes_back_much_further_than_its_beginning() -> None:
    """Whoever is in it has played up to there, whatever it has announced in it or says that it has."""
    assembly = Assembly("abcde").begin_with(View(1, IDS, 50, planned=True))
    assert assembly.acceptors["a"].chain.floor("b") == 50 - 1 - 4 - 5
    liar = MemberProgress(durable=7, started=7)
    honest = MemberProgress(durable=53, started=54)
    made = assembly.attempt(MembershipChange(), standing={"a": honest, "b": honest, "c": honest, "d": liar})
    assert made.decision
    assert (made.decision.view.members, made.decision.view.first) == (("a", "b", "c"), 54)


def test_a_second_promise_cannot_take_back_the_lock_of_the_first() -> None:
    attempt = Attempt(Assembly().acceptors["a"], None, MembershipChange())
    ballot, number = attempt.ballot, attempt.number
    locked = Promise(number, ballot, 5, 7)
    for promise in (locked, replace(locked, durable=4)):
        with suppress(InvalidError):
            attempt._take_promise(Promised(keyring("d").sign(promise)), "d")
    assert attempt._promises["d"].promise.statement == locked


def test_a_consent_counts_once_however_often_it_is_shown() -> None:
    """Else a decision could be made too long to be told."""
    assembly = Assembly()
    consents = [keyring(id).sign(Consent("d")) for id in "abc"]
    court = assembly.acceptors["a"].verifier
    court.check_evidence(assembly.present, Evidence((*consents,)))
    with pytest.raises(InvalidError, match="a consent that is given twice"):
        court.check_evidence(assembly.present, Evidence((*consents, consents[0])))
