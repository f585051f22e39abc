"""The peer's end of a worker: a process that reads what neighbours have sent, in place of the peer's own."""

import os
import signal
import sys
import threading
import weakref
from collections.abc import Sequence
from contextlib import suppress
from functools import cache
from itertools import islice
from subprocess import PIPE, Popen
from typing import Literal

from peer.learning.encryption import pipes
from peer.text import printable

Task = Literal["evaluate", "decrypt"]
LONGEST_REASON = 2_000
"""Bytes of a refusal."""


class Worker:
    """A process for one task, started when it is first asked, and again after what has ended it; one asks at a time.

    It ends with the object, with the interpreter and, as its pipe closes, with a peer that is killed.
    """

    def __init__(self, task: Task) -> None:
        self._task, self._lock = task, threading.Lock()
        self._process: Popen[bytes] | None = None

    def ask(self, request: Sequence[bytes], count: int, most: int) -> list[bytes]:
        """Its answer, `count` parts of at most so many bytes each.

        ValueError says why there is none: the request was refused, or has ended the process.
        """
        with self._lock:
            process = self._running()
            try:
                return self._asked(process, request, count, most)
            except BaseException:
                _end(process)
                raise

    def _running(self) -> Popen[bytes]:
        if self._process is None or self._process.poll() is not None:
            # Where this process has its modules from, the other one has them from too.
            path = {"PYTHONPATH": os.pathsep.join(sys.path)}
            command = [sys.executable, "-P", "-m", "peer.learning.encryption.worker", self._task]
            self._process = Popen(command, bufsize=0, stdin=PIPE, stdout=PIPE, env=os.environ | path)
            weakref.finalize(self, _end, self._process)
        return self._process

    def _asked(self, process: Popen[bytes], request: Sequence[bytes], count: int, most: int) -> list[bytes]:
        assert process.stdin
        assert process.stdout
        try:
            with suppress(BrokenPipeError):  # then it has said why, or has ended without a word
                pipes.write(process.stdin.fileno(), request, len(request))
            refusal, *answer = islice(pipes.read(process.stdout.fileno(), max(most, LONGEST_REASON)), count + 2)
        except EOFError:
            how = _how(process.wait())
            raise ValueError(
                f"the process that read it has ended: {how}; it takes more memory or time than there is for it, or is "
                "made to do harm"
            ) from None
        if refusal or len(answer) != count:
            raise ValueError(printable(refusal.decode(errors="replace")) or f"an answer in {len(answer)} parts")
        return answer


@cache
def worker(task: Task) -> Worker:
    """The one of this process."""
    return Worker(task)


def _how(code: int) -> str:
    return str(signal.strsignal(-code)) if code < 0 else f"exit {code}"


def _end(process: Popen[bytes]) -> None:
    process.kill()
    process.communicate()
