"""Peers as processes of this machine, forked by a fork server (`programs/fork_server.py`).

    async with fork_server() as server:
        process = await server.start(["--config", "peer3.yaml"], log=Path("peer3/log.txt"))
        code = await process.wait()

Leaving the block ends every child that still runs (SIGTERM, after the grace SIGKILL), and so does the death of this
process by whatever cause: the fork server and its children read a pipe that closes with it.

The fork server and this module exchange JSON lines over a socket; the protocol stands at the head of
`programs/fork_server.py`. All peers write into the run's directory themselves, so there is nothing to follow and
nothing to collect.
"""

import asyncio
import itertools
import json
import os
import socket
import sys
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import psutil

from launcher.engines.base import Deployment, Engine, FollowedProcess, Run
from launcher.engines.preflight import check_device, check_resources, check_room, check_secrecy
from launcher.plan import plan
from peer.errors import FailedError, InputError
from peer.learning.device import choose_device, in_turn
from peer.network.transport.addresses import split, why_taken
from peer.process import raise_open_files
from peer.settings import Settings
from peer.spec.federation import Spec
from peer.tasks import background
from peer.telemetry.metrics import client
from peer.telemetry.telemetry import load_tracker, writer_class

# The first Adam imports torch._dynamo, for more than a second of CPU.
PRELOAD = ("numpy", "torch", "torch._dynamo", "uvloop", "peer.preloaded")
"""What every peer imports, once for all of them; what is not installed is left out."""

SERVER_ENDED = "the fork server ended before its peers; the same command resumes the run"


class Child(FollowedProcess):
    """One child of the fork server."""

    def __init__(self, pid: int, send: Callable[[dict[str, Any]], None]) -> None:
        super().__init__()
        self.pid, self._send = pid, send

    def signal(self, number: int) -> None:
        if not self.ended:
            self._send({"do": "signal", "pid": self.pid, "signal": int(number)})


class ForkServer:
    """A `launcher.engines.programs.fork_server` process and its children; `fork_server` starts and ends it."""

    def __init__(self, pid: int, writer: asyncio.StreamWriter, lifeline: int) -> None:
        self.pid = pid
        self._writer, self._lifeline = writer, lifeline
        self._numbers = itertools.count()
        self._ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._starting: dict[int, asyncio.Future[Child]] = {}
        self._running: dict[int, Child] = {}

    async def start(
        self,
        argv: Sequence[str],
        log: Path,
        *,
        cwd: Path | None = None,
        env: Mapping[str, str] | None = None,
    ) -> Child:
        """Start `entry(argv)` with its output appended to `log` and `env` added to the environment.

        Raises FailedError if the log cannot be opened, no process can be had or the fork server has ended.
        """
        await asyncio.shield(self._ready)
        if self._lifeline < 0:
            raise FailedError(SERVER_ENDED)
        number = next(self._numbers)
        started: asyncio.Future[Child] = asyncio.get_running_loop().create_future()
        self._starting[number] = started
        place = {"cwd": None if cwd is None else str(cwd), "env": dict(env or {})}
        self._send({"do": "start", "number": number, "argv": list(argv), "log": str(log), **place})
        return await started

    def _send(self, order: dict[str, Any]) -> None:
        if not self._writer.is_closing():
            self._writer.write(json.dumps(order).encode() + b"\n")

    async def listen(self, reader: asyncio.StreamReader) -> None:
        """Apply its notices until it ends; then fail whatever still waits for one."""
        with suppress(ConnectionError):
            async for line in reader:
                self._on_notice(json.loads(line))
        self.close_lifeline()
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

    def close_lifeline(self) -> None:
        """End all children that still run, by the end of the pipe that they read."""
        if self._lifeline >= 0:
            os.close(self._lifeline)
            self._lifeline = -1


@asynccontextmanager
async def fork_server(
    *, entry: str = "peer.cli:main", preload: Sequence[str] = PRELOAD, grace: float = 5.0, keep: Sequence[int] = ()
) -> AsyncIterator[ForkServer]:
    """A fork server for the block; the first `start` waits until its imports are done.

    entry: `module:function` that a child calls with its argv; it returns the exit code.
    preload: modules imported once, before the first child.
    grace: seconds between the SIGTERM and the SIGKILL of children that outlive this process.
    keep: descriptors that the fork server and every child hold open as long as they live (a lock, say).
    """
    raise_open_files()  # the fork server and its children inherit it
    ours, theirs = socket.socketpair()
    end, lifeline = os.pipe()
    command = [sys.executable, "-P", "-m", "launcher.engines.programs.fork_server"]
    command += ["--control", str(theirs.fileno()), "--lifeline", str(end), "--grace", str(grace)]
    command += ["--entry", entry, "--preload", ",".join(preload)]
    async with background() as tasks:
        try:
            process = await asyncio.create_subprocess_exec(
                *command,
                stdin=asyncio.subprocess.DEVNULL,
                pass_fds=(theirs.fileno(), end, *keep),
                start_new_session=True,
            )
        finally:
            theirs.close()
            os.close(end)
        reader, writer = await asyncio.open_connection(sock=ours)
        server = ForkServer(process.pid, writer, lifeline)
        listening = tasks.create_task(server.listen(reader))
        try:
            yield server
        finally:
            server.close_lifeline()
            writer.close()
            with suppress(ConnectionError):
                await writer.wait_closed()
            await process.wait()
            await listening


class LocalSettings(Settings):
    """There is nothing to choose."""


class LocalDeployment(Deployment):
    """Starts every peer from one fork server."""

    def __init__(self, run: Run, server: ForkServer) -> None:
        self._files, self._server = run.files, server

    async def start(self, id: str) -> Child:
        return await self._server.start(["--config", str(self._files.config(id)), "--quiet"], self._files.log(id))


class LocalEngine(Engine[LocalSettings]):
    """`--on local`, the default: every peer ends with the launcher, however that ends."""

    name = "local"
    Settings = LocalSettings

    def check(self, run: Run) -> None:
        check_device(run.device)
        choose_device(run.device)
        check_secrecy(run)
        check_addresses(run.spec)
        check_watching(run.spec)
        check_resources(run.spec, run.files.path)
        check_room(plan(run.spec), run.files.path)  # the plan also finds whether data and model fit together

    def config(self, run: Run, id: str) -> Mapping[str, object]:
        """With one GPU each, where there are several."""
        return {**super().config(run, id), "device": in_turn(run.device, run.spec.ids.index(id))}

    @asynccontextmanager
    async def deploy(self, run: Run) -> AsyncIterator[Deployment]:
        async with self.fork_server(run.lock) as server:
            yield LocalDeployment(run, server)

    def fork_server(self, lock: int) -> AbstractAsyncContextManager[ForkServer]:
        return fork_server(keep=(lock,) if lock >= 0 else ())


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
