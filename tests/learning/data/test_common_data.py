"""Peers of one process hold once what they have in common, and have the same parts as peers that read themselves."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from peer.learning.data.dataset import Labelled, join_parts
from peer.learning.data.drift import Drift
from peer.learning.data.partition import PARTITIONS
from peer.learning.data.samples import InMemory
from peer.learning.data.shard import CommonData, Shard, split_samples
from peer.learning.data.sources.image_sets import Digits
from peer.learning.tasks import Classification

IDS = ("a", "b", "c")


def tensors(shard: Shard) -> tuple[InMemory, InMemory, InMemory]:
    found = (shard.train, shard.test, shard.validation)
    assert all(isinstance(samples, InMemory) for samples in found)
    return found  # type: ignore[return-value]


def test_the_same_parts_and_one_test_set_for_each_stage() -> None:
    source = Digits(name="digits", limit=120, validation=0.1, drift=(Drift(round=3, rotate=90),))
    common = CommonData(source, IDS)
    for round in (1, 3):
        together = [common.shard(peer, round) for peer in IDS]
        for peer, shard in zip(IDS, together, strict=True):
            alone = CommonData(source, IDS).shard(peer, round)
            for mine, theirs in zip(tensors(alone), tensors(shard), strict=True):
                assert torch.equal(mine.x, theirs.x)
                assert torch.equal(mine.y, theirs.y)
            assert np.array_equal(alone.proportions, shard.proportions)
            assert alone.paper is not None
            assert np.array_equal(alone.paper, shard.paper)
        assert len({id(shard.test) for shard in together}) == 1
        assert len({id(shard.validation) for shard in together}) == 1


SPLITS: dict[str, dict[str, object]] = {
    "dirichlet": {"alpha": 5.0},
    "label-skew": {"k": 1},
    "pathological": {"xi": 2},
    "imbalanced": {"kappa": 0.5, "m": 1},
    "quantity": {"delta": 5.0},
}
"""Their settings."""


@pytest.mark.parametrize("kind", PARTITIONS)
@given(seed=st.integers(0, 2**32 - 1), per_group=st.integers(1, 5))
def test_a_group_is_at_one_peer_by_whatever_split(kind: str, seed: int, per_group: int) -> None:
    rng = np.random.default_rng(seed)
    groups = rng.permutation(np.repeat(np.arange(60) * 7 - 100, per_group))
    labels = (groups // 7) % 3  # all of a group's samples alike: the split is that of groups
    inputs = np.zeros((len(groups), 2), np.float32)
    train = Labelled(inputs, labels, Classification(), groups=groups)
    dataset = join_parts(train, train, "x", 3)
    source = Digits(name="digits", partition={"kind": kind, **SPLITS.get(kind, {})}, seed=seed % 1000)  # type: ignore[arg-type]
    [parts] = split_samples(source, dataset, IDS).values()
    owners = [{*groups[part].tolist()} for part in parts]
    assert sum(map(len, owners)) == len({*map(int, np.concatenate([groups[part] for part in parts]))})
    assert all(len(part) == per_group * len(owned) for part, owned in zip(parts, owners, strict=True)), "whole groups"
    units = source.partition.split((np.unique(groups) // 7) % 3, IDS, np.random.default_rng(source.seed))
    assert [*map(len, owners)] == [*map(len, units)]
