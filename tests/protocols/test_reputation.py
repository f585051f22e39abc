"""Reputations, credits and rewards: what holds of them whatever the updates are."""

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from peer.learning.model.layout import TensorSlot
from peer.protocols.blocks.updates import portions, reputable
from peer.protocols.blocks.vectors import largest, largest_of_each
from peer.protocols.cffl import CFFL
from peer.protocols.cgsv import CGSV

VECTORS = arrays.arrays(np.float32, 30, elements=st.floats(-8, 8, width=32))
LAYOUT = (
    TensorSlot("a", (4, 5), "float32", "extractor", 0, 20, True),
    TensorSlot("b", (7,), "float32", "extractor", 20, 7, True),
    TensorSlot("c", (3,), "float32", "head", 27, 3, True),
)


@settings(max_examples=30)
@given(VECTORS, st.floats(0, 1))
def test_a_reward_is_the_largest_entries_of_each_tensor(values: Any, share: float) -> None:
    vector = torch.from_numpy(values)
    masked = largest_of_each(LAYOUT, vector, share)
    for entry in LAYOUT:
        whole, part = entry.view(vector).flatten(), entry.view(masked).flatten()
        kept = part != 0
        assert torch.equal(part[kept], whole[kept])
        count = int(np.ceil(share * entry.size))
        assert kept.sum() == min(count, int((whole != 0).sum()))
        if kept.any() and not kept.all():
            assert whole[kept].abs().min() >= whole[~kept].abs().max() or count > kept.sum()


@settings(max_examples=30)
@given(VECTORS, st.floats(0, 1), st.floats(0, 1))
def test_the_higher_reward_holds_the_lower_one(values: Any, one: float, other: float) -> None:
    vector = torch.from_numpy(values) + torch.arange(30) * 1e-3
    less, more = (largest_of_each(LAYOUT, vector, share) for share in sorted((one, other)))
    assert ((less == 0) | (less == more)).all()
    assert torch.equal(largest_of_each(LAYOUT, vector, 1.0), vector)
    assert not largest_of_each(LAYOUT, vector, 0.0).any()
    assert torch.equal(largest_of_each(LAYOUT, vector, one), largest_of_each(LAYOUT, vector.clone(), one))


def test_few_and_no_entries() -> None:
    vector = torch.tensor([0.1, -3.0, 2.0])
    assert largest(vector, 0).tolist() == [0, 0, 0]
    assert largest(vector, 1).tolist() == [0, -3, 0]
    assert torch.equal(largest(vector, 9), vector)


@settings(max_examples=30)
@given(arrays.arrays(np.float64, 6, elements=st.floats(0, 1)), arrays.arrays(np.bool_, 6).filter(np.any))
def test_reputations_are_parts_of_a_whole_and_somebody_always_remains(values: Any, among: Any) -> None:
    mask = torch.from_numpy(among)
    found = portions(torch.from_numpy(values), mask)
    assert float(found.sum()) == pytest.approx(1)
    assert not found[~mask].any()
    staying = reputable(found, mask, 1 / 3)
    assert staying.any()
    assert not (staying & ~mask).any()


@settings(max_examples=30)
@given(st.integers(2, 9), st.floats(0.001, 50))
def test_equal_peers_get_equal_and_full_rewards(peers: int, beta: float) -> None:
    even = torch.full((peers,), 1 / peers, dtype=torch.float64)
    assert (CGSV(beta=beta).rewards(even) == 1).all()
    everyone = torch.ones(peers, dtype=torch.bool)
    credits = CFFL().credited(even, even, everyone, 0.5)
    np.testing.assert_allclose(credits, even)
    assert reputable(credits, everyone, 1).all() or torch.allclose(credits, even)


def test_a_larger_beta_makes_rewards_more_alike() -> None:
    reputation = torch.tensor([0.1, 0.3, 0.6], dtype=torch.float64)
    rewards = [CGSV(beta=beta).rewards(reputation) for beta in (1, 3, 9)]
    assert rewards[0][0] < rewards[1][0] < rewards[2][0] < 1


def test_credits_that_remember_much_leave_one_peer_over() -> None:
    """With .8 of the old credit, a lead of 1 % grows until the others are dropped; with .2 it stays small."""
    scores, everyone = torch.tensor([0.909, 0.9, 0.9, 0.9, 0.9], dtype=torch.float64), torch.ones(5, dtype=torch.bool)
    last = {}
    for memory in (0.2, 0.8):
        credit = torch.zeros(5, dtype=torch.float64)
        for t in range(30):
            credit = CFFL(memory=memory).credited(credit, scores, everyone, t / 30)
        last[memory] = credit
    assert reputable(last[0.2], everyone, 1 / 3).all()
    assert last[0.2][0] < 0.21
    assert reputable(last[0.8], everyone, 1 / 3).tolist() == [True, False, False, False, False]
