"""The members whose attempts a member accepts: rules T1 to T4 of `peer/views/decision.py`."""

from hypothesis import given
from hypothesis import strategies as st

from peer.views.decision import PHASES_OF_ATTEMPT, Turns

PHASE = 4.0


class Clocked(Turns):
    """At the time that it is set to."""

    def __init__(self) -> None:
        self.now = 0.0
        super().__init__(PHASE, lambda: self.now)


def test_in_a_turn_nobody_else_is_listened_to_nor_its_own_member_again() -> None:
    turns = Clocked()
    assert turns.try_acquire("a")
    turns.now = 3.9
    assert not turns.try_acquire("a")
    assert not turns.try_acquire("b")
    assert turns.over_for == 0
    turns.now = 4.5
    assert turns.over_for == 0.5
    assert turns.try_acquire("b")


def test_a_turn_begins_anew_with_each_phase_and_ends_all_the_same() -> None:
    turns = Clocked()
    turns.try_acquire("a")
    for now in (3.0, 6.0, 9.0, 11.0):
        turns.now = now
        turns.advance("a")
        turns.advance("b")
        assert not turns.is_free("b")
    turns.now = PHASES_OF_ATTEMPT * PHASE
    turns.advance("a")
    assert turns.is_free("b")


def test_who_gives_up_ends_its_own_turn_only() -> None:
    turns = Clocked()
    turns.try_acquire("a")
    turns.end("b")
    assert not turns.is_free("b")
    turns.now = 0.5
    turns.end("a")
    assert turns.is_free("b")
    assert not turns.is_free("a")
    turns.now = 1.5
    assert turns.is_free("a"), "half a second of trying costs no more than one of waiting"


def test_what_is_decided_or_who_comes_back_makes_all_equal_again() -> None:
    turns = Clocked()
    turns.try_acquire("a")
    turns.now = 2 * PHASE
    assert not turns.is_free("a")
    turns.forget()
    assert turns.try_acquire("a")


def test_who_comes_back_makes_the_others_equal_again_but_not_itself() -> None:
    turns = Clocked()
    for member in ("a", "b"):
        turns.try_acquire(member)
        turns.now += PHASE
    assert not turns.is_free("a")
    turns.on_return("b")
    assert turns.is_free("a")
    assert not turns.is_free("b")
    assert turns.try_acquire("a")
    turns.on_return("a")
    assert not turns.try_acquire("c"), "it does not end its own turn either"


@given(st.lists(st.tuples(st.floats(0.0, 6.0), st.booleans()), max_size=400))
def test_two_that_come_and_go_clear_each_other_s_turns_ever_more_seldom(steps: list[tuple[float, bool]]) -> None:
    turns, returns = Clocked(), 0
    for wait, first in steps:
        turns.now += wait
        liar, other = ("a", "b") if first else ("b", "a")
        turns.try_acquire(liar)
        before = turns._returns[other]
        turns.on_return(other)
        returns += turns._returns[other] != before
    assert 2 ** (returns / 2) <= 4 + 2 * turns.now / PHASE


@given(st.lists(st.floats(0.0, 6.0), max_size=400), st.integers(1, 9))
def test_whoever_tries_and_tries_holds_each_member_ever_less(waits: list[float], members: int) -> None:
    """At whatever times, and at whichever of them: a half of the time at first, and after some time nearly nothing."""
    all_turns = [Clocked() for _ in range(members)]
    for at, wait in enumerate(waits):
        for turns in all_turns:
            turns.now += wait
        all_turns[at % members].try_acquire("liar")
    for turns in all_turns:
        turns.end()
        spent = turns._spent["liar"]
        assert 2 ** (spent / PHASE) <= 2 + turns.now / PHASE


def test_a_ballot_that_is_far_above_raises_others_only_now_and_then() -> None:
    turns = Clocked()
    assert turns.may_raise("a")
    assert not turns.may_raise("a")
    assert turns.may_raise("b")
    turns.now = PHASE
    assert turns.may_raise("a")
