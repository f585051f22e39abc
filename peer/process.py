"""What dfl-peer and dfl-launch have in common as processes: command line, signals, open files, threads, memory.

Nothing here may import pydantic, numpy, torch or asyncio at the top: `dfl-launch --help` waits for what is imported.
"""

import argparse
import ctypes
import gc
import mmap
import os
import re
import resource
import signal
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from errno import EBADF, EDQUOT, EIO, ENOSPC
from itertools import takewhile
from typing import Any

from peer.errors import suggest

DONE, FAILED, WRONG_INPUT = 0, 1, 2
"""Exit codes of both programs. A peer that ends with the last is not started again: its input would be no better."""
NOT_NOW = 75
"""Exit code of a peer whose certificates are not valid at this time (EX_TEMPFAIL): systemd starts it again later."""
REFUSED = (WRONG_INPUT, NOT_NOW)
"""Exit codes of a peer that has not begun: a launcher, which checks beforehand, does not start it again."""
STOPS = {signal.SIGINT: 130, signal.SIGTERM: 143, signal.SIGHUP: 129}
"""The exit code after each signal that ends a launcher."""
PIPE_CLOSED = 141
"""Exit code of a command whose output nobody reads any more, as if SIGPIPE had ended it: nothing is said."""
STOPPED = (143, 130, -15, -2)
"""Exit codes of a peer after SIGTERM or SIGINT: with a checkpoint, or before it could handle signals at all."""

OPTION_PATTERN = re.compile(r"-[^\d.\s]\S*")
"""What argparse takes for an option, and never for a value: `--peers`, `-h`; but not `-1`."""


def heard_stops() -> list[signal.Signals]:
    """The signals that stop: of a closed terminal only where it is not ignored, as it is under `nohup`."""
    return [number for number in STOPS if number != signal.SIGHUP or signal.getsignal(number) != signal.SIG_IGN]


class ShowRelease(argparse.Action):
    """Prints the release and ends the process. What finds it takes 2 MB, and is imported only here."""

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        from peer.versions import release

        parser._print_message(f"dfl {release()}\n", sys.stdout)
        parser.exit()


UNWRITABLE = (EBADF, EIO, ENOSPC, EDQUOT)
"""How the standard output fails beside a broken pipe; an error of these that names no file is taken for one of its."""


def unwritable_output(error: OSError) -> str:
    """Return why no more can be printed, and print no more: at its end the interpreter would try it again, and fail."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    if isinstance(error, BrokenPipeError):
        return "output pipe closed (`| head`?)"
    return f"the output cannot be written ({error.strerror or error})"


class Parser(argparse.ArgumentParser):
    """Names the nearest known command, option or choice where it is given another; it takes no abbreviations.

    A list may go on after an option: `logs DIR -f PEER`.
    """

    def __init__(self, **keywords: Any) -> None:
        super().__init__(**keywords, allow_abbrev=False)
        self.siblings: list[Parser] = []
        """Those of all commands, for options that belong to another."""

    def parse_known_args(  # type: ignore[override]
        self, args: Sequence[str] | None = None, namespace: Any = None
    ) -> tuple[argparse.Namespace, list[str]]:
        given = sys.argv[1:] if args is None else [*args]
        known = self._option_string_actions
        # Before argparse complains that what was meant is missing.
        if unknown := next((name for name in self._options(given) if name not in known), None):
            others = [f"`{one.prog}`" for one in self.siblings if unknown in one._option_string_actions][:3]
            elsewhere = [f"`{unknown}` of {', '.join(others)}"] if others else []
            self.error(f"unknown option `{unknown}`; {suggest(unknown, [*known], elsewhere)}")
        found, rest = super().parse_known_args(given, namespace)
        for last in self._get_positional_actions()[-1:]:
            if rest and last.nargs in ("*", "+") and not any(word.startswith("-") for word in rest):
                setattr(found, last.dest, [*getattr(found, last.dest), *self._get_values(last, rest)])
                return found, []
        return found, rest

    def _options(self, given: Sequence[str]) -> Iterator[str]:
        """The options without their values; what follows a command is for that command's own parser."""
        mine = (
            takewhile(OPTION_PATTERN.match, given) if self._subparsers else takewhile(lambda word: word != "--", given)
        )
        return (word.partition("=")[0] for word in mine if OPTION_PATTERN.fullmatch(word))

    def _print_message(self, message: str, file: Any = None) -> None:
        try:
            print(message, end="", file=file or sys.stderr, flush=True)
        except OSError as error:
            if file is sys.stdout:  # stderr can still say so
                why = f"{self.prog}: {unwritable_output(error)}\n"
                if isinstance(error, BrokenPipeError):
                    self.exit(PIPE_CLOSED)
                self.exit(FAILED, why)

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        if action.choices is not None and value not in action.choices:
            what = "/".join(action.option_strings) or str(action.metavar or action.dest).lower()
            hint = suggest(str(value), [*map(str, action.choices)])
            raise argparse.ArgumentError(None, f"unknown {what} `{value}`; {hint}")


M_TRIM_THRESHOLD, M_MMAP_THRESHOLD, M_MMAP_MAX, M_ARENA_MAX = -1, -3, -4, -8
OPEN_FILES = 65_536
KEPT_FREE_BYTES = 256 << 20
"""Bytes of freed memory that the process keeps for the next large block."""
LARGE_BYTES = 128 << 20
"""Size of a vector, or of a round's messages, from which on saving memory is worth the time that it takes."""
LARGE_BLOCK_BYTES = 32 << 20
"""Bytes of a block that then goes back to the system when it is freed: the most that glibc takes."""
RETURNED_BLOCK_BYTES = 300_000
"""Bytes of a block that goes back to the system when it is freed: more than a step of a small model takes and gives
back, less than its vector."""


@contextmanager
def signals_deferred(signals: Iterable[signal.Signals]) -> Iterator[None]:
    """These signals reach this process after the block; a process that is made inside it begins with them held back."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, signals)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextmanager
def leaving_at_once() -> Iterator[None]:
    """Until an event loop takes over, Ctrl-C ends the process with 130, with nothing said and nothing cleaned up.

    KeyboardInterrupt in the middle of an import may come out as another error, or be swallowed by the library. To the
    first process of a container SIGTERM would do nothing: it ends that one with 143.
    """
    numbers = (signal.SIGINT, signal.SIGTERM) if os.getpid() == 1 else (signal.SIGINT,)
    former = {number: signal.signal(number, lambda told, _: os._exit(128 + told)) for number in numbers}
    try:
        yield
    finally:
        for number, handler in former.items():
            signal.signal(number, handler)


def one_thread() -> None:
    """Call before the maths libraries are imported: peers train in one thread, and pools of threads do not survive a
    fork."""
    for variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ.setdefault(variable, "1")


def tune(threads: int, vector_bytes: int) -> None:
    """Settings that a peer's speed rests on; call once, before the first connection. vector_bytes: of its model."""
    import torch  # here, since the launcher uses this module too and has no need of it

    torch.set_num_threads(threads)
    raise_open_files()
    reuse_memory(vector_bytes)
    gc.collect()
    gc.freeze()  # what is loaded by now stays: no collection needs to walk over it again


def raise_open_files() -> None:
    """Room for many connections, as far as the hard limit allows."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = OPEN_FILES if hard == resource.RLIM_INFINITY else min(OPEN_FILES, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def open_files() -> int:
    """How many descriptors this process may have."""
    soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return OPEN_FILES if soft == resource.RLIM_INFINITY else soft


def reuse_memory(vector_bytes: int) -> None:
    """Vectors and frames come and go, alike in size. glibc would map and unmap each large one, and the kernel clear
    every page of it: keeping the memory saves a third of the CPU a byte received (see `make bench`). Vectors
    of a large model go back, as frames would settle where one was, and the next one would find no room."""
    if sys.platform == "linux" and hasattr(libc := ctypes.CDLL(None), "mallopt"):
        if vector_bytes >= LARGE_BYTES:
            libc.mallopt(M_MMAP_THRESHOLD, LARGE_BLOCK_BYTES)
        else:
            libc.mallopt(M_MMAP_MAX, 0)
        libc.mallopt(M_TRIM_THRESHOLD, KEPT_FREE_BYTES)
        libc.mallopt(M_ARENA_MAX, 1)  # what one thread frees, any other can use: 3 MB a peer less


def trim_memory() -> None:
    """Give back what is free between blocks that are not: the frames of a large model leave room for no vector."""
    if sys.platform == "linux" and hasattr(libc := ctypes.CDLL(None), "malloc_trim"):
        libc.malloc_trim(0)


def forget_content(address: int, size: int) -> None:
    """Return the pages of a block that stays allocated: their content is lost, and writing them takes memory again."""
    if sys.platform == "linux" and hasattr(libc := ctypes.CDLL(None), "madvise"):
        start, end = -(-address // mmap.PAGESIZE) * mmap.PAGESIZE, (address + size) // mmap.PAGESIZE * mmap.PAGESIZE
        libc.madvise(ctypes.c_void_p(start), ctypes.c_size_t(max(0, end - start)), mmap.MADV_DONTNEED)


def return_memory() -> None:
    """Make glibc return freed memory. With many peers in one process few hold a vector or a snapshot for long, and what
    glibc keeps for the next one, in a heap per thread, comes to 1 MB a peer."""
    if sys.platform == "linux" and hasattr(libc := ctypes.CDLL(None), "mallopt"):
        libc.mallopt(M_MMAP_THRESHOLD, RETURNED_BLOCK_BYTES)


def container_exit_code(code: int) -> int:
    """Return the exit code, -n after signal n, for one reported by a container engine, where that is 128 + n.

    After SIGTERM and SIGINT, though, 128 + n is the peer's own code.
    """
    return code if code <= 128 or code in STOPPED else 128 - code


def exit_words(code: int) -> str:
    """Return how a process ended, such as "was killed by SIGKILL"."""
    return f"was killed by {signal_name(-code)}" if code < 0 else f"ended with exit code {code}"


def signal_name(number: int) -> str:
    """Return a name such as SIGKILL; real-time signals have numbers only."""
    return signal.Signals(number).name if number in [*signal.Signals] else f"signal {number}"
