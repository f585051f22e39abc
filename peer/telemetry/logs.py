"""The log: lines on stderr; where that is a file, it is rotated, so that a long run does not fill the disk."""

import errno
import fcntl
import logging
import os
import shutil
import stat
import sys
from pathlib import Path

from peer.text import printable

MAX_LOG_BYTES = 5 << 20
"""Bytes of a log file before it is moved aside; one older file is kept."""


class RotatingLines(logging.StreamHandler):  # type: ignore[type-arg]
    """Copies a log file that has grown too large to `<name>.1` and empties it: its writers append and go on."""

    def __init__(self, path: Path | None) -> None:
        super().__init__(sys.stderr)
        self._path, self._limit = path, MAX_LOG_BYTES

    def emit(self, record: logging.LogRecord) -> None:
        if self._path:
            self._rotate(self._path)
        self.stream = sys.stderr  # as it is now: a live line below the log puts something of its own there
        super().emit(record)

    def format(self, record: logging.LogRecord) -> str:
        """A traceback has lines; what others have chosen in it must not move the cursor."""
        return "\n".join(map(printable, super().format(record).split("\n")))

    def _rotate(self, path: Path) -> None:
        """A file that was moved, or beside which nothing may be written, goes on growing instead.

        What may pass, such as a full disk, is tried again when the file has grown by as much again.
        """
        size = 0
        try:
            if (size := os.fstat(sys.stderr.fileno()).st_size) > self._limit:
                shutil.copyfile(path, path.with_name(f"{path.name}.1"))
                os.truncate(path, 0)
                self._limit = MAX_LOG_BYTES
        except OSError as error:
            self._limit = size + MAX_LOG_BYTES
            if error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EMFILE, errno.ENFILE):
                self._path = None


def start_logging() -> None:
    """Time and message, one line each; what breaks a stream is said by the links, not by gRPC."""
    logging.getLogger("grpc").setLevel(logging.CRITICAL)
    logging.basicConfig(
        format="%(asctime)s %(message)s", datefmt="%Y-%m-%d %H:%M:%S", level=logging.INFO, handlers=[_handler()]
    )


def _handler() -> RotatingLines:
    path = Path("/proc/self/fd/2")
    is_file = stat.S_ISREG(os.fstat(2).st_mode) if sys.platform == "linux" else False
    # After `2> log` in place of `2>> log` writing would go on behind the emptied part.
    rotates = is_file and bool(fcntl.fcntl(2, fcntl.F_GETFL) & os.O_APPEND)
    return RotatingLines(path.resolve() if rotates else None)
