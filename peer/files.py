"""Files that are either whole or not there, also after a power cut."""

import fcntl
import os
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from errno import EBADF, EDQUOT, EMFILE, ENFILE, ENOLCK, ENOSPC, ENOSYS, ENOTSUP
from pathlib import Path
from typing import ParamSpec, TypeVar

from peer.errors import FailedError, InputError

P = ParamSpec("P")
T = TypeVar("T")
PATIENCE, PAUSE = 60.0, 0.1
"""Seconds for which a descriptor is waited for, and between two attempts."""


def write_atomically(
    path: Path, content: bytes | memoryview, over: Path | None = None, permissions: int = 0o666
) -> None:
    """Write beside, flush to disk, rename; FailedError when the disk is full or gone.

    `over` is a file that nobody needs, if it is there: it becomes the new one. To write its blocks on the disk once
    more costs half of what it does to make a file and remove another. `permissions` are a new file's, as far as the
    umask lets them be.
    """
    beside = path.with_name(f".{path.name}.part")
    try:
        # Who has opened what a crash left here would read along, whatever the new permissions.
        beside.unlink(missing_ok=True)
        if over:
            with suppress(FileNotFoundError):
                over.replace(beside)
        descriptor = patiently(os.open, beside, os.O_WRONLY | os.O_CREAT, permissions)
        with open(descriptor, "wb") as file:
            file.write(content)
            file.truncate()
            file.flush()
            os.fsync(file.fileno())
        beside.replace(path)
    except OSError as error:
        beside.unlink(missing_ok=True)
        raise FailedError(cannot_write(path, error)) from None


def read(path: Path) -> bytes:
    """All that is in a file."""
    return patiently(path.read_bytes)


def patiently(function: Callable[P, T], *arguments: P.args, **named: P.kwargs) -> T:
    """What a function returns that opens a file; while the process or the machine has no descriptor for it, wait.

    Who holds them gives some back, as a rule: strangers who connect are shown out. OSError after a minute.
    """
    for _ in range(round(PATIENCE / PAUSE)):
        try:
            return function(*arguments, **named)
        except OSError as error:
            if error.errno not in (EMFILE, ENFILE):
                raise
        time.sleep(PAUSE)  # nothing tells when one is free
    return function(*arguments, **named)


def lock(descriptor: int, patience: float = 0.0) -> bool:
    """Whether an open file or directory is this process's own now; another's is waited for up to `patience` seconds.

    It is so until the last copy of the descriptor is closed, which the end of all processes that have one does too.
    On a file system without locks everybody is told that it is theirs.
    """
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return patience > 0 and _wait_for(descriptor, patience)
    except OSError as error:
        if error.errno not in (EBADF, ENOLCK, ENOSYS, ENOTSUP):
            raise
    return True


def _wait_for(descriptor: int, patience: float) -> bool:
    # No timeout can be given to flock: wait in a thread that need not be waited for.
    waiting = threading.Thread(target=fcntl.flock, args=(descriptor, fcntl.LOCK_EX), daemon=True)
    waiting.start()
    waiting.join(min(patience, threading.TIMEOUT_MAX))
    return not waiting.is_alive()


@contextmanager
def sole_use(directory: Path) -> Iterator[None]:
    """Keep others out of the directory inside the block, which ends with the process too; InputError if taken."""
    descriptor = patiently(os.open, directory, os.O_RDONLY)
    try:
        if not lock(descriptor):
            raise InputError(f"{directory}: this peer is running already; end that process first")
        yield
    finally:
        os.close(descriptor)


def why_unwritable(directory: Path) -> str | None:
    """Why nothing can be written in a directory that is there or is yet to be made; None if something can."""
    try:
        there = next(place for place in (directory, *directory.parents) if place.exists())
    except OSError as error:  # such as a name too long
        return f"{directory} cannot be written to ({error.strerror})"
    if not there.is_dir():
        return f"{there} is a file, so nothing can be written below it"
    try:
        os.rmdir(tempfile.mkdtemp(dir=there))  # permissions alone do not tell: of /proc, say, or of a read-only disk
    except OSError as error:
        return f"{directory} cannot be written to ({there}: {error.strerror})"
    return None


def cannot_write(path: Path | str, error: OSError) -> str:
    """What went wrong in words, with the way out."""
    full = error.errno in (ENOSPC, EDQUOT)
    return f"cannot write {path}: {error.strerror}; {'make room' if full else 'mend that'} and start again"


def sync(path: Path) -> None:
    """Make a file's content, or the renames in a directory, survive a power cut."""
    descriptor = patiently(os.open, path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
