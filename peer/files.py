"""Files that are either whole or not there, also after a power cut."""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from errno import EBADF, EDQUOT, ENOLCK, ENOSPC, ENOTSUP
from pathlib import Path

from peer.errors import FailedError, InputError


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


@contextmanager
def sole_use(directory: Path) -> Iterator[None]:
    """Keep others out of the directory inside the block, which ends with the process too; InputError if taken."""
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise InputError(f"{directory}: this peer is running already; end that process first") from None
        except OSError as error:  # a file system without locks
            if error.errno not in (EBADF, ENOLCK, ENOTSUP):
                raise
        yield
    finally:
        os.close(descriptor)


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
