"""Views, their chain, quorums, and what comes of one undisturbed attempt."""

import json
from collections.abc import Mapping
from dataclasses import replace
from itertools import combinations
from typing import Any

import pytest
from assembly import ONE, Assembly, promise_kept, restarted
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter

from peer.views.decision import Attempt, MemberProgress, MembershipChange, Rules, next_view
from peer.views.statements import (
    Ask,
    AskPromise,
    Ballot,
    Behind,
    Confirm,
    Decided,
    Enter,
    Entry,
    Grounds,
    Heard,
    Prepare,
    Promise,
    Promised,
    Proposal,
    Propose,
    Refused,
    Release,
    Signed,
    Vote,
    Voted,
)
from peer.views.view import View, ViewChain

IDS = ("a", "b", "c", "d", "e")
ALL = View(0, IDS, 0)
BEGINNING = View(1, IDS[:4], 2, reason="e silent for 30 s")
"""Without e, which has played two rounds."""
STANDING = {id: MemberProgress(*at) for id, at in {"a": (3, 5), "b": (2, 5), "c": (3, 6), "d": (4, 6)}.items()}


def assembly() -> Assembly:
    """Nobody lies, nothing is signed, and e is outside."""
    return Assembly("abcde", faulty=0, signed=False).begin_with(BEGINNING)


def attempt(
    wish: MembershipChange,
    standing: Mapping[str, MemberProgress] = STANDING,
    lost: str = "",
    by: str = "a",
    min_members: int = 1,
    after: View = BEGINNING,
) -> Attempt:
    """One attempt; `lost` do not answer."""
    members = Assembly("abcde", faulty=0, signed=False, min_members=min_members).begin_with(after)
    made = members.attempt(wish, by, lost, standing)
    held = {id for id, acceptor in members.acceptors.items() if acceptor.held and id not in lost}
    assert not held or made.state == "no_quorum"
    return made


def view_of(made: Attempt) -> View | None:
    assert made.state == "decided"
    assert made.decision
    return made.decision.view


def enters(id: str, private: int, number: int = 1) -> tuple[Signed[Entry], ...]:
    return (Signed(id, Entry(number, private)),)


def test_the_rest_go_on_without_one_from_the_last_round_that_all_of_them_have() -> None:
    assert view_of(attempt(MembershipChange(), lost="c")) == View(2, ("a", "b", "d"), 3, reason="c, e silent for 30 s")


def test_one_is_taken_in_after_the_last_round_that_has_begun() -> None:
    taken_in = attempt(MembershipChange(entries=enters("e", 1)))
    assert view_of(taken_in) == View(2, IDS, 7, planned=True, entrants=(("e", 1),), reason="e taken in")
    for invented in (2, 7):
        found = view_of(attempt(MembershipChange(entries=enters("e", invented))))
        assert found
        assert found.entrants == (("e", -1),), "it has not played that round"


def test_one_leaves_and_all_play_their_rounds_to_the_end() -> None:
    left = attempt(MembershipChange(leaves=True), by="b")
    assert view_of(left) == View(2, ("a", "c", "d"), 7, planned=True, reason="b leaves; e silent for 30 s")


def test_a_false_alarm_changes_nothing() -> None:
    made = attempt(MembershipChange())
    assert made.state == "released"
    assert made.lock
    assert made.lock.view is None


def test_half_decides_with_the_first_member_only() -> None:
    assert attempt(MembershipChange(), lost="cd").state == "decided"
    assert attempt(MembershipChange(), lost="ab", by="c").state == "no_quorum"


def test_never_fewer_members_than_wished() -> None:
    assert attempt(MembershipChange(min_members=4), lost="c").state == "no_quorum"
    assert attempt(MembershipChange(min_members=4, leaves=True), by="c").state == "released"


def test_never_fewer_members_than_the_protocol_needs() -> None:
    assert attempt(MembershipChange(), lost="c", min_members=4).state == "no_quorum"
    assert attempt(MembershipChange(leaves=True), by="c", min_members=4).state == "released"


def test_who_was_taken_in_and_cannot_go_back_so_far_is_taken_in_once_more_with_what_it_brought() -> None:
    admitting = replace(BEGINNING, first=5, planned=True)
    found = view_of(attempt(MembershipChange(), lost="c", after=replace(admitting, entrants=(("d", 4),))))
    assert found
    assert (found.members, found.first, found.entrants) == (("a", "b", "d"), 3, (("d", -1),)), "it would be void"
    found = view_of(attempt(MembershipChange(), lost="c", after=replace(admitting, entrants=(("d", 2),))))
    assert found
    assert (found.members, found.first, found.entrants) == (("a", "b", "d"), 3, (("d", 2),))


def test_who_was_taken_in_goes_back_with_the_others_to_rounds_that_it_has_played() -> None:
    entered = {**dict.fromkeys(IDS, MemberProgress(3, 5)), "d": MemberProgress(4, 6)}
    admitting = replace(BEGINNING, first=3, planned=True, entrants=(("d", 1),))
    found = view_of(attempt(MembershipChange(), entered, lost="c", after=admitting))
    assert found
    assert (found.first, found.entrants) == (4, ())
    entered["d"] = MemberProgress(3, 3)
    found = view_of(attempt(MembershipChange(), entered, lost="c", after=replace(admitting, first=4)))
    assert found
    assert (found.first, found.entrants) == (4, (("d", 1),)), "it has not played round 3"


def test_who_was_taken_in_is_a_member_like_all_once_all_begin_anew() -> None:
    """Else it would be taken in by the next planned view, and be missing in the rounds before that."""
    before = (ALL, View(1, IDS[:4], 0), View(2, IDS, 3, planned=True, entrants=(("e", 1),)))
    assert ViewChain(before).admission("e") == (3, 1)
    assert ViewChain(before).admission("a") == (0, -1)
    assert ViewChain((*before, View(3, IDS[1:], 0))).admission("e") == (0, -1)


def test_nobody_is_taken_in_where_all_begin_anew() -> None:
    begin = {**STANDING, "a": MemberProgress(-1, 1), "b": MemberProgress(4, 5)}
    admitting = replace(BEGINNING, first=5, planned=True, entrants=(("b", 2),))
    found = view_of(attempt(MembershipChange(), begin, lost="c", after=admitting))
    assert found
    assert (found.members, found.first, found.entrants) == (("a", "b", "d"), 0, ())
    begin = {**STANDING, "a": MemberProgress(-1, 1)}
    wish = MembershipChange(entries=enters("e", 2), min_members=4)
    found = view_of(attempt(wish, begin, lost="c", after=replace(BEGINNING, first=0)))
    assert found
    assert (found.members, found.first, found.entrants) == (("a", "b", "d", "e"), 0, ())


def test_nothing_is_proposed_unless_all_promise_if_so_wished() -> None:
    wish = MembershipChange(entries=enters("e", 2), unanimous=True)
    assert attempt(wish, lost="c").state == "no_quorum"
    found = view_of(attempt(wish))
    assert found
    assert (found.members, found.planned) == (IDS, True)
    assert attempt(MembershipChange(unanimous=True)).state == "released"


def test_a_lock_is_carried_on_even_if_not_all_promise() -> None:
    members = assembly()
    first = Attempt(members.acceptors["b"], None, MembershipChange())
    while first.state != "confirming":
        members.pass_on(first, lost="d", standing=STANDING)
    members.acceptors["b"].handle(first.requests()["b"])
    assert first.lock
    assert members.acceptors["b"].slot.lock == first.lock, "it alone has heard of the lock"
    later = members.attempt(MembershipChange(unanimous=True), by="c", lost="d", standing=STANDING)
    assert view_of(later) == first.lock.view
    assert later.ballot > first.ballot


def test_a_member_that_asks_to_be_taken_in_does_not_enter() -> None:
    assert attempt(MembershipChange(entries=enters("b", 1))).state == "released"


def test_all_go_back_where_the_rounds_that_have_begun_cannot_be_finished() -> None:
    members = Assembly("abcde", faulty=0, signed=False).begin_with(View(1, IDS[:4], 5, planned=True, reason="e leaves"))
    found = view_of(members.attempt(MembershipChange(missing=("e",)), standing=STANDING))
    assert found == View(2, IDS[:4], 3, reason="e silent for 30 s; e left")


def test_a_planned_view_does_not_begin_before_the_present_one() -> None:
    members = Assembly("abc", faulty=0, signed=False)
    chain = ViewChain([View(0, ("a", "b"), 0), View(1, ("a",), 9, planned=True, reason="b leaves")])
    promise = Signed("a", Promise(2, ONE, 3, 5))
    found = next_view(chain, "a", Grounds((promise,), entries=enters("c", -1)), members.rules)
    assert found == View(2, ("a", "c"), 9, planned=True, entrants=(("c", -1),), reason="c taken in; b left")


def test_one_that_has_left_and_asks_to_enter_has_given_up_the_rounds_for_which_it_is_needed() -> None:
    """It plays no earlier view once it is admitted: those that still need it there would wait for good."""
    members = Assembly("ab", faulty=0, signed=False)
    chain = ViewChain([View(0, ("a", "b"), 0), View(1, ("a",), 9, planned=True, reason="b leaves")])
    ask = enters("b", 3)
    found = next_view(chain, "a", Grounds((Signed("a", Promise(2, ONE, 3, 5)),), entries=ask), members.rules)
    assert found == View(2, ("a",), 4, reason="b left")
    found = next_view(chain, "a", Grounds((Signed("a", Promise(2, ONE, 8, 8)),), entries=ask), members.rules)
    assert found == View(2, ("a", "b"), 9, planned=True, entrants=(("b", 3),), reason="b taken in")


def test_the_own_promise_is_on_disk_before_others_are_asked() -> None:
    members = assembly()
    made = Attempt(members.acceptors["b"], None, MembershipChange())
    requests = made.requests()
    assert requests.keys() == {"b"}
    made.on_reply("b", members.acceptors["b"].handle(requests["b"], STANDING["b"]))
    assert made.requests().keys() == {"a", "c", "d"}
    assert not made.requests(), "each is given once"


def test_who_is_no_member_proposes_nothing() -> None:
    with pytest.raises(ValueError, match="e is not a member of view 1"):
        Attempt(assembly().acceptors["e"], None, MembershipChange())


def test_one_that_is_behind_says_so_and_promises_once_it_is_told() -> None:
    behind = assembly().acceptors["b"]
    ahead = assembly().begin_with(View(2, ("a", "b"), 2)).acceptors["a"]
    request = Attempt(ahead, None, MembershipChange()).requests()["a"]
    assert behind.handle(request, STANDING["b"]) == Behind(1)
    promise_kept(behind, 2)
    assert behind.handle(ahead.since(1, 64)) == Heard()
    assert isinstance(behind.handle(request, STANDING["b"]), Promised)


def test_one_that_hears_of_a_later_view_is_outdated() -> None:
    members, ahead = assembly(), assembly().begin_with(View(2, ("a", "b"), 2)).acceptors["b"]
    made = Attempt(members.acceptors["a"], None, MembershipChange())
    request = made.requests()["a"]
    made.on_reply("a", members.acceptors["a"].handle(request, STANDING["a"]))
    made.on_reply("b", ahead.handle(made.requests()["b"], STANDING["b"]))
    assert made.state == "superseded"


def asked(counter: int, by: str, number: int = 2) -> AskPromise:
    return AskPromise(Signed(by, Prepare(number, Ballot(counter, by))))


def test_a_promise_holds_through_a_restart_until_that_very_ballot_is_given_back() -> None:
    members, ballot = assembly(), Ballot(2, "b")
    acceptor, court = members.acceptors["a"], members.acceptors["a"].verifier
    acceptor.handle(asked(2, "b"), STANDING["a"])
    acceptor = restarted(acceptor)
    assert acceptor.handle(asked(2, "a"), STANDING["a"]) == Refused(2, ballot)

    def release(counter: int) -> Release:
        at = Ballot(counter, "b")
        vote = Vote("commit", 2, at, court.digest(BEGINNING, None))
        return Release(2, at, tuple(Signed(id, vote) for id in "abc"))

    held = []
    for counter in (1, 2):
        acceptor.handle(release(counter))
        held.append(acceptor.held)
    assert held == [True, False]
    late = Vote("accept", 2, Ballot(1, "c"), court.digest(BEGINNING, None))
    outdone = Propose(Proposal(None, Signed("c", late), Grounds(())))
    assert acceptor.handle(outdone) == Refused(2, ballot), "what it had outdone stays outdone"
    assert acceptor.handle(asked(2, "b"), STANDING["a"]) == Refused(2, ballot), "and what was given back is over"
    assert acceptor.next_ballot() == Ballot(3, "a")


def test_a_lock_is_told_to_later_proposers_also_after_a_restart() -> None:
    members = assembly()
    made = Attempt(members.acceptors["b"], None, MembershipChange())
    while made.state != "confirming":
        members.pass_on(made, lost="d", standing=STANDING)
    confirm = made.requests()["a"]
    assert isinstance(confirm, Confirm)
    acceptor = members.acceptors["a"]
    assert isinstance(acceptor.handle(confirm), Voted)
    acceptor = restarted(acceptor)
    promised = acceptor.handle(asked(2, "c"), STANDING["a"])
    assert isinstance(promised, Promised)
    assert (promised.lock, promised.promise.statement.locked) == (confirm.lock, made.ballot)


def test_who_is_outside_promises_nothing() -> None:
    outside, ballot = assembly().acceptors["e"], Ballot(1, "a")
    assert outside.handle(asked(1, "a"), STANDING["d"]) == Refused(2, ballot)
    assert not outside.held


def test_a_chain_takes_one_view_after_the_other_and_each_once() -> None:
    one, two = View(1, ("a", "b", "c"), 7), View(2, ("a", "b"), 4)
    chain = ViewChain([ALL])
    with pytest.raises(ValueError, match="view 2 does not follow view 0"):
        chain.extend(two)
    chain.extend(one)
    chain.extend(two)
    assert chain.current == two
    assert chain.since(0) == (one, two)
    assert chain.since(2) == ()
    with pytest.raises(ValueError, match="view 1 does not follow view 2"):
        chain.extend(View(1, ("a", "b"), 7))
    with pytest.raises(ValueError, match="begins with the view of number 0"):
        ViewChain([])
    assert [chain.last_valid_round(entered) for entered in range(3)] == [3, 3, None]


def test_a_view_is_read_as_it_was_written() -> None:
    view = View(3, ("a", "b"), 4, planned=True, entrants=(("b", 2),), reason="b taken in", expelled=("c",))
    assert TypeAdapter(View).validate_json(json.dumps(view.as_json())) == view


def test_asking_for_views() -> None:
    members = assembly()
    acceptor = members.acceptors["a"]
    near, far = View(2, ("a", "b", "c"), 7), View(3, ("a", "b"), 4)
    first, second = members.decision(near), members.decision(far, before=near)
    assert acceptor.handle(Decided((second,))) == Behind(1)
    assert acceptor.handle(Decided((first, second))) == Heard()
    assert acceptor.handle(Decided((first, second))) == Heard(), "again"
    assert acceptor.handle(Ask(1)) == Decided((first, second))
    assert acceptor.handle(Ask(1), most=1) == Decided((first,)), "so many at once"
    assert acceptor.handle(Ask(4)) == Behind(3)


def test_who_asks_to_be_taken_in_is_told_what_it_does_not_know() -> None:
    members = assembly().begin_with(View(2, ("a", "b"), 7))
    acceptor = members.acceptors["a"]

    def enter(number: int) -> Enter:
        return Enter(Signed("e", Entry(number, 4)))

    assert acceptor.handle(enter(2)) == Heard()
    assert acceptor.handle(enter(3)) == Heard(), "the asker knows more"
    assert acceptor.handle(enter(0)) == Decided((*acceptor.memory.decisions,))
    assert acceptor.chain.current.number == 2
    assert not acceptor.held


def test_planned_views_are_lived_in_one_after_the_other() -> None:
    one, two = View(1, IDS[:3], 5, planned=True), View(2, ("a", "b"), 8, planned=True)
    chain = ViewChain([View(0, IDS[:4], 0), one, two])
    assert [chain.after(number, "a") for number in range(2)] == [one, two]
    assert [chain.after(number, "c") for number in range(2)] == [one, None], "who leaves lives in all that have it"


def test_who_has_come_by_planned_views_alone_has_the_last_round_of_each_on_disk() -> None:
    back, one, two = View(1, IDS[:3], 4), View(2, IDS[:4], 9, planned=True), View(3, IDS, 9, planned=True)
    chain = ViewChain([View(0, IDS[:4], 0), back, one, two])
    assert [chain.last_rounds(number) for number in range(4)] == [{}, {}, {1: 8}, {2: 8, 1: 8}]


def test_what_a_decided_view_says_that_a_member_has() -> None:
    taken_in = View(2, IDS, 9, planned=True, entrants=(("e", 3),))
    chain = ViewChain([ALL, View(1, IDS[:4], 5), taken_in, View(3, IDS, 12, planned=True)])
    assert [chain.floor(id) for id in "ae"] == [4, 8]
    assert ViewChain([ALL]).floor("a") == -1


def test_what_lies_before_a_view_for_which_all_go_back_is_passed_over() -> None:
    planned, back = View(1, IDS[:3], 9, planned=True), View(2, IDS[:2], 4)
    assert ViewChain([ALL, planned, back]).after(0, "a") == back
    later = View(3, ("a", "b", "e"), 6, planned=True, entrants=(("e", 2),))
    chain = ViewChain([ALL, planned, back, later])
    assert chain.after(0, "a") == back
    assert chain.after(2, "a") == later
    assert chain.after(0, "e") == later


def test_who_is_taken_in_lives_in_that_view_next_even_if_it_is_planned() -> None:
    without, again = View(1, ("a", "b"), 5), View(2, IDS[:3], 8, planned=True, entrants=(("c", 4),))
    chain = ViewChain([ALL, without, again])
    assert chain.after(0, "c") == again
    assert (chain.after(0, "a"), chain.after(1, "a")) == (without, again)


@given(st.data(), st.integers(1, 9))
def test_two_quorums_have_a_member_in_common(data: st.DataObject, size: int) -> None:
    view = View(1, tuple(map(str, range(size))), 0)
    one, other = (data.draw(st.sets(st.sampled_from([*view.members, "outside"]))) for _ in range(2))
    assert view.is_quorum(view.members, 0)
    assert not (view.is_quorum(one, 0) and view.is_quorum(other, 0)) or one & other & {*view.members}
    assert not (view.is_quorum(one, 0) and view.is_quorum({*view.members} - one, 0))
    assert view.is_quorum(one, 0) or view.is_quorum({*view.members} - one, 0), "of two halves one decides"


LOST = {
    0: [1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6],
    1: [1, 1, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5],
    2: [1, 1, 1, 1, 2, 2, 2, 3, 3, 4, 4, 5],
    3: [1, 1, 1, 1, 2, 2, 2, 3, 3, 3, 4, 4],
    4: [1, 1, 1, 1, 2, 2, 2, 3, 3, 3, 4, 4],
}
"""By f: how many of 2, 3, 4 ... 13 members can be lost at once; of an even number half, if f is 0 and the first stays.

Of fewer than 3f + 1 members no more lie than of so many can.
"""
SIZES = [(size, faulty) for faulty in LOST for size in range(2, 14)]


@pytest.mark.parametrize(("size", "faulty"), SIZES)
def test_so_many_members_can_be_lost_at_once(size: int, faulty: int) -> None:
    view, lost = View(0, tuple(map(str, range(size))), 0), LOST[faulty][size - 2]
    assert view.is_quorum(view.members[: size - lost], faulty)
    assert not view.is_quorum(view.members[: size - lost - 1], faulty)
    assert lost >= view.tolerates(faulty), "who lies cannot hold up the rest by silence"


@pytest.mark.parametrize(("size", "faulty"), SIZES)
def test_two_quorums_share_an_honest_member(size: int, faulty: int) -> None:
    view, least = View(0, tuple(map(str, range(size))), 0), size - LOST[faulty][size - 2]
    liars = view.tolerates(faulty)
    assert 3 * liars < size
    for one in combinations(view.members, least):
        if not view.is_quorum(one, faulty):
            continue
        # Shared with any other: as many liars as there are, and one more; else those beside it with the liars decided.
        rest = {*view.members} - {*one}
        assert not any(view.is_quorum(rest.union(two), faulty) for two in combinations(one, liars))


AGAIN = (  # who has promised what and who asks to enter, until all but a are admitted in the same round
    ({"a": (4, 6), "b": (4, 6)}, (), False),
    ({"a": (8, 9), "b": (8, 9)}, ("c", "d"), False),
    ({"a": (9, 10), "c": (9, 10), "d": (9, 10)}, (), False),
)


@pytest.mark.parametrize(
    "last",
    [({"a": (9, 9), "c": (9, 9), "d": (9, 9)}, (), True), ({"c": (9, 10), "d": (9, 10)}, (), False)],
    ids=["a leaves", "a is lost"],
)
@pytest.mark.parametrize("hands_over", [True, False])
def test_no_view_is_of_those_alone_that_need_what_another_has(hands_over: bool, last: Any) -> None:
    """They would wait for one another without end."""
    rules, chain, found = Rules(IDS[:4], rounds=50, hands_over=hands_over), ViewChain([View(0, IDS[:4], 0)]), None
    for promises, entering, leaves in (*AGAIN, last):
        number, ballot, proposer = chain.current.number + 1, Ballot(1, min(promises)), min(promises)
        promised = tuple(Signed(id, Promise(number, ballot, *at)) for id, at in promises.items())
        entries = tuple(Signed(id, Entry(number - 1, 4)) for id in entering)
        found = next_view(chain, proposer, Grounds(promised, entries=entries, leaves=leaves), rules)
        if found:
            chain.extend(found)
    assert chain.current.number == (3 if hands_over else 4)
    assert found is None or {id for id, _ in found.entrants} == {*found.members} == {"c", "d"}
