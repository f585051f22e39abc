"""From fork to exit: how a copy of the fork server becomes one peer."""

import os
import signal
import sys
import threading
import traceback
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, NoReturn

Entry = Callable[[list[str]], int | None]

SIGNALS = frozenset({signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGCHLD})


@dataclass(frozen=True)
class Descriptors:
    """What a child inherits open: its log, the lifeline that it reads, and what is the fork server's own."""

    log: int
    lifeline: int
    foreign: tuple[int, ...]


def live(order: dict[str, Any], entry: Entry, inherited: Descriptors, grace: float) -> NoReturn:
    """Runs `entry(argv)` as a process of its own and exits with its code.

    grace: seconds that it has to end by itself when the launcher is gone.

    If it raises, the traceback goes to the log and the code is 1. Leaves by `os._exit`: the interpreter's
    clean-up belongs to the fork server, whose copy this is.
    """
    code = 1
    try:
        settle(order, inherited)
        threading.Thread(
            target=end_with_launcher, args=(inherited.lifeline, grace), name="lifeline", daemon=True
        ).start()
        code = int(entry(list(order["argv"])) or 0)
    finally:
        code = exit_code(sys.exception(), code)
        with suppress(OSError):  # a full disk must not change the exit code
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)


def settle(order: dict[str, Any], inherited: Descriptors) -> None:
    """Own session (a terminal's Ctrl-C is the launcher's to handle), default signals, output into the log."""
    os.setsid()
    signal.set_wakeup_fd(-1)
    for number in SIGNALS:
        signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
    for descriptor in inherited.foreign:
        os.close(descriptor)
    for descriptor in (1, 2):
        os.dup2(inherited.log, descriptor)
    os.close(inherited.log)
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(encoding="utf-8", errors="backslashreplace", line_buffering=True)  # type: ignore[union-attr]
    os.environ.update(order.get("env") or {})
    if order.get("cwd"):
        os.chdir(order["cwd"])
    sys.argv = ["dfl-peer", *order["argv"]]


def end_with_launcher(lifeline: int, grace: float) -> None:
    """Blocks until nobody holds the lifeline's write end, then ends this process: politely, then for sure."""
    while os.read(lifeline, 1):
        pass
    os.kill(os.getpid(), signal.SIGTERM)
    threading.Event().wait(grace)
    os.kill(os.getpid(), signal.SIGKILL)


def exit_code(error: BaseException | None, code: int) -> int:
    """The exit code the interpreter would have given, and its message or traceback on stderr."""
    if error is None:
        return code
    if isinstance(error, SystemExit):
        if error.code is None or isinstance(error.code, int):
            return error.code or 0
        print(error.code, file=sys.stderr)
        return 1
    with suppress(OSError):
        traceback.print_exception(error)
    return 130 if isinstance(error, KeyboardInterrupt) else 1
