"""CSV and Parquet, and the one sentence about each kind of wrong table."""

import gzip
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from loading import everything, load

from peer.errors import InputError
from peer.learning.data.samples import Names


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
    assert sorted(np.r_[dataset.train_targets, dataset.parts["test"].targets]) == [0, 2, 2]
    with pytest.raises(InputError, match="column 'label' holds 9 in line 3, which is not in class_names"):
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
        ("", "is not a CSV file or is truncated"),
        ("a,label\n", "there are no rows after the header"),
        ("a,b\n1,2\n", "there is no column 'label' to take labels from; it has a, b"),
        ("a,label\n1,0\n,1\n", "column 'a' has no value in line 3"),
        ("a,label\n1,\n2,1\n", "column 'label' has no value in line 2"),
        ("a,city,label\n1,Rome,0\n2,Oslo,1\n", "column 'city' holds 'Rome' in line 2, which is not a number"),
        ("a,label\n1,0\n2,1\n3,1\nfour,0\n5,1\n", "column 'a' holds 'four' in line 5, which is not a number"),
        ("a,label\n\n1,0\n\n2 5,1\n", "column 'a' holds '2 5' in line 5, which is not a number"),
        ('a,label\n1,"one\nlong, label"\nx,two\n', "column 'a' holds 'x' in line 4, which is not a number"),
        ("a,label\n1,0\ninf,1\n", "column 'a' holds inf in line 3, which is not finite"),
        ("a,label\n1,0\n1e99,1\n", r"column 'a' holds 1e\+99 in line 3, which is not finite"),
        ("a,label\n1,1\n2,0.5\n", "column 'label' holds 0.5 in line 3, and a class is a whole number from 0"),
        ("a,label\n1,-1\n2,1\n", "column 'label' holds -1 in line 2, and a class is a whole number from 0"),
        ("a,label\n1,0\n2,1,5\n", "line 3 has 3 fields and the header has 2 names"),
        ("a,label\n1,0,4\n2,1,5\n", "line 2 has 3 fields and the header has 2 names"),
        ("label\n0\n1\n", "the table must be"),
    ],
)
def test_wrong_tables_are_told(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "t.csv"
    path.write_text(text)
    with pytest.raises(InputError, match=message) as caught:
        load("csv", path=path)
    assert str(path) in str(caught.value)


def test_the_row_of_a_packed_table_and_of_a_parquet_file_is_told(tmp_path: Path) -> None:
    import pandas

    (tmp_path / "t.csv.gz").write_bytes(gzip.compress(b"\xef\xbb\xbfa,label\n1,0\n\nx,1\n"))
    with pytest.raises(InputError, match="column 'a' holds 'x' in line 4"):
        load("csv", path=tmp_path / "t.csv.gz")
    pandas.DataFrame({"a": ["1", "x"], "label": [0, 1]}).to_parquet(tmp_path / "t.parquet")
    with pytest.raises(InputError, match="column 'a' holds 'x' in row 2"):
        load("parquet", path=tmp_path / "t.parquet")
    dates = pandas.DataFrame({"day": pandas.to_datetime(["2026-01-01"] * 2), "label": [0, 1]})
    dates.to_parquet(tmp_path / "t.parquet")
    with pytest.raises(InputError, match="column 'day' holds 2026-01-01 00:00:00 in row 1, which is not a number"):
        load("parquet", path=tmp_path / "t.parquet")


def test_columns_and_classes_have_their_names(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text("b,kind,a\n1,dog,0.5\n2,cat,1.5\n")
    assert load("csv", path=path, label="kind").names == Names(("b", "a"), ("cat", "dog"))
    path.write_text("b,label\n1,0\n2,1\n3,0\n")
    numbered, named = load("csv", path=path, limit=1).names, load("csv", path=path, class_names=["0", "1"]).names
    assert numbered == named == Names(("b",), ("0", "1")), "one may be without the last class and say so"


def test_damaged_table_files_are_told(tmp_path: Path) -> None:
    import pandas

    pandas.DataFrame({"a": range(500), "label": 0}).to_parquet(tmp_path / "t.parquet")
    whole = (tmp_path / "t.parquet").read_bytes()
    (tmp_path / "t.parquet").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(InputError, match="is not a Parquet file or is truncated"):
        load("parquet", path=tmp_path / "t.parquet")
    packed = gzip.compress(np.random.default_rng(0).bytes(3000).hex(",").encode())
    (tmp_path / "t.csv.gz").write_bytes(packed[:-100])
    with pytest.raises(InputError, match="is not a CSV file or is truncated"):
        load("csv", path=tmp_path / "t.csv.gz")
    (tmp_path / "t.csv").write_bytes(b"a,label\n\xff\xfe,1\n")
    with pytest.raises(InputError, match="is not a CSV file"):
        load("csv", path=tmp_path / "t.csv")
    with pytest.raises(InputError, match="there is no file"):
        load("csv", path=tmp_path / "none.csv")


@pytest.mark.parametrize(("name", "module"), [("csv", "pandas"), ("parquet", "pyarrow")])
def test_missing_table_packages_are_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, module: str
) -> None:
    (tmp_path / "t").write_text("a,label\n1,0\n")
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(InputError, match=r"pip install -c constraints.txt 'dfl\[tables\]'"):
        load(name, path=tmp_path / "t")


VISITS = "patient,age,label\n" + "".join(
    f"{name},{number},{number % 2}\n" for number, name in enumerate("abcdeabcdeabcde")
)


@pytest.mark.parametrize("stream", [None, True, False])
def test_a_patient_is_on_one_side_and_no_feature(stream: bool | None, tmp_path: Path) -> None:
    import pandas

    path = tmp_path / "t.csv"
    path.write_text(VISITS)
    options: dict[str, Any] = {"path": path, "group": "patient", "holdout": 0.3}
    if stream is not None:
        pandas.read_csv(path).to_parquet(tmp_path / "t.parquet", row_group_size=4)
        options |= {"path": tmp_path / "t.parquet", "stream": stream}
    dataset = load("csv" if stream is None else "parquet", **options)
    train, test = everything(dataset)
    assert dataset.names.columns == ("age",)
    assert dataset.shape == (1,)
    first, second = ({int(age) % 5 for age in part.in_order(99).__next__().inputs[:, 0]} for part in (train, test))
    assert len(second) == 2, "three visits each; 30 % of 15 are more than one patient's"
    assert first | second == {0, 1, 2, 3, 4}
    assert not first & second
    assert dataset.groups is not None
    assert [*dataset.groups] == [int(age) % 5 for age in next(train.in_order(99)).inputs[:, 0]]


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ({"group": "patiant"}, "there is no column 'patiant'; did you mean `patient`"),
        ({"group": "label"}, "`group` and `label` are one column"),
        ({"group": "patient", "columns": ["patient", "age"]}, "`columns` has `patient`, which is the group"),
        ({"group": "patient", "validation": 0.2}, "leave out one"),
        ({"group": "label", "label": "patient", "holdout": 0.9}, "the groups are too few"),
    ],
)
def test_groups_that_cannot_be_kept_together(keys: dict[str, Any], words: str, tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text(VISITS)
    with pytest.raises((InputError, ValueError), match=words):
        load("csv", path=tmp_path / "t.csv", **keys)


def test_spaces_do_not_make_a_patient_another(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text(VISITS.replace("a,5", "a ,5"))
    groups = load("csv", path=path, group="patient", holdout=0.3).groups
    path.write_text(VISITS)
    assert groups is not None
    plain = load("csv", path=path, group="patient", holdout=0.3).groups
    assert plain is not None
    assert [*groups] == [*plain]


def test_class_names_of_whole_numbers_beside_a_missing_label(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text("a,label\n1,0\n2,1\n3,\n4,1\n")
    dataset = load("csv", path=path, class_names=["0", "1"], when_missing="drop")
    assert sorted(np.r_[dataset.train_targets, dataset.parts["test"].targets]) == [0, 1, 1]
    with pytest.raises(InputError, match="column 'label' holds 1 in line 3, which is not in class_names"):
        load("csv", path=path, class_names=["0", "2"], when_missing="drop")
