"""The launcher's end of `remote/`, which runs on a host: orders with answers, and what is told unasked."""

import asyncio
import itertools
import json
import re
import shlex
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from launcher.engines.ssh.connection import UnreachableError, connected, telling
from launcher.engines.ssh.hosts import Host
from peer.errors import FailedError
from peer.tasks import background

if TYPE_CHECKING:
    import asyncssh

REMOTE = "launcher.engines.ssh.remote"
PARTS = ("speech", "files", "peer", "installation", "run", "reaching", "obeying")
"""Of REMOTE, each after those that it imports; the last one's `main` obeys."""
BEGIN = "import sys, json; loader, parts = json.loads(sys.stdin.buffer.readline()); exec(loader)"
LOADER = """
import types
for name, source in parts:
    module = sys.modules[name] = types.ModuleType(name)
    exec(compile(source, name, "exec"), module.__dict__)
module.main()
"""
LONGEST = 10_000
"""Bytes that are read of why a Python does not run."""
PAUSE = 20
"""Seconds between two signs that the launcher is there."""

LOST = "the connection was lost"

Notice = dict[str, Any]


class LostError(UnreachableError):
    """The connection was lost before the answer came."""


class RefusedError(FailedError):
    """The host cannot obey an order; the message says why, without naming the host."""


class Agent:
    """One connection to one host, and the process there that obeys."""

    def __init__(
        self, host: Host, connection: "asyncssh.SSHClientConnection", process: "asyncssh.SSHClientProcess[bytes]"
    ) -> None:
        self.connection, self._host, self._process = connection, host, process
        self._numbers = itertools.count()
        self._awaited: dict[int, asyncio.Future[Any]] = {}
        self._over = asyncio.Event()

    async def ask(self, do: str, **order: Any) -> Any:
        """The answer; RefusedError, or LostError when none can come any more."""
        if self._over.is_set():
            raise LostError(LOST)
        number = next(self._numbers)
        answer = self._awaited[number] = asyncio.get_running_loop().create_future()
        try:
            self._process.stdin.write(json.dumps({"order": number, "do": do, "given": order}).encode() + b"\n")
            return await answer
        except OSError:
            raise LostError(LOST) from None
        finally:
            del self._awaited[number]

    async def lost(self) -> NoReturn:
        """LostError once the connection is lost."""
        await self._over.wait()
        raise LostError(LOST)

    async def listen(self, hear: Callable[[Notice], None]) -> None:
        """Takes in what the host says, until the connection is lost."""
        try:
            async for notice in self._notices():
                self._take(notice, hear)
        finally:
            self._over.set()
            for answer in self._awaited.values():
                if not answer.done():
                    answer.set_exception(LostError(LOST))

    async def _notices(self) -> AsyncIterator[Notice]:
        with suppress(UnreachableError), telling(self._host):
            async for line in self._process.stdout:
                try:
                    notice = json.loads(line)
                except (ValueError, RecursionError):
                    continue  # what a login shell says there is none of ours
                if isinstance(notice, dict):
                    yield notice

    def _take(self, notice: Notice, hear: Callable[[Notice], None]) -> None:
        match notice:
            case {"answer": int(number)}:
                if (answer := self._awaited.get(number)) and not answer.done():
                    if "refused" in notice:
                        answer.set_exception(RefusedError(notice["refused"]))
                    else:
                        answer.set_result(notice.get("result"))
            case {"peer": str()}:
                hear(notice)

    async def stay_awake(self) -> None:
        while True:
            await asyncio.sleep(PAUSE)
            with suppress(LostError):
                await self.ask("awake")


@asynccontextmanager
async def agent(host: Host, python: str, hear: Callable[[Notice], None] = lambda _: None) -> AsyncIterator[Agent]:
    """An agent on the host, by the Python there. UnreachableError when there can be none."""
    order = f"exec {command(python)} -c {shlex.quote(BEGIN)}"
    async with connected(host) as connection, background() as tasks:
        with telling(host):
            process = await connection.create_process(order, encoding=None)
            process.stdin.write(script())
            await _hello(process, python)
        one = Agent(host, connection, process)
        tasks.create_task(one.listen(hear))
        tasks.create_task(one.stay_awake())
        yield one


def script() -> bytes:
    """What BEGIN reads."""
    here = Path(__file__).parent / "remote"
    return (
        json.dumps([LOADER, [(f"{REMOTE}.{part}", (here / f"{part}.py").read_text()) for part in PARTS]]).encode()
        + b"\n"
    )


async def _hello(process: "asyncssh.SSHClientProcess[bytes]", python: str) -> None:
    async for line in process.stdout:
        if line.startswith(b'{"hello"'):
            return
    try:
        said = await process.stderr.readexactly(LONGEST)
    except asyncio.IncompleteReadError as all:
        said = all.partial
    lines = said.decode(errors="replace").strip().splitlines()
    reason = lines[-1] if lines else "it ended at once"
    raise UnreachableError(f"`{python}` does not run there ({reason}); name another in `python`")


def command(python: str) -> str:
    """For a shell of any kind; `~/` stays the home directory."""
    home = re.match(r"~/", python)
    return f"~/{shlex.quote(python[2:])}" if home else shlex.quote(python)
