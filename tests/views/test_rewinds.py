"""Views that the operators have set, as all went back past a change of members, and members that have forgotten."""

from dataclasses import replace

import pytest
from assembly import AT_FIVE, ONE, Assembly, restarted
from keyrings import FEDERATION, files, keyring

from peer.views.decision import Acceptor, Memory
from peer.views.signing import CertifiedKeyring
from peer.views.statements import (
    Announcement,
    AskPromise,
    Ballot,
    Consent,
    Decided,
    Decision,
    Entry,
    Guilt,
    InvalidError,
    Prepare,
    Promise,
    Refused,
    Statement,
    Vote,
)
from peer.views.view import View, ViewChain

WITHOUT_D = View(1, ("a", "b", "c"), 6, reason="d silent for 30 s")
BACK = View(2, ("a", "b", "c"), 5)
"""All go back to round 4."""


def rewound() -> Assembly:
    """All have gone back after they had lost d."""
    assembly = Assembly().begin_with(WITHOUT_D)
    assembly.rules = replace(assembly.rules, rewinds=(BACK,))
    for id, acceptor in assembly.acceptors.items():
        ring = CertifiedKeyring(id, FEDERATION, lambda id=id: files(id, "CA"), rewinds=(BACK,))  # type: ignore[misc]
        assembly.keyrings[id] = ring
        assembly.acceptors[id] = Acceptor(acceptor.memory, assembly.rules, ring)
    return assembly


def test_all_follow_what_the_operators_have_set_whoever_tells_them_of_the_views_before() -> None:
    assembly = rewound()
    late = Acceptor(Memory("d"), assembly.rules, assembly.keyrings["d"])
    assert not late.follow_rewinds()
    assert late.awaited_view == 1
    for acceptor in assembly.acceptors.values():
        assert acceptor.follow_rewinds()
        assert not acceptor.follow_rewinds()
        assert acceptor.chain.current.members == BACK.members
        assert acceptor.chain.current.reason == "a, b, c went back to round 4; d silent for 30 s"
        assert restarted(acceptor).chain.since(-1) == acceptor.chain.since(-1)
    late.handle(Decided((assembly.acceptors["a"].memory.decisions[0],)))
    assert late.chain.since(-1) == assembly.acceptors["a"].chain.since(-1)
    assert late.awaited_view is None


def test_no_votes_decide_on_another_view_of_its_number() -> None:
    """Not even those of all, as they may be of before."""
    assembly, other = rewound(), View(2, ("c",), 9)
    decision = assembly.decision(other)
    late = Acceptor(Memory("d"), assembly.rules, assembly.keyrings["d"])
    with pytest.raises(InvalidError, match="another view 2 than the one that was decided: another view than the one"):
        late.handle(Decided((*assembly.acceptors["a"].memory.decisions, decision)))
    acceptor = assembly.acceptors["a"]
    acceptor.memory.decisions.append(decision)
    with pytest.raises(InvalidError, match="another view than the one that `rewinds` sets"):
        restarted(acceptor)


def test_no_view_of_another_number_goes_without_votes() -> None:
    assembly = rewound()
    assembly.acceptors["a"].follow_rewinds()
    without_b = Decision(View(3, ("a", "c"), 5), Ballot(1, "a"), ())
    assert assembly.refuses("a", without_b) == "votes by too few members"


@pytest.mark.parametrize(
    ("statement", "counts"),
    [
        (Prepare(1, ONE), True),
        (Prepare(2, ONE), False),
        (Promise(3, ONE, 5, 6), False),
        (Vote("commit", 1, ONE, "0" * 64), True),
        (Vote("commit", 3, ONE, "0" * 64), False),
        (Announcement(1, 7), True),
        (Announcement(2, 7), False),
        (Entry(1, 3), True),
        (Entry(2, 3), False),
        (Consent("b"), True),
    ],
    ids=str,
)
def test_what_was_signed_before_counts_for_the_views_before_alone(statement: Statement, counts: bool) -> None:
    """Where all come from backups, views of these numbers may have been voted on that nobody honest remembers."""
    assert rewound().keyrings["a"].is_valid(keyring("b").sign(statement)) == counts


def test_a_proof_of_guilt_that_was_signed_before_is_no_proof_afterwards() -> None:
    """With it nothing could be decided any more: all who have it would propose by it."""
    assembly = rewound()
    acceptor = assembly.acceptors["a"]
    for number in (1, 2):
        two = (keyring("b").sign(Vote("commit", number, ONE, digest * 64)) for digest in "01")
        acceptor.memory.guilt.append(Guilt(*two))
    acceptor.follow_rewinds()
    assert [guilt.one.statement.number for guilt in acceptor.memory.guilt] == [1]


def test_who_was_voted_out_stays_out() -> None:
    assembly = rewound()
    court, view = assembly.acceptors["a"].verifier, replace(WITHOUT_D, expelled=("d",))
    set_by_operators = court.rewind_after(view)
    assert set_by_operators
    assert set_by_operators.view.expelled == ("d",)


def test_who_was_taken_in_after_the_round_to_which_all_went_back_is_a_member_from_before() -> None:
    taken_in = View(1, ("a", "b", "c"), 5, entrants=(("c", 2),))
    again = View(2, ("a", "b", "c"), 9, planned=True, entrants=(("b", 7),))
    back = View(3, ("a", "b", "c"), 7)
    chain = ViewChain([View(0, ("a", "b", "c"), 0), taken_in, again, back])
    assert chain.admission("b") == (0, -1)
    assert chain.admission("c") == (5, 2)
    assert ViewChain(chain.since(-1)[:3]).admission("b") == (9, 7)


def test_a_member_of_two_views_in_a_row_that_remembers_no_promise_has_forgotten_it() -> None:
    assembly = Assembly()
    acceptors = assembly.acceptors
    for id in "ab":
        acceptors[id].handle(AskPromise(assembly.keyrings["a"].sign(Prepare(1, ONE))), AT_FIVE)
    decided = Decided((assembly.decision(WITHOUT_D),))
    for acceptor in acceptors.values():
        acceptor.handle(decided)
    assert {id: one.has_forgotten for id, one in acceptors.items()} == {"a": False, "b": False, "c": True, "d": False}
    assert restarted(acceptors["c"]).has_forgotten, "and after a restart"
    request = AskPromise(assembly.keyrings["a"].sign(Prepare(2, ONE)))
    assert isinstance(acceptors["c"].handle(request, AT_FIVE), Refused), "which a promise would hide"
    assert acceptors["c"].has_forgotten
    later = View(2, ("a", "b"), 6), View(3, ("a", "b", "c"), 8, planned=True, entrants=(("c", -1),))
    assembly.begin_with(*later)
    assert not acceptors["c"].has_forgotten, "it was left out, and taken in anew"
    other = Assembly().begin_with(WITHOUT_D)
    for view in later:
        other.acceptors["a"].handle(Decided((other.decision(view),)))
    assert other.acceptors["a"].has_forgotten, "it has promised for the first view alone"


def test_no_promise_is_needed_for_what_the_operators_have_set() -> None:
    acceptor = rewound().acceptors["c"]  # it may come from a backup, in which no promise is
    assert not acceptor.has_forgotten
    acceptor.follow_rewinds()
    assert not acceptor.has_forgotten
