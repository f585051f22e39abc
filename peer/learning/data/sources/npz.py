"""Arrays in a NumPy .npz archive, memory-mapped where they are stored uncompressed."""

import io
import math
import struct
import zipfile
import zlib
from pathlib import Path
from tokenize import TokenError
from typing import Literal

import numpy as np
from pydantic import Field

from peer.errors import InputError
from peer.files import open_plain
from peer.learning.data.dataset import Dataset, Labelled, hold_out, join_parts, labelled
from peer.learning.data.samples import Array
from peer.learning.data.sources.base import OnDisk
from peer.learning.data.sources.unpacking import check_unpacked
from peer.learning.tasks import Task

ENCRYPTED = 1
"""The bit of a zip member's flags."""


class Npz(OnDisk):
    """Arrays x_train, y_train, x_test, y_test, or x, y of which a part is held out for testing.

    uint8 arrays are pixels, (n, H, W), (n, H, W, C) or (n, C, H, W), scaled to [0, 1]; others are float32, or whole
    numbers for tokens. Labels are integers from 0.
    """

    name: Literal["npz"]
    """A NumPy archive of your own."""
    path: Path
    """The .npz file."""
    holdout: float = Field(default=0.2, gt=0, lt=1)
    """Share held out for testing where there is no test set."""
    classes: int | None = Field(default=None, ge=1)
    """Number of classes, if the largest does not occur."""

    def _read(self, task: Task) -> Dataset:
        where = str(self.path)
        arrays = read_npz(self.path)
        train = _pair(arrays, ("x_train", "y_train") if "x_train" in arrays else ("x", "y"), where, task)
        if {"x_test", "y_test"} & arrays.keys():
            test = _pair(arrays, ("x_test", "y_test"), where, task)
        else:
            train, test = hold_out(train, self.holdout, self.seed, where)
        return join_parts(train, test, where, self._count(self.classes))


def _pair(arrays: dict[str, Array], keys: tuple[str, str], where: str, task: Task) -> Labelled:
    x, y = keys
    absent = [key for key in keys if key not in arrays]
    if absent:
        found = ", ".join(sorted(arrays)) or "nothing"
        raise InputError(
            f"{where}: there is no array {absent[0]}; it must hold x_train, y_train, x_test and y_test, "
            f"or x and y, and holds {found}"
        )
    return labelled(arrays[x], arrays[y], where, task, x, y)


def read_npz(path: Path) -> dict[str, Array]:
    """Every array of the archive by name; InputError when it is missing, damaged or holds Python objects."""
    try:
        with open_plain(path) as file, zipfile.ZipFile(file) as archive:
            # By name: a member may be listed any number of times.
            members = {info.filename: info for info in archive.infolist() if info.filename.endswith(".npy")}
            packed = [info for info in members.values() if info.compress_type != zipfile.ZIP_STORED]
            check_unpacked(
                path, sum(info.file_size for info in packed), "save it with np.savez, which does not pack it"
            )
            return {name.removesuffix(".npy"): _member(path, archive, info) for name, info in members.items()}
    except FileNotFoundError as error:
        raise InputError(f"there is no file {path}") from error
    # zipfile tells of damage in these ways; a name that is not UTF-8 and an impossible offset are ValueErrors.
    except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, ValueError) as error:
        raise InputError(f"{path} is not a .npz archive, or is truncated or damaged: {error}") from error
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror or error}") from error


def _member(path: Path, archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> Array:
    if info.flag_bits & ENCRYPTED:
        raise zipfile.BadZipFile(f"{info.filename} is encrypted")
    match info.compress_type:
        case zipfile.ZIP_STORED:
            content = _mapped(path, info)
        case zipfile.ZIP_DEFLATED:
            content = np.frombuffer(archive.read(info), np.uint8)
        case _:
            raise zipfile.BadZipFile(f"{info.filename} is compressed in another way than NumPy does")
    try:
        return _array(content)
    except (ValueError, TokenError) as error:  # NumPy takes headers apart into tokens, which Python 3.12 may refuse
        raise InputError(f"{path}: {info.filename} is not a plain array ({error})") from error


def _mapped(path: Path, info: zipfile.ZipInfo) -> Array:
    """The bytes of an uncompressed member, memory-mapped and checked against its CRC."""
    with open(path, "rb") as file:
        file.seek(info.header_offset)
        local = file.read(30)
    if len(local) < 30:
        raise zipfile.BadZipFile(f"{info.filename} lies outside the file")
    # The local header repeats the name and has extra fields of its own, whose lengths only it knows.
    name_length, extra_length = struct.unpack("<26x2H", local)
    start = info.header_offset + 30 + name_length + extra_length
    if info.file_size == 0 or start + info.file_size > path.stat().st_size:
        raise zipfile.BadZipFile(f"{info.filename} is cut off")
    content = np.memmap(path, np.uint8, "r", offset=start, shape=(info.file_size,))
    if zlib.crc32(content.data) != info.CRC:
        raise zipfile.BadZipFile(f"bad CRC-32 for file {info.filename!r}")
    return content


def _array(content: Array) -> Array:
    """View the bytes of a .npy file as its array; ValueError for anything but a complete plain array."""
    head = io.BytesIO(content[: 1 << 16].tobytes())
    read_header = {
        (1, 0): np.lib.format.read_array_header_1_0,
        (2, 0): np.lib.format.read_array_header_2_0,
    }.get(np.lib.format.read_magic(head))
    if read_header is None:
        raise ValueError("its .npy version is unknown")
    shape, column_major, dtype = read_header(head)
    if dtype.hasobject:
        raise ValueError("it holds pickled Python objects, which are never loaded; save numbers")
    data = content[head.tell() :]
    if dtype.itemsize == 0 or len(data) != dtype.itemsize * math.prod(shape):
        raise ValueError(f"{len(data)} bytes are not {shape} of {dtype}")
    return data.view(dtype).reshape(shape, order="F" if column_major else "C")
