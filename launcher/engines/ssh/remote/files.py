"""Small text files, whole or not there."""

from __future__ import annotations

import os


def read(path: str) -> str:
    with open(path, encoding="utf-8") as file:
        return file.read()


def write(path: str, text: str, mode: int) -> None:
    part = f"{path}.{os.getpid()}.part"
    descriptor = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode)
    with open(descriptor, "w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(descriptor)
    os.replace(part, path)


def absolute(directory: str) -> str:
    return os.path.abspath(os.path.expanduser(directory))
