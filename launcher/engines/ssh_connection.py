"""A host as the launcher reaches it: a connection by SSH, and the process there that executes its orders.

Connections are made with the user's own keys, agent, ~/.ssh/config and known hosts; where one fails it is said why, and
what would mend it (`why_refused`, `why_denied`). Over one of them, `programs/ssh_host.py` is sent to the host and run
by the Python there: it executes orders and answers them (`Agent`), and reports unasked what is added to peers' files
and how peers end (`RemotePeer`).

`probe_hosts` connects to all hosts at once, for a check whether peers can run there. For as long as a run lasts there
is a `HostConnection`, which is made again whenever it is lost: orders wait until the host can be reached, and peers are
followed from where their files end here.

What a host reports is not trusted: of what it says unasked, whatever has not the expected form is ignored, an answer
without it is an error, and no peer's file grows beyond what hosts.yaml allows.
"""

import asyncio
import base64
import itertools
import json
import os
import shlex
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager, suppress
from errno import ECONNREFUSED, EFBIG
from pathlib import Path
from typing import Annotated, Any, NoReturn, TypeVar, cast

import asyncssh
from pydantic import Field, NonNegativeInt, TypeAdapter, ValidationError
from typing_extensions import TypedDict  # pydantic takes no other before Python 3.12

from launcher.engines.base import FollowedProcess, bytes_here, write_at
from launcher.engines.programs.ssh_host import FOLLOWED
from launcher.engines.ssh_hosts import Host, ssh_options, user_and_host
from peer.errors import FailedError
from peer.files import write_failure
from peer.records import ManyKept, Named
from peer.tasks import background

CONNECT_TIMEOUT_S = 10
"""Seconds for an attempt to connect, and then for one to log in."""
KEEPALIVE_INTERVAL_S = 5
"""When two keepalives in a row are not answered, the connection is lost."""


T = TypeVar("T")


class UnreachableError(FailedError):
    """There is no connection to a host; the message gives the reason without naming the host."""


@asynccontextmanager
async def connected(host: Host) -> AsyncIterator[asyncssh.SSHClientConnection]:
    """A connection for the block. Raises UnreachableError if there is none, or the server is not the known one."""
    shown: list[tuple[str, str, int, asyncssh.SSHKey]] = []

    class Client(asyncssh.SSHClient):
        def validate_host_public_key(self, host: str, addr: str, port: int, key: asyncssh.SSHKey) -> bool:
            shown.append((host, addr, port, key))
            return False

    with unreachable_errors(host):
        try:
            connection = await asyncssh.connect(
                **user_and_host(host),
                client_factory=Client,
                connect_timeout=CONNECT_TIMEOUT_S,
                login_timeout=CONNECT_TIMEOUT_S,
                keepalive_interval=KEEPALIVE_INTERVAL_S,
                keepalive_count_max=2,
            )
        except asyncssh.HostKeyNotVerifiable:
            if not shown:  # it is revoked, or a certificate
                raise
            raise UnreachableError(why_refused(host, *shown[0])) from None
        except asyncssh.PermissionDenied:
            raise UnreachableError(await why_denied(host)) from None
    try:
        yield connection
    finally:
        connection.abort()
        await connection.wait_closed()


@contextmanager
def unreachable_errors(host: Host) -> Iterator[None]:
    """Raise UnreachableError for what goes wrong with a connection inside the block."""
    try:
        yield
    except (OSError, ValueError, asyncssh.Error) as error:
        raise UnreachableError(connection_error(error, host)) from None


def connection_error(error: Exception, host: Host) -> str:
    """Return the error in words, with a hint where the user has to do something."""
    match error:
        case TimeoutError() | asyncio.TimeoutError():
            return "timed out"
        case socket.gaierror():
            return "no such host name; write one, or an alias of ~/.ssh/config"
        case OSError() if error.errno == ECONNREFUSED or f"[Errno {ECONNREFUSED}]" in str(error):
            return (
                f"SSH refused the connection at its port {ssh_options(host).port}: start sshd there, or write the port "
                "at which it listens as `Port` into ~/.ssh/config"
            )
        case asyncssh.Error():
            return error.reason.rstrip(".") or type(error).__name__
        case OSError():
            return (os.strerror(error.errno) if error.errno else str(error)).lower()
    return str(error)


SSH_PORT = 22
"""The port that known_hosts does not name."""


def why_refused(host: Host, name: str, address: str, port: int, key: asyncssh.SSHKey) -> str:
    """Return whether no key is known or another than the host has shown, by their fingerprints, with a hint.

    name, address, port: where it has shown it. Of the keys that are known, those of the same kind count, if any are.
    """
    files = cast(list[str], ssh_options(host).known_hosts) or [str(Path("~/.ssh/known_hosts").expanduser())]
    listed = asyncssh.read_known_hosts([file for file in files if Path(file).is_file()])
    keys = [*asyncssh.match_known_hosts(listed, name, address, None if port == SSH_PORT else port)[0]]
    alike = [one for one in keys if one.algorithm == key.algorithm] or keys
    known, shown = sorted({one.get_fingerprint() for one in alike}), key.get_fingerprint()
    if not known:
        return f"its host key {shown} is not known here; connect once by `ssh {host.host}`, which asks about it"
    entry = name if port == SSH_PORT else f"[{name}]:{port}"
    return (
        f"its host key has changed: {' or '.join(known)} is known here, and it shows {shown}; ask who runs it "
        f"whether that is right, and only then forget the old one by `ssh-keygen -R {shlex.quote(entry)}` and "
        f"connect once by `ssh {host.host}`"
    )


async def why_denied(host: Host) -> str:
    """Return why the host accepts none of the user's keys, with a hint. One that is locked may be the right one."""
    held = await _held_by_agent(host)
    if not (locked := [str(path) for path in _key_files(host) if _is_locked(path, held)]):
        return (
            f"it accepts none of your keys; see that `ssh {host.host}` works without a password (ssh-copy-id, ssh-add)"
        )
    return (
        f"it accepts none of your keys that can be used; {' and '.join(locked)} needs a passphrase, and no agent holds "
        f"it: `ssh-add {shlex.quote(locked[0])}` gives it to one"
    )


async def _held_by_agent(host: Host) -> set[bytes]:
    with suppress(OSError, ValueError, asyncssh.Error):
        async with asyncssh.connect_agent(ssh_options(host).agent_path or "") as agent:
            return {key.public_data for key in await agent.get_keys()}
    return set()


def _key_files(host: Host) -> list[Path]:
    """Return the files of private keys that ~/.ssh/config names for the host, or those by the usual names."""
    named = cast(list[str], ssh_options(host).config.get("IdentityFile", []))
    return [*map(Path, named)] or sorted(Path("~/.ssh").expanduser().glob("id_*"))


def _is_locked(path: Path, held: Collection[bytes]) -> bool:
    """Return whether the file holds a key with a passphrase that is not among those that an agent holds."""
    try:
        asyncssh.read_private_key(path)
        return False
    except (OSError, ValueError) as error:
        if not str(error).startswith("Passphrase"):
            return False
    with suppress(OSError, asyncssh.KeyImportError):
        return asyncssh.read_public_key(f"{path}.pub").public_data not in held
    return not held


PROGRAM = Path(__file__).parent / "programs" / "ssh_host.py"
BEGIN = "import sys, json; exec(json.loads(sys.stdin.buffer.readline()))"
MAX_COMPLAINT_BYTES = 10_000
"""Bytes that are read of what Python says when it does not run."""
PING_INTERVAL_S = 20
"""Seconds between two signs to the host that the launcher is there."""

Notice = dict[str, Any]


class ConnectionLostError(UnreachableError):
    """The connection was lost before the answer came."""

    def __init__(self) -> None:
        super().__init__("the connection was lost")


class CommandRejectedError(FailedError):
    """The host cannot execute an order; the message gives the reason without naming the host."""


EXIT_CODES = range(-255, 256)
"""Those of processes; -n after signal n."""


class Survey(TypedDict):
    python: ManyKept[NonNegativeInt]
    dfl: str | None
    time: Any
    torch: str
    venv: bool
    installed: bool
    free: NonNegativeInt
    there: str
    writable: bool
    obstacles: ManyKept[str]
    running: ManyKept[str]
    codes: Named[Annotated[int, Field(ge=EXIT_CODES[0], le=EXIT_CODES[-1])]]


class Placed(Survey):
    root: str


ANSWERS: Mapping[str, TypeAdapter[Any]] = {
    "survey": TypeAdapter(Survey),
    "place": TypeAdapter(Placed),
    **dict.fromkeys(("device", "dial", "listen"), TypeAdapter(str | None)),
}
"""What `programs/ssh_host.py` answers to orders; of other answers no more counts than whether they are empty."""


class Agent:
    """One connection to one host, and the process there that executes orders."""

    def __init__(
        self, host: Host, connection: asyncssh.SSHClientConnection, process: asyncssh.SSHClientProcess[bytes]
    ) -> None:
        self.host, self.connection, self._process = host, connection, process
        self._numbers = itertools.count()
        self._awaited: dict[int, asyncio.Future[Any]] = {}
        self._over = asyncio.Event()

    async def ask(self, do: str, **order: Any) -> Any:
        """Return the answer. Raises CommandRejectedError, or ConnectionLostError if none can come any more."""
        if self._over.is_set():
            raise ConnectionLostError()
        number = next(self._numbers)
        answer = self._awaited[number] = asyncio.get_running_loop().create_future()
        try:
            self._process.stdin.write(json.dumps({"order": number, "do": do, "given": order}).encode() + b"\n")
            said = await answer
            if do in ANSWERS:
                said = ANSWERS[do].validate_python(said)
            if do in ("survey", "place") and not {*said["running"], *said["codes"]} <= {*order.get("ids", ())}:
                raise CommandRejectedError("it answers for peers of other hosts; see what its `python` runs")
            return said
        except OSError:
            raise ConnectionLostError() from None
        except ValidationError:
            raise CommandRejectedError(f"it answers `{do}` as dfl never does; see what its `python` runs") from None
        finally:
            del self._awaited[number]

    async def wait_lost(self) -> NoReturn:
        """Raise ConnectionLostError once the connection is lost."""
        await self._over.wait()
        raise ConnectionLostError()

    async def listen(self, on_notice: Callable[[Notice], None]) -> None:
        """Dispatch what the host sends, until the connection is lost."""
        try:
            async for notice in self._notices():
                self._dispatch(notice, on_notice)
        finally:
            self._over.set()
            for answer in self._awaited.values():
                if not answer.done():
                    answer.set_exception(ConnectionLostError())

    async def _notices(self) -> AsyncIterator[Any]:
        with suppress(UnreachableError), unreachable_errors(self.host):
            async for line in self._process.stdout:
                with suppress(ValueError, RecursionError):  # printed by a login shell there
                    yield json.loads(line)

    def _dispatch(self, notice: Any, on_notice: Callable[[Notice], None]) -> None:
        match notice:
            case {"answer": int(number)}:
                if (answer := self._awaited.get(number)) and not answer.done():
                    if isinstance(why := notice.get("refused"), str):
                        answer.set_exception(CommandRejectedError(why))
                    else:
                        answer.set_result(notice.get("result"))
            case {"peer": str()}:
                on_notice(notice)

    async def keep_awake(self) -> None:
        while True:
            await asyncio.sleep(PING_INTERVAL_S)
            with suppress(ConnectionLostError):
                await self.ask("awake")


@asynccontextmanager
async def agent(host: Host, python: str, on_notice: Callable[[Notice], None] = lambda _: None) -> AsyncIterator[Agent]:
    """An agent on the host for the block, run by the Python there. Raises UnreachableError if there can be none."""
    order = f"exec {command(python)} -c {shlex.quote(BEGIN)}"
    async with connected(host) as connection, background() as tasks:
        # A shell or a Python in a home directory on a lost server answers nothing, and the connection stays.
        with unreachable_errors(host):
            async with asyncio.timeout(ANSWER_TIMEOUT_S):
                process = await connection.create_process(order, encoding=None)
                process.stdin.write(json.dumps(PROGRAM.read_text()).encode() + b"\n")  # what BEGIN reads
                await _hello(process, python)
        one = Agent(host, connection, process)
        tasks.create_task(one.listen(on_notice))
        tasks.create_task(one.keep_awake())
        yield one


async def _hello(process: asyncssh.SSHClientProcess[bytes], python: str) -> None:
    async for line in process.stdout:
        if line.startswith(b'{"hello"'):
            return
    try:
        said = await process.stderr.readexactly(MAX_COMPLAINT_BYTES)
    except asyncio.IncompleteReadError as all:
        said = all.partial
    lines = said.decode(errors="replace").strip().splitlines()
    reason = lines[-1] if lines else "it ended at once"
    raise UnreachableError(f"`{python}` does not run there ({reason}); name another in `python`")


def command(python: str) -> str:
    """Quote it for any shell; `~/` stays the home directory."""
    return f"~/{shlex.quote(python[2:])}" if python.startswith("~/") else shlex.quote(python)


@asynccontextmanager
async def probe_hosts(hosts: Mapping[str, Host]) -> AsyncIterator[tuple[dict[str, Agent], dict[str, str]]]:
    """Yield, for the block, an agent on each host, by name, and the reasons for hosts without one."""
    async with background() as tasks:
        loop = asyncio.get_running_loop()
        met: dict[str, asyncio.Future[Agent | str]] = {name: loop.create_future() for name in hosts}
        for name, host in hosts.items():
            tasks.create_task(_probe(host, met[name]))
        found = {name: await one for name, one in met.items()}
        yield (
            {name: one for name, one in found.items() if isinstance(one, Agent)},
            {name: one for name, one in found.items() if isinstance(one, str)},
        )


async def _probe(host: Host, met: "asyncio.Future[Agent | str]") -> None:
    try:
        async with agent(host, host.python) as one:
            met.set_result(one)
            await one.wait_lost()
    except UnreachableError as error:
        if not met.done():
            met.set_result(str(error))


class RemotePeer(FollowedProcess):
    """A peer on a host, from a start to the end that follows, however often the connection is lost meanwhile.

    out: the peer's directory here. wake: called when there is a signal to deliver.
    """

    def __init__(self, id: str, host: Host, out: Path, wake: Callable[[], None]) -> None:
        super().__init__(self._keep_for_delivery)
        self.id, self._host, self._out, self._wake = id, host, out, wake
        self._unwritable: asyncio.Future[FailedError] = asyncio.get_running_loop().create_future()
        self._reported = False
        self.undelivered: int | None = None
        """A signal that the host has not received yet."""

    async def wait(self) -> int:
        """Wait for the exit code; FailedError, once, if what the peer writes can no longer be written here."""
        if not self._reported:
            await asyncio.wait((self._end, self._unwritable), return_when=asyncio.FIRST_COMPLETED)
            if not self.ended:
                self._reported = True
                raise self._unwritable.result()
        return await super().wait()

    def _keep_for_delivery(self, number: int) -> None:
        self.undelivered = number
        self._wake()

    def end(self, code: int) -> None:
        super().end(code)
        self.undelivered = None

    def offsets(self) -> dict[str, int]:
        """How many bytes of each file are here."""
        return {name: bytes_here(self._out / name) for name in FOLLOWED}

    def on_notice(self, notice: Notice) -> None:
        """Apply what the host reports of the peer; ignore what `programs/ssh_host.py` would not have sent."""
        match notice:
            case {"ended": int(code)} if code in EXIT_CODES:
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


RECONNECT_S, MAX_RECONNECT_S = 0.5, 15.0
"""Seconds before the first attempt to reconnect, and the longest pause; each is twice as long as the last."""
ANSWER_TIMEOUT_S = 60.0
"""Seconds for a host to be reached and to place files."""


class HostConnection:
    """Orders wait until the host can be reached; whenever it is, peers are followed from where their files end here.

    directory: that of the run there. say: reports when the host becomes unreachable, and reachable again.
    """

    def __init__(self, host: Host, directory: str, say: Callable[[str], None]) -> None:
        self.host, self.directory, self._say = host, directory, say
        self.root = ""
        """The run's directory there, absolute, once the host has said so."""
        self.problem = ""
        """Why it cannot be reached, once an attempt has failed; empty while it can."""
        self._agent: asyncio.Future[Agent] = asyncio.get_running_loop().create_future()
        self._peers: dict[str, RemotePeer] = {}
        self._woken = asyncio.Event()
        """Set when there is a peer to follow, or a signal to deliver."""

    async def keep(self, python: str) -> None:
        """Connect, and reconnect whenever the connection is lost, until cancelled."""
        delay = RECONNECT_S
        while True:
            try:
                async with agent(self.host, python, self._on_notice) as one:
                    delay = RECONNECT_S
                    await self._serve(one)
            except ConnectionLostError:
                pass  # the next attempt may succeed at once
            except CommandRejectedError as error:
                raise FailedError(f"{self.host.host}: {error}") from None
            except UnreachableError as error:
                if not self.problem:
                    self._say(f"{self.host.host} unreachable: {error}; its peers keep running, retrying")
                self.problem = str(error)
            await asyncio.sleep(delay)
            delay = min(2 * delay, MAX_RECONNECT_S)

    async def _serve(self, one: Agent) -> None:
        """Serve until the connection is lost. Raises ConnectionLostError then."""
        if self.problem:
            self._say(f"{self.host.host} reachable again")
            self.problem = ""
        self._agent.set_result(one)
        try:
            async with background() as tasks:
                tasks.create_task(one.wait_lost())
                await self._follow_and_signal(one)
        finally:
            self._agent = asyncio.get_running_loop().create_future()

    async def _follow_and_signal(self, one: Agent) -> None:
        """Whenever woken, follow peers that are not followed by this connection yet, and deliver signals."""
        followed: list[RemotePeer] = []
        while True:
            self._woken.clear()
            for peer in [*self._peers.values()]:
                if peer not in followed and not peer.ended:
                    followed.append(peer)
                    await one.ask("follow", directory=self.directory, id=peer.id, offsets=peer.offsets())
                number = peer.undelivered
                if number and await one.ask("send", directory=self.directory, id=peer.id, number=number):
                    peer.undelivered = None if peer.undelivered == number else peer.undelivered
            await self._woken.wait()

    def _on_notice(self, notice: Notice) -> None:
        if peer := self._peers.get(notice.get("peer", "")):
            peer.on_notice(notice)

    async def agent_within(self) -> Agent:
        """Return an agent. Raises FailedError if there is none in time."""
        return await self._within(asyncio.shield(self._agent))

    async def ask(self, do: str, **order: Any) -> Any:
        """Return the host's answer about the run's directory, whenever it comes. Raises FailedError if rejected."""
        while True:
            try:
                return await (await asyncio.shield(self._agent)).ask(do, directory=self.directory, **order)
            except ConnectionLostError:
                await asyncio.sleep(0)
            except CommandRejectedError as error:
                raise FailedError(f"{self.host.host}: {error}") from None

    async def ask_within(self, do: str, **order: Any) -> Any:
        """Return the answer. Raises FailedError also if there is none in time."""
        return await self._within(self.ask(do, **order))

    async def _within(self, answer: Awaitable[T]) -> T:
        try:
            async with asyncio.timeout(ANSWER_TIMEOUT_S):
                return await answer
        except TimeoutError:
            raise FailedError(f"{self.host.host} unreachable: {self.problem or 'timed out'}") from None

    def follow(self, id: str, out: Path) -> RemotePeer:
        """Return the peer, whose files are followed until it has ended. out: its directory here."""
        peer = self._peers[id] = RemotePeer(id, self.host, out, self._woken.set)
        self._woken.set()
        return peer

    @property
    def running(self) -> list[str]:
        """The peers that are not known to have ended."""
        return [peer.id for peer in self._peers.values() if not peer.ended]

    async def wait_ended(self) -> None:
        """Return when no peer runs there."""
        for peer in [*self._peers.values()]:
            await peer.wait()
