"""Parts of bytes over a pipe: how many there are, then each with its length before it. Nothing in them is unpickled."""

import os
from collections.abc import Iterable, Iterator

LENGTH = 8
"""Bytes of a number, little-endian."""
AT_ONCE = 1 << 20
"""Bytes of memory that are taken before there is something to put in."""


def write(pipe: int, parts: Iterable[bytes], count: int) -> None:
    """BrokenPipeError where nobody reads any more."""
    _write(pipe, count.to_bytes(LENGTH, "little"))
    for part in parts:
        _write(pipe, len(part).to_bytes(LENGTH, "little"))
        _write(pipe, part)


def read(pipe: int, most: int | None = None) -> Iterator[bytes]:
    """Each part as it comes; EOFError where the pipe ends before, ValueError where one is longer than `most`."""
    for _ in range(_number(pipe)):
        length = _number(pipe)
        if most is not None and length > most:
            raise ValueError(f"{length} bytes where there are at most {most}")
        yield _read(pipe, length)


def _number(pipe: int) -> int:
    return int.from_bytes(_read(pipe, LENGTH), "little")


def _read(pipe: int, length: int) -> bytes:
    found = bytearray()
    while len(found) < length:
        piece = os.read(pipe, min(length - len(found), AT_ONCE))
        if not piece:
            raise EOFError
        found += piece
    return bytes(found)


def _write(pipe: int, content: bytes) -> None:
    left = memoryview(content)
    while left:
        left = left[os.write(pipe, left) :]
