"""The digits that come with the package: the published ones, in the seeded order."""

import gzip
import hashlib
from pathlib import Path

import numpy as np
import pytest
import torch
from loading import everything, load

from peer.errors import InputError
from peer.learning.data.sources import image_sets

TABLE = "68aea062d35a127749050fa0e52dca09d6569ac08092c925610e0954e172dde2"
"""sha256 of scikit-learn's digits (`load_digits`) in their order: uint8 (1797, 65), 64 pixels and the label."""


def test_digits_are_the_published_ones_in_the_seeded_order() -> None:
    dataset = load("digits", root="data")
    train, test = everything(dataset)
    x, y = torch.cat([train.x, test.x]), torch.cat([train.y, test.y])
    assert (x.dtype, y.dtype, x.shape, len(train)) == (torch.float32, torch.int64, (1797, 1, 8, 8), 1437)
    back = np.argsort(np.random.default_rng(42).permutation(1797))
    pixels = (x.numpy() * 16).reshape(-1, 64)[back]
    table = np.c_[pixels, y.numpy()[back]].astype(np.uint8)
    assert hashlib.sha256(table.tobytes()).hexdigest() == TABLE
    assert torch.equal(x, torch.from_numpy(table[np.argsort(back), :-1] / np.float32(16)).reshape(-1, 1, 8, 8))
    assert (dataset.shape, dataset.classes) == ((1, 8, 8), 10)


def test_a_shard_is_taken_in_the_order_asked_for() -> None:
    dataset = load("digits", seed=7)
    shard = dataset.train(np.array([5, 3]))
    assert torch.equal(shard.x, everything(dataset)[0].x[[5, 3]])
    assert shard.y.tolist() == dataset.train_targets[[5, 3]].tolist()
    assert len(dataset.test(np.array([0]))) == 1


def test_damaged_digits_are_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    damaged = tmp_path / "digits.csv.gz"
    monkeypatch.setattr(image_sets, "DIGITS_FILE", damaged)
    whole = gzip.compress(b"1,2,3\n" * 4000)
    for content in (None, whole[:-20], gzip.compress(b"one,two\n")):
        if content:
            damaged.write_bytes(content)
        with pytest.raises(InputError, match=r"cannot read the digits in .*; install dfl again"):
            load("digits")
