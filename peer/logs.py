"""The log: lines on stderr; where that is a file, it is rotated, so that a long run does not fill the disk."""

import logging
import os
import shutil
import stat
import sys
from pathlib import Path

LARGEST = 5 << 20
"""Bytes of a log file before it is moved aside; one older file is kept."""


class RotatingLines(logging.StreamHandler):  # type: ignore[type-arg]
    """Copies a log file that has grown too large to `<name>.1` and empties it: its writers append and go on."""

    def __init__(self, path: Path | None) -> None:
        super().__init__(sys.stderr)
        self._path = path

    def emit(self, record: logging.LogRecord) -> None:
        if self._path and os.fstat(sys.stderr.fileno()).st_size > LARGEST:
            shutil.copyfile(self._path, self._path.with_name(f"{self._path.name}.1"))
            os.truncate(self._path, 0)
        super().emit(record)


def start_logging() -> None:
    """Time and message, one line each; what breaks a stream is said by the links, not by gRPC."""
    logging.getLogger("grpc").setLevel(logging.CRITICAL)
    logging.basicConfig(
        format="%(asctime)s %(message)s", datefmt="%Y-%m-%d %H:%M:%S", level=logging.INFO, handlers=[_handler()]
    )


def _handler() -> RotatingLines:
    path = Path("/proc/self/fd/2")
    is_file = stat.S_ISREG(os.fstat(2).st_mode) if sys.platform == "linux" else False
    return RotatingLines(path.resolve() if is_file else None)
