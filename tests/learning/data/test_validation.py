"""Validation samples: part of the test set, the same at every peer, and no longer tested on."""

import re
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from loading import load, source

from peer.errors import InputError
from peer.learning.data.dataset import Labelled, join_parts, set_aside
from peer.learning.data.samples import InMemory, Samples
from peer.learning.data.shard import CommonData, own_shard
from peer.learning.tasks import Classification

IDS = ("peer0", "peer1", "peer2")


def rows(samples: Samples) -> list[tuple[float, ...]]:
    """Each sample with its label, in an order that does not depend on theirs."""
    return sorted((*x.flatten().tolist(), float(y)) for x, y in zip(samples.x, samples.y, strict=True))


def archive(folder: Path, classes: int = 3, width: int = 4, test: int = 30) -> Path:
    rng = np.random.default_rng(1)
    path = folder / "own.npz"
    y_train, y_test = np.arange(60) % classes, np.arange(test) % classes
    x_train, x_test = (rng.normal(size=(n, width)).astype(np.float32) for n in (60, test))
    np.savez(path, x_train=x_train, y_train=y_train, x_test=x_test, y_test=y_test)
    return path


def test_without_a_share_nothing_changes() -> None:
    plain, zero = load("digits"), load("digits", validation=0)
    assert "validation" not in zero.parts
    assert zero.validation_samples() is None
    assert torch.equal(zero.test().x, plain.test().x)
    assert source("digits") == source("digits", validation=0)
    assert source("digits").model_dump_json() == source("digits", validation=0).model_dump_json()


@pytest.mark.parametrize("share", [0.001, 0.25, 0.8])
def test_the_test_set_is_divided_and_the_training_set_is_not(share: float) -> None:
    plain, divided = load("digits"), load("digits", validation=share)
    validation = divided.validation_samples()
    assert validation is not None
    assert len(validation) == max(1, round(share * 360))
    both = InMemory(torch.cat([validation.x, divided.test().x]), torch.cat([validation.y, divided.test().y]))
    assert rows(both) == rows(plain.test())
    np.testing.assert_array_equal(divided.train_targets, plain.train_targets)
    assert torch.equal(divided.train(np.arange(9)).x, plain.train(np.arange(9)).x)


@given(st.integers(2, 200), st.floats(0, 0.99, exclude_min=True), st.integers(0, 2**32))
def test_every_test_sample_is_on_one_side(count: int, share: float, seed: int) -> None:
    x = np.arange(count, dtype=np.float32)[:, None]
    labels = np.zeros(count, dtype=np.int64)
    samples = Labelled(x, labels, Classification())
    whole = join_parts(samples, samples, "x", 1)
    try:
        divided = set_aside(whole, share, seed, "x")
    except InputError:
        assert max(1, round(share * count)) == count
        return
    validation = divided.validation_samples()
    assert validation is not None
    tested = divided.test()
    assert sorted([*validation.x.flatten().tolist(), *tested.x.flatten().tolist()]) == list(range(count))
    assert len(validation) == max(1, round(share * count))


def test_the_draw_is_one_of_its_own_by_the_datas_seed() -> None:
    taken = {seed: set_aside_rows(seed) for seed in (1, 2)}
    assert taken[1] == set_aside_rows(1) != taken[2]
    permutation = np.random.default_rng(1).permutation(100)
    assert taken[1] not in (sorted(permutation[:20].tolist()), sorted(permutation[-20:].tolist())), (
        "not the stream of splits and holdouts"
    )


def set_aside_rows(seed: int) -> list[int]:
    x, labels = np.arange(100, dtype=np.float32)[:, None], np.zeros(100, dtype=np.int64)
    samples = Labelled(x, labels, Classification())
    validation = set_aside(join_parts(samples, samples, "x", 1), 0.2, seed, "x").validation_samples()
    assert validation is not None
    return [int(value) for value in validation.x.flatten()]


def test_all_peers_have_the_same_and_none_is_tested_on_them() -> None:
    settings = source("digits", limit=300, validation=0.3)
    shards = [CommonData(settings, IDS).shard(peer) for peer in IDS]
    first = shards[0].validation
    assert first is not None
    public = set(rows(first))
    for shard in shards:
        assert shard.validation is not None
        assert torch.equal(shard.validation.x, first.x)
        assert torch.equal(shard.validation.y, first.y)
        assert len(shard.test) == 360 - 108
        assert not public & set(rows(shard.test))
    papers = [shard.paper for shard in shards]
    assert sorted(np.concatenate([part for part in papers if part is not None])) == list(range(252))
    plain = CommonData(source("digits", limit=300), IDS).shard("peer1")
    assert plain.validation is None
    assert torch.equal(plain.train.x, shards[1].train.x)


def test_a_peer_with_its_own_data_has_the_federations(tmp_path: Path) -> None:
    federation = source("digits", validation=0.3)
    (tmp_path / "a").mkdir()
    own = source("npz", path=archive(tmp_path / "a"))
    with pytest.raises(InputError, match=r"validation inputs \(1, 8, 8\) of 10 classes do not go with"):
        own_shard(own, federation)
    (tmp_path / "b").mkdir()
    common = source("npz", path=archive(tmp_path / "b", test=20), validation=0.5)
    shard, theirs = own_shard(own, common), CommonData(common, IDS).shard("peer1")
    assert shard.validation is not None
    assert theirs.validation is not None
    assert torch.equal(shard.validation.x, theirs.validation.x)
    assert len(shard.test) == 30, "its own test set stays whole"
    assert own_shard(own, source("digits")).validation is None


def test_columns_and_classes_in_another_order_are_refused(tmp_path: Path) -> None:
    """The shapes are alike, and each value would stand under another's name."""
    rows = "\n".join(f"{n},{n + 50},{'ill' if n % 2 else 'well'}" for n in range(200))
    common, swapped = tmp_path / "common.csv", tmp_path / "swapped.csv"
    common.write_text(f"age,bmi,outcome\n{rows}\n")
    swapped.write_text(f"bmi,age,outcome\n{rows}\n")
    with pytest.raises(InputError, match="have the columns age, bmi, and the peer's own data bmi, age; bring them"):
        own_shard(
            source("csv", path=swapped, label="outcome"), source("csv", path=common, label="outcome", validation=0.3)
        )
    swapped.write_text(common.read_text().replace("ill", "zzz"))
    with pytest.raises(InputError, match="have the classes ill, well, and the peer's own data well, zzz; bring them"):
        own_shard(
            source("csv", path=swapped, label="outcome"), source("csv", path=common, label="outcome", validation=0.3)
        )
    numbered = tmp_path / "numbered.csv"
    numbered.write_text(common.read_text().replace("ill", "0").replace("well", "1"))
    shard = own_shard(
        source("csv", path=numbered, label="outcome"), source("csv", path=common, label="outcome", validation=0.3)
    )
    assert shard.validation is not None


def test_a_peer_with_its_own_data_needs_the_federations_only_for_validation(tmp_path: Path) -> None:
    own, absent = source("npz", path=archive(tmp_path)), tmp_path / "absent.npz"
    assert own_shard(own, source("npz", path=absent)).validation is None
    with pytest.raises(InputError, match=r"no file .*; every peer needs the samples .* put them here, or set it to 0"):
        own_shard(own, source("npz", path=absent, validation=0.5))
    with pytest.raises(InputError, match="in a peer's own data would not be public; set it in the federation's"):
        own_shard(source("npz", path=archive(tmp_path), validation=0.5), source("digits"))


@pytest.mark.parametrize(
    ("share", "labels", "sentence"),
    [
        (
            0.99,
            [0, 1, 0, 1],
            "x: `validation: 0.99` leaves none of the 4 test samples to test on",
        ),
        (0.1, [0], "leaves none of the 1 test samples"),
        (0.75, [0, 1, 2, 3], "takes every test sample of class"),
    ],
)
def test_a_share_that_is_too_large_is_told(share: float, labels: list[int], sentence: str) -> None:
    samples = Labelled(np.zeros((len(labels), 2), np.float32), np.array(labels), Classification())
    with pytest.raises(InputError, match=re.escape(sentence)) as caught:
        set_aside(join_parts(samples, samples, "x", 4), share, 1, "x")
    assert "\n" not in str(caught.value)


def test_groups_are_kept_together() -> None:
    x, labels, groups = np.arange(40, dtype=np.float32)[:, None], np.zeros(40, dtype=np.int64), np.arange(40) % 8
    samples = Labelled(x, labels, Classification(), groups=groups)
    divided = set_aside(join_parts(samples, samples, "x", 1), 0.3, 1, "x")
    validation = divided.validation_samples()
    assert validation is not None
    taken, rest = ({int(value) % 8 for value in part.x.flatten()} for part in (validation, divided.test()))
    assert len(validation) == 15, "whole groups of five"
    assert not taken & rest
    one = Labelled(x, labels, Classification(), groups=np.zeros(40, dtype=np.int64))
    with pytest.raises(InputError, match="leaves none of the 40 test samples"):
        set_aside(join_parts(one, one, "x", 1), 0.3, 1, "x")
