"""Small text files, whole or not there."""

from __future__ import annotations

import os
import stat
from contextlib import suppress

from launcher.engines.ssh.remote.speech import Refused


def read(path: str) -> str:
    with open(path, encoding="utf-8") as file:
        return file.read()


def write(path: str, text: str, mode: int) -> None:
    part = f"{path}.{os.getpid()}.part"
    with suppress(FileNotFoundError):
        os.unlink(part)
    descriptor = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, mode)
    with open(descriptor, "w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(descriptor)
    os.replace(part, path)


def intruders(directory: str) -> str:
    """Who else could put files into the directory, and the way out; empty if nobody could, or it is not there yet."""
    try:
        found = os.lstat(directory)
    except (FileNotFoundError, NotADirectoryError):
        return ""
    if stat.S_ISLNK(found.st_mode):
        return f"{directory} is a link; give the directory that it leads to as `directory`"
    if found.st_uid != os.getuid():
        return f"{directory} belongs to another user; give another `directory`"
    if found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        return f"others may write to {directory}; close it to them with `chmod go-w`, or give another `directory`"
    return ""


def own(directory: str) -> None:
    """Makes the directory, unless it is there; Refused if others could put files into it."""
    os.makedirs(directory, mode=0o700, exist_ok=True)
    if why := intruders(directory):
        raise Refused(why)


def absolute(directory: str) -> str:
    return os.path.abspath(os.path.expanduser(directory))
