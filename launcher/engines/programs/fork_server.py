"""A process that has imported everything and forks a peer in milliseconds.

    python -P -m launcher.engines.programs.fork_server CONTROL_FD LIFELINE_FD peer.cli:main GRACE torch numpy

It is a new process, as above, or a fork of a launcher that has imported torch but not yet used it (`serve_as_fork`).

Importing torch and gRPC costs seconds of CPU and 200 MB a process; a fork of a process that has them costs
milliseconds, and the pages stay shared. Before a fork there are imports, and what `call` orders: no gRPC object and no
torch operation on several threads, since neither survives one.

It exchanges JSON lines on the control socket (`ForkServer` in `launcher.engines.local` is the other end). Orders:

    {"do": "keep"}                                  the descriptor sent with it stays open, in children too
    {"do": "call", "function": "peer.preloaded:rehearse", "argument": "peer0.yaml"}     here, not in a child
    {"do": "start", "number": 1, "argv": [...], "log": "...", "env": {}}
    {"do": "signal", "pid": 123, "signal": 15}      ignored once it has ended: the pid may be reused

and notices, as things happen (code -9 after SIGKILL):

    {"ready": 100}   {"started": 1, "pid": 123}   {"refused": 1, "why": "..."}   {"exited": 123, "code": 0}

The lifeline is a pipe whose only write end the launcher holds: when the launcher ends, in whatever way,
every child reads the end of it and ends itself.

At its top this module imports nothing that is heavy, and must not: `preload` sets the number of threads before the
libraries that read it are imported.
"""

import gc
import importlib
import json
import os
import selectors
import signal
import socket
import sys
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from itertools import pairwise
from pkgutil import resolve_name
from typing import Any, NoReturn

from peer.process import STOPS, one_thread, signals_deferred

Entry = Callable[[list[str]], int | None]

SIGNALS = frozenset({*STOPS, signal.SIGCHLD})


def end_with_launcher(lifeline: int, grace: float) -> None:
    """Block until the lifeline's write end is closed, then end this process: SIGINT, by which no peer leaves the others
    for good, after the grace SIGKILL."""
    while os.read(lifeline, 1):
        pass
    os.kill(os.getpid(), signal.SIGINT)
    threading.Event().wait(grace)
    os.kill(os.getpid(), signal.SIGKILL)


def exit_code(error: BaseException | None, code: int) -> int:
    """Return the exit code the interpreter would have given; print its message or traceback on stderr."""
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


class ForkServerProcess:
    """Executes the launcher's orders; knows its children by their process ids.

    grace: seconds that a child has to end by itself when the launcher has ended.
    """

    def __init__(self, control: socket.socket, lifeline: int, entry: Entry, grace: float):
        self.control, self.lifeline, self.entry, self.grace = control, lifeline, entry, grace
        self.children: set[int] = set()
        self.connected = True
        self.wakeup, self.wakeup_write = os.pipe()
        os.set_blocking(self.wakeup, False)
        os.set_blocking(self.wakeup_write, False)
        signal.set_wakeup_fd(self.wakeup_write, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        self.selector = selectors.DefaultSelector()
        self.selector.register(self.wakeup, selectors.EVENT_READ)

    def serve(self) -> None:
        """Execute orders until the launcher's end of the control socket closes, then wait for the children."""
        self.selector.register(self.control, selectors.EVENT_READ)
        rest = b""
        self.send({"ready": os.getpid()})
        while self.connected:
            ready = {key.fileobj for key, _ in self.selector.select()}
            if self.wakeup in ready:
                self.reap()
            if self.control in ready:
                *orders, rest = (rest + self.receive()).split(b"\n")
                for order in orders:
                    self.execute(json.loads(order))
        self.selector.unregister(self.control)
        self.wait_for_children()

    def receive(self) -> bytes:
        try:
            chunk, *_ = socket.recv_fds(self.control, 1 << 16, 1)
        except ConnectionResetError:
            chunk = b""
        self.connected = bool(chunk)
        return chunk

    def send(self, notice: dict[str, Any]) -> None:
        try:
            self.control.sendall(json.dumps(notice).encode() + b"\n")
        except (BrokenPipeError, ConnectionResetError):
            self.connected = False

    def execute(self, order: dict[str, Any]) -> None:
        match order["do"]:
            case "start":
                self.start(order)
            case "signal" if order["pid"] in self.children:
                os.kill(order["pid"], order["signal"])
            case "call":
                resolve_name(order["function"])(order["argument"])
                share_memory()

    def start(self, order: dict[str, Any]) -> None:
        try:
            pid = self.fork(order)
        except OSError as error:
            why = f"{error.filename}: {error.strerror}" if error.filename else str(error)
            self.send({"refused": order["number"], "why": why})
        else:
            self.children.add(pid)
            self.send({"started": order["number"], "pid": pid})

    def fork(self, order: dict[str, Any]) -> int:
        log = os.open(order["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        sys.stdout.flush()
        sys.stderr.flush()
        try:
            # Until the child has its own handlers, a signal to it would write into this server's pipe.
            with signals_deferred(SIGNALS):
                pid = os.fork()
                if pid == 0:
                    self.run_child(order, log)
        finally:
            os.close(log)
        return pid

    def run_child(self, order: dict[str, Any], log: int) -> NoReturn:
        """Run `entry(argv)` as the process of its own that this copy of the server is, and exit with its code.

        If it raises, the traceback goes to the log and the code is 1. Leaves by `os._exit`: the interpreter's
        clean-up belongs to the fork server.
        """
        code = 1
        try:
            self.prepare_child(order, log)
            watched = self.lifeline, self.grace
            threading.Thread(target=end_with_launcher, args=watched, name="lifeline", daemon=True).start()
            code = int(self.entry(list(order["argv"])) or 0)
        finally:
            code = exit_code(sys.exception(), code)
            with suppress(OSError):  # a full disk must not change the exit code
                sys.stdout.flush()
                sys.stderr.flush()
            os._exit(code)

    def prepare_child(self, order: dict[str, Any], log: int) -> None:
        """Own session (a terminal's Ctrl-C is the launcher's to handle), default signals, output into the log."""
        os.setsid()
        signal.set_wakeup_fd(-1)
        for number in SIGNALS:
            signal.signal(number, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
        # With the control socket open in a child, the launcher would never see this server end.
        for descriptor in (self.control.fileno(), self.wakeup, self.wakeup_write):
            os.close(descriptor)
        for descriptor in (1, 2):
            os.dup2(log, descriptor)
        os.close(log)
        for stream in (sys.stdout, sys.stderr):
            stream.reconfigure(  # type: ignore[union-attr]
                encoding="utf-8", errors="backslashreplace", line_buffering=True
            )
        os.environ.update(order.get("env") or {})
        sys.argv = ["dfl-peer", *order["argv"]]

    def reap(self) -> None:
        with suppress(BlockingIOError):
            while os.read(self.wakeup, 4096):
                pass
        for pid in tuple(self.children):
            ended, status = os.waitpid(pid, os.WNOHANG)
            if ended:
                self.children.discard(pid)
                self.send({"exited": pid, "code": os.waitstatus_to_exitcode(status)})

    def wait_for_children(self) -> None:
        """The closed lifeline has told the children to end; one that does not within the grace is killed."""
        deadline = time.monotonic() + self.grace
        while self.children and (left := deadline - time.monotonic()) > 0:
            self.selector.select(left)
            self.reap()
        for pid in self.children:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)


def preload(modules: Sequence[str]) -> None:
    """Import what every peer needs, so that the children share it; what is not installed is left out."""
    one_thread()
    for name in modules:
        try:
            importlib.import_module(name)
        except ModuleNotFoundError as missing:
            if missing.name != name.partition(".")[0]:
                raise
    if "torch" in sys.modules:
        sys.modules["torch"].set_num_threads(1)


def share_memory() -> None:
    """A collection in a child must not touch, and so copy, the pages that all share."""
    gc.collect()
    gc.freeze()


def serve(control: socket.socket, lifeline: int, entry: str, modules: Sequence[str], grace: float) -> None:
    """Import, then execute orders until the control socket closes. Signals that end a launcher are the launcher's:
    this process ends with it."""
    for number in STOPS:
        signal.signal(number, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
    preload(modules)
    start = resolve_name(entry)
    share_memory()
    ForkServerProcess(control, lifeline, start, grace).serve()


def serve_as_fork(control: socket.socket, lifeline: int, entry: str, modules: Sequence[str], grace: float) -> NoReturn:
    """`serve` in a fork of the launcher, which was made with `SIGNALS` held back: it takes a session of its own, and
    closes all that it inherited but its standard streams, the control socket and the lifeline."""
    code = 1
    try:
        os.setsid()
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        kept = sorted((0, 1, 2, control.fileno(), lifeline))
        for below, above in pairwise((*kept, os.sysconf("SC_OPEN_MAX"))):
            os.closerange(below + 1, above)
        serve(control, lifeline, entry, modules, grace)
        code = 0
    finally:
        code = exit_code(sys.exception(), code)
        os._exit(code)


def main() -> None:
    control, lifeline, entry, grace, *modules = sys.argv[1:]
    serve(socket.socket(fileno=int(control)), int(lifeline), entry, modules, float(grace))


if __name__ == "__main__":
    main()
