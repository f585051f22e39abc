"""A view says of everybody who is not in it why, also of those who were out before."""

import pytest
from assembly import Assembly
from hypothesis import given
from hypothesis import strategies as st

from peer.views.decision import MemberProgress, MembershipChange
from peer.views.reasons import (
    FORGETFUL,
    LEAVES,
    LIAR,
    TAKEN_IN,
    ReasonNews,
    compose_reason,
    silent_reason,
    voted_out_reason,
)
from peer.views.statements import Entry, Signed
from peer.views.view import MAX_REASON_LENGTH

IDS = tuple("abcdefg")
FORGOTTEN = MemberProgress(durable=-1, started=5)


def lived(*attempts: tuple[MembershipChange, str, str], forgetful: str = "") -> list[str]:
    """The reasons of the views that are decided one after the other; of each the wish, by whom, and who does not
    answer. `forgetful`: who promises less than the last view says it has."""
    members, reasons = Assembly("abcdefg", faulty=0, signed=False), list[str]()
    for wish, by, lost in attempts:
        standing = dict.fromkeys(forgetful, FORGOTTEN) if reasons else {}
        made = members.attempt(wish, by, lost, standing)
        assert made.decision
        reasons.append(made.decision.view.reason)
    return reasons


def test_of_two_that_are_lost_one_after_the_other_both_are_explained() -> None:
    assert lived((MembershipChange(), "a", "c"), (MembershipChange(), "a", "cd")) == [
        "c silent for 30 s",
        "c, d silent for 30 s",
    ]


def test_of_two_that_are_lost_at_once_both_are_explained() -> None:
    assert lived((MembershipChange(), "a", "cd")) == ["c, d silent for 30 s"]


def test_each_keeps_the_reason_of_its_own_until_it_is_back() -> None:
    back = MembershipChange(entries=(Signed("c", Entry(3, -1)),), unanimous=True)
    told = lived(
        (MembershipChange(), "a", "c"),
        (MembershipChange(leaves=True), "b", "c"),
        (MembershipChange(), "a", "bcd"),
        (back, "a", "bd"),
        forgetful="e",
    )
    assert told == [
        "c silent for 30 s",
        f"e {FORGETFUL}; b leaves; c silent for 30 s",
        f"c, d silent for 30 s; e {FORGETFUL}; b left",
        f"c taken in; d silent for 30 s; e {FORGETFUL}; b left",
    ]


@pytest.mark.parametrize("what", [silent_reason(0.5), silent_reason(1e7), voted_out_reason("ab"), LIAR, FORGETFUL])
def test_every_reason_is_kept(what: str) -> None:
    later = compose_reason([("d", TAKEN_IN)], compose_reason([("ef", what)], "", "", IDS), "ef", IDS)
    assert later == f"d taken in; e, f {what}"


def test_who_left_has_left_from_the_next_view_on() -> None:
    assert compose_reason([("a", silent_reason(4))], f"e {LEAVES}", "e", IDS) == "a silent for 4 s; e left"


LONG = tuple(f"hospital-{at:02}-of-a-town" for at in range(30))


def test_a_long_one_names_some_of_each_and_counts_the_rest() -> None:
    news: list[ReasonNews] = [(LONG[:9], silent_reason(4)), (LONG[9:11], voted_out_reason(LONG[15:]))]
    told = compose_reason(news, "", (), LONG)
    assert len(told) <= MAX_REASON_LENGTH
    assert "and 5 more silent for 4 s; " in told
    assert told.endswith(" and others")
    later = compose_reason([(LONG[11:12], FORGETFUL)], told, LONG[:11], LONG)
    assert later.endswith(" and others; 5 more out before")


@given(
    st.lists(
        st.tuples(
            st.sets(st.sampled_from(LONG)), st.sampled_from([silent_reason(4), voted_out_reason(LONG), LIAR, LEAVES])
        )
    ),
    st.text(" -~;,", max_size=MAX_REASON_LENGTH),
    st.sets(st.sampled_from(LONG)),
)
def test_it_is_never_too_long(news: list[ReasonNews], before: str, out: set[str]) -> None:
    assert len(compose_reason(news, before, out, LONG)) <= MAX_REASON_LENGTH
