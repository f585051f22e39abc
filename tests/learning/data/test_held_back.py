"""Samples that a peer does not train on: whose they are, and that nothing else changes."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from peer.errors import InputError
from peer.learning.data.shard import CommonData, HoldBack, own_shard
from peer.learning.data.sources import Digits

IDS = ["peer0", "peer1", "peer2"]


@given(st.integers(2, 300), st.floats(0.01, 0.9), st.integers(0, 9))
def test_what_is_held_back_is_not_trained_on(count: int, share: float, seed: int) -> None:
    indices = np.arange(count) * 3
    hold_back = HoldBack(share, seed, "peer1")
    if max(1, round(share * count)) >= count:
        with pytest.raises(InputError, match="leaves none of"):
            hold_back.split(indices)
        return
    train, held = hold_back.split(indices)
    assert sorted([*train, *held]) == [*indices]
    assert len(held) == max(1, round(share * count))
    assert [*train] == sorted(train)
    assert [*held] == sorted(held)


@given(st.lists(st.integers(0, 12), min_size=2, max_size=80), st.floats(0.01, 0.9), st.integers(0, 9))
def test_no_group_is_held_back_in_part(patients: list[int], share: float, seed: int) -> None:
    """A peer has every third of all samples."""
    groups = np.repeat(patients, 3)
    indices = np.arange(len(patients)) * 3
    hold_back = HoldBack(share, seed, "peer1")
    if len({*patients}) == 1:
        with pytest.raises(InputError, match="leaves none of"):
            hold_back.split(indices, groups)
        return
    try:
        train, held = hold_back.split(indices, groups)
    except InputError:
        assert share > 0.5 or len({*patients}) < 5 or max(map(patients.count, patients)) > len(patients) / 4
        return
    assert sorted([*train, *held]) == [*indices]
    assert not {*groups[train]} & {*groups[held]}
    largest = max(map(patients.count, patients))
    assert max(1, round(share * len(indices))) <= len(held) < max(1, round(share * len(indices))) + largest


def test_it_is_drawn_by_the_seed_of_the_data_and_the_peer() -> None:
    indices = np.arange(200)
    first = HoldBack(0.2, 1, "peer0").split(indices)[1]
    assert np.array_equal(first, HoldBack(0.2, 1, "peer0").split(indices)[1])
    assert not np.array_equal(first, HoldBack(0.2, 2, "peer0").split(indices)[1])
    assert not np.array_equal(first, HoldBack(0.2, 1, "peer1").split(indices)[1])


def test_a_shard_is_parted_and_tests_and_public_samples_stay() -> None:
    data = Digits(name="digits", limit=300, validation=0.3)
    whole = CommonData(data, IDS).shard("peer1")
    parted = CommonData(data, IDS).shard("peer1", hold_back=HoldBack(0.25, data.seed, "peer1"))
    assert parted.held_back is not None
    assert whole.held_back is None
    assert len(parted.held_back) == round(0.25 * len(whole.train))
    rows = [tuple(x.flatten().tolist()) for x in (*parted.train.x, *parted.held_back.x)]
    assert sorted(rows) == sorted(tuple(x.flatten().tolist()) for x in whole.train.x)
    assert torch.equal(parted.test.x, whole.test.x)
    assert parted.validation is not None
    assert whole.validation is not None
    assert torch.equal(parted.validation.x, whole.validation.x)
    np.testing.assert_allclose(parted.proportions, np.bincount(parted.train.y, minlength=10) / len(parted.train))


def test_a_peer_with_its_own_data_holds_back_of_those_as_they_drift() -> None:
    common = Digits(name="digits", limit=60, drift=[{"round": 3, "labels": [1, 0]}])  # type: ignore[arg-type]
    hold_back = HoldBack(0.5, common.seed, "peer1")
    before, after = (own_shard(Digits(name="digits", limit=80), common, at, hold_back=hold_back) for at in (1, 3))
    assert before.held_back is not None
    assert after.held_back is not None
    assert len(before.train) == len(before.held_back) == 40
    assert torch.equal(before.held_back.x, after.held_back.x)
    assert not torch.equal(before.held_back.y, after.held_back.y)
