"""Files that are either whole or not there, also after a power cut."""

import os
from contextlib import suppress
from errno import EDQUOT, ENOSPC
from pathlib import Path

from peer.errors import FailedError


def write_atomically(path: Path, content: bytes | memoryview, over: Path | None = None) -> None:
    """Write beside, flush to disk, rename; FailedError when the disk is full or gone.

    `over` is a file that nobody needs, if it is there: it becomes the new one. To write its blocks on the disk once
    more costs half of what it does to make a file and remove another.
    """
    beside = path.with_name(f".{path.name}.part")
    try:
        if over:
            with suppress(FileNotFoundError):
                over.replace(beside)
        with open(beside, "wb", opener=_untruncated) as file:
            file.write(content)
            file.truncate()
            file.flush()
            os.fsync(file.fileno())
        beside.replace(path)
    except OSError as error:
        beside.unlink(missing_ok=True)
        raise FailedError(cannot_write(path, error)) from None


def _untruncated(path: str, flags: int) -> int:
    return os.open(path, flags & ~os.O_TRUNC, 0o666)


def cannot_write(path: Path | str, error: OSError) -> str:
    """What went wrong in words, with the way out."""
    full = error.errno in (ENOSPC, EDQUOT)
    return f"cannot write {path}: {error.strerror}; {'make room' if full else 'mend that'} and start this peer again"


def sync(path: Path) -> None:
    """Make a file's content, or the renames in a directory, survive a power cut."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
