"""scikit-learn's digits: read without scikit-learn's loader, in the seeded order."""

import gzip
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from loading import everything, load

from peer.errors import InputError


def test_digits_are_scikit_learns_in_the_seeded_order() -> None:
    from sklearn.datasets import load_digits

    bunch = load_digits()
    order = np.random.default_rng(42).permutation(1797)
    dataset = load("digits", root="data")
    train, test = everything(dataset)
    expected = torch.from_numpy((bunch.images[order] / 16).astype(np.float32))[:, None]
    assert torch.equal(train.x, expected[:1437])
    assert torch.equal(test.x, expected[1437:])
    np.testing.assert_array_equal(np.r_[dataset.train_labels, dataset.test_labels], bunch.target[order])
    assert (dataset.shape, dataset.classes) == ((1, 8, 8), 10)


def test_a_shard_is_taken_in_the_order_asked_for() -> None:
    dataset = load("digits", seed=7)
    shard = dataset.train(np.array([5, 3]))
    assert torch.equal(shard.x, everything(dataset)[0].x[[5, 3]])
    assert shard.y.tolist() == dataset.train_labels[[5, 3]].tolist()
    assert len(dataset.test(np.array([0]))) == 1


def test_damaged_digits_are_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "datasets" / "data"
    folder.mkdir(parents=True)
    spec = SimpleNamespace(origin=str(tmp_path / "__init__.py"))
    monkeypatch.setattr("importlib.util.find_spec", lambda name: spec)
    with pytest.raises(InputError, match="cannot read scikit-learn's digits"):
        load("digits")
    whole = gzip.compress(b"1,2,3\n" * 4000)
    (folder / "digits.csv.gz").write_bytes(whole[:-20])
    with pytest.raises(InputError, match="cannot read scikit-learn's digits"):
        load("digits")
    (folder / "digits.csv.gz").write_bytes(whole)
    with pytest.raises(InputError, match="is not scikit-learn's digits"):
        load("digits")
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(InputError, match="pip install scikit-learn"):
        load("digits")
