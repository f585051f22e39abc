"""Files of a person's own with a few bytes changed or missing: a data set or one sentence, never another error."""

import gzip
import io
import zipfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from loading import load

from peer.errors import InputError


def archive(method: int) -> bytes:
    rng, packed = np.random.default_rng(0), io.BytesIO()
    with zipfile.ZipFile(packed, "w", method) as members:
        for name, values in (("x", rng.integers(0, 256, (12, 4, 4), np.uint8)), ("y", np.arange(12) % 3)):
            member = io.BytesIO()
            np.save(member, values)
            members.writestr(f"{name}.npy", member.getvalue())
    return packed.getvalue()


def table(kind: str) -> bytes:
    import pandas

    frame = pandas.DataFrame({"a": np.linspace(-1, 1, 12), "b": np.arange(12), "label": np.arange(12) % 3})
    if kind == "parquet":
        packed = io.BytesIO()
        frame.to_parquet(packed)
        return packed.getvalue()
    text = frame.to_csv(index=False).encode()
    return gzip.compress(text) if kind == "csv.gz" else text


def image(kind: str) -> bytes:
    from PIL import Image

    packed = io.BytesIO()
    Image.fromarray(np.random.default_rng(0).integers(0, 256, (9, 9, 3), np.uint8)).save(packed, kind)
    return packed.getvalue()


def read_archive(directory: Path, content: bytes) -> None:
    (directory / "a.npz").write_bytes(content)
    load("npz", path=directory / "a.npz")


def read_table(kind: str) -> Callable[[Path, bytes], None]:
    def read(directory: Path, content: bytes) -> None:
        (directory / f"t.{kind}").write_bytes(content)
        load(kind.removesuffix(".gz"), path=directory / f"t.{kind}")

    return read


def read_image(directory: Path, content: bytes) -> None:
    (directory / "one").mkdir(exist_ok=True)
    for name in ("1.png", "2.png"):
        (directory / "one" / name).write_bytes(content)
    load("image-folder", root=directory, size=4).train(np.array([0]))


FILES: dict[str, tuple[Callable[[], bytes], Callable[[Path, bytes], None]]] = {
    "npz": (lambda: archive(zipfile.ZIP_STORED), read_archive),
    "npz, compressed": (lambda: archive(zipfile.ZIP_DEFLATED), read_archive),
    **{kind: (lambda kind=kind: table(kind), read_table(kind)) for kind in ("csv", "csv.gz", "parquet")},  # type: ignore[misc]
    **{kind: (lambda kind=kind: image(kind), read_image) for kind in ("png", "jpeg", "gif", "tiff", "webp")},  # type: ignore[misc]
}
CHANGES = st.lists(st.tuples(st.floats(0, 1, exclude_max=True), st.integers(1, 255)), min_size=1, max_size=4)


@pytest.mark.parametrize("kind", FILES)
@pytest.mark.filterwarnings("ignore:::PIL.*")  # Pillow says of some damage that it goes on without that part
@settings(max_examples=60, derandomize=True, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(changes=CHANGES, kept=st.floats(0, 1) | st.just(1.0))
def test_a_damaged_file_is_told_or_read(
    kind: str, tmp_path: Path, changes: list[tuple[float, int]], kept: float
) -> None:
    make, read = FILES[kind]
    content = bytearray(make())
    for place, change in changes:
        content[int(place * len(content))] ^= change
    with suppress(InputError):
        read(tmp_path, bytes(content[: int(kept * len(content))]))


@pytest.mark.parametrize("method", [zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_an_archive_that_numpy_does_not_write(tmp_path: Path, method: int) -> None:
    with pytest.raises(InputError, match=r"a\.npz is not .* x\.npy is compressed in another way than NumPy does"):
        read_archive(tmp_path, archive(method))


def test_an_encrypted_archive(tmp_path: Path) -> None:
    content = bytearray(archive(zipfile.ZIP_STORED))
    content[content.index(b"PK\1\2") + 8] |= 1  # the flags of the first member in the directory
    with pytest.raises(InputError, match=r"a\.npz is not .* x\.npy is encrypted"):
        read_archive(tmp_path, bytes(content))


@pytest.mark.parametrize(
    ("before", "after"),
    [(b'"pandas_type"', b'"pandas_tipe"'), (b'"numpy_type": "float64"', b'"numpy_type": "float74"')],
)
def test_a_parquet_file_with_a_damaged_schema(tmp_path: Path, before: bytes, after: bytes) -> None:
    import pyarrow.parquet

    whole = pyarrow.parquet.read_table(pyarrow.BufferReader(table("parquet")))
    notes, packed = whole.schema.metadata[b"pandas"], pyarrow.BufferOutputStream()
    assert before in notes
    pyarrow.parquet.write_table(whole.replace_schema_metadata({b"pandas": notes.replace(before, after)}), packed)
    with pytest.raises(InputError, match=r"t\.parquet is not a Parquet file or is truncated"):
        read_table("parquet")(tmp_path, packed.getvalue().to_pybytes())
