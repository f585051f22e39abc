"""Arrays in an .npz file, and the one sentence about each kind of wrong one."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from loading import everything, load

from peer.errors import InputError


def save(path: Path, **arrays: Any) -> Path:
    np.savez(path, **arrays)
    return path


def test_npz_with_four_arrays_of_pixels(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    x = rng.integers(0, 256, (7, 5, 6, 3), np.uint8)
    # Keras saves the labels of CIFAR as a column.
    y = rng.integers(0, 3, (7, 1)).astype(np.uint8)
    np.savez_compressed(tmp_path / "small.npz", x_train=x, y_train=y, x_test=x[:2], y_test=y[:2, 0])
    save(tmp_path / "large.npz", x_train=x, y_train=y, x_test=x[:2], y_test=y[:2, 0])
    for name in ("small.npz", "large.npz"):
        dataset = load("npz", path=tmp_path / name, classes=4)
        train, test = everything(dataset)
        assert (dataset.shape, dataset.classes) == ((3, 5, 6), 4)
        assert torch.equal(train.x, torch.from_numpy(x.transpose(0, 3, 1, 2) / np.float32(255)))
        assert torch.equal(train.x[:2], test.x)
        assert train.y.tolist() == y[:, 0].tolist()
    assert isinstance(dataset.parts["train"].inputs, np.memmap)


def test_npz_with_vectors_holds_a_seeded_part_out(tmp_path: Path) -> None:
    x = np.asfortranarray(np.random.default_rng(0).normal(size=(10, 3)))
    path = save(tmp_path / "v.npz", x=x, y=np.arange(10) % 2)
    train, test = everything(load("npz", path=path, holdout=0.3))
    order = np.random.default_rng(42).permutation(10)
    assert torch.equal(train.x, torch.from_numpy(x[order[:7]].astype(np.float32)))
    assert torch.equal(test.x, torch.from_numpy(x[order[7:]].astype(np.float32)))
    assert train.y.tolist() == (order[:7] % 2).tolist()
    other = everything(load("npz", path=path, holdout=0.3, seed=1))[1]
    assert not torch.equal(other.x, test.x)


def test_other_pixel_layouts(tmp_path: Path) -> None:
    y = np.arange(4)
    shapes = {(4, 6, 6): (1, 6, 6), (4, 6, 6, 1): (1, 6, 6), (4, 3, 6, 6): (3, 6, 6), (4, 9): (9,)}
    for shape, seen in shapes.items():
        path = save(tmp_path / "p.npz", x=np.full(shape, 255, np.uint8), y=y)
        dataset = load("npz", path=path)
        assert dataset.shape == seen
        assert dataset.test().x.min() == 1.0


GOOD = {"x": np.zeros((6, 2)), "y": np.arange(6) % 3}


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"y": np.array([0, 1, 2, 0, 1, 2.0])}, "labels in y must be integers from 0, but they are float64"),
        ({"y": np.array(list("abcdef"))}, "labels in y must be integers"),
        ({"y": np.array([0, 1, -1, 0, 1, 2])}, "must not be negative, but sample 2 has -1"),
        ({"y": np.zeros((6, 3), int)}, r"y must be of shape \(n,\), one label a sample, not \(6, 3\)"),
        ({"y": np.arange(5)}, "x has 6 samples and y has 5 labels"),
        ({"y": np.array([0, 1, 2, 3, 4, 10**6])}, "label 1000000 among . samples is not a class number"),
        ({"x": np.array([[0, 0], [np.nan, 0]] * 3)}, "not a finite float32 in sample 1"),
        ({"x": np.array([[0, 0], [0, 0], [0, -np.inf]] * 2)}, "not a finite float32 in sample 2"),
        ({"x": np.full((6, 2), 1e300)}, "not a finite float32 in sample 0"),
        ({"x": np.zeros(6)}, r"x must be of shape \(n, ...\), an array of numbers for each sample, not \(6,\)"),
        ({"x": np.zeros((6, 2), complex)}, "x must hold numbers, but it holds complex128"),
        ({"x": np.zeros((1, 2)), "y": np.zeros(1, int)}, "1 samples are too few"),
        ({"x": np.zeros((0, 2)), "y": np.zeros(0, int)}, "0 samples are too few"),
        ({"x": np.array([None] * 6)}, "pickled Python objects, which are never loaded"),
        ({"x_test": np.zeros((2, 2))}, "there is no array y_test.*holds x, x_test, y"),
        ({"x_test": np.zeros((0, 2)), "y_test": np.zeros(0, int)}, "there are no test samples"),
        ({"x_test": np.zeros((2, 3)), "y_test": np.zeros(2, int)}, r"\(2,\) .* \(3,\) of .* must be alike"),
        ({"x_test": np.zeros((2, 2), np.uint8), "y_test": np.zeros(2, int)}, "must be alike"),
    ],
)  # fmt: skip
def test_wrong_arrays_are_told(tmp_path: Path, arrays: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message) as caught:
        load("npz", path=save(tmp_path / "a.npz", **{**GOOD, **arrays}))
    assert "a.npz" in str(caught.value)


def test_npz_labels_must_fit_the_classes_given(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="label 2 does not fit 2 classes"):
        load("npz", path=save(tmp_path / "a.npz", **GOOD), classes=2)
    with pytest.raises(InputError, match="there is no array x;"):
        load("npz", path=save(tmp_path / "b.npz", inputs=np.zeros((3, 2))))


@pytest.mark.parametrize("compressed", [False, True])
def test_damaged_npz_files_are_told(tmp_path: Path, compressed: bool) -> None:
    path = tmp_path / "a.npz"
    x = np.random.default_rng(0).normal(size=(400, 5))
    (np.savez_compressed if compressed else np.savez)(path, x=x, y=np.arange(400) % 3)
    whole = path.read_bytes()
    for size in (0, 10, len(whole) // 2, len(whole) - 5):
        path.write_bytes(whole[:size])
        with pytest.raises(InputError, match=r"a\.npz is not a \.npz archive, or is truncated or damaged"):
            load("npz", path=path)
    path.write_bytes(whole[:3000] + bytes([whole[3000] ^ 1]) + whole[3001:])
    with pytest.raises(InputError, match="truncated or damaged"):
        load("npz", path=path)
    with pytest.raises(InputError, match="there is no file"):
        load("npz", path=tmp_path / "b.npz")
    with pytest.raises(InputError, match="cannot read"):
        load("npz", path=tmp_path)
