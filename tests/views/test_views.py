"""Views, their chain, quorums, and what comes of one undisturbed attempt."""

import json
import subprocess
import sys
from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st
from peer.views.acceptor import Acceptor, Standing
from peer.views.messages import (
    Accept,
    Accepted,
    Ask,
    Ballot,
    Behind,
    Decided,
    Enter,
    Heard,
    Prepare,
    Promise,
    Refused,
    Release,
    Vote,
)
from peer.views.proposal import Proposal
from peer.views.wish import Wish

from peer.views.view import Chain, ConflictError, View

IDS = ("a", "b", "c", "d", "e")
BEGINNING = View(0, IDS[:4], 0)
STANDING = {
    id: Standing(*at, -1) for id, at in {"a": (3, 0, 5), "b": (2, 0, 5), "c": (3, 0, 6), "d": (4, 0, 6)}.items()
}


def attempt(wish: Wish, standing: Mapping[str, Standing], lost: str = "", by: str = "a") -> Proposal:
    """One attempt of `a` after view 0; `lost` do not answer."""
    chains = {id: Chain([BEGINNING]) for id in BEGINNING.members}
    acceptors = {id: Acceptor(id, chain) for id, chain in chains.items()}
    proposal = Proposal(chains[by], acceptors[by].next_ballot(), wish, IDS)
    while not proposal.over and (requests := proposal.requests()):
        for id, request in requests.items():
            if id in lost:
                proposal.failed(id)
            else:
                proposal.answered(id, acceptors[id].hear(request, standing[id]))
    for id, request in proposal.requests().items():
        if id in acceptors and id not in lost:
            acceptors[id].hear(request, standing[id])
    assert not any(acceptors[id].held for id in acceptors if id not in lost) or proposal.state == "short"
    return proposal


def test_the_rest_go_on_without_one_from_the_last_round_that_all_of_them_have() -> None:
    proposal = attempt(Wish(reason="c was lost"), STANDING, lost="c")
    assert proposal.state == "decided"
    assert proposal.view == View(1, ("a", "b", "d"), 3, reason="c was lost")


def test_one_is_taken_in_after_the_last_round_that_has_begun() -> None:
    proposal = attempt(Wish(enter={"e": 6}), STANDING)
    assert proposal.view == View(1, IDS, 7, planned=True, entrants=(("e", 6),))
    void = attempt(Wish(enter={"e": 7}), STANDING)
    assert void.view == View(1, IDS, 7, planned=True, entrants=(("e", -1),)), "the others have not played that round"


def test_one_leaves_and_all_play_their_rounds_to_the_end() -> None:
    assert attempt(Wish(leave=frozenset("b")), STANDING).view == View(1, ("a", "c", "d"), 7, planned=True)


def test_a_false_alarm_changes_nothing() -> None:
    proposal = attempt(Wish(reason="c was silent"), STANDING)
    assert proposal.state == "released"
    assert proposal.view is None


def test_half_decides_with_the_first_member_only() -> None:
    assert attempt(Wish(), STANDING, lost="cd").state == "decided"
    assert attempt(Wish(), STANDING, lost="ab", by="c").state == "short"


def test_never_fewer_members_than_wished() -> None:
    assert attempt(Wish(at_least=4), STANDING, lost="c").state == "short"
    assert attempt(Wish(at_least=4, leave=frozenset("c")), STANDING).state == "released"


def test_who_was_taken_in_and_cannot_go_back_so_far_is_taken_in_once_more_with_what_it_brought() -> None:
    one_of_them = {**STANDING, "d": Standing(4, 5, 4, 4)}
    proposal = attempt(Wish(), one_of_them, lost="c")
    assert proposal.view == View(1, ("a", "b", "d"), 3, entrants=(("d", -1),)), "what it brought would be void"
    proposal = attempt(Wish(enter={"e": 1}), {**one_of_them, "d": Standing(4, 5, 4, 2)}, lost="c")
    assert proposal.view == View(1, ("a", "b", "d", "e"), 3, entrants=(("d", 2), ("e", 1)))


def test_who_was_taken_in_goes_back_with_the_others_to_rounds_that_it_has_played() -> None:
    entered = {**dict.fromkeys(IDS, Standing(3, 0, 5, -1)), "d": Standing(4, 3, 6, 1)}
    assert attempt(Wish(), entered, lost="c").view == View(1, ("a", "b", "d"), 4)
    before_its_first = {**entered, "d": Standing(3, 4, 3, 1)}
    assert attempt(Wish(), before_its_first, lost="c").view == View(1, ("a", "b", "d"), 4, entrants=(("d", 1),))


def test_nobody_is_taken_in_where_all_begin_anew() -> None:
    begin = {**STANDING, "a": Standing(-1, 0, 1, -1), "b": Standing(4, 5, 5, 2)}
    assert attempt(Wish(enter={"e": 2}), begin, lost="c").view == View(1, ("a", "b", "d", "e"), 0)


def test_nothing_is_proposed_unless_all_promise_if_so_wished() -> None:
    wish = Wish(enter={"e": 2}, unanimous=True)
    assert attempt(wish, STANDING, lost="c").state == "short"
    assert attempt(wish, STANDING).view == View(1, IDS, 7, planned=True, entrants=(("e", 2),))
    assert attempt(Wish(unanimous=True), STANDING).state == "released"


def test_what_was_accepted_is_proposed_again_even_if_not_all_promise() -> None:
    view = View(1, ("a", "b"), 3)
    proposal = Proposal(Chain([BEGINNING]), Ballot(2, "a"), Wish(unanimous=True), IDS)
    proposal.answered("a", Promise(1, Ballot(2, "a"), 3, 0, 5, -1, Vote(Ballot(1, "b"), view)))
    for id in ("b", "c"):
        proposal.answered(id, Promise(1, Ballot(2, "a"), 3, 0, 5, -1, None))
    proposal.failed("d")
    assert (proposal.state, proposal.view) == ("accepting", view)


def test_a_member_that_answers_with_a_checkpoint_does_not_enter() -> None:
    assert attempt(Wish(enter={"b": 1}), STANDING).state == "released"


def test_all_go_back_where_the_rounds_that_have_begun_cannot_be_finished() -> None:
    assert attempt(Wish(rollback=True), STANDING).view == View(1, BEGINNING.members, 3)


def test_a_planned_view_does_not_begin_before_the_present_one() -> None:
    chain = Chain([BEGINNING, View(1, ("a",), 9, planned=True)])
    proposal = Proposal(chain, Ballot(1, "a"), Wish(enter={"b": 0}), IDS)
    proposal.answered("a", Promise(2, Ballot(1, "a"), 3, 0, 5, -1, None))
    assert proposal.view == View(2, ("a", "b"), 9, planned=True, entrants=(("b", 0),))


def test_the_own_promise_is_on_disk_before_others_are_asked() -> None:
    proposal = Proposal(Chain([BEGINNING]), Ballot(1, "b"), Wish(), IDS)
    assert proposal.requests().keys() == {"b"}
    proposal.answered("b", Promise(1, Ballot(1, "b"), 0, 0, 0, -1, None))
    assert proposal.requests().keys() == {"a", "c", "d"}
    assert not proposal.requests(), "each is given once"


def test_who_is_no_member_proposes_nothing() -> None:
    with pytest.raises(ValueError, match="e is no member of view 0"):
        Proposal(Chain([BEGINNING]), Ballot(1, "e"), Wish(), IDS)


def test_one_that_is_behind_is_told_and_asked_again() -> None:
    next_one = View(1, ("a", "b"), 2)
    proposal = Proposal(Chain([BEGINNING, next_one]), Ballot(1, "a"), Wish(), IDS)
    behind = Acceptor("b", Chain([BEGINNING]))
    proposal.requests()
    proposal.answered("a", Promise(2, Ballot(1, "a"), 0, 0, 0, -1, None))
    for kind in (Prepare, Decided, Prepare):
        request = proposal.requests()["b"]
        assert isinstance(request, kind)
        proposal.answered("b", behind.hear(request, STANDING["b"]))
    assert proposal.state == "released"


def test_one_that_is_outdated_hears_what_was_decided() -> None:
    next_one = View(1, ("a", "b"), 2)
    proposal = Proposal(Chain([BEGINNING]), Ballot(1, "a"), Wish(), IDS)
    ahead = Acceptor("b", Chain([BEGINNING, next_one]))
    proposal.answered("b", ahead.hear(Prepare(1, Ballot(1, "a")), STANDING["b"]))
    assert (proposal.state, proposal.newer) == ("outdated", (next_one,))


def test_a_promise_holds_through_a_restart_until_that_very_ballot_is_given_back() -> None:
    acceptor, ballot = Acceptor("a", Chain([BEGINNING])), Ballot(2, "b")
    acceptor.hear(Prepare(1, ballot), STANDING["a"])
    acceptor = Acceptor.load(json.loads(json.dumps(acceptor.state_dict())))
    assert acceptor.hear(Prepare(1, Ballot(2, "a")), STANDING["a"]) == Refused(1, ballot)
    acceptor.hear(Release(1, Ballot(1, "b")), STANDING["a"])
    assert acceptor.held
    acceptor.hear(Release(1, ballot), STANDING["a"])
    assert not acceptor.held
    late = Accept(1, Ballot(1, "c"), View(1, ("a",), 6, planned=True))
    assert acceptor.hear(late, STANDING["a"]) == Refused(1, ballot), "what it had outdone stays outdone"
    assert acceptor.next_ballot() == Ballot(3, "a")


def test_what_was_accepted_is_told_to_later_proposers_also_after_a_restart() -> None:
    acceptor, view = Acceptor("a", Chain([BEGINNING])), View(1, ("a", "b"), 2, entrants=(("b", 1),))
    assert acceptor.hear(Accept(1, Ballot(1, "b"), view), STANDING["a"]) == Accepted(1, Ballot(1, "b"))
    acceptor = Acceptor.load(json.loads(json.dumps(acceptor.state_dict())))
    promise = acceptor.hear(Prepare(1, Ballot(2, "c")), STANDING["a"])
    assert isinstance(promise, Promise)
    assert promise.accepted
    assert promise.accepted.view == view


def test_who_is_outside_promises_nothing() -> None:
    acceptor, ballot = Acceptor("d", Chain([BEGINNING, View(1, ("a", "b", "c"), 2)])), Ballot(1, "a")
    assert acceptor.hear(Prepare(2, ballot), STANDING["d"]) == Refused(2, ballot)
    assert not acceptor.held


def test_a_chain_takes_one_view_after_the_other_and_each_once() -> None:
    one, two = View(1, ("a", "b", "c"), 7), View(2, ("a", "b"), 4)
    chain = Chain([BEGINNING])
    with pytest.raises(ValueError, match="does not follow"):
        chain.extend(two)
    for view in (one, two, one):
        chain.extend(view)
    assert chain.current == two
    assert chain.since(0) == (one, two)
    assert chain.since(2) == ()
    with pytest.raises(ConflictError, match="two views of number 1"):
        chain.extend(View(1, ("a", "b"), 7))
    assert [chain.ceiling(entered) for entered in range(3)] == [3, 3, None]
    assert Chain.load(json.loads(json.dumps(chain.state_dict()))).since(-1) == chain.since(-1)


def test_asking_for_views() -> None:
    acceptor = Acceptor("a", Chain([BEGINNING]))
    far, near = View(2, ("a", "b"), 4), View(1, ("a", "b", "c"), 7)
    assert acceptor.hear(Decided((far,)), STANDING["a"]) == Behind(0)
    assert acceptor.hear(Decided((near, far)), STANDING["a"]) == Heard()
    assert acceptor.hear(Ask(0), STANDING["a"]) == Decided((near, far))
    assert acceptor.hear(Ask(3), STANDING["a"]) == Behind(2)


def test_who_asks_to_be_taken_in_is_told_what_it_does_not_know() -> None:
    one, two = View(1, ("a", "b"), 7), View(2, ("a",), 9)
    acceptor = Acceptor("a", Chain([BEGINNING, one, two]))
    assert acceptor.hear(Enter(2, "e", 4)) == Heard()
    assert acceptor.hear(Enter(3, "e", 4)) == Heard(), "the asker knows more"
    assert acceptor.hear(Enter(0, "e", 4)) == Decided((one, two))
    assert acceptor.chain.current == two
    assert not acceptor.held


def test_planned_views_are_lived_in_one_after_the_other() -> None:
    one, two = View(1, IDS[:3], 5, planned=True), View(2, ("a", "b"), 8, planned=True)
    chain = Chain([BEGINNING, one, two])
    assert [chain.after(number, "a") for number in range(2)] == [one, two]
    assert [chain.after(number, "c") for number in range(2)] == [one, None], "who leaves lives in all that have it"


def test_who_has_come_by_planned_views_alone_has_the_last_round_of_each_on_disk() -> None:
    back, one, two = View(1, IDS[:3], 4), View(2, IDS[:4], 9, planned=True), View(3, IDS, 9, planned=True)
    chain = Chain([BEGINNING, back, one, two])
    assert [chain.passed(number) for number in range(4)] == [{}, {}, {1: 8}, {2: 8, 1: 8}]


def test_what_lies_before_a_view_for_which_all_go_back_is_passed_over() -> None:
    planned, back = View(1, IDS[:3], 9, planned=True), View(2, IDS[:2], 4)
    assert Chain([BEGINNING, planned, back]).after(0, "a") == back
    later = View(3, ("a", "b", "e"), 6, planned=True, entrants=(("e", 2),))
    chain = Chain([BEGINNING, planned, back, later])
    assert chain.after(0, "a") == back
    assert chain.after(2, "a") == later
    assert chain.after(0, "e") == later


def test_who_is_taken_in_lives_in_that_view_next_even_if_it_is_planned() -> None:
    without, again = View(1, ("a", "b"), 5), View(2, IDS[:3], 8, planned=True, entrants=(("c", 4),))
    chain = Chain([BEGINNING, without, again])
    assert chain.after(0, "c") == again
    assert (chain.after(0, "a"), chain.after(1, "a")) == (without, again)


@given(st.data(), st.integers(1, 9))
def test_two_quorums_have_a_member_in_common(data: st.DataObject, size: int) -> None:
    view = View(1, tuple(map(str, range(size))), 0)
    one, other = (data.draw(st.sets(st.sampled_from([*view.members, "outside"]))) for _ in range(2))
    assert view.is_quorum(view.members)
    assert not (view.is_quorum(one) and view.is_quorum(other)) or one & other & {*view.members}
    assert not (view.is_quorum(one) and view.is_quorum({*view.members} - one))
    assert view.is_quorum(one) or view.is_quorum({*view.members} - one), "of two halves one decides"


def test_the_tables_are_printed() -> None:
    shown = subprocess.run([sys.executable, "-m", "peer.views"], capture_output=True, text=True, check=True).stdout
    for word in ("| held |", "bound by Accept", "| Prepare |", "| accepting |", "a false alarm"):
        assert word in shown
