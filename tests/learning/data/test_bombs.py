"""Small files that stand for huge data: told in a sentence, before the memory is taken."""

import gzip
import io
import os
import struct
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from loading import load

from peer.errors import InputError

SMALL = 1 << 20


def npy(shape: str, descr: str = "'|u1'", content: bytes = b"\0" * 4) -> bytes:
    header = f"{{'descr': {descr}, 'fortran_order': False, 'shape': {shape}, }}\n".encode()
    return b"\x93NUMPY\1\0" + struct.pack("<H", len(header)) + header + content


@pytest.mark.parametrize(
    ("shape", "descr"),
    [
        (f"({10**30},)", "'|u1'"),
        ("(4294967296, 4294967296)", "'|u1'"),
        ("(-4,)", "'|u1'"),
        ("(" * 3000 + ")" * 3000, "'|u1'"),
        ("(4,)", "[" * 2000 + "]" * 2000),
        ("(4,)", "'|V2147483647'"),
        ("(4,)", "'|S0'"),
    ],
)
def test_a_header_that_asks_for_more_than_there_is(tmp_path: Path, shape: str, descr: str) -> None:
    with zipfile.ZipFile(tmp_path / "a.npz", "w") as archive:
        archive.writestr("x.npy", npy(shape, descr))
        archive.writestr("y.npy", npy("(4,)"))
    with pytest.raises(InputError, match=r"x\.npy is not a plain array"):
        load("npz", path=tmp_path / "a.npz")


def test_an_archive_that_unpacks_to_a_hundred_times_its_size(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "a.npz", "w", zipfile.ZIP_DEFLATED) as archive:
        with archive.open("x.npy", "w", force_zip64=True) as member:
            member.write(npy(f"({80 * SMALL}, 1)", content=b""))
            for _ in range(80):
                member.write(bytes(SMALL))
        archive.writestr("y.npy", npy("(4,)"))
    assert (tmp_path / "a.npz").stat().st_size < SMALL
    with pytest.raises(
        InputError, match=r"would take 84 MB of memory, 100 times its own size; save it with np\.savez,"
    ):
        load("npz", path=tmp_path / "a.npz")


def test_many_members_in_the_same_bytes(tmp_path: Path) -> None:
    """A zip's directory may list one packed member under any number of names."""
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("x.npy", npy(f"({SMALL},)", content=bytes(SMALL)))
        for number in range(99):
            again = zipfile.ZipInfo(f"{number}.npy")
            first = archive.filelist[0]
            for name in ("header_offset", "compress_size", "file_size", "CRC", "compress_type"):
                setattr(again, name, getattr(first, name))
            archive.filelist.append(again)
    (tmp_path / "a.npz").write_bytes(packed.getvalue())
    with pytest.raises(InputError, match=r"would take 105 MB of memory"):
        load("npz", path=tmp_path / "a.npz")


@pytest.mark.parametrize("line", [b"1,0\n" * (SMALL // 4), b"1" * SMALL])
def test_a_packed_table_that_has_no_end_is_not_parsed(
    tmp_path: Path, line: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Parsed, its rows would take nine times their bytes."""
    monkeypatch.delattr("pandas.read_csv")
    with gzip.open(tmp_path / "t.csv.gz", "wb", compresslevel=1) as file:
        file.write(b"a,label\n")
        for _ in range(80):
            file.write(line)
    assert (tmp_path / "t.csv.gz").stat().st_size < SMALL
    with pytest.raises(InputError, match="it unpacks to more than 100 times its size; unpack it first"):
        load("csv", path=tmp_path / "t.csv.gz")


def test_a_table_is_packed_in_one_way_only(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "t.csv.zip", "w") as archive:
        archive.writestr("t.csv", "a,label\n1,0\n2,1\n")
    with pytest.raises(InputError, match="is not a CSV file"):
        load("csv", path=tmp_path / "t.csv.zip")


def rows_of_nothing(path: Path) -> None:
    import pyarrow
    from pyarrow import parquet

    count = 10 * SMALL
    columns = {"a": pyarrow.array(np.zeros(count, np.int8)), "label": pyarrow.array(np.zeros(count, np.int8))}
    parquet.write_table(pyarrow.table(columns), path)


def one_text_in_every_row(path: Path) -> None:
    import pyarrow
    from pyarrow import parquet

    texts = pyarrow.DictionaryArray.from_arrays(np.zeros(1000, np.int32), ["x" * SMALL])
    parquet.write_table(pyarrow.table({"a": np.zeros(1000), "label": texts}), path, store_schema=False)


def many_columns(path: Path) -> None:
    import pyarrow
    from pyarrow import parquet

    columns = {f"c{number}": np.zeros(SMALL, np.int8) for number in range(60)}
    parquet.write_table(pyarrow.table({**columns, "label": columns["c0"]}), path)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("write", [rows_of_nothing, one_text_in_every_row, many_columns])
def test_a_parquet_file_of_one_value(tmp_path: Path, write: Callable[[Path], None], stream: bool) -> None:
    write(tmp_path / "t.parquet")
    assert (tmp_path / "t.parquet").stat().st_size < SMALL
    with pytest.raises(InputError, match=r"times its own size; write it (without|in groups of)"):
        load("parquet", path=tmp_path / "t.parquet", stream=stream)


def test_texts_as_labels_of_a_parquet_file(tmp_path: Path) -> None:
    import pandas

    frame = pandas.DataFrame({"a": np.arange(12.0), "label": ["cat", "dog", "cow"] * 4})
    frame.to_parquet(tmp_path / "t.parquet")
    dataset = load("parquet", path=tmp_path / "t.parquet")
    assert (dataset.classes, dataset.names.classes) == (3, ("cat", "cow", "dog"))


def images(directory: Path, make: Callable[[Path], object]) -> Path:
    (directory / "one").mkdir()
    for name in ("1.png", "2.png"):
        make(directory / "one" / name)
    return directory


def giant(path: Path) -> None:
    from PIL import Image

    Image.new("1", (10_000, 9_000)).save(path)


POSTSCRIPT = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n%%EndComments\nshowpage\n"


@pytest.mark.filterwarnings("ignore:::PIL.*")
@pytest.mark.parametrize(
    ("make", "why"),
    [
        (giant, "its 10000 x 9000 pixels are too many; scale it down"),
        (os.mkfifo, "it is not a plain file"),
        (lambda path: path.symlink_to("/dev/zero"), "it is not a plain file"),
        (lambda path: path.symlink_to(path), "symbolic links"),
        (lambda path: path.symlink_to("/etc/passwd"), "cannot identify image file"),
        (lambda path: path.write_bytes(POSTSCRIPT), "cannot identify image file"),
    ],
)
def test_what_lies_in_a_folder_of_images_and_is_none(tmp_path: Path, make: Callable[[Path], object], why: str) -> None:
    """Nothing of what a link points to is quoted, and no other program is started for a format of its own."""
    folder = images(tmp_path, make)
    with pytest.raises(InputError, match=why) as told:
        load("image-folder", root=folder, size=4).train(np.array([0]))
    assert "root:" not in str(told.value)


@pytest.mark.parametrize(("name", "file"), [("npz", "a.npz"), ("csv", "t.csv"), ("parquet", "t.parquet")])
def test_a_pipe_keeps_nobody_waiting(tmp_path: Path, name: str, file: str) -> None:
    os.mkfifo(tmp_path / file)
    with pytest.raises(InputError):
        load(name, path=tmp_path / file)
