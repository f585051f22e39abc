"""Members that leave, and members that are voted out: what comes of it in one attempt, and what is kept."""

import json

from peer.views.acceptor import Acceptor
from peer.views.messages import (
    Accept,
    Ballot,
    Consents,
    Decided,
    Denied,
    Expel,
    Heard,
    Leave,
    Poll,
    Prepare,
    Promise,
    Refused,
)
from peer.views.proposal import Proposal
from peer.views.wish import Wish, next_view

from peer.views.view import Chain, View

IDS = ("a", "b", "c", "d")
BEGINNING = View(0, IDS[:3], 0)


def promise(durable: int = 5, started: int = 7) -> Promise:
    return Promise(1, Ballot(1, "a"), durable, oldest=0, started=started, private=-1, accepted=None)


def test_who_leaves_plays_its_last_view_to_the_end_and_who_is_lost_does_not() -> None:
    planned, without = View(1, IDS, 5, planned=True), View(2, ("a", "b"), 8, planned=True)
    chain = Chain([View(0, IDS, 0), planned, without])
    assert [chain.is_over(number, "c") for number in range(3)] == [False, False, True]
    assert [chain.is_over(number, "a") for number in range(3)] == [False, False, False]
    chain.extend(View(3, ("a",), 7))
    assert [chain.is_over(number, id) for number in range(3) for id in "ac"] == [True] * 6, "then its rounds are void"
    assert chain.after(1, "c") is None


def test_who_is_voted_out_has_no_say_in_it_and_is_never_taken_in_again() -> None:
    promises = {"a": promise(), "b": promise(), "c": promise(durable=0, started=99)}
    view = next_view(BEGINNING, promises, Wish(expel=frozenset("c"), unanimous=True), IDS)
    assert view
    assert (view.members, view.first, view.planned, view.expelled) == (("a", "b"), 6, False, ("c",))
    promises = {id: promise(durable=7, started=9) for id in "ab"}
    again = next_view(view, promises, Wish(enter={"c": 5, "d": -1}, unanimous=True), IDS)
    assert again
    assert (again.members, again.planned, again.expelled) == (("a", "b", "d"), True, ("c",))


def test_who_is_away_can_be_voted_out() -> None:
    view = View(1, ("a", "b"), 5)
    promises = {id: promise() for id in "ab"}
    found = next_view(view, promises, Wish(expel=frozenset("c"), unanimous=True), IDS)
    assert found
    assert (found.members, found.planned, found.expelled) == (("a", "b"), True, ("c",))
    assert next_view(found, promises, Wish(expel=frozenset("c")), IDS) is None


def test_a_consent_is_kept_and_told_and_over_when_its_one_is_out() -> None:
    acceptor = Acceptor("a", Chain([BEGINNING]))
    assert acceptor.hear(Expel(0, "c")) == Heard()
    assert acceptor.hear(Expel(0, "c")) == Heard()
    assert isinstance(acceptor.hear(Expel(0, "a")), Denied)
    acceptor = Acceptor.load(json.loads(json.dumps(acceptor.state_dict())))
    assert acceptor.hear(Poll(0)) == Consents(("c",))
    assert not acceptor.held
    out = View(1, ("a", "b"), 5, expelled=("c",))
    acceptor.hear(Decided((out,)))
    assert acceptor.hear(Poll(1)) == Consents(())
    assert acceptor.hear(Poll(0)) == acceptor.hear(Expel(0, "c")) == Decided((out,))


def test_nobody_is_held_by_one_that_enough_have_voted_out() -> None:
    acceptor = Acceptor("a", Chain([BEGINNING]))
    acceptor.unheard = frozenset("c")
    ballot = Ballot(9, "c")
    assert acceptor.hear(Prepare(1, ballot)) == Refused(1, ballot)
    assert acceptor.hear(Accept(1, ballot, View(1, ("c",), 0))) == Refused(1, ballot)
    assert not acceptor.held


def test_an_attempt_to_vote_one_out_is_not_outdone_by_that_one() -> None:
    proposal = Proposal(Chain([BEGINNING]), Ballot(1, "a"), Wish(expel=frozenset("c")), IDS)
    assert proposal.requests().keys() == {"a"}
    proposal.answered("a", promise())
    assert proposal.requests().keys() == {"b"}
    proposal.answered("c", promise(durable=-1))
    proposal.answered("b", Refused(1, Ballot(9, "c")))
    assert (proposal.state, proposal.outdone_by) == ("short", Ballot(9, "c"))


def test_who_leaves_hears_that_it_has_left() -> None:
    acceptor = Acceptor("c", Chain([BEGINNING]))
    assert acceptor.hear(Leave(0)) == Heard()
    without = View(1, ("a", "b"), 5, planned=True)
    acceptor.hear(Decided((without,)))
    assert acceptor.hear(Leave(0)) == Decided((without,))


def test_views_that_were_kept_before_anybody_could_be_voted_out_are_read() -> None:
    kept = Acceptor("a", Chain([BEGINNING])).state_dict()
    del kept["consents"], kept["chain"][0]["expelled"]
    assert Acceptor.load(kept).chain.current == BEGINNING
