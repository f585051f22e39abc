"""A host as the launcher reaches it: a connection by SSH, and the process there that obeys.

Connections are made with the user's own keys, agent, ~/.ssh/config and known hosts. Over one of them,
`programs/ssh_host.py` is sent to the host and run by the Python there: it obeys orders and answers them (`Agent`), and
tells unasked what is added to peers' files and how peers end (`RemotePeer`).

A short stay at every host at once, to look whether peers can run there, is a `HostProbe`. For as long as a run lasts
there is a `HostConnection`, which is made again whenever it is lost: orders wait until the host can be reached, and
peers are followed from where their files end here.

What a host says is not trusted: what is not said as it should be is passed over, and no peer's file grows beyond what
hosts.yaml allows.
"""

import asyncio
import base64
import itertools
import json
import os
import re
import shlex
import socket
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager, suppress
from errno import ECONNREFUSED, EFBIG
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from launcher.engines.base import FollowedProcess, bytes_here, write_at
from launcher.engines.ssh_hosts import Host, user_and_host
from peer.errors import FailedError
from peer.files import write_failure
from peer.tasks import background

if TYPE_CHECKING:
    import asyncssh


PATIENCE = 10
"""Seconds that an attempt to connect, and then one to log in, may take."""
ALIVE = 5
"""Seconds between two signs of life; when two in a row are not answered, the connection is lost."""


class UnreachableError(FailedError):
    """There is no connection to a host; the message says why, without naming the host."""


@asynccontextmanager
async def connected(host: Host) -> AsyncIterator["asyncssh.SSHClientConnection"]:
    """UnreachableError when there is none, or the server is not the one that is known."""
    import asyncssh

    with unreachable_errors(host):
        connection = await asyncssh.connect(
            **user_and_host(host),
            connect_timeout=PATIENCE,
            login_timeout=PATIENCE,
            keepalive_interval=ALIVE,
            keepalive_count_max=2,
        )
    try:
        yield connection
    finally:
        connection.abort()
        await connection.wait_closed()


@contextmanager
def unreachable_errors(host: Host) -> Iterator[None]:
    """What goes wrong with a connection comes out as an UnreachableError."""
    import asyncssh

    try:
        yield
    except (OSError, ValueError, asyncssh.Error) as error:
        raise UnreachableError(connection_error(error, host)) from None


def connection_error(error: Exception, host: Host) -> str:
    """In words, with the way out where a person has to do something."""
    import asyncssh

    match error:
        case asyncssh.HostKeyNotVerifiable():
            return f"its host key is not known here, or has changed; connect once by `ssh {host.host}`, which shows it"
        case asyncssh.PermissionDenied():
            return (
                f"it accepts none of your keys; see that `ssh {host.host}` works without a password (ssh-copy-id, "
                "ssh-add)"
            )
        case TimeoutError() | asyncio.TimeoutError():
            return "timed out"
        case socket.gaierror():
            return "no such host name; write one, or an alias of ~/.ssh/config"
        case OSError() if error.errno == ECONNREFUSED or f"[Errno {ECONNREFUSED}]" in str(error):
            port = asyncssh.SSHClientConnectionOptions(**user_and_host(host), config=()).port
            return (
                f"SSH refused the connection at its port {port}: start sshd there, or write the port at which it "
                "listens as `Port` into ~/.ssh/config"
            )
        case asyncssh.Error():
            return error.reason.rstrip(".") or type(error).__name__
        case OSError():
            return (os.strerror(error.errno) if error.errno else str(error)).lower()
    return str(error)


PROGRAM = Path(__file__).parent / "programs" / "ssh_host.py"
BEGIN = "import sys, json; exec(json.loads(sys.stdin.buffer.readline()))"
LONGEST = 10_000
"""Bytes that are read of why a Python does not run."""
PAUSE = 20
"""Seconds between two signs that the launcher is there."""

LOST = "the connection was lost"

Notice = dict[str, Any]


class ConnectionLostError(UnreachableError):
    """The connection was lost before the answer came."""


class CommandRejectedError(FailedError):
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
            raise ConnectionLostError(LOST)
        number = next(self._numbers)
        answer = self._awaited[number] = asyncio.get_running_loop().create_future()
        try:
            self._process.stdin.write(json.dumps({"order": number, "do": do, "given": order}).encode() + b"\n")
            return await answer
        except OSError:
            raise ConnectionLostError(LOST) from None
        finally:
            del self._awaited[number]

    async def lost(self) -> NoReturn:
        """LostError once the connection is lost."""
        await self._over.wait()
        raise ConnectionLostError(LOST)

    async def listen(self, hear: Callable[[Notice], None]) -> None:
        """Takes in what the host says, until the connection is lost."""
        try:
            async for notice in self._notices():
                self._take(notice, hear)
        finally:
            self._over.set()
            for answer in self._awaited.values():
                if not answer.done():
                    answer.set_exception(ConnectionLostError(LOST))

    async def _notices(self) -> AsyncIterator[Notice]:
        with suppress(UnreachableError), unreachable_errors(self._host):
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
                        answer.set_exception(CommandRejectedError(notice["refused"]))
                    else:
                        answer.set_result(notice.get("result"))
            case {"peer": str()}:
                hear(notice)

    async def stay_awake(self) -> None:
        while True:
            await asyncio.sleep(PAUSE)
            with suppress(ConnectionLostError):
                await self.ask("awake")


@asynccontextmanager
async def agent(host: Host, python: str, hear: Callable[[Notice], None] = lambda _: None) -> AsyncIterator[Agent]:
    """An agent on the host, by the Python there. UnreachableError when there can be none."""
    order = f"exec {command(python)} -c {shlex.quote(BEGIN)}"
    async with connected(host) as connection, background() as tasks:
        with unreachable_errors(host):
            process = await connection.create_process(order, encoding=None)
            process.stdin.write(remote_script())
            await _hello(process, python)
        one = Agent(host, connection, process)
        tasks.create_task(one.listen(hear))
        tasks.create_task(one.stay_awake())
        yield one


def remote_script() -> bytes:
    """What BEGIN reads."""
    return json.dumps(PROGRAM.read_text()).encode() + b"\n"


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


class HostProbe:
    """At one host."""

    def __init__(self, host: Host, agent: Agent) -> None:
        self.host, self._agent = host, agent

    async def ask(self, do: str, **order: Any) -> Any:
        """The answer; RefusedError, also when the connection is lost."""
        try:
            return await self._agent.ask(do, **order)
        except ConnectionLostError as error:
            raise CommandRejectedError(str(error)) from None


@asynccontextmanager
async def probe_hosts(hosts: Mapping[str, Host]) -> AsyncIterator[dict[str, HostProbe | str]]:
    """By host: the visit, or why there can be none."""
    async with background() as tasks:
        met: dict[str, asyncio.Future[HostProbe | str]] = {
            name: asyncio.get_running_loop().create_future() for name in hosts
        }
        for name, host in hosts.items():
            tasks.create_task(_stay(host, met[name]))
        yield {name: await one for name, one in met.items()}


async def _stay(host: Host, met: "asyncio.Future[HostProbe | str]") -> None:
    try:
        async with agent(host, host.python) as one:
            met.set_result(HostProbe(host, one))
            await one.lost()
    except UnreachableError as error:
        if not met.done():
            met.set_result(str(error))


FOLLOWED = ("events.jsonl", "log.txt")


class RemotePeer(FollowedProcess):
    """From a start to the end that follows it, however often the connection is lost meanwhile.

    out: the peer's directory here. wake: called when there is a signal to deliver.
    """

    def __init__(self, id: str, host: Host, out: Path, wake: Callable[[], None]) -> None:
        super().__init__()
        self.id, self._host, self._out, self._wake = id, host, out, wake
        self._unwritable: asyncio.Future[FailedError] = asyncio.get_running_loop().create_future()
        self._reported = False
        self.undelivered: int | None = None
        """A signal that the host has not received yet."""

    async def wait(self) -> int:
        """As every process. Raises FailedError, once, when what the peer writes can no longer be written here."""
        if not self._reported:
            await asyncio.wait((self._end, self._unwritable), return_when=asyncio.FIRST_COMPLETED)
            if not self.ended:
                self._reported = True
                raise self._unwritable.result()
        return await super().wait()

    def signal(self, number: int) -> None:
        if not self.ended:
            self.undelivered = number
            self._wake()

    def delivered(self, number: int) -> None:
        if self.undelivered == number:
            self.undelivered = None

    def end(self, code: int) -> None:
        super().end(code)
        self.undelivered = None

    def offsets(self) -> dict[str, int]:
        """How many bytes of each file are here."""
        return {name: bytes_here(self._out / name) for name in FOLLOWED}

    def on_notice(self, notice: Notice) -> None:
        """Apply what the host reports of the peer; ignore what `programs/ssh_host.py` would not have sent."""
        match notice:
            case {"ended": int(code)}:
                self.end(code)
            case {"file": str(name), "at": int(at), "data": str(data)} if name in FOLLOWED:
                if not self._unwritable.done():
                    self._write(name, at, data)

    def _write(self, name: str, at: int, data: str) -> None:
        try:
            write_at(self._out / name, at, base64.b64decode(data, validate=True), self._host.bytes_of_a_peer)
        except ValueError:
            return
        except OSError as error:
            too_much = error.errno == EFBIG
            why = self._host.too_much(f"{name} of {self.id}") if too_much else write_failure(self._out / name, error)
            self._unwritable.set_result(FailedError(why))


FIRST_PAUSE, LONGEST_PAUSE = 0.5, 15.0
"""Seconds before the first attempt to connect again, and at most; each waits twice as long as the one before."""


class HostConnection:
    """Orders wait until the host can be reached; whenever it is, peers are followed from where their files end here.

    directory: that of the run there. say: told when the host cannot be reached, and when it can be again.
    """

    def __init__(self, host: Host, directory: str, say: Callable[[str], None]) -> None:
        self.host, self.directory, self._say = host, directory, say
        self.why = ""
        """Why it cannot be reached, once an attempt has failed; empty while it can."""
        self._agent: asyncio.Future[Agent] = asyncio.get_running_loop().create_future()
        self._peers: dict[str, RemotePeer] = {}
        self._woken = asyncio.Event()

    async def keep(self, python: str) -> None:
        """Connects, and again for ever."""
        pause = FIRST_PAUSE
        while True:
            try:
                async with agent(self.host, python, self._hear) as one:
                    pause = FIRST_PAUSE
                    await self._serve(one)
            except ConnectionLostError:
                pass  # for a moment, perhaps
            except CommandRejectedError as error:
                raise FailedError(f"{self.host.host}: {error}") from None
            except UnreachableError as error:
                if not self.why:
                    self._say(f"{self.host.host} cannot be reached: {error}; its peers go on, and so do the attempts")
                self.why = str(error)
            await asyncio.sleep(pause)
            pause = min(2 * pause, LONGEST_PAUSE)

    async def _serve(self, one: Agent) -> None:
        """Until the connection is lost, which ends in LostError."""
        if self.why:
            self._say(f"{self.host.host} can be reached again")
            self.why = ""
        self._agent.set_result(one)
        try:
            async with background() as tasks:
                tasks.create_task(one.lost())
                await self._tend(one)
        finally:
            self._agent = asyncio.get_running_loop().create_future()

    async def _tend(self, one: Agent) -> None:
        """Follows whom it does not follow by this connection yet, and delivers signals, whenever woken."""
        followed: list[RemotePeer] = []
        while True:
            self._woken.clear()
            for peer in [*self._peers.values()]:
                if peer not in followed and not peer.ended:
                    followed.append(peer)
                    await one.ask("follow", directory=self.directory, id=peer.id, offsets=peer.offsets())
                number = peer.undelivered
                if number and await one.ask("send", directory=self.directory, id=peer.id, number=number):
                    peer.delivered(number)
            await self._woken.wait()

    def _hear(self, notice: Notice) -> None:
        if peer := self._peers.get(notice.get("peer", "")):
            peer.on_notice(notice)

    async def agent(self) -> Agent:
        """As soon as there is one."""
        return await asyncio.shield(self._agent)

    async def ask(self, do: str, **order: Any) -> Any:
        """The answer of the host about the run's directory, whenever it comes; FailedError when the host refuses."""
        while True:
            try:
                return await (await self.agent()).ask(do, directory=self.directory, **order)
            except ConnectionLostError:
                await asyncio.sleep(0)
            except CommandRejectedError as error:
                raise FailedError(f"{self.host.host}: {error}") from None

    def follow(self, peer: RemotePeer) -> None:
        """Until it has ended: its files, and its end."""
        self._peers[peer.id] = peer
        self.wake()

    def wake(self) -> None:
        """There is somebody to follow, or a signal to deliver."""
        self._woken.set()

    @property
    def running(self) -> list[str]:
        """The peers that are not known to have ended."""
        return [peer.id for peer in self._peers.values() if not peer.ended]

    async def ended(self) -> None:
        """Returns when no peer runs there."""
        for peer in [*self._peers.values()]:
            await peer.wait()
