"""Peers as processes of this machine, forked by a fork server (`programs/fork_server.py`).

    async with fork_server() as server:
        process = await server.start(["--config", "peer3.yaml"], log=Path("peer3/log.txt"))
        code = await process.wait()

Leaving the block ends every child that still runs (SIGINT, after the grace SIGKILL), and so does the death of this
process by whatever cause: the fork server and its children read a pipe that closes with it.

`dfl-launch run` forks its fork server from itself as soon as it has imported torch (`LocalEngine.ahead`), so that what
takes seconds is imported once. Only the command itself then checks the spec, and runs the user's code and torch.

The fork server and this module exchange JSON lines over a socket; the protocol stands at the head of
`programs/fork_server.py`. All peers write into the run's directory themselves, so there is nothing to follow and
nothing to collect.
"""

import asyncio
import gc
import itertools
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO

import psutil

from launcher.engines.base import Deployment, Engine, FollowedProcess, Run
from launcher.engines.preflight import check_resources, check_room, check_secrecy
from launcher.engines.programs import fork_server as program
from peer.errors import FailedError, InputError
from peer.learning.device import choose_device, in_turn
from peer.network.transport.addresses import split, why_taken
from peer.process import raise_open_files, signals_deferred
from peer.settings import Settings
from peer.spec.federation import Spec
from peer.spec.peer import check_device
from peer.tasks import background, in_thread
from peer.telemetry.metrics import client
from peer.telemetry.telemetry import load_tracker, writer_class

PRELOAD = ("numpy", "torch", "uvloop", "peer.preloaded")
"""What every peer imports, once for all of them; what is not installed is left out."""
ENTRY, GRACE = "peer.cli:main", 5.0

SERVER_ENDED = "the fork server ended before its peers; the same command resumes the run"


class Child(FollowedProcess):
    """One child of the fork server."""

    def __init__(self, pid: int, order: Callable[[dict[str, Any]], None]) -> None:
        super().__init__(lambda number: order({"do": "signal", "pid": pid, "signal": int(number)}))
        self.pid = pid


@dataclass(frozen=True)
class ServerProcess:
    """A fork server as a process, with this one's ends of the socket and the pipe between them. Made with

    entry: `module:function` that a child calls with its argv; it returns the exit code.
    preload: modules imported once, before the first child.
    grace: seconds between the SIGINT and the SIGKILL of children that outlive this process.
    """

    pid: int
    control: socket.socket
    lifeline: BinaryIO
    wait: Callable[[], object]
    """Returns when it has ended."""

    @classmethod
    def spawned(cls, entry: str = ENTRY, preload: Sequence[str] = PRELOAD, grace: float = GRACE) -> "ServerProcess":
        """A new process, which shares no memory with this one."""
        with _channels() as (ours, theirs, end, lifeline):
            kept = theirs.fileno(), end.fileno()
            command = [sys.executable, "-P", "-m", program.__name__, *map(str, kept), entry, str(grace), *preload]
            process = subprocess.Popen(command, stdin=subprocess.DEVNULL, pass_fds=kept, start_new_session=True)
        return cls(process.pid, ours, lifeline, process.wait)

    @classmethod
    def forked(cls, entry: str = ENTRY, preload: Sequence[str] = PRELOAD, grace: float = GRACE) -> "ServerProcess":
        """A fork of this process, which has neither used torch nor started a thread."""
        gc.freeze()  # the next collection here would copy the pages that both share
        sys.stdout.flush()
        sys.stderr.flush()
        with _channels() as (ours, theirs, end, lifeline), signals_deferred(program.SIGNALS):
            pid = os.fork()
            if pid == 0:
                program.serve_as_fork(theirs, end.fileno(), entry, preload, grace)
        return cls(pid, ours, lifeline, partial(os.waitpid, pid, 0))

    def kill(self) -> None:
        """End it, where it has no children yet."""
        os.kill(self.pid, signal.SIGKILL)
        self.wait()
        self.control.close()
        self.lifeline.close()


@contextmanager
def _channels() -> Iterator[tuple[socket.socket, socket.socket, BinaryIO, BinaryIO]]:
    """Both ends of the socket and of the pipe, this process's on the outside; the fork server's are closed here after
    the block. By the end of the pipe all children that still run are ended."""
    raise_open_files()  # inherited by it and its children
    (ours, theirs), (read, write) = socket.socketpair(), os.pipe()
    with theirs, os.fdopen(read, "rb") as end:
        yield ours, theirs, end, os.fdopen(write, "wb")


class ForkServer:
    """A `launcher.engines.programs.fork_server` process and its children; `fork_server` starts and ends it."""

    def __init__(self, pid: int, writer: asyncio.StreamWriter, lifeline: BinaryIO) -> None:
        self.pid = pid
        self._writer, self._lifeline = writer, lifeline
        self._numbers = itertools.count()
        self._ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._starting: dict[int, asyncio.Future[Child]] = {}
        self._running: dict[int, Child] = {}

    async def start(self, argv: Sequence[str], log: Path, *, env: Mapping[str, str] | None = None) -> Child:
        """Start `entry(argv)` with its output appended to `log` and `env` added to the environment.

        Raises FailedError if the log cannot be opened, no process can be had or the fork server has ended.
        """
        await asyncio.shield(self._ready)
        if self._lifeline.closed:
            raise FailedError(SERVER_ENDED)
        number = next(self._numbers)
        started: asyncio.Future[Child] = asyncio.get_running_loop().create_future()
        self._starting[number] = started
        self._send({"do": "start", "number": number, "argv": list(argv), "log": str(log), "env": dict(env or {})})
        return await started

    def call(self, function: str, argument: str) -> None:
        """Call `module:function` in the fork server itself, before it starts the next child."""
        self._send({"do": "call", "function": function, "argument": argument})

    def _send(self, order: dict[str, Any]) -> None:
        if not self._writer.is_closing():
            self._writer.write(json.dumps(order).encode() + b"\n")

    async def listen(self, reader: asyncio.StreamReader) -> None:
        """Apply its notices until it ends; then fail whatever still waits for one."""
        with suppress(ConnectionError):
            async for line in reader:
                self._on_notice(json.loads(line))
        self._lifeline.close()
        awaited: list[asyncio.Future[Any]] = [self._ready, *self._starting.values()]
        for waiting in awaited:
            if not waiting.done():
                waiting.set_exception(FailedError(SERVER_ENDED))
                waiting.exception()  # otherwise asyncio complains where nothing waits
        for process in self._running.values():
            process.fail(FailedError(SERVER_ENDED))

    def _on_notice(self, notice: dict[str, Any]) -> None:
        if "ready" in notice:
            self._ready.set_result(None)
        elif "exited" in notice:
            self._running.pop(notice["exited"]).end(notice["code"])
        elif "started" in notice:
            process = self._running[notice["pid"]] = Child(notice["pid"], self._send)
            started = self._starting.pop(notice["started"])
            if not started.done():
                started.set_result(process)
        elif not (refused := self._starting.pop(notice["refused"])).done():
            why = f"a peer could not be started ({notice['why']}); mend that and run again"
            refused.set_exception(FailedError(why))


@asynccontextmanager
async def fork_server(process: ServerProcess | None = None, *, keep: Sequence[int] = ()) -> AsyncIterator[ForkServer]:
    """A fork server for the block; the first `start` waits until its imports are done.

    process: one that runs already; if there is none, one for peers is spawned.
    keep: descriptors that the fork server and every child hold open as long as they live (a lock, say).
    """
    process = process or ServerProcess.spawned()
    with suppress(BrokenPipeError):  # if it has ended, `start` says so
        for descriptor in keep:
            socket.send_fds(process.control, [b'{"do": "keep"}\n'], [descriptor])
    reader, writer = await asyncio.open_connection(sock=process.control)
    server = ForkServer(process.pid, writer, process.lifeline)
    async with background() as tasks:
        listening = tasks.create_task(server.listen(reader))
        try:
            yield server
        finally:
            process.lifeline.close()
            writer.close()
            with suppress(ConnectionError):
                await writer.wait_closed()
            await in_thread(process.wait)
            await listening


class LocalSettings(Settings):
    """The settings of this engine, which has none."""


class LocalDeployment(Deployment):
    """Starts every peer from one fork server."""

    def __init__(self, run: Run, server: ForkServer) -> None:
        self._files, self._server = run.files, server

    async def start(self, id: str) -> Child:
        return await self._server.start(["--config", str(self._files.config(id)), "--quiet"], self._files.log(id))

    def way_on(self, id: str) -> str:
        return f"resume with: dfl-peer --config {self._files.config(id)}"


class LocalEngine(Engine[LocalSettings]):
    """`--on local`, the default: every peer ends with the launcher, however that ends."""

    name = "local"
    Settings = LocalSettings
    _forked: ServerProcess | None = None

    @contextmanager
    def ahead(self) -> Iterator[None]:
        # A Mac's libraries cannot be forked, and of several threads a fork has one.
        if sys.platform == "linux" and psutil.Process().num_threads() == 1:
            self._forked = ServerProcess.forked()
        try:
            yield
        finally:
            if self._forked:
                self._forked.kill()

    def check(self, run: Run) -> None:
        check_device(run.device)
        choose_device(run.device)
        check_secrecy(run)
        check_addresses(run.spec)
        check_watching(run.spec)
        check_resources(run.spec, run.files.path)
        check_room(run)

    def config(self, run: Run, id: str) -> Mapping[str, object]:
        """A peer's config, with one GPU each if there are several."""
        return {**super().config(run, id), "device": in_turn(run.device, run.spec.ids.index(id))}

    @asynccontextmanager
    async def deploy(self, run: Run) -> AsyncIterator[Deployment]:
        async with self.fork_server(run) as server:
            yield LocalDeployment(run, server)

    @asynccontextmanager
    async def fork_server(self, run: Run) -> AsyncIterator[ForkServer]:
        """The one forked ahead, if there is one; a second run of the command (`--beside`) spawns its own."""
        process, self._forked = self._forked, None
        async with fork_server(process, keep=(run.lock,) if run.lock >= 0 else ()) as server:
            server.call("peer.preloaded:rehearse", str(run.files.config(run.spec.ids[0])))
            yield server


def check_addresses(spec: Spec) -> None:
    """Check that every peer could listen at its address on this machine now."""
    for member in spec.ring:
        if member.address and (why := why_taken(member.address)):
            if process := listening_process(member.address):
                why += f" ({process})"
            raise InputError(
                f"{member.id} cannot listen at {member.address}: {why}; `dfl-launch run` starts every peer on this "
                "machine: end what uses the address, or give the peers others (under `ring`, or with --peers another "
                "first --port)"
            )


def check_watching(spec: Spec) -> None:
    """Check that every peer could serve its metrics here now, and that other subscribers of its events are there."""
    if spec.metrics:
        client()
    for id, address in spec.metrics_addresses.items():
        if why := why_taken(address):
            raise InputError(f"{id} cannot serve metrics at {address}: {why}; choose other ports in `metrics`")
    if spec.tensorboard:
        writer_class()
    if spec.tracker:
        load_tracker(spec.tracker)


def listening_process(address: str) -> str | None:
    """Return name and number of the process that listens at the port of `host:port`; None if that cannot be seen."""
    _, port = split(address)
    with suppress(psutil.Error, OSError):  # on some systems only root may look
        for connection in psutil.net_connections("tcp"):
            here = connection.laddr and connection.laddr.port == port
            if here and connection.status == psutil.CONN_LISTEN and connection.pid:
                return f"{psutil.Process(connection.pid).name()}, process {connection.pid}"
    return None
