"""What is kept of each member goes with the one whom it is about, through every change of members."""

from collections.abc import Mapping
from typing import cast

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from peer.protocols.cycle_gossip import CycleGossip
from peer.protocols.rffl import RFFL
from peer.runtime.rounds.admission import PerMemberState, ProtocolState, first_rows

EVERYBODY = ("a", "b", "c", "d", "e")
ROWS = PerMemberState(RFFL(), EVERYBODY)
some = st.sets(st.sampled_from(EVERYBODY), min_size=2).map(lambda ids: tuple(id for id in EVERYBODY if id in ids))


def state(reputation: Mapping[str, float], members: tuple[str, ...]) -> ProtocolState:
    rows = torch.tensor([reputation[id] for id in members], dtype=torch.float64)
    return {"reputation": rows, "remaining": rows > 0.3}


@given(st.lists(some, min_size=1, max_size=6), st.tuples(*[st.floats(0, 1) for _ in EVERYBODY]))
def test_whoever_comes_back_finds_its_row_and_nobody_has_anothers(
    views: list[tuple[str, ...]], values: tuple[float, ...]
) -> None:
    known = dict(zip(EVERYBODY, values, strict=True))
    kept, before = state(known, EVERYBODY), EVERYBODY
    for members in views:
        ROWS.remap(kept, before, members)
        assert kept["reputation"].tolist() == [known[id] for id in members]
        assert kept["remaining"].tolist() == [known[id] > 0.3 for id in members]
        before = members


@given(some, some, st.tuples(*[st.floats(0, 1) for _ in EVERYBODY]))
def test_what_is_handed_over_is_the_same_to_the_bit(
    members: tuple[str, ...], later: tuple[str, ...], values: tuple[float, ...]
) -> None:
    mine, others = state(dict(zip(EVERYBODY, values, strict=True)), EVERYBODY), cast(ProtocolState, {})
    ROWS.remap(mine, EVERYBODY, members)
    for name in ("reputation", "remaining"):
        ROWS.take_over(others, name, ROWS.numbers(mine, name, members), members)
    for one in (mine, others):
        ROWS.remap(one, members, later)
    assert mine.keys() == others.keys()
    assert all(mine[name].equal(others[name]) and mine[name].dtype == others[name].dtype for name in mine)


def test_one_who_was_never_there_is_taken_for_the_mean_of_the_others() -> None:
    kept = state({"a": 0.2, "b": 0.6}, ("a", "b"))
    ROWS.remap(kept, ("a", "b"), EVERYBODY)
    assert kept["reputation"].tolist() == pytest.approx([0.2, 0.6, 0.4, 0.4, 0.4])
    assert kept["remaining"].tolist() == [False, True, True, True, True]


def test_rows_of_several_numbers_move_too() -> None:
    kept: ProtocolState = {"opinions": torch.arange(10.0).reshape(5, 2)}
    PerMemberState(CycleGossip(), EVERYBODY).remap(kept, EVERYBODY, ("b", "e"))
    assert kept["opinions"].tolist() == [[2, 3], [8, 9]]


def test_at_first_everybody_has_what_is_declared() -> None:
    kept: ProtocolState = {}
    first_rows(RFFL(), kept, 3)
    assert kept["reputation"].tolist() == [0, 0, 0]
    assert kept["remaining"].tolist() == [True] * 3
