"""Files on disk: whole or not there, read with a limit, and private.

Four promises that several packages rest on.

A file that a peer writes is either whole or not there, also after a power cut: `write_atomically`. When the process or
the machine has no descriptor left, it waits for one instead of failing.

A file of lines stays open, so that to write the next line takes no further descriptor: `LineFile`.

A file that another program may have made is read only if it is a plain file (a pipe would block, and a device may have
no end), and no more of it than is expected: `read_plain`, `lines`.

A peer's directory is private: other users of the machine cannot look into it, and no link leads out of it:
`make_private`, `refuse_links`.
"""

import fcntl
import mmap
import os
import shutil
import stat
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from errno import EBADF, EDQUOT, EFBIG, EINVAL, EMFILE, ENFILE, ENOLCK, ENOSPC, ENOSYS, ENOTSUP
from functools import partial
from pathlib import Path
from typing import BinaryIO, ParamSpec, TypeVar, cast

from peer.errors import FailedError, InputError

P = ParamSpec("P")
T = TypeVar("T")
STAGING_BYTES, BLOCK_BYTES = 1 << 20, 1 << 12
"""Bytes that are written at once past the page cache, and of the largest blocks that disks have."""
DESCRIPTOR_WAIT_S, DESCRIPTOR_RETRY_S = 60.0, 0.1
"""Seconds for which a descriptor is waited for, and between two attempts."""

Buffer = bytes | memoryview


def write_atomically(
    path: Path, content: Buffer | Sequence[Buffer], over: Path | None = None, permissions: int = 0o666
) -> None:
    """Write beside, flush to disk, rename; FailedError when the disk is full or gone.

    Several buffers are written one after the other, without being joined in memory. `over` is a file that is no longer
    needed, if it exists: it becomes the new one. Overwriting its blocks costs half of what it does to make a file and
    remove another. `permissions` are a new file's, as far as the umask lets them be.
    """
    beside = path.with_name(f".{path.name}.part")
    buffers = [memoryview(one).cast("B") for one in ([content] if isinstance(content, Buffer) else content)]
    try:
        # A program that has opened what a crash left here would read along, whatever the new permissions.
        beside.unlink(missing_ok=True)
        if over:
            with suppress(FileNotFoundError):
                over.replace(beside)
                if beside.stat().st_nlink > 1:  # a copy by hard links (`cp -al`) shares the blocks
                    beside.unlink()
        descriptor = retry_without_descriptors(os.open, beside, os.O_WRONLY | os.O_CREAT, permissions)
        with open(descriptor, "wb", buffering=0):
            _write_all(descriptor, buffers)
            os.ftruncate(descriptor, sum(map(len, buffers)))
            os.fsync(descriptor)
        beside.replace(path)
    except OSError as error:
        with suppress(OSError):  # on a disk that can only be read now, not even what is not there can be removed
            beside.unlink(missing_ok=True)
        raise FailedError(write_failure(path, error)) from None


def _write_all(descriptor: int, buffers: Sequence[memoryview]) -> None:
    """Write them to an empty file, or over one that is cut to their length afterwards.

    A large file goes past the page cache, which costs a tenth of the CPU seconds and leaves the cache to what is read:
    in blocks, from memory at the beginning of a page. Its last block is filled up.
    """
    size = sum(map(len, buffers))
    if size < STAGING_BYTES:
        _write_buffer(descriptor, memoryview(b"".join(buffers)))
        return
    _bypass_cache(descriptor, True)
    # Not closed by `with`: an error from within a block would leave a slice of it in its traceback, and closing fail.
    staging, filled = memoryview(mmap.mmap(-1, STAGING_BYTES)), 0
    for buffer in buffers:
        while buffer:
            taken = min(len(buffer), STAGING_BYTES - filled)
            staging[filled : filled + taken] = buffer[:taken]
            filled, buffer = filled + taken, buffer[taken:]
            if filled == STAGING_BYTES:
                _write_buffer(descriptor, staging)
                filled = 0
    _write_buffer(descriptor, staging[: filled + -filled % BLOCK_BYTES])


def _write_buffer(descriptor: int, buffer: memoryview) -> None:
    while buffer:
        try:
            buffer = buffer[os.write(descriptor, buffer) :]
        except OSError as error:
            # A file system that cannot do it, or the rest of a block of which a part was written.
            if error.errno != EINVAL or not _bypass_cache(descriptor, False):
                raise


def _bypass_cache(descriptor: int, wanted: bool) -> bool:
    """Let writes go past the page cache or through it; return whether that changed anything."""
    direct, flags = getattr(os, "O_DIRECT", 0), fcntl.fcntl(descriptor, fcntl.F_GETFL)
    with suppress(OSError):
        fcntl.fcntl(descriptor, fcntl.F_SETFL, flags | direct if wanted else flags & ~direct)
    return fcntl.fcntl(descriptor, fcntl.F_GETFL) != flags


def read(path: Path) -> bytes:
    """All that is in a file."""
    return retry_without_descriptors(path.read_bytes)


def retry_without_descriptors(function: Callable[P, T], *arguments: P.args, **named: P.kwargs) -> T:
    """Return what `function`, which opens a file, returns; while the process or the machine has no descriptor, wait.

    As a rule some are freed: connections of unknown callers are closed. Raises OSError after a minute.
    """
    for _ in range(round(DESCRIPTOR_WAIT_S / DESCRIPTOR_RETRY_S)):
        try:
            return function(*arguments, **named)
        except OSError as error:
            if error.errno not in (EMFILE, ENFILE):
                raise
        time.sleep(DESCRIPTOR_RETRY_S)  # nothing tells when one is free
    return function(*arguments, **named)


def lock(descriptor: int, patience: float = 0.0) -> bool:
    """Lock an open file or directory for this process; another's lock is waited for up to `patience` seconds.

    Returns whether that worked. The lock lasts until the last copy of the descriptor is closed, also by the end of the
    processes that have one. On a file system without locks it always works.
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
    # flock takes no timeout: wait in a daemon thread.
    waiting = threading.Thread(target=fcntl.flock, args=(descriptor, fcntl.LOCK_EX), daemon=True)
    waiting.start()
    waiting.join(min(patience, threading.TIMEOUT_MAX))
    return not waiting.is_alive()


@contextmanager
def sole_use(directory: Path, refusal: str = "") -> Iterator[None]:
    """Keep other processes out of the directory inside the block; InputError, with the refusal, if it is taken."""
    descriptor = retry_without_descriptors(os.open, directory, os.O_RDONLY)
    try:
        if not lock(descriptor):
            raise InputError(refusal or f"{directory}: this peer is running already; end that process first")
        yield
    finally:
        os.close(descriptor)


def unwritable_reason(directory: Path) -> str | None:
    """Return why nothing can be written in a directory, made or yet to be made; None if something can."""
    try:
        there = _nearest(directory)
    except OSError as error:  # such as a name too long
        return f"{directory} cannot be written to ({error.strerror})"
    if not there.is_dir():
        return f"{there} is a file, so nothing can be written below it"
    try:
        os.rmdir(tempfile.mkdtemp(dir=there))  # permissions alone do not tell: of /proc, say, or of a read-only disk
    except OSError as error:
        return f"{directory} cannot be written to ({there}: {error.strerror})"
    return None


def disk_usage(directory: Path) -> "shutil._ntuple_diskusage":
    """Size and room, in bytes, of the disk that a directory is on, or will be."""
    return shutil.disk_usage(_nearest(directory))


def _nearest(directory: Path) -> Path:
    return next(place for place in (directory, *directory.parents) if place.exists())


def write_failure(path: Path | str, error: OSError) -> str:
    """Return what went wrong, in words, with what to do."""
    full = error.errno in (ENOSPC, EDQUOT)
    return f"cannot write {path}: {error.strerror}; {'make room' if full else 'mend that'} and start again"


def sync(path: Path) -> None:
    """Make a file's content, or the renames in a directory, survive a power cut."""
    descriptor = retry_without_descriptors(os.open, path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


class LineFile:
    """A file to which whole lines are appended; one that was moved or deleted meanwhile is created anew."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._descriptor = -1
        self._torn = b""
        """The end of a line that was written in part."""

    def append(self, line: str) -> None:
        """Raises OSError if the line cannot be written, as on a full disk; what is there of it spoils no other line."""
        if not self._is_there():
            self.close()
            self._descriptor = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
        data = self._torn + f"{line}\n".encode()
        while data:
            data = data[os.write(self._descriptor, data) :]
            self._torn = b"\n" if data else b""

    def _is_there(self) -> bool:
        if self._descriptor < 0:
            return False
        try:
            there = os.stat(self.path)
        except FileNotFoundError:
            return False
        return os.path.samestat(there, os.fstat(self._descriptor))

    def close(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


MAX_SETTINGS_BYTES = 1 << 20
"""Bytes of a file of settings; that of 10,000 peers has 0.5 MB."""
MAX_RECORDS_BYTES = 256 << 20
"""Bytes of a summary or of views.json: of a peer a summary holds 2,000 rounds, with 45 bytes for each number noted."""
MAX_LINE_BYTES = 16 << 20
"""Bytes of a line of events.jsonl or audit.jsonl: an edge takes 0.2 kB, and a peer has at most 10,000."""


def open_plain(path: Path) -> BinaryIO:
    """Open a plain file for reading; raises OSError for others: a pipe would block, a device may have no end."""

    def opened(name: str, flags: int) -> int:
        return os.open(name, flags | os.O_NONBLOCK)

    file = cast(BinaryIO, open(path, "rb", opener=opened))  # noqa: SIM115 (the caller closes it)
    if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        file.close()
        raise OSError(EINVAL, "it is not a plain file", str(path))
    return file


def read_plain(path: Path, most: int) -> bytes:
    """Return the content of a plain file; raises OSError if it has more than `most` bytes."""
    with open_plain(path) as file:
        return read_up_to(file, most)


def read_up_to(file: BinaryIO, most: int) -> bytes:
    """Return what is left of a file; raises OSError if that is more than `most` bytes."""
    content = file.read(most + 1)
    if len(content) > most:
        raise OSError(EFBIG, f"it has more than {most:,} bytes", str(file.name))
    return content


def lines(file: BinaryIO, longest: int = MAX_LINE_BYTES) -> Iterator[bytes]:
    """Yield the complete lines from here on, without their ends; overlong ones are left out.

    A last line without an end stays unread: it may still be being written.
    """
    too_long = False
    while line := file.readline(longest):
        if line.endswith(b"\n"):
            if not too_long:
                yield line[:-1]
            too_long = False
        elif len(line) < longest:
            file.seek(-len(line), os.SEEK_CUR)
            return
        else:
            too_long = True


PEER_FILES = (
    *("audit.jsonl", "events.jsonl", "log.txt", "log.txt.1", "model.safetensors", "model.best.safetensors"),
    *("predictions.csv", "result.json", "checkpoint", "complete", "journal", "pid", "run.json", "tensorboard", "trace"),
    "views.json",
)
"""Names of what a peer writes; anything else in its directory is left as it is."""


@contextmanager
def _masked(permissions: int) -> Iterator[None]:
    """Make files without these permissions inside the block, whatever the umask. This affects all threads."""
    former = os.umask(0o077)
    os.umask(former | permissions)
    try:
        yield
    finally:
        os.umask(former)


private, unwritable = partial(_masked, 0o077), partial(_masked, 0o022)
"""No other user can read these files, or write them."""


def others_may_write(directory: Path) -> bool:
    """Whether other users could replace a file in the directory; in /tmp and the like they cannot."""
    mode = directory.stat().st_mode
    return bool(mode & 0o022) and not mode & stat.S_ISVTX


def make_private(directory: Path) -> None:
    """Create the directory if need be, and close it, and what an earlier run left in it, to other users."""
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    _close(directory, 0o700)  # first: then no other user can put a link there
    refuse_links(directory)
    for path in _peer_files(directory):
        _close(path, 0o700 if path.is_dir() else 0o600)


def refuse_links(directory: Path) -> None:
    """Raises InputError if one of the peer's files is a link, a pipe or a device."""
    for path in _peer_files(directory):
        if not (stat.S_ISREG(mode := path.lstat().st_mode) or stat.S_ISDIR(mode)):
            raise InputError(
                f"{path}: is a link or not a plain file, and a peer keeps its files in its own directory; remove it, "
                "or give another `out`"
            )


def _peer_files(directory: Path) -> Iterator[Path]:
    for path in (directory / name for name in PEER_FILES):
        if path.is_symlink() or path.exists():
            yield path
            yield from () if path.is_symlink() else path.rglob("*")


def _close(path: Path, permissions: int) -> None:
    # On a mounted volume the directory may belong to another user.
    with suppress(PermissionError):
        path.chmod(permissions)
