"""A process that has imported everything and forks a peer in milliseconds.

    python -P -m launcher.engines.local.server --control FD --lifeline FD --entry peer.cli:main --preload torch,numpy

Importing torch and gRPC costs seconds of CPU and 200 MB a process; a fork of a process that has them costs
milliseconds, and the pages stay shared. Only imports happen before a fork: no gRPC object and no torch
operation on several threads, since neither survives one.

It speaks JSON lines on the control socket (`launcher.engines.local.fork_server` is the other end). Orders:

    {"do": "start", "number": 1, "argv": [...], "log": "...", "cwd": null, "env": {}}
    {"do": "signal", "pid": 123, "signal": 15}      ignored once it has ended: its pid may be another's

and notices, as things happen (code -9 after SIGKILL):

    {"ready": 100}   {"started": 1, "pid": 123}   {"refused": 1, "why": "..."}   {"exited": 123, "code": 0}

The lifeline is a pipe whose only write end the launcher holds: when the launcher is gone, however it went,
every child reads the end of it and ends itself.
"""

import argparse
import gc
import importlib
import json
import os
import selectors
import signal
import socket
import sys
import time
from typing import Any

from launcher.engines.local.child import SIGNALS, Descriptors, Entry, live
from peer.process import held_back


class Server:
    """Obeys the launcher; knows its children by their process ids."""

    def __init__(self, control: socket.socket, lifeline: int, entry: Entry, grace: float):
        self.control, self.lifeline, self.entry, self.grace = control, lifeline, entry, grace
        self.children: set[int] = set()
        self.heard = True
        self.wakeup, self.wakeup_write = os.pipe()
        os.set_blocking(self.wakeup, False)
        os.set_blocking(self.wakeup_write, False)
        signal.set_wakeup_fd(self.wakeup_write, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        self.selector = selectors.DefaultSelector()
        self.selector.register(self.wakeup, selectors.EVENT_READ)

    def serve(self) -> None:
        """Obeys until the launcher's end of the control socket closes, then sees the children out."""
        self.selector.register(self.control, selectors.EVENT_READ)
        rest = b""
        self.say({"ready": os.getpid()})
        while self.heard:
            ready = {key.fileobj for key, _ in self.selector.select()}
            if self.wakeup in ready:
                self.reap()
            if self.control in ready:
                *orders, rest = (rest + self.hear()).split(b"\n")
                for order in orders:
                    self.obey(json.loads(order))
        self.selector.unregister(self.control)
        self.see_out()

    def hear(self) -> bytes:
        try:
            chunk = self.control.recv(1 << 16)
        except ConnectionResetError:
            chunk = b""
        self.heard = bool(chunk)
        return chunk

    def say(self, notice: dict[str, Any]) -> None:
        try:
            self.control.sendall(json.dumps(notice).encode() + b"\n")
        except (BrokenPipeError, ConnectionResetError):
            self.heard = False

    def obey(self, order: dict[str, Any]) -> None:
        if order["do"] == "signal":
            if order["pid"] in self.children:
                os.kill(order["pid"], order["signal"])
            return
        try:
            pid = self.fork(order)
        except OSError as error:
            why = f"{error.filename}: {error.strerror}" if error.filename else str(error)
            self.say({"refused": order["number"], "why": why})
        else:
            self.children.add(pid)
            self.say({"started": order["number"], "pid": pid})

    def fork(self, order: dict[str, Any]) -> int:
        log = os.open(order["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        sys.stdout.flush()
        sys.stderr.flush()
        try:
            # Until the child has its own handlers, a signal to it would write into this server's pipe.
            with held_back(SIGNALS):
                pid = os.fork()
                if pid == 0:
                    # With the control socket open in a child, the launcher would never see this server end.
                    foreign = (self.control.fileno(), self.wakeup, self.wakeup_write)
                    live(order, self.entry, Descriptors(log, self.lifeline, foreign), self.grace)
        finally:
            os.close(log)
        return pid

    def reap(self) -> None:
        try:
            while os.read(self.wakeup, 4096):
                pass
        except BlockingIOError:
            pass
        for pid in tuple(self.children):
            ended, status = os.waitpid(pid, os.WNOHANG)
            if ended:
                self.children.discard(pid)
                self.say({"exited": pid, "code": os.waitstatus_to_exitcode(status)})

    def see_out(self) -> None:
        """The lifeline has told the children to end; one that does not within the grace is killed."""
        deadline = time.monotonic() + self.grace
        while self.children and (left := deadline - time.monotonic()) > 0:
            self.selector.select(left)
            self.reap()
        for pid in self.children:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)


def preload(modules: list[str]) -> None:
    """Imports what every peer needs, so that the children share it; what is not installed is left out."""
    # One thread for the maths libraries: peers train in one, and pools of threads do not survive a fork.
    for variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ.setdefault(variable, "1")
    for name in modules:
        try:
            importlib.import_module(name)
        except ModuleNotFoundError as missing:
            if missing.name != name.partition(".")[0]:
                raise
    if "torch" in sys.modules:
        sys.modules["torch"].set_num_threads(1)


def main() -> None:
    parser = argparse.ArgumentParser(prog="launcher.engines.local.server")
    parser.add_argument("--control", type=int, required=True)
    parser.add_argument("--lifeline", type=int, required=True)
    parser.add_argument("--entry", required=True)
    parser.add_argument("--preload", default="")
    parser.add_argument("--grace", type=float, default=5.0)
    arguments = parser.parse_args()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    preload([name for name in arguments.preload.split(",") if name])
    module, _, function = arguments.entry.partition(":")
    entry: Entry = getattr(importlib.import_module(module), function)
    gc.collect()
    gc.freeze()  # a collection in a child must not touch, and so copy, the shared pages
    Server(socket.socket(fileno=arguments.control), arguments.lifeline, entry, arguments.grace).serve()


if __name__ == "__main__":
    main()
