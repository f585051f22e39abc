"""Peers of one process hold once what they have in common, and have the same parts as peers that read themselves."""

import numpy as np
import torch

from peer.learning.data.drift import Drift
from peer.learning.data.samples import InMemory
from peer.learning.data.shard import CommonData, Shard, common_shard
from peer.learning.data.sources.image_sets import Digits

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
            alone = common_shard(source, IDS, peer, round)
            for mine, theirs in zip(tensors(alone), tensors(shard), strict=True):
                assert torch.equal(mine.x, theirs.x)
                assert torch.equal(mine.y, theirs.y)
            assert np.array_equal(alone.proportions, shard.proportions)
            assert alone.paper is not None
            assert np.array_equal(alone.paper, shard.paper)
        assert len({id(shard.test) for shard in together}) == 1
        assert len({id(shard.validation) for shard in together}) == 1
