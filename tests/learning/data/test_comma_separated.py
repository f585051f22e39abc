"""CSV files as people have them: what is read as it is meant, and what is told with the line that an editor shows."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from loading import load, source
from pydantic import ValidationError

from peer.errors import InputError
from peer.learning.data.samples import Names
from peer.learning.tasks import Regression

GERMAN = "Alter;Größe;label\n" + "".join(f"{row},5;1,{row};{'süß' if row % 2 else 'bitter'}\n" for row in range(8))
PLAIN = "a,b,label\n1.5,2,x\n2.5,3,y\n3.5,4,x\n"


def table(path: Path, content: str | bytes) -> Path:
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def rows(path: Path, **settings: Any) -> list[list[float]]:
    """The rows of the whole file, sorted."""
    dataset = load("csv", path=path, **settings)
    parts = (dataset.parts["train"].inputs, dataset.parts["test"].inputs)
    return sorted(row for part in parts for row in np.asarray(part[np.arange(part.shape[0])]).tolist())


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "cp1252", "latin-1"])
def test_a_german_file_is_read_in_each_encoding(tmp_path: Path, encoding: str) -> None:
    path = table(tmp_path / "t.csv", GERMAN.encode(encoding))
    told = {"encoding": encoding} if encoding in ("cp1252", "latin-1") else {}
    dataset = load("csv", path=path, decimal=",", **told)
    assert dataset.names == Names(("Alter", "Größe"), ("bitter", "süß"))
    assert dataset.remarks == ("columns are separated by `;`",)
    assert np.allclose(rows(path, decimal=",", **told), [[row + 0.5, 1 + row / 10] for row in range(8)])


@pytest.mark.parametrize("separator", [";", "\t", "|", ","])
def test_the_separator_is_found_by_the_label(tmp_path: Path, separator: str) -> None:
    path = table(tmp_path / "t.csv", PLAIN.replace(",", separator).replace("\n", "\r\n"))
    dataset = load("csv", path=path)
    assert dataset.names == load("csv", path=path, separator=separator).names == Names(("a", "b"), ("x", "y"))
    assert bool(dataset.remarks) == (separator != ",")


@pytest.mark.parametrize(
    ("text", "settings", "expected"),
    [
        ("a, b, label\n1, 2, x\n3, 4, x \n", {}, [[1, 2], [3, 4]]),
        ('a,b,label\n1,"2",x\n3,"4",y\n', {}, [[1, 2], [3, 4]]),
        ('a;b;label\n"1,5";2;x\n3;4;y\n', {"decimal": ","}, [[1.5, 2], [3, 4]]),
        ("a,b,label\ntrue,2,x\nFalse,4,y\n", {}, [[0, 4], [1, 2]]),
        ("a,b,label\n1" + 28 * "0" + ",2,x\n3,4,y\n", {}, [[3, 4], [np.float32(1e28), 2]]),
        ("id,b,a,label\np1,2,1,x\np2,4,3,y\n", {"columns": ["a", "b"]}, [[1, 2], [3, 4]]),
        ("a,b,label\n1,2,0\n,3,1\n3,4,1\n5,-,\n5,6,0\n", {"when_missing": "drop", "missing": ["", "-"]},
         [[1, 2], [3, 4], [5, 6]]),
        ("a,b,label\n-999,2,x\n3,4,y\n1,2,x\n", {"when_missing": "drop", "missing": ["-999"]}, [[1, 2], [3, 4]]),
        ("a,b,label\n1,2,NA\n3,4,DE\n", {"missing": [""]}, [[1, 2], [3, 4]]),
        ('a,b,label\nNA ,2,x\n3,4,y\n1,2,x\n4," N/A  ",y\n5,6,null \n', {"when_missing": "drop"}, [[1, 2], [3, 4]]),
        ("a,b,label\n1,-999 ,x\n2,1,x\n3,4,y\n", {"when_missing": "drop", "missing": [" -999"]}, [[2, 1], [3, 4]]),
    ],
)  # fmt: skip
def test_what_is_meant_is_read(
    tmp_path: Path, text: str, settings: dict[str, Any], expected: list[list[float]]
) -> None:
    assert rows(table(tmp_path / "t.csv", text), **settings) == expected


@pytest.mark.parametrize("missing", ["", "NA "])
def test_how_many_rows_are_left_out_is_said_and_whole_classes_stay_whole(tmp_path: Path, missing: str) -> None:
    path = table(tmp_path / "t.csv", f"a,label\n1,0\n2,{missing}\n3,1\n4,1\n")
    dataset = load("csv", path=path, when_missing="drop")
    assert dataset.remarks == ("1 of 4 rows are left out, as a value is missing",)
    assert sorted([*dataset.train_targets, *dataset.parts["test"].targets]) == [0, 1, 1]


def test_a_number_to_foretell_may_have_a_decimal_comma(tmp_path: Path) -> None:
    path = table(tmp_path / "t.csv", "a;price\n1;2,5\n2;3,5\n3;4,5\n")
    settings = {"path": path, "label": "price"}
    dataset = source("csv", **settings, decimal=",").load(Regression(name="regression"))
    assert sorted(np.r_[dataset.train_targets, dataset.parts["test"].targets].flatten().tolist()) == [2.5, 3.5, 4.5]
    with pytest.raises(InputError, match=r"column 'price' holds '2,5' in line 2, .* write `decimal: \",\"`"):
        source("csv", **settings).load(Regression(name="regression"))


WIDE = ",".join(f"c{number}" for number in range(29)) + ",label\n"
FULL = ",".join("1" * 29) + ",0\n"


@pytest.mark.parametrize(
    ("content", "settings", "message"),
    [
        (WIDE + FULL + FULL[2:] + FULL, {}, "line 3 has 29 fields and the header has 30 names"),
        (WIDE + FULL + FULL + "1," + FULL, {}, "line 4 has 31 fields and the header has 30 names"),
        (WIDE + FULL + FULL[2:], {"when_missing": "drop"}, "line 3 has 29 fields and the header has 30 names"),
        (PLAIN + "4.5,oops,x\n", {}, "column 'b' holds 'oops' in line 5, which is not a number"),
        ('"a\nb",label\n1,x\n\n2,y\noops,x\n', {}, "holds 'oops' in line 6"),
        ('a,label\n1,"x\n\nx"\n,y\n', {}, "column 'a' has no value in line 5"),
        ("a,label\n1,x\n,y\noops,y\n", {"when_missing": "drop"}, "holds 'oops' in line 4"),
        ("a;label\n1,5;x\n2,5;y\n", {}, r"holds '1,5' in line 2, .* write `decimal: \",\"`"),
        ("a;label\n1,5;x\n2.5;y\n", {"decimal": ","}, r"holds '2.5' in line 3, .* write `decimal: \"\.\"`"),
        ("a;label\n1,5;x\n1.234,5;y\n", {"decimal": ","}, "holds '1.234,5' in line 3, which is not a number"),
        ("day,label\n2026-01-02,x\n2026-01-03,y\n", {}, "'2026-01-02' in line 2, .* say by `columns` which columns"),
        (GERMAN.encode("cp1252"), {}, "is not a CSV file in UTF-8: line 1 has a letter .* `encoding: cp1252`"),
        (PLAIN.encode() + "5,6,süß\n".encode("latin-1"), {}, "in UTF-8: line 5 has a letter"),
        (PLAIN, {"encoding": "utf-16"}, "is not a CSV file"),
        ((PLAIN + "Ċ,6,y\n").encode("utf-16")[:-1], {}, "in UTF-16: line 5 is damaged or cut off; save it"),
        ("a,label\n1_000,x\n2,y\n", {}, "holds '1_000' in line 2, which is not a number; correct it"),
        ('a,label\n1,x\n\n2,"y\n3,x\n', {}, "the row of line 4 has a quotation mark that is not closed; close it, or"),
        ('a,label\n"1,x\n2,y\n', {}, "the row of line 2 has a quotation mark that is not closed"),
        ('a,label\n1,x\n"2,y\n' + "3,x\n" * 50_000, {}, "the row of line 3 has a quotation mark that is not closed"),
        ("a,a,label\n1,2,x\n", {}, "two columns are called 'a'"),
        (",a,label\n0,1,x\n", {}, "column 1 has no name in the header"),
        ("\n\n", {}, "there is no header line"),
        (PLAIN, {"columns": ["a", "c"]}, "there is no column 'c'"),
        (PLAIN, {"columns": ["a", "label"]}, "`columns` has `label`, which is the label"),
        ("a,label\n,x\n1,\n", {"when_missing": "drop"}, "every row lacks a value"),
        (PLAIN, {"separator": ";"}, "there is no column 'label' to take labels from; it has a,b,label"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_told_in_one_sentence(
    tmp_path: Path, content: str | bytes, settings: dict[str, Any], message: str
) -> None:
    path = table(tmp_path / "t.csv", content)
    with pytest.raises(InputError, match=message) as caught:
        load("csv", path=path, **settings)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("key", "value"),
    [("separator", ";;"), ("separator", '"'), ("decimal", "'"), ("encoding", "klingon"), ("when_missing", "guess")],
)
def test_settings_that_no_file_has_are_refused(tmp_path: Path, key: str, value: str) -> None:
    with pytest.raises(ValidationError, match=key):
        source("csv", path=tmp_path / "t.csv", **{key: value})
