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


class Unpacked(gzip.GzipFile):
    """A gzip file that is read as far as it may grow; ValueError beyond."""

    def __init__(self, path: Path) -> None:
        super().__init__(path, "rb")
        self._most = _allowed_bytes(path)

    def read(self, size: int | None = -1) -> bytes:
        left = self._most + 1 - self.tell()
        return self._counted(super().read(left if size is None or size < 0 else size))

    def read1(self, size: int = -1) -> bytes:
        return self._counted(super().read1(size))

    def _counted(self, content: bytes) -> bytes:
        if self.tell() > self._most:
            raise ValueError(f"it unpacks to more than {MAX_RATIO} times its size; unpack it first")
        return content


def _allowed_bytes(path: Path) -> int:
    return max(ALWAYS_ALLOWED_BYTES, MAX_RATIO * path.stat().st_size)
