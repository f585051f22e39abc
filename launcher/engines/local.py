"""Peers as processes of this machine, copies of a fork server (`programs/fork_server.py`).

    async with ForkServer() as server:
        process = await server.start(["--config", "peer3.yaml"], log=Path("peer3/log.txt"))
        code = await process.wait()

Leaving the block ends every child that still runs (SIGTERM, after the grace SIGKILL), and so does the death of this
process by whatever cause: the fork server and its children read a pipe that closes with it.

The fork server and this module speak JSON lines over a socket; what they say stands at the head of
`programs/fork_server.py`. All peers write into the run's directory themselves, so there is nothing to follow and
nothing to collect.
"""

import asyncio
import itertools
import json
import os
import socket
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import psutil

from launcher.engines.base import Deployment, Engine, Process, Run
from launcher.engines.preflight import check_certificates, check_device, check_resources, check_room
from launcher.plan import plan
from peer.errors import FailedError, InputError
from peer.learning.device import in_turn
from peer.network.transport.addresses import split, why_taken
from peer.process import raise_open_files
from peer.settings import Settings
from peer.spec.federation import Spec
from peer.spec.peer import PeerConfig, check_plaintext
from peer.tasks import background
from peer.telemetry.metrics import client
from peer.telemetry.telemetry import load_tracker, writer_class

# The first Adam imports torch._dynamo, for more than a second of CPU.
PRELOAD = ("numpy", "torch", "torch._dynamo", "uvloop", "peer.preloaded")
"""What every peer imports, once for all of them; what is not installed is left out."""


class Child(Process):
    """One child of the fork server. `returncode` is None while it runs, and -n after signal n."""

    def __init__(self, pid: int, server: "ForkServer"):
        self.pid = pid
        self.returncode: int | None = None
        self._server = server
        self._ended = asyncio.Event()

    async def wait(self) -> int:
        """The exit code, once there is one. Raises FailedError if the fork server is lost before."""
        await self._ended.wait()
        if self.returncode is None:
            raise FailedError(self._server.lost)
        return self.returncode

    def signal(self, number: int) -> None:
        """Sends the signal, unless the process has ended."""
        if self.returncode is None:
            self._server.order({"do": "signal", "pid": self.pid, "signal": int(number)})

    def end(self, code: int | None) -> None:
        self.returncode = code
        self._ended.set()


def abandon(waiting: asyncio.Future[Any]) -> None:
    """Tells whoever waits, if anybody does, that nothing will come."""
    if not waiting.done():
        waiting.set_exception(FailedError(ForkServer.lost))
        waiting.exception()


class ForkServer:
    """A `launcher.engines.programs.fork_server` process and its children.

    entry: `module:function` that a child calls with its argv; it returns the exit code.
    preload: modules imported once, before the first child.
    grace: seconds between the SIGTERM and the SIGKILL of children that outlive this process.
    keep: descriptors that the fork server and every child hold open as long as they live (a lock, say).
    """

    lost = "the fork server ended before its peers; the same command resumes the run"

    def __init__(
        self,
        *,
        entry: str = "peer.cli:main",
        preload: Sequence[str] = PRELOAD,
        grace: float = 5.0,
        keep: Sequence[int] = (),
    ):
        self.entry, self.preload, self.grace, self.keep = entry, tuple(preload), grace, tuple(keep)
        self._numbers = itertools.count()
        self._starting: dict[int, asyncio.Future[Child]] = {}
        self._running: dict[int, Child] = {}
        self._ready: asyncio.Future[int] | None = None

    async def __aenter__(self) -> Self:
        """Starts the fork server; the first `start` waits until its imports are done."""
        raise_open_files()  # the fork server and its children inherit it
        async with AsyncExitStack() as stack:
            tasks = await stack.enter_async_context(background())
            await self._open(tasks)
            stack.push_async_callback(self._close)
            self._stack = stack.pop_all()
        return self

    async def _open(self, tasks: asyncio.TaskGroup) -> None:
        ours, theirs = socket.socketpair()
        end, self._lifeline = os.pipe()
        command = [sys.executable, "-P", "-m", "launcher.engines.programs.fork_server"]
        command += ["--control", str(theirs.fileno()), "--lifeline", str(end), "--grace", str(self.grace)]
        command += ["--entry", self.entry, "--preload", ",".join(self.preload)]
        try:
            self._process = await asyncio.create_subprocess_exec(
                *command,
                stdin=asyncio.subprocess.DEVNULL,
                pass_fds=(theirs.fileno(), end, *self.keep),
                start_new_session=True,
            )
        finally:
            theirs.close()
            os.close(end)
        self._ready = asyncio.get_running_loop().create_future()
        self._reader, self._writer = await asyncio.open_connection(sock=ours)
        self._listener = tasks.create_task(self._listen())

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        return await self._stack.__aexit__(kind, error, trace)

    async def _close(self) -> None:
        self._let_go()
        self._writer.close()
        with suppress(ConnectionError):
            await self._writer.wait_closed()
        await self._process.wait()
        await self._listener

    @property
    def pid(self) -> int:
        return self._process.pid

    async def start(
        self,
        argv: Sequence[str],
        log: Path,
        *,
        cwd: Path | None = None,
        env: Mapping[str, str] | None = None,
    ) -> Child:
        """Starts `entry(argv)` with its output appended to `log` and `env` added to the environment.

        Raises FailedError if the log cannot be opened, no process can be had or the fork server is gone.
        """
        assert self._ready is not None, "start inside `async with`"
        await asyncio.shield(self._ready)
        if self._lifeline < 0:
            raise FailedError(self.lost)
        number = next(self._numbers)
        started: asyncio.Future[Child] = asyncio.get_running_loop().create_future()
        self._starting[number] = started
        place = {"cwd": None if cwd is None else str(cwd), "env": dict(env or {})}
        self.order({"do": "start", "number": number, "argv": list(argv), "log": str(log), **place})
        return await started

    def order(self, order: dict[str, Any]) -> None:
        if not self._writer.is_closing():
            self._writer.write(json.dumps(order).encode() + b"\n")

    async def _listen(self) -> None:
        with suppress(ConnectionError):
            async for line in self._reader:
                self._hear(json.loads(line))
        self._let_go()
        assert self._ready is not None
        abandon(self._ready)
        for started in self._starting.values():
            abandon(started)
        for process in self._running.values():
            process.end(None)

    def _hear(self, notice: dict[str, Any]) -> None:
        if "ready" in notice:
            assert self._ready is not None
            self._ready.set_result(notice["ready"])
        elif "exited" in notice:
            self._running.pop(notice["exited"]).end(notice["code"])
        elif "started" in notice:
            process = self._running[notice["pid"]] = Child(notice["pid"], self)
            started = self._starting.pop(notice["started"])
            if not started.done():
                started.set_result(process)
        elif not (refused := self._starting.pop(notice["refused"])).done():
            why = f"a peer could not be started ({notice['why']}); mend that and run again"
            refused.set_exception(FailedError(why))

    def _let_go(self) -> None:
        """Closes the lifeline: whoever still runs ends."""
        if self._lifeline >= 0:
            os.close(self._lifeline)
            self._lifeline = -1


class LocalSettings(Settings):
    """There is nothing to choose."""


class LocalDeployment(Deployment):
    """Starts every peer from one fork server; all write into the run's directory themselves."""

    def __init__(self, run: Run, server: ForkServer) -> None:
        self._files, self._server = run.files, server

    async def start(self, id: str) -> Child:
        return await self._server.start(["--config", str(self._files.config(id)), "--quiet"], self._files.log(id))


class LocalEngine(Engine[LocalSettings]):
    """`--on local`, the default: every peer ends with the launcher, however that ends."""

    name = "local"
    Settings = LocalSettings

    def check(self, run: Run) -> None:
        check_here(run)

    def config(self, run: Run, id: str) -> Mapping[str, object]:
        """Of several GPUs each peer has one."""
        return {**super().config(run, id), "device": in_turn(run.device, run.spec.ids.index(id))}

    @asynccontextmanager
    async def deploy(self, run: Run) -> AsyncIterator[Deployment]:
        async with self.fork_server(run.lock) as server:
            yield LocalDeployment(run, server)

    def fork_server(self, lock: int) -> ForkServer:
        return ForkServer(keep=(lock,) if lock >= 0 else ())


def check_addresses(spec: Spec) -> None:
    """Whether every peer could listen at its address on this machine now."""
    for member in spec.ring:
        if member.address and (why := why_taken(member.address)):
            if who := holder(member.address):
                why += f" ({who})"
            raise InputError(
                f"{member.id} cannot listen at {member.address}: {why}; `dfl-launch run` starts every peer on this "
                "machine: end what uses the address, or give the peers others (under `ring`, or with --peers another "
                "first --port)"
            )


def check_watching(spec: Spec) -> None:
    """Whether every peer could serve its metrics here now, and what else is told of events is there."""
    if spec.metrics:
        client()
    for id, address in spec.metrics_addresses.items():
        if why := why_taken(address):
            raise InputError(f"{id} cannot serve metrics at {address}: {why}; choose other ports in `metrics`")
    if spec.tensorboard:
        writer_class()
    if spec.tracker:
        load_tracker(spec.tracker)


def check_here(run: Run) -> None:
    """All of it; whether data and model go together, too. Raises InputError."""
    spec, out = run.spec, run.files.path
    check_device(run.device)
    if not run.certs:
        check_plaintext(PeerConfig(federation=Path("federation.yaml"), id=spec.ids[0]), spec)
    check_certificates(spec, run.certs)
    check_addresses(spec)
    check_watching(spec)
    check_resources(spec, out)
    check_room(plan(spec), out)


def holder(address: str) -> str | None:
    """The process that listens at the port of `host:port`, in words; None where that cannot be seen."""
    _, port = split(address)
    with suppress(psutil.Error, OSError):  # on some systems only root may look
        for connection in psutil.net_connections("tcp"):
            here = connection.laddr and connection.laddr.port == port
            if here and connection.status == psutil.CONN_LISTEN and connection.pid:
                return f"{psutil.Process(connection.pid).name()}, process {connection.pid}"
    return None
