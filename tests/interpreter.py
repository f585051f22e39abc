"""Commands as `python -m` and `python -c` start them, forked from a process that has imported what takes seconds.

Their streams are made as an interpreter makes them at its start, and they leave as one does, by its own clean-up.
"""

import ctypes
import io
import json
import os
import signal
import socket
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from importlib import import_module
from pathlib import Path
from subprocess import PIPE, STDOUT, CompletedProcess
from typing import IO, Any

from faults.accidents import Accidents
from faults.injected import main as peer
from real_peers import MINUTE, RunningPeer

from launcher.engines.programs.fork_server import exit_code

AS = "--as-an-interpreter"


class Commands(Accidents):
    """Starts peers, also those that obey FAULT and LIAR, and commands too."""

    entry = "interpreter:main"
    preload = (*Accidents.preload, "launcher.cli", "launcher.commands.check", "launcher.commands.run")

    @contextmanager
    def command(
        self,
        arguments: Sequence[str],
        stdin: int = 0,
        stdout: int = PIPE,
        stderr: int = 2,
        env: Mapping[str, str] = os.environ,
    ) -> Iterator["Command"]:
        """What `python *arguments` would be; streams are descriptors, PIPE or STDOUT. It does not outlive the block."""
        with tempfile.TemporaryDirectory() as place, socket.socket(socket.AF_UNIX) as listening, ExitStack() as ours:
            listening.bind(f"{place}/socket")
            listening.listen()
            listening.settimeout(MINUTE)
            command = Command(self.start([AS, f"{place}/socket"], Path(place) / "log"))
            given = [stdin]
            for name, stream in (("stdout", stdout), ("stderr", stderr)):
                if stream == PIPE:
                    reads, writes = os.pipe()
                    setattr(command, name, ours.enter_context(open(reads, encoding="utf-8")))
                    given.append(writes)
                else:
                    given.append(given[1] if stream == STDOUT else stream)
            with listening.accept()[0] as connection:
                socket.send_fds(connection, [b"\n"], given)
                order = {"arguments": [*arguments], "environment": dict(env), "directory": os.getcwd()}
                connection.sendall(json.dumps(order).encode())
            for descriptor in {*given} - {stdin, stdout, stderr}:
                os.close(descriptor)
            try:
                yield command
            finally:
                command.kill()
                command.wait()

    def run(self, arguments: Sequence[str], **streams: Any) -> CompletedProcess[str]:
        """From start to end."""
        with self.command(arguments, **streams) as command:
            said = [stream.read() if stream else "" for stream in (command.stdout, command.stderr)]
            return CompletedProcess([*arguments], command.wait(), *said)


class Command:
    """A running command, with the interface of `subprocess.Popen`."""

    def __init__(self, running: RunningPeer) -> None:
        self._running = running
        self.pid, self.wait = running.pid, running.wait
        self.stdout: IO[str] | None = None
        self.stderr: IO[str] | None = None

    def send_signal(self, number: signal.Signals) -> None:
        self._running.signal(number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


def main(argv: list[str]) -> int:
    """The entry of each child: a peer, or any command."""
    if argv[:1] != [AS]:
        return peer(argv)
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(argv[1])
        _, streams, _, _ = socket.recv_fds(connection, 1, 3)
        order = json.loads(b"".join(iter(lambda: connection.recv(1 << 16), b"")))
    for number, descriptor in enumerate(streams):
        os.dup2(descriptor, number)
        os.close(descriptor)
    os.chdir(order["directory"])
    os.environ.clear()
    os.environ.update(order["environment"])
    sys.path[:0] = filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))
    sys.stdin, sys.stdout, sys.stderr = stream(0, "r"), stream(1, "w"), stream(2, "w")
    code = 0
    try:
        execute(*order["arguments"])
    except BaseException as error:  # noqa: BLE001 (as an interpreter does)
        code = exit_code(error, code)
    ctypes.pythonapi.Py_Exit(code)
    raise AssertionError


def execute(how: str, what: str, *arguments: str) -> None:
    sys.argv = [what if how == "-m" else how, *arguments]
    if how == "-m":
        sys.exit(import_module(what).main())
    exec(compile(what, "<string>", "exec"), {"__name__": "__main__"})


def stream(number: int, mode: str) -> io.TextIOWrapper:
    """A standard stream as Python's initialisation makes it."""
    unbuffered = mode == "w" and bool(os.environ.get("PYTHONUNBUFFERED"))
    encoding, _, errors = os.environ.get("PYTHONIOENCODING", "utf-8").partition(":")
    raw = open(number, f"{mode}b", 0 if unbuffered else -1, closefd=False)  # noqa: SIM115
    return io.TextIOWrapper(
        raw,
        encoding,
        "backslashreplace" if number == 2 else errors or "strict",
        line_buffering=not unbuffered and (number == 2 or raw.isatty()),
        write_through=unbuffered,
    )
