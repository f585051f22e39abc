"""A process in which TenSEAL reads what neighbours have sent: `python -m peer.learning.encryption.worker evaluate`.

Its memory and processor time are bounded, since a few bytes made for it unfold to gigabytes; and if it crashes, that is
not the peer's process. Who evaluates is given no secret key, who decrypts no model. It ends when its pipe does.
"""

import os
import resource
import signal
import struct
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from peer.learning.encryption import ckks, pipes

MEMORY = 256 << 20
"""Bytes that a request may take beside what the process has from the start."""
OF_A_SUM = 2 << 20
"""Bytes more for each hidden value."""
SECONDS = 3
"""Of processor time, from one part of a request to the next. It is what ends the process when memory runs out: SEAL's
pool then waits for ever for a lock that it holds itself."""
OF_A_PRODUCT = 0.03
"""Seconds more for each product of ciphertexts, or of one and a number: some twenty times what it takes."""
LONGEST = 300
"""Characters of a reason."""


def main() -> None:
    requests, replies = os.dup(0), os.dup(1)
    os.dup2(2, 1)  # what a library may print is no reply
    # A terminal and some schedulers signal all processes of a peer: it is the peer that decides when to end.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    ckks.library()
    bounds = Bounds()
    answer = {"evaluate": evaluate, "decrypt": decrypt}[sys.argv[1]]
    with suppress(EOFError, BrokenPipeError):
        while True:
            request = bounds.timed(pipes.read(requests))
            first = next(request)
            try:
                parts = [b"", *answer(bounds, first, request)]
            except (ValueError, RuntimeError, LookupError, ArithmeticError, TypeError, MemoryError) as error:
                return pipes.write(replies, [(str(error) or type(error).__name__)[:LONGEST].encode()], 1)
            pipes.write(replies, parts, len(parts))


def evaluate(bounds: "Bounds", shape: bytes, request: Iterator[bytes]) -> list[bytes]:
    """Request: the shape, the numbers of W, a, V and b, a context, the inputs. Reply: the ciphertexts of the answer."""
    inputs, hidden, classes = struct.unpack("<3Q", shape)
    weight, bias, head, head_bias = (numbers(next(request)) for _ in range(4))
    polynomial = ckks.Polynomial(rows(weight, inputs), bias, rows(head, hidden), head_bias)
    bounds.set(MEMORY + hidden * OF_A_SUM, SECONDS + hidden * (classes + 2) * OF_A_PRODUCT)
    return ckks.evaluate(polynomial, next(request), request)


def decrypt(bounds: "Bounds", key: bytes, request: Iterator[bytes]) -> list[bytes]:
    """Request: the context with the key, ciphertexts. Reply: the numbers of each, float64."""
    bounds.set(MEMORY, SECONDS)
    return [struct.pack(f"<{len(column)}d", *column) for column in ckks.decrypt(key, request)]


class Bounds:
    """What one request may take, beside what the process has at the start; its memory is bounded on Linux only."""

    def __init__(self) -> None:
        self._seconds: float = SECONDS
        if sys.platform == "linux":
            self._began = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
            self._most = 0

    def set(self, memory: int, seconds: float) -> None:
        """So many bytes, or what an earlier request may have taken: SEAL keeps that; so many seconds for each part."""
        self._seconds = seconds
        if sys.platform == "linux":
            self._most = max(self._most, self._began + memory)
            limit(resource.RLIMIT_AS, self._most)

    def timed(self, parts: Iterator[bytes]) -> Iterator[bytes]:
        """The same parts; what takes more seconds on a processor, from one to the next, ends the process."""
        for part in parts:
            usage = resource.getrusage(resource.RUSAGE_SELF)
            limit(resource.RLIMIT_CPU, int(usage.ru_utime + usage.ru_stime + self._seconds) + 1)
            yield part


def limit(what: int, most: int) -> None:
    """As the process may: others may have set it lower limits, which nobody can raise."""
    hard = resource.getrlimit(what)[1]
    resource.setrlimit(what, (most if hard == resource.RLIM_INFINITY else min(most, hard), hard))


def numbers(content: bytes) -> tuple[float, ...]:
    return struct.unpack(f"<{len(content) // 8}d", content)


def rows(found: tuple[float, ...], width: int) -> list[tuple[float, ...]]:
    return [found[at : at + width] for at in range(0, len(found), width)]


if __name__ == "__main__":
    main()
