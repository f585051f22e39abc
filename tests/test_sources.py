"""Every kind of source: what it gives, and the one sentence it says about each kind of wrong input."""

import gzip
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from pydantic import ValidationError

from peer.errors import InputError
from peer.learning import vision
from peer.learning.samples import Dataset, Samples
from peer.learning.sources import SOURCES, Source, UserSource, source_type


def source(name: str, **settings: Any) -> Source:
    return source_type(name).model_validate({"name": name, **settings})


def load(name: str, **settings: Any) -> Dataset:
    return source(name, **settings).load()


def everything(dataset: Dataset) -> tuple[Samples, Samples]:
    return dataset.train(np.arange(len(dataset.train_labels))), dataset.test()


# Samples and what all sources share


def test_samples_know_their_shape_and_refuse_other_types() -> None:
    samples = Samples(torch.zeros(4, 1, 8, 8), torch.zeros(4, dtype=torch.int64))
    assert len(samples) == 4
    assert samples.shape == (1, 8, 8)
    assert samples.to("cpu").x is samples.x
    with pytest.raises(TypeError):
        Samples(torch.zeros(4, 2, dtype=torch.float64), torch.zeros(4, dtype=torch.int64))
    with pytest.raises(ValueError, match="do not go with"):
        Samples(torch.zeros(4, 2), torch.zeros(3, dtype=torch.int64))


def test_registry_names_agree_with_the_classes() -> None:
    for name, kind in SOURCES.items():
        assert kind.model_fields["name"].annotation.__args__ == (name,)  # type: ignore[union-attr]
        undocumented = [key for key, field in kind.model_fields.items() if not field.description]
        assert undocumented == []


def test_unknown_names_get_the_nearest_one() -> None:
    assert source_type("mnist") is SOURCES["mnist"]
    assert source_type("my.module:load") is UserSource
    with pytest.raises(InputError, match=r"unknown data set 'fashionmnist'; did you mean fashion-mnist\?"):
        source_type("fashionmnist")


def test_relative_paths_are_taken_from_a_folder(tmp_path: Path) -> None:
    assert source("npz", path="x.npz").relative_to(tmp_path).path == tmp_path / "x.npz"  # type: ignore[attr-defined]
    assert source("mnist", root="/data").relative_to(tmp_path).root == Path("/data")  # type: ignore[attr-defined]
    assert source("digits").relative_to(tmp_path).partition == source("digits").partition


def test_limit_keeps_a_seeded_choice_of_training_samples() -> None:
    whole, some, again = load("digits"), load("digits", limit=100), load("digits", limit=100)
    assert len(some.train_labels) == 100
    assert len(some.test_labels) == 360
    np.testing.assert_array_equal(some.train_labels, again.train_labels)
    kept = np.sort(np.random.default_rng(42).permutation(1437)[:100])
    assert torch.equal(everything(some)[0].x, whole.train(kept).x)
    assert len(load("digits", limit=5000).train_labels) == 1437


# Digits


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


# Image sets in torchvision's layout


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
    base: Any = dataset.train_inputs
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
    assert (letters.classes, letters.train_labels.tolist()) == (26, [0, 25])
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
        assert len(load("mnist", root=tmp_path / "new", download=True).train_labels) == 2
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


# npz


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
    assert isinstance(dataset.train_inputs, np.memmap)


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
        ({"y": np.zeros((6, 3), int)}, r"one label a sample, but its shape is \(6, 3\)"),
        ({"y": np.arange(5)}, "x has 6 samples and y has 5 labels"),
        ({"y": np.array([0, 1, 2, 3, 4, 10**6])}, "label 1000000 among . samples is no class number"),
        ({"x": np.array([[0, 0], [np.nan, 0]] * 3)}, "not a finite float32 in sample 1"),
        ({"x": np.array([[0, 0], [0, 0], [0, -np.inf]] * 2)}, "not a finite float32 in sample 2"),
        ({"x": np.full((6, 2), 1e300)}, "not a finite float32 in sample 0"),
        ({"x": np.zeros(6)}, r"x must be \(samples, ...\), but its shape is \(6,\)"),
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


# Tables


def test_csv_with_string_labels_in_sorted_order(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text("a,kind,b\n1,dog,0.5\n2,cat,1.5\n3,dog,2.5\n4,eel,3.5\n5,cat,4.5\n")
    dataset = load("csv", path=path, label="kind", holdout=0.2)
    order = np.random.default_rng(42).permutation(5)
    labels = np.array([1, 0, 1, 2, 0])[order]
    train, test = everything(dataset)
    assert np.r_[train.y, test.y].tolist() == labels.tolist()
    expected = np.stack([np.arange(1, 6), np.arange(5) + 0.5], axis=1).astype(np.float32)[order]
    assert torch.equal(torch.cat([train.x, test.x]), torch.from_numpy(expected))
    assert (dataset.shape, dataset.classes) == ((2,), 3)


def test_class_names_fix_the_numbering(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text("a,label\n1,7\n2,9\n3,7\n")
    dataset = load("csv", path=path, class_names=["9", "8", "7"])
    assert dataset.classes == 3
    assert sorted(np.r_[dataset.train_labels, dataset.test_labels]) == [0, 2, 2]
    with pytest.raises(InputError, match="row 2 has the label '9', which is not in class_names"):
        load("csv", path=path, class_names=["7", "8"])


def test_parquet_and_compressed_csv_equal_the_csv(tmp_path: Path) -> None:
    import pandas

    frame = pandas.DataFrame({"a": [1.5, 2, 3, 4], "b": [True, False, True, True], "label": [0, 1, 1, 0]})
    frame.to_parquet(tmp_path / "t.parquet")
    frame.to_csv(tmp_path / "t.csv.gz", index=False)
    one = everything(load("parquet", path=tmp_path / "t.parquet"))
    other = everything(load("csv", path=tmp_path / "t.csv.gz"))
    for part, same in zip(one, other, strict=True):
        assert torch.equal(part.x, same.x)
        assert torch.equal(part.y, same.y)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "is no csv file, or is truncated"),
        ("a,label\n", "there are no rows after the header"),
        ("a,b\n1,2\n", "there is no column 'label' to take labels from; it has a, b"),
        ("a,label\n1,0\n,1\n", "column 'a' has no value in row 2"),
        ("a,label\n1,\n2,1\n", "column 'label' has no value in row 1"),
        ("a,city,label\n1,Rome,0\n2,Oslo,1\n", r"column 'city' is not numeric \(row 1 holds 'Rome'\)"),
        ("a,label\n1,0\ninf,1\n", "column 'a' has the value inf in row 2"),
        ("a,label\n1,0.5\n2,1\n", "labels in label must be integers"),
        ("a,label\n1,-1\n2,1\n", "must not be negative"),
        ("a,label\n1,0\n2,1,5\n", "is no csv file"),
        ("a,label\n1,0,4\n2,1,5\n", "more fields than the header"),
        ("label\n0\n1\n", "the table must be"),
    ],
)
def test_wrong_tables_are_told(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "t.csv"
    path.write_text(text)
    with pytest.raises(InputError, match=message) as caught:
        load("csv", path=path)
    assert str(path) in str(caught.value)


def test_damaged_table_files_are_told(tmp_path: Path) -> None:
    import pandas

    pandas.DataFrame({"a": range(500), "label": 0}).to_parquet(tmp_path / "t.parquet")
    whole = (tmp_path / "t.parquet").read_bytes()
    (tmp_path / "t.parquet").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(InputError, match="is no parquet file, or is truncated"):
        load("parquet", path=tmp_path / "t.parquet")
    packed = gzip.compress(np.random.default_rng(0).bytes(3000).hex(",").encode())
    (tmp_path / "t.csv.gz").write_bytes(packed[:-100])
    with pytest.raises(InputError, match="is no csv file, or is truncated"):
        load("csv", path=tmp_path / "t.csv.gz")
    (tmp_path / "t.csv").write_bytes(b"a,label\n\xff\xfe,1\n")
    with pytest.raises(InputError, match="is no csv file"):
        load("csv", path=tmp_path / "t.csv")
    with pytest.raises(InputError, match="there is no file"):
        load("csv", path=tmp_path / "none.csv")


@pytest.mark.parametrize(("name", "module"), [("csv", "pandas"), ("parquet", "pyarrow")])
def test_missing_table_packages_are_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, module: str
) -> None:
    (tmp_path / "t").write_text("a,label\n1,0\n")
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(InputError, match=r"pip install 'dfl\[tables\]'"):
        load(name, path=tmp_path / "t")


# Image folders


def draw(path: Path, colour: tuple[int, int, int], size: tuple[int, int] = (9, 5)) -> None:
    from PIL import Image

    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", size, colour).save(path)


def test_image_folder_with_train_and_test(tmp_path: Path) -> None:
    draw(tmp_path / "train" / "b" / "1.png", (255, 0, 0))
    draw(tmp_path / "train" / "a" / "2.PNG", (0, 255, 0), (40, 40))
    draw(tmp_path / "train" / "a" / "1.png", (0, 0, 255))
    draw(tmp_path / "test" / "b" / "1.png", (255, 255, 255))
    (tmp_path / "train" / "a" / "notes.txt").write_text("not an image")
    dataset = load("image-folder", root=tmp_path, size=6)
    train, test = everything(dataset)
    assert (dataset.shape, dataset.classes) == ((3, 6, 6), 2)
    assert train.y.tolist() == [0, 0, 1]
    assert train.x.mean(dim=(2, 3)).tolist() == [[0, 0, 1], [0, 1, 0], [1, 0, 0]]
    assert (test.y.tolist(), test.x.min()) == ([1], 1.0)
    grey = load("image-folder", root=tmp_path, size=6, channels=1)
    assert grey.train(np.array([1])).x.shape == (1, 1, 6, 6)


def test_image_folder_with_a_holdout_and_fixed_classes(tmp_path: Path) -> None:
    for number in range(5):
        draw(tmp_path / "cat" / f"{number}.png", (number, 0, 0))
    dataset = load("image-folder", root=tmp_path, size=4, class_names=["ape", "cat"], holdout=0.4)
    order = np.random.default_rng(42).permutation(5)
    assert torch.equal(torch.round(dataset.test().x[:, 0, 0, 0] * 255).long(), torch.from_numpy(order[3:]))
    assert (dataset.classes, dataset.train_labels.tolist()) == (2, [1, 1, 1])
    with pytest.raises(InputError, match="the folder 'cat' is none of the classes ape, dog"):
        load("image-folder", root=tmp_path, class_names=["ape", "dog"])


def test_wrong_image_folders_are_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InputError, match="there is no folder"):
        load("image-folder", root=tmp_path / "none")
    with pytest.raises(InputError, match="needs one for each class"):
        load("image-folder", root=tmp_path)
    (tmp_path / "cat").mkdir()
    with pytest.raises(InputError, match="there are no images"):
        load("image-folder", root=tmp_path)
    draw(tmp_path / "cat" / "1.png", (1, 2, 3), (64, 64))
    draw(tmp_path / "cat" / "2.jpg", (1, 2, 3), (64, 64))
    for name in ("1.png", "2.jpg"):
        path = tmp_path / "cat" / name
        path.write_bytes(path.read_bytes()[:-60])
    dataset = load("image-folder", root=tmp_path, holdout=0.5)
    for take in (lambda: dataset.train(np.array([0])), dataset.test):
        with pytest.raises(InputError, match=r"cannot read the image .*cat.[12]\."):
            take()
    monkeypatch.setitem(sys.modules, "PIL.Image", None)
    with pytest.raises(InputError, match=r"Pillow; install it with: pip install 'dfl\[vision\]'"):
        dataset.test()


# Functions of the user's


@pytest.fixture
def own_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    (tmp_path / "own_data.py").write_text(
        "import numpy as np\n"
        "def pair(rows=10, root=None):\n"
        "    return np.full((rows, 2), 0.0 if root is None else 1.0), np.arange(rows) % 2\n"
        "def four():\n"
        "    return (*pair(), *pair(4))\n"
        "def bad():\n"
        "    return np.zeros(3)\n"
        "def ragged():\n"
        "    return [[1], [1, 2]], [0, 1]\n"
        "number = 3\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "own_data", raising=False)
    return "own_data"


def test_a_function_of_the_users(own_module: str, tmp_path: Path) -> None:
    assert len(load(f"{own_module}:pair").test_labels) == 2
    assert len(load(f"{own_module}:four").test_labels) == 4
    given = load(f"{own_module}:pair", root=tmp_path, options={"rows": 20})
    assert len(given.train_labels) == 16
    assert given.test().x.min() == 1.0
    relative = source(f"{own_module}:pair", root="x").relative_to(tmp_path)
    assert relative.root == tmp_path / "x"  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("function", "options", "message"),
    [
        ("pair", {"columns": 2}, "cannot be called with the options given: .*columns"),
        ("bad", {}, r"must return \(x, y\) or .*, not a ndarray"),
        ("ragged", {}, "rows of different lengths"),
        ("absent", {}, "the module `own_data` has no `absent`"),
        ("number", {}, "`own_data:number` is no function"),
    ],
)
def test_wrong_functions_are_told(own_module: str, function: str, options: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        load(f"{own_module}:{function}", options=options)


def test_a_missing_module_is_told() -> None:
    with pytest.raises(InputError, match="`no_such_module:f`: no module `no_such_module`"):
        load("no_such_module:f")
    with pytest.raises(ValidationError):
        source("not a name:f")
