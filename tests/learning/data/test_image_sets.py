"""MNIST and its kin, CIFAR: read as torchvision stores them, downloaded on request."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from loading import everything, load, source
from pydantic import ValidationError

from peer.errors import InputError
from peer.learning import vision


def write_idx(path: Path, array: np.ndarray) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    shape = b"".join(n.to_bytes(4, "big") for n in array.shape)
    path.write_bytes(bytes((0, 0, 8, array.ndim)) + shape + array.tobytes())


def write_idx_set(root: Path, folder: str, train: str, test: str, labels: list[int]) -> np.ndarray:
    images = np.random.default_rng(0).integers(0, 256, (len(labels), 28, 28), np.uint8)
    images[0, 0, :2] = 0, 255
    for part in (train, test):
        raw = root / folder / "raw"
        write_idx(raw / f"{part}-images-idx3-ubyte", images)
        write_idx(raw / f"{part}-labels-idx1-ubyte", np.array(labels, np.uint8))
    return images


@pytest.mark.parametrize(("name", "folder"), [("mnist", "MNIST"), ("fashion-mnist", "FashionMNIST")])
def test_mnist_is_memory_mapped_and_scaled(tmp_path: Path, name: str, folder: str) -> None:
    images = write_idx_set(tmp_path, folder, "train", "t10k", [3, 1, 4])
    dataset = load(name, root=tmp_path)
    assert (dataset.shape, dataset.classes) == ((1, 28, 28), 10)
    base: Any = dataset.parts["train"].inputs
    assert base.dtype == np.uint8
    assert isinstance(base, np.memmap)
    shard = dataset.train(np.array([2, 0]))
    assert torch.equal(shard.x, torch.from_numpy(images[[2, 0]][:, None].astype(np.float32) / np.float32(255)))
    assert shard.x.max() == 1.0
    assert shard.y.tolist() == [4, 3]


def test_emnist_splits(tmp_path: Path) -> None:
    write_idx_set(tmp_path, "EMNIST", "emnist-byclass-train", "emnist-byclass-test", [61, 0])
    write_idx_set(tmp_path, "EMNIST", "emnist-letters-train", "emnist-letters-test", [1, 26])
    assert load("emnist", root=tmp_path).classes == 62
    letters = load("emnist", root=tmp_path, split="letters")
    assert (letters.classes, letters.train_targets.tolist()) == (26, [0, 25])
    with pytest.raises(ValidationError):
        source("emnist", split="capitals")


@pytest.mark.parametrize("name", ["mnist", "fashion-mnist", "emnist", "cifar10", "cifar100"])
def test_a_missing_image_set_is_told_without_creating_anything(tmp_path: Path, name: str) -> None:
    root = tmp_path / "nowhere"
    with pytest.raises(InputError, match=rf"no {name} in {root} \(looked for .*\); .*or download: true"):
        load(name, root=root)
    assert not root.exists()


@pytest.mark.parametrize("size", [0, 3, 15, 100, 2368, 2400])
def test_truncated_or_padded_idx_files_are_told(tmp_path: Path, size: int) -> None:
    write_idx_set(tmp_path, "MNIST", "train", "t10k", [3, 1, 4])
    path = tmp_path / "MNIST" / "raw" / "train-images-idx3-ubyte"
    path.write_bytes(path.read_bytes().ljust(2400, b"\0")[:size] if size != 2368 else path.read_bytes()[:-1])
    with pytest.raises(InputError, match="train-images-idx3-ubyte is truncated or damaged"):
        load("mnist", root=tmp_path)


def test_idx_labels_beyond_the_classes_are_told(tmp_path: Path) -> None:
    write_idx_set(tmp_path, "MNIST", "train", "t10k", [3, 10])
    with pytest.raises(InputError, match="label 10 does not fit 10 classes"):
        load("mnist", root=tmp_path)


class FakeSets:
    """torchvision.datasets as the sources call it."""

    def __init__(self, failure: Exception | None = None) -> None:
        self.failure = failure
        self.calls: list[tuple[str, dict[str, Any]]] = []

    def __getattr__(self, kind: str) -> Any:
        def construct(root: Path, **options: Any) -> Any:
            self.calls.append((kind, options))
            if self.failure:
                raise self.failure
            if kind.startswith("CIFAR"):
                (root / "cifar-10-batches-py").mkdir(exist_ok=True)
                count = 6 if options["train"] else 4
                pixels = np.zeros((count, 32, 32, 3), np.uint8)
                pixels[:, 1, 2, 0] = 51
                return SimpleNamespace(data=pixels, targets=list(range(count)))
            write_idx_set(root, kind, "train", "t10k", [0, 1])
            return None

        return construct


@pytest.fixture
def fake_torchvision(monkeypatch: pytest.MonkeyPatch) -> FakeSets:
    fake = FakeSets()
    monkeypatch.setattr(vision, "torchvision", lambda: SimpleNamespace(datasets=fake))
    return fake


def test_download_fetches_once(tmp_path: Path, fake_torchvision: FakeSets) -> None:
    for _ in range(2):
        assert len(load("mnist", root=tmp_path / "new", download=True).train_targets) == 2
    assert fake_torchvision.calls == [("MNIST", {"download": True})]
    assert not list((tmp_path / "new").glob(".*"))


def test_a_failed_download_is_told_on_one_line(tmp_path: Path, fake_torchvision: FakeSets) -> None:
    fake_torchvision.failure = RuntimeError("Error downloading x:\nTried y, got:\nno route")
    for name in ("mnist", "cifar10"):
        with pytest.raises(InputError, match=rf"cannot download {name} in .*: Error .* no route$"):
            load(name, root=tmp_path, download=True)


def test_cifar_is_turned_to_channels_first(tmp_path: Path, fake_torchvision: FakeSets) -> None:
    dataset = load("cifar10", root=tmp_path, download=True)
    assert (dataset.shape, dataset.classes) == ((3, 32, 32), 10)
    train, test = everything(dataset)
    assert train.x.is_contiguous()
    assert train.x[0, 0, 1, 2] == pytest.approx(0.2)
    assert train.x.sum() == pytest.approx(0.2 * 6)
    assert (len(train), test.y.tolist()) == (6, [0, 1, 2, 3])
