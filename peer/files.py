"""Files that are either whole or not there, also after a power cut."""

import os
from errno import EDQUOT, ENOSPC
from pathlib import Path

from peer.errors import FailedError


def write_atomically(path: Path, content: bytes | memoryview) -> None:
    """Write beside, flush to disk, rename; FailedError when the disk is full or gone."""
    beside = path.with_name(f".{path.name}.part")
    try:
        with beside.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        beside.replace(path)
    except OSError as error:
        beside.unlink(missing_ok=True)
        way_out = "; make room and start this peer again" if error.errno in (ENOSPC, EDQUOT) else ""
        raise FailedError(f"cannot write {path}: {error.strerror}{way_out}") from None


def sync_directory(path: Path) -> None:
    """Make renames in a directory survive a power cut."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
