"""Data that drift: which stage a round lies in, what is turned, renamed and dealt anew, and what is refused."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from loading import load, source
from pydantic import ValidationError

from peer.errors import InputError
from peer.learning.data.drift import Stage, stage_of
from peer.learning.data.partition import Iid
from peer.learning.data.samples import InMemory
from peer.learning.data.shard import CommonData, Shard, own_shard, split_samples
from peer.learning.data.sources import Source
from peer.learning.tasks import Segmentation

IDS = ("peer0", "peer1", "peer2")
DIRICHLET = {"kind": "dirichlet", "alpha": 0.3}


def drifting(*drift: dict[str, Any], name: str = "digits", **settings: Any) -> Source:
    return source(name, drift=drift, **{"limit": 300, **settings})


def shards(data: Source, round: int) -> list[Shard]:
    return [CommonData(data, IDS).shard(id, round) for id in IDS]


def test_each_key_stays_until_another_drift_gives_it() -> None:
    data = drifting({"round": 3, "rotate": 90}, {"round": 5, "partition": DIRICHLET}, {"round": 6, "rotate": 0})
    found = data.stages
    assert [(stage.since, stage.rotate, stage.partition.kind) for stage in found] == [
        (1, 0, "iid"),
        (3, 90, "iid"),
        (5, 90, "dirichlet"),
        (6, 0, "dirichlet"),
    ]
    assert [stage_of(round, found).since for round in range(9)] == [1, 1, 1, 3, 3, 5, 6, 6, 6]


def test_without_drift_nothing_changes() -> None:
    assert [stage.since for stage in source("digits").stages] == [1]
    plain = CommonData(source("digits"), IDS).shard("peer1", round=7)
    assert torch.equal(plain.train.x, CommonData(source("digits"), IDS).shard("peer1").train.x)


@pytest.mark.parametrize("degrees", [0, 90, 180, 270])
def test_images_are_turned_for_training_testing_and_validation(degrees: int) -> None:
    data = drifting({"round": 2, "rotate": degrees}, validation=0.2)
    before, after = (CommonData(data, IDS).shard("peer1", round) for round in (1, 2))
    assert before.validation is not None
    assert after.validation is not None
    pairs = [(before.train, after.train), (before.test, after.test), (before.validation, after.validation)]
    for upright, turned in pairs:
        expected = np.rot90(upright.x.numpy(), degrees // 90, axes=(2, 3))
        np.testing.assert_array_equal(turned.x.numpy(), expected)
        assert torch.equal(turned.y, upright.y)


def test_classes_are_renamed_and_everybody_keeps_its_samples() -> None:
    data = drifting({"round": 2, "labels": [2, 0, 1]}, partition=DIRICHLET)
    for before, after in zip(shards(data, 1), shards(data, 2), strict=True):
        assert torch.equal(before.train.x, after.train.x)
        named = {0: 2, 1: 0, 2: 1}
        assert after.train.y.tolist() == [named.get(label, label) for label in before.train.y.tolist()]
        assert after.test.y.tolist() == [named.get(label, label) for label in before.test.y.tolist()]
        np.testing.assert_allclose(after.proportions[[2, 0, 1]], before.proportions[:3])
        np.testing.assert_allclose(after.proportions[3:], before.proportions[3:])


def test_another_split_is_the_one_that_it_would_be_from_the_start() -> None:
    data = drifting({"round": 4, "partition": DIRICHLET})
    for now, fresh in zip(shards(data, 4), shards(source("digits", limit=300, partition=DIRICHLET), 1), strict=True):
        assert torch.equal(now.train.x, fresh.train.x)
        assert (now.proportions == fresh.proportions).all()
        assert now.paper is not None
        assert fresh.paper is not None
        assert (now.paper == fresh.paper).all()


def test_nobody_may_be_left_empty_in_any_stage() -> None:
    skew = {"kind": "label-skew", "k": 1, "fractions": (1, 1, 1)}
    data = drifting({"round": 4, "partition": skew})
    for attempt in (
        lambda: split_samples(data, data.load(), IDS),
        lambda: CommonData(data, IDS).shard("peer0", round=1),
    ):
        with pytest.raises(InputError, match=r"the drift of round 4: the label-skew split .* leaves peer1, peer2"):
            attempt()


def own(folder: Path, shape: tuple[int, ...] = (4,)) -> Source:
    rng, path = np.random.default_rng(1), folder / "own.npz"
    x_train, x_test = (rng.normal(size=(n, *shape)).astype(np.float32) for n in (30, 12))
    np.savez(path, x_train=x_train, y_train=np.arange(30) % 3, x_test=x_test, y_test=np.arange(12) % 3)
    return source("npz", path=path)


def test_a_peer_with_its_own_data_follows_but_is_not_dealt_to(tmp_path: Path) -> None:
    data = own(tmp_path, (1, 3, 3))
    common = drifting({"round": 2, "rotate": 90, "labels": [1, 0], "partition": DIRICHLET})
    before, after = (own_shard(data, common, round) for round in (1, 2))
    assert torch.equal(after.train.x, torch.rot90(before.train.x, 1, (2, 3)))
    assert len(after.train) == 30
    assert after.train.y[:3].tolist() == [1, 0, 2]
    assert after.test.y[:3].tolist() == [1, 0, 2]


def test_a_drift_that_does_not_go_with_the_data(tmp_path: Path) -> None:
    table = own(tmp_path)
    with pytest.raises(InputError, match="the drift of round 2: `rotate` turns images"):
        own_shard(table, drifting({"round": 2, "rotate": 90}))
    with pytest.raises(InputError, match="`labels` names 11 classes, and the data have 10"):
        CommonData(drifting({"round": 2, "labels": [*range(11)]}), IDS).shard("peer0")
    with pytest.raises(InputError, match=r"makes .* another shape"):
        Stage(2, Iid(), rotate=90).check((1, 2, 3), 3)
    with pytest.raises(InputError, match="`drift` in a peer's own data"):
        own_shard(drifting({"round": 2, "rotate": 90}), source("digits"))


@pytest.mark.parametrize(
    ("drift", "sentence"),
    [
        ([{"round": 1, "rotate": 90}], "greater than or equal to 2"),
        ([{"round": 2}], "changes nothing"),
        ([{"round": 2, "rotate": 45}], "should be 0, 90, 180 or 270"),
        ([{"round": 2, "labels": (0, 0)}], "each class from 0 to 1 once"),
        ([{"round": 3, "rotate": 90}, {"round": 3, "rotate": 0}], "in order, each once"),
        ([{"round": 3, "rotate": 90}, {"round": 2, "rotate": 0}], "in order, each once"),
    ],
)
def test_wrong_settings(drift: list[dict[str, Any]], sentence: str) -> None:
    with pytest.raises(ValidationError, match=sentence):
        drifting(*drift)


def test_the_samples_given_stay_as_they_are() -> None:
    dataset = load("digits")
    samples = dataset.test()
    kept = InMemory(samples.x.clone(), samples.y.clone())
    Stage(2, Iid(), rotate=180, labels=(1, 0)).apply(samples)
    assert torch.equal(samples.x, kept.x)
    assert torch.equal(samples.y, kept.y)


@pytest.mark.parametrize("stream", [False, True])
def test_masks_are_turned_with_their_images(stream: bool, tmp_path: Path) -> None:
    x = np.random.default_rng(1).normal(size=(12, 1, 4, 4)).astype(np.float32)
    y = (x[:, 0] > 0).astype(np.int64)
    np.savez(tmp_path / "own.npz", x_train=x, y_train=y, x_test=x, y_test=y)
    data = source("npz", path=tmp_path / "own.npz", stream=stream)
    test = own_shard(data, drifting({"round": 2, "rotate": 90}), 2, Segmentation(name="segmentation")).test
    inputs, masks, _ = next(test.in_order(12))
    assert torch.equal(inputs, torch.rot90(torch.from_numpy(x), 1, (2, 3)))
    assert torch.equal(masks, (inputs[:, 0] > 0).long())


@pytest.mark.parametrize("shape", [((1,), (2,), (3,)), {"a": (1,), "b": (2,), "c": (3,)}])
def test_inputs_of_three_parts_are_not_turned(shape: Any) -> None:
    with pytest.raises(InputError, match="`rotate` turns images"):
        Stage(2, Iid(), rotate=180).check(shape, 3)
