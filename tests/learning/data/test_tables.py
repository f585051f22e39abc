"""CSV and Parquet, and the one sentence about each kind of wrong table."""

import gzip
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from loading import everything, load

from peer.errors import InputError


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
