"""A process in which TenSEAL reads what neighbours have sent, in place of the peer's own, and the pipe to it.

The peer's end is `Worker`; the other end is `python -m peer.learning.encryption.worker evaluate` (or `decrypt`),
which must load neither torch nor anything else that is slow or large. Its memory and processor time are bounded,
since a few bytes made for it unfold to gigabytes; and if it crashes, that is not the peer's process. The one that
evaluates is given no secret key, the one that decrypts no model. It ends when its pipe does.

Over the pipe go parts of bytes, after how many there are. Nothing in them is unpickled.
"""

import os
import resource
import signal
import struct
import sys
import threading
import weakref
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from functools import cache
from itertools import islice
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from subprocess import Popen
from typing import Literal

from peer.learning.encryption import ckks
from peer.text import printable


def write_parts(pipe: Connection, parts: Iterable[bytes], count: int) -> None:
    """Write the parts; BrokenPipeError if the reader has closed the pipe."""
    pipe.send_bytes(struct.pack("<Q", count))
    for part in parts:
        pipe.send_bytes(part)


def read_parts(pipe: Connection, most: int | None = None) -> Iterator[bytes]:
    """Each part as it comes; EOFError where the pipe ends before, OSError within one, or where one is longer than
    `most`."""
    (count,) = struct.unpack("<Q", pipe.recv_bytes(8))
    for _ in range(count):
        yield pipe.recv_bytes(most)


WorkerTask = Literal["evaluate", "decrypt"]
MAX_REASON_BYTES = 2_000
"""Bytes of a refusal."""


class Worker:
    """A process for one task, started when it is first asked, and again after what has ended it; one asks at a time.

    It ends with the object, with the interpreter and, as its pipe closes, with a peer that is killed.
    """

    def __init__(self, task: WorkerTask) -> None:
        self._task, self._lock = task, threading.Lock()
        self._process: Popen[bytes] | None = None

    def ask(self, request: Sequence[bytes], count: int, most: int) -> list[bytes]:
        """Return its answer, `count` parts of at most so many bytes each.

        ValueError says why there is none: the request was refused, or has ended the process.
        """
        with self._lock:
            process = self._running()
            try:
                return self._asked(process, request, count, most)
            except BaseException:
                _kill(process)
                raise

    def _running(self) -> Popen[bytes]:
        if self._process is None or self._process.poll() is not None:
            # Where this process has its modules from, the other one has them from too.
            environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
            command = [sys.executable, "-P", "-m", "peer.learning.encryption.worker", self._task]
            requests, self._requests = Pipe(duplex=False)
            self._replies, replies = Pipe(duplex=False)
            with requests, replies:
                self._process = Popen(command, stdin=requests.fileno(), stdout=replies.fileno(), env=environment)
            weakref.finalize(self, _kill, self._process)
        return self._process

    def _asked(self, process: Popen[bytes], request: Sequence[bytes], count: int, most: int) -> list[bytes]:
        try:
            with suppress(BrokenPipeError):  # then it has said why, or has ended without a word
                write_parts(self._requests, request, len(request))
            refusal, *answer = islice(read_parts(self._replies, max(most, MAX_REASON_BYTES)), count + 2)
        except EOFError:
            code = process.wait()
            how = signal.strsignal(-code) if code < 0 else f"exit {code}"
            raise ValueError(
                f"the process that read it has ended: {how}; it takes more memory or time than there is for it, or is "
                "made to do harm"
            ) from None
        except (OSError, struct.error) as error:
            raise ValueError(f"an answer that breaks off, or of more than {most} bytes ({error})") from None
        if refusal or len(answer) != count:
            raise ValueError(printable(refusal.decode(errors="replace")) or f"an answer in {len(answer)} parts")
        return answer


@cache
def shared_worker(task: WorkerTask) -> Worker:
    """Return the worker that all code of this process shares."""
    return Worker(task)


def _kill(process: Popen[bytes]) -> None:
    process.kill()
    process.wait()


REQUEST_MEMORY_BYTES = 256 << 20
"""Bytes that a request may take beyond what the process has from the start."""
MEMORY_BYTES_PER_SUM = 2 << 20
"""Further bytes for each hidden value."""
CPU_SECONDS_PER_PART = 3
"""Processor time from one part of a request to the next. This limit ends the process when memory runs out, as SEAL's
pool then waits for ever for a lock that it holds itself."""
CPU_SECONDS_PER_PRODUCT = 0.03
"""Further seconds for each product of ciphertexts, or of one and a number: some twenty times what it takes."""
MAX_REASON_CHARACTERS = 300
"""Characters of a reason."""


def main() -> None:
    requests, replies = Connection(os.dup(0), writable=False), Connection(os.dup(1), readable=False)
    os.dup2(2, 1)  # what a library may print must not go into the replies
    # A terminal and some schedulers signal all processes of a peer: it is the peer that decides when to end.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    ckks.library()
    bounds = ProcessLimits()
    answer = {"evaluate": evaluate, "decrypt": decrypt}[sys.argv[1]]
    with suppress(EOFError, OSError):  # the peer has ended
        while True:
            request = bounds.timed(read_parts(requests))
            first = next(request)
            try:
                parts = [b"", *answer(bounds, first, request)]
            except (ValueError, RuntimeError, LookupError, ArithmeticError, TypeError, MemoryError) as error:
                return write_parts(replies, [(str(error) or type(error).__name__)[:MAX_REASON_CHARACTERS].encode()], 1)
            write_parts(replies, parts, len(parts))


def evaluate(bounds: "ProcessLimits", shape: bytes, request: Iterator[bytes]) -> list[bytes]:
    """Request: the shape, the numbers of W, a, V and b, a context, the inputs. Reply: the ciphertexts of the answer."""
    inputs, hidden, classes = struct.unpack("<3Q", shape)
    weight, bias, head, head_bias = (_unpack_doubles(next(request)) for _ in range(4))
    bounds.set(
        REQUEST_MEMORY_BYTES + hidden * MEMORY_BYTES_PER_SUM,
        CPU_SECONDS_PER_PART + hidden * (classes + 2) * CPU_SECONDS_PER_PRODUCT,
    )
    layers = _in_rows(weight, inputs), bias, _in_rows(head, hidden), head_bias
    return ckks.evaluate(layers, next(request), request)


def decrypt(bounds: "ProcessLimits", key: bytes, request: Iterator[bytes]) -> list[bytes]:
    """Request: the context with the key, ciphertexts. Reply: the numbers of each, float64."""
    bounds.set(REQUEST_MEMORY_BYTES, CPU_SECONDS_PER_PART)
    return [struct.pack(f"<{len(column)}d", *column) for column in ckks.decrypt(key, request)]


class ProcessLimits:
    """What one request may take, beside what the process has at the start; its memory is bounded on Linux only."""

    def __init__(self) -> None:
        self._seconds: float = CPU_SECONDS_PER_PART
        if sys.platform == "linux":
            self._began = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
            self._most = 0

    def set(self, memory: int, seconds: float) -> None:
        """Allow so many bytes, or as many as before (SEAL keeps them), and so many seconds for each part."""
        self._seconds = seconds
        if sys.platform == "linux":
            self._most = max(self._most, self._began + memory)
            set_limit(resource.RLIMIT_AS, self._most)

    def timed(self, parts: Iterator[bytes]) -> Iterator[bytes]:
        """Pass parts on; more processor time than allowed from one part to the next ends the process."""
        for part in parts:
            usage = resource.getrusage(resource.RUSAGE_SELF)
            set_limit(resource.RLIMIT_CPU, int(usage.ru_utime + usage.ru_stime + self._seconds) + 1)
            yield part


def set_limit(what: int, most: int) -> None:
    """Set a limit, within a hard limit that was set from outside and cannot be raised."""
    hard = resource.getrlimit(what)[1]
    resource.setrlimit(what, (most if hard == resource.RLIM_INFINITY else min(most, hard), hard))


def _unpack_doubles(content: bytes) -> tuple[float, ...]:
    return struct.unpack(f"<{len(content) // 8}d", content)


def _in_rows(found: tuple[float, ...], width: int) -> list[tuple[float, ...]]:
    return [found[at : at + width] for at in range(0, len(found), width)]


if __name__ == "__main__":
    main()
