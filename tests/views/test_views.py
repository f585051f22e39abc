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
    Heard,
    Prepare,
    Promise,
    Refused,
    Release,
)
from peer.views.proposal import Proposal
from peer.views.view import Chain, ConflictError, View
from peer.views.wish import Wish

IDS = ("a", "b", "c", "d", "e")
BEGINNING = View(0, IDS[:4], 0)
STANDING = {"a": Standing(3, 5, 5), "b": Standing(2, 5, 5), "c": Standing(3, 6, 5), "d": Standing(4, 6, 6)}


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
    proposal = attempt(Wish(enter={"e": 7}), STANDING)
    assert proposal.view == View(1, IDS, 7, planned=True, entrants=(("e", 7),))


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


def test_who_was_taken_in_and_has_no_checkpoint_is_taken_in_again() -> None:
    proposal = attempt(Wish(), {**STANDING, "b": Standing(None, 5, 4)}, lost="c")
    assert proposal.view == View(1, ("a", "b", "d"), 4, entrants=(("b", 4),))


def test_without_any_checkpoint_all_begin_anew() -> None:
    proposal = attempt(Wish(enter={"e": 2}), dict.fromkeys(IDS, Standing(None, 5, 4)), lost="c")
    assert proposal.view == View(1, ("a", "b", "d", "e"), 0)


def test_a_member_that_answers_with_a_checkpoint_does_not_enter() -> None:
    assert attempt(Wish(enter={"b": 1}), STANDING).state == "released"


def test_all_go_back_where_the_rounds_that_have_begun_cannot_be_finished() -> None:
    assert attempt(Wish(rollback=True), STANDING).view == View(1, BEGINNING.members, 3)
    forgetful = {**STANDING, "b": Standing(None, 5, 4)}
    assert attempt(Wish(enter={"b": 4}), forgetful).view == View(1, BEGINNING.members, 4, entrants=(("b", 4),))


def test_a_planned_view_does_not_begin_before_the_present_one() -> None:
    chain = Chain([BEGINNING, View(1, ("a",), 9, planned=True)])
    proposal = Proposal(chain, Ballot(1, "a"), Wish(enter={"b": 0}), IDS)
    proposal.answered("a", Promise(2, Ballot(1, "a"), 3, 5, 5, None))
    assert proposal.view == View(2, ("a", "b"), 9, planned=True, entrants=(("b", 0),))


def test_the_own_promise_is_on_disk_before_others_are_asked() -> None:
    proposal = Proposal(Chain([BEGINNING]), Ballot(1, "b"), Wish(), IDS)
    assert proposal.requests().keys() == {"b"}
    proposal.answered("b", Promise(1, Ballot(1, "b"), 0, 0, 0, None))
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
    proposal.answered("a", Promise(2, Ballot(1, "a"), 0, 0, 0, None))
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
