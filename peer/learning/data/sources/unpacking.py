"""How much a compressed file may become: a kilobyte of a zip or of gzip can stand for a gigabyte of memory."""

import gzip
from pathlib import Path

from peer.errors import InputError

ALWAYS_ALLOWED_BYTES = 64 << 20
"""Bytes that any file may become."""
MAX_RATIO = 100
"""How many times its own size a larger file may become; tables reach 3 to 30, arrays of mostly zeros more."""


def check_unpacked(path: Path, size: int, hint: str) -> None:
    """InputError when `size` bytes are more than the file may become."""
    if size > _allowed_bytes(path):
        raise InputError(
            f"{path}: it would take {size / 1e6:,.0f} MB of memory, {MAX_RATIO} times its own size; {hint}"
        )


def check_gzip(path: Path) -> None:
    """ValueError when a gzip file unpacks to more than it may: before a parser takes many times that memory."""
    most = _allowed_bytes(path)
    with gzip.open(path) as file:
        while file.read(1 << 20):
            if file.tell() > most:
                raise ValueError(f"it unpacks to more than {MAX_RATIO} times its size; unpack it first")


def _allowed_bytes(path: Path) -> int:
    return max(ALWAYS_ALLOWED_BYTES, MAX_RATIO * path.stat().st_size)
