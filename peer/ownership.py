"""A directory that is a peer's alone: other users of the machine cannot look into it, and no link leads out of it."""

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from peer.errors import InputError

OWN = (
    *("audit.jsonl", "events.jsonl", "log.txt", "log.txt.1", "model.safetensors", "model.best.safetensors"),
    *("result.json", "checkpoint", "complete", "journal", "pid", "run.json", "trace"),
)
"""What a peer writes; anything else in its directory is left as it is."""


@contextmanager
def private() -> Iterator[None]:
    """What this process makes inside the block, nobody else can read. It goes for the whole process."""
    former = os.umask(0o077)
    try:
        yield
    finally:
        os.umask(former)


@contextmanager
def unwritable() -> Iterator[None]:
    """Nobody else can write what this process makes inside the block, whatever the umask. It goes for all threads."""
    former = os.umask(0o022)
    os.umask(former | 0o022)
    try:
        yield
    finally:
        os.umask(former)


def others_may_write(directory: Path) -> bool:
    """Whether other users could put a file in the place of one that is there; in /tmp and its like they cannot."""
    mode = directory.stat().st_mode
    return bool(mode & 0o022) and not mode & stat.S_ISVTX


def make_private(directory: Path) -> None:
    """Make the directory if need be; it and what an earlier run has left in it are its owner's alone from now on."""
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    _close(directory, 0o700)  # first: then nobody else can put a link there
    refuse_links(directory)
    for path in _written(directory):
        _close(path, 0o700 if path.is_dir() else 0o600)


def refuse_links(directory: Path) -> None:
    """InputError when what would be written or read as a peer's own lies elsewhere, or is a pipe or a device."""
    for path in _written(directory):
        if not (stat.S_ISREG(mode := path.lstat().st_mode) or stat.S_ISDIR(mode)):
            raise InputError(
                f"{path}: is a link or no plain file, and a peer keeps its files in its own directory; remove it, or "
                "give another `out`"
            )


def _written(directory: Path) -> Iterator[Path]:
    for path in (directory / name for name in OWN):
        if path.is_symlink() or path.exists():
            yield path
            yield from () if path.is_symlink() else path.rglob("*")


def _close(path: Path, permissions: int) -> None:
    # On a mounted volume the directory may be somebody else's, who then answers for it.
    with suppress(PermissionError):
        path.chmod(permissions)
