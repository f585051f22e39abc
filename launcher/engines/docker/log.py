"""A container's output, brought into the peer's log.txt."""

import os
import re
import threading
from collections.abc import Callable
from contextlib import suppress
from datetime import datetime
from errno import EDQUOT, EIO, ENOSPC, EROFS
from pathlib import Path
from time import time_ns
from typing import Any

from launcher.engines.docker.errors import docker_sdk
from peer.errors import FailedError
from peer.files import cannot_write

LARGEST = 5 << 20
"""Bytes of log.txt before it is moved aside, as a peer on this machine does it; one older file is kept."""
FULL = (ENOSPC, EDQUOT, EIO, EROFS)
"""What is the matter with this machine's disk; the rest a container can do to its own log."""
LINE = re.compile(rb"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)(?:\.(\d{1,9}))?(?:Z|[+-]\d\d:\d\d) (.*)", re.DOTALL)
"""What the engine puts before a line: when it was written."""


class Log:
    """Follows a container in a thread of its own, from the first line that log.txt does not have.

    The file's time of change is that of its last line: so a later launcher, too, knows where to go on.
    """

    def __init__(self, container: Any, path: Path, failed: Callable[[], None] = lambda: None) -> None:
        self._container, self._path, self._failed = container, path, failed
        self.why = ""
        """Why it cannot be written any more, which `failed` is told of; empty while it can."""
        self._stream: Any = None
        self._more, self._over = threading.Event(), False
        self._thread = threading.Thread(target=self._follow, name=f"log of {container.name}", daemon=True)

    def follow(self) -> None:
        self._more.set()
        self._thread.start()

    def catch_up(self) -> None:
        """Takes in what an ended container has written."""
        self._over = True
        self._copy()

    def more(self) -> None:
        """The container may write again."""
        self._more.set()

    def end(self) -> None:
        """Waits until all that an ended container has written is in the file."""
        self._over = True
        self._more.set()
        self._thread.join()

    def close(self) -> None:
        """Stops following a container that goes on."""
        self._over = True
        self._more.set()
        if self._stream is not None:
            with suppress(OSError, AttributeError, ValueError):
                self._stream.close()

    def _follow(self) -> None:
        docker = docker_sdk()
        import requests

        over = False
        while not over:
            self._more.wait()
            self._more.clear()
            over = self._over
            try:
                with suppress(docker.errors.APIError, requests.RequestException, OSError):
                    self._copy()
            except FailedError as error:
                self.why = str(error)
                self._failed()
                return

    def _copy(self) -> None:
        last = self._last()
        # The engine's own count of seconds has nanoseconds, a float has not: ask for a little more, leave out what is
        # known.
        since = last / 1e9 - 0.001 if last else None
        self._stream = self._container.logs(stream=True, follow=not self._over, timestamps=True, since=since)
        rest = b""
        for chunk in self._stream:
            *lines, rest = (rest + chunk).split(b"\n")
            for line in lines:
                last = self._write(line, last)
        if rest:
            self._write(rest, last)

    def _last(self) -> int:
        """When the newest line was written that there is, nanoseconds; 0 where there is none."""
        for path in (self._path, self._aside):
            with suppress(FileNotFoundError):
                return path.lstat().st_mtime_ns
        return 0

    @property
    def _aside(self) -> Path:
        return self._path.with_name(f"{self._path.name}.1")

    def _write(self, line: bytes, last: int) -> int:
        """Appends a line that is newer than `last`, nanoseconds; the time of the newest line."""
        if not (found := LINE.fullmatch(line)):
            return last
        seconds = datetime.fromisoformat(f"{found[1].decode()}+00:00").timestamp()
        time = int(seconds) * 1_000_000_000 + int((found[2] or b"0").ljust(9, b"0"))
        if time <= last:
            return last
        try:
            self._append(found[3], time)
        except OSError as error:
            if error.errno in FULL:
                raise FailedError(cannot_write(self._path, error)) from None
        return time

    def say(self, sentence: str) -> None:
        """Adds a line to the file that the peer could not write any more."""
        with suppress(OSError):
            self._append(sentence.encode(), time_ns())

    def _append(self, line: bytes, time: int) -> None:
        # The container can put a link there.
        descriptor = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK, 0o600)
        with open(descriptor, "ab") as file:
            file.write(line + b"\n")
            file.flush()
            os.utime(descriptor, ns=(time, time))
            size = file.tell()
        if size > LARGEST:
            self._path.replace(self._aside)
