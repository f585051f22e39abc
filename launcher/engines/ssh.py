"""Peers on the machines of a lab, over SSH. They go on without the launcher, until they are done or it tells them to
stop.

In reading order: the engine; whose the files on the hosts are, so that no launcher takes another's for its own; what
would keep peers from running on their hosts or from reaching each other, all of it named before a start; `--install`,
with a wheel of the dfl that runs here, however it was installed; the deployment; what is brought here at the end; and
`--fresh`, after which nothing of an earlier run stays on its hosts, on those neither that are no longer listed.

At the end, what the summary needs of a peer is brought by SFTP, and its checkpoints stay where they are. Which files
there are to be is known here: no name, no size and no listing of the host's is gone by.

Which peer runs on which host is in `ssh_hosts.py`, how a host is reached in `ssh_connection.py`, and what runs there in
`programs/ssh_host.py` and `programs/ssh_keeper.py`.
"""

import asyncio
import base64
import getpass
import hashlib
import io
import os
import secrets
import signal
import socket
import zipfile
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from importlib.metadata import distribution, version
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import launcher
import peer
from launcher.engines.base import Deployment, Engine, Run, certificates_beside
from launcher.engines.preflight import check_device, check_secrecy
from launcher.engines.ssh_connection import (
    CommandRejectedError,
    HostConnection,
    HostProbe,
    RemotePeer,
    UnreachableError,
    agent,
    probe_hosts,
)
from launcher.engines.ssh_hosts import Host, Placement, SshSettings, placement
from launcher.run_files import certificate_files
from peer.errors import FailedError, InputError
from peer.files import write_failure
from peer.spec.document import dump_yaml
from peer.spec.federation import Spec
from peer.tasks import background
from peer.telemetry.results import BEST_MODEL, MODEL, WANTED
from peer.topology import receivers, senders

if TYPE_CHECKING:
    import asyncssh


class SshEngine(Engine[SshSettings]):
    """`--on ssh`: peers go on without the launcher, until they are done or it tells them to stop."""

    name = "ssh"
    outlives_launcher = True
    Settings = SshSettings

    def _places(self, spec: Spec) -> dict[str, Placement]:
        return placement(self.settings.hosts, spec)

    def with_addresses(self, spec: Spec) -> Spec:
        places = self._places(spec)
        ring = tuple(member.model_copy(update={"address": places[member.id].address}) for member in spec.ring)
        return spec.model_copy(update={"ring": ring})

    def check(self, run: Run) -> None:
        asyncio.run(check_hosts(run, self._places(run.spec), self.settings.install))

    def config(self, run: Run, id: str) -> Mapping[str, object]:
        place = self._places(run.spec)[id]
        config = {**super().config(run, id), "device": place.host.device or run.device}
        config |= {"listen": place.listen} if place.address else {}
        if run.certs:
            config["tls"] = certificates_beside(id)
        return config

    def clear(self, run: Run) -> None:
        asyncio.run(clear_hosts(run))

    @asynccontextmanager
    async def deploy(self, run: Run) -> AsyncIterator[Deployment]:
        places = self._places(run.spec)
        hosts = {place.host.host: place.host for place in places.values()}
        links = {name: HostConnection(host, host.run(run.files.path.name), run.say) for name, host in hosts.items()}
        deployment = SshDeployment(run, places, links)
        if self.settings.install:
            await install_dfl(hosts.values(), self.settings.extras, run.say)
        run.say(where_models_go([*hosts.values()]))
        async with background() as tasks:
            for link in links.values():
                tasks.create_task(link.keep(link.host.interpreter(self.settings.install)))
            await deployment.prepare({id: self.config(run, id) for id in places})
            yield deployment


def where_models_go(hosts: Sequence[Host]) -> str:
    """What leaves the hosts at the end, for whoever starts the run."""
    kept = ", ".join(host.host for host in hosts if host.models == "leave")
    if fetched := ", ".join(host.host for host in hosts if host.models == "fetch"):
        stay = f"those on {kept} stay there" if kept else "`models: leave` in hosts.yaml leaves them there"
        return f"at the end the models on {fetched}, heads included, are copied to this machine; {stay}"
    return f"the models stay on {kept}"


def known_owner(run: Run) -> dict[str, str]:
    """The run's owner and token; the token is empty before the first launch, which makes one."""
    written = run.read_place()
    owner = f"{getpass.getuser()}@{socket.gethostname()}:{run.files.path}"
    return {"owner": written.get("owner", owner), "token": written.get("token", "")}


def settled_owner(run: Run, places: Mapping[str, Placement]) -> dict[str, str]:
    """The same, with a token. InputError when a peer is to go on where its checkpoints are not."""
    hosts = {id: _where(place.host) for id, place in places.items()}
    earlier = run.read_place().get("hosts", {})
    for id, host in hosts.items():
        if earlier.get(id, host) != host:
            raise InputError(
                f"--hosts: {id} was on {earlier[id]}, where its checkpoints are, and cannot go on at {host}; put it "
                "back, or begin again with --fresh"
            )
    machines = {place.host.host: place.host.model_dump(mode="json") for place in places.values()}
    whose = known_owner(run)
    whose["token"] = whose["token"] or secrets.token_hex(16)
    run.write_place({**whose, "hosts": hosts, "machines": machines})
    return whose


def earlier_hosts(run: Run) -> dict[str, tuple[Host, list[str]]]:
    """On which hosts the run's peers were placed last, by name, and which of them on each."""
    written = run.read_place()
    found = {name: Host.model_validate(content) for name, content in written.get("machines", {}).items()}
    ids: dict[str, str] = written.get("hosts", {})
    return {name: (host, [id for id in ids if ids[id] == _where(host)]) for name, host in found.items()}


def _where(host: Host) -> str:
    return f"{host.host}:{host.directory}"


PYTHON = (3, 11)
ROOM, INSTALLED = 200 << 20, 6 << 30
"""Bytes that must be free for a run, and to install PyTorch and the rest."""
Answer = dict[str, Any]


async def check_hosts(run: Run, places: Mapping[str, Placement], install: bool) -> None:
    """InputError with everything that was found. Creates nothing, neither here nor there."""
    check_device(run.device)
    check_secrecy(run)
    hosts = {place.host.host: place.host for place in places.values()}
    async with probe_hosts(hosts) as met:
        here = {name: one for name, one in met.items() if isinstance(one, HostProbe)}
        wrong = [f"{name}: {one}" for name, one in met.items() if isinstance(one, str)]
        found = await asyncio.gather(*(_survey(run, one, places) for one in here.values()))
        for visit, answer in zip(here.values(), found, strict=True):
            wrong += [f"{visit.host.host}: {what}" for what in _lacking(answer, visit, install)]
        if not install:
            wrong += await devices(run, here, found)
        running = {id for answer in found for id in answer["running"]}
        wrong += await unreachable_peers(run.spec, places, here, running)
    if wrong:
        raise InputError("; ".join(wrong))


async def _survey(run: Run, visit: HostProbe, places: Mapping[str, Placement]) -> Answer:
    ids = [id for id, place in places.items() if place.host == visit.host]
    directory = visit.host.run(run.files.path.name)
    try:
        found: Answer = await visit.ask("survey", directory=directory, run=known_owner(run), ids=ids)
    except CommandRejectedError as error:
        raise InputError(f"{visit.host.host}: {error}") from None
    return found


def _lacking(answer: Answer, visit: HostProbe, install: bool) -> Iterator[str]:
    """Of what the host must have."""
    python, ours = ".".join(map(str, answer["python"])), version("dfl")
    if (*answer["python"],) < PYTHON:
        yield f"`{visit.host.python}` is Python {python}, and dfl needs 3.11 or newer; name another in `python`"
    elif install and not answer["venv"]:
        yield f"`{visit.host.python}` has no venv module; install it (python3-venv), or name another in `python`"
    elif not install and answer["dfl"] is None:
        yield f"`{visit.host.python}` has no dfl; name one that has in `python`, or have it installed with --install"
    elif not install and answer["dfl"] != ours:
        yield f"dfl is {answer['dfl']} there and {ours} here; install the same, or give --install"
    room = INSTALLED if install and not answer["installed"] else ROOM
    if answer["free"] < room:
        free, needed = (f"{bytes / 1e6:,.0f} MB" for bytes in (answer["free"], room))
        yield f"{answer['there']}: {free} are free and {needed} needed; make room, or give another `directory`"
    if not answer["writable"]:
        yield f"{answer['there']} cannot be written to; give another `directory`"
    yield from answer["obstacles"]


async def devices(run: Run, here: Mapping[str, HostProbe], found: list[Answer]) -> list[str]:
    """Of hosts that have dfl, those whose device cannot be used."""
    able = [one for one, answer in zip(here.values(), found, strict=True) if answer["dfl"] == version("dfl")]
    able = [one for one in able if (one.host.device or run.device) not in ("auto", "cpu")]
    said = await asyncio.gather(*(one.ask("device", name=one.host.device or run.device) for one in able))
    return [f"{one.host.host}: {why}" for one, why in zip(able, said, strict=True) if why]


DIAL = 5.0
"""Seconds that an attempt to reach an address may take."""


def neighbours(spec: Spec) -> dict[str, list[str]]:
    """Whom each peer dials, by id: all others where the protocol puts the ring in another order."""
    graph = "complete" if spec.protocol.reorders else spec.protocol.graph
    found = {}
    for id in spec.ids:
        found[id] = [*dict.fromkeys((*receivers(graph, spec.ids, id), *senders(graph, spec.ids, id)))]
    return found


async def unreachable_peers(
    spec: Spec, places: Mapping[str, Placement], visits: Mapping[str, HostProbe], running: Collection[str]
) -> list[str]:
    """What is wrong between peers on hosts that can be visited; those that run listen at their addresses themselves."""
    met = {id: visits[place.host.host] for id, place in places.items() if place.host.host in visits}
    tokens = {id: "" if id in running or not places[id].address else secrets.token_hex(8) for id in met}
    refused = await asyncio.gather(*(_listen(met[id], places[id], tokens[id]) for id in met))
    deaf = {id: why for id, why in zip(met, refused, strict=True) if why}
    pairs = [(id, other) for id, others in neighbours(spec).items() for other in others]
    pairs = [(id, other) for id, other in pairs if id in met and other in met and other not in deaf]
    pairs = [(id, other) for id, other in pairs if places[other].address]
    reasons = await asyncio.gather(*(_dial(met[id], places[other].address, tokens[other]) for id, other in pairs))
    wrong = [f"{id} cannot listen at {places[id].listen} of {places[id].host.host}: {why}" for id, why in deaf.items()]
    return wrong + [
        _sentence(places[id], places[other], why) for (id, other), why in zip(pairs, reasons, strict=True) if why
    ]


async def _listen(visit: HostProbe, place: Placement, token: str) -> str:
    try:
        if token:
            await visit.ask("listen", address=place.listen, token=token)
    except CommandRejectedError as error:
        return f"{error}; end what uses it, or give the host another `port` or `listen`"
    return ""


async def _dial(visit: HostProbe, address: str | None, token: str) -> str:
    try:
        why: str = await visit.ask("dial", address=address, token=token, seconds=DIAL)
    except CommandRejectedError as error:
        return str(error)
    return why


def _sentence(caller: Placement, called: Placement, why: str) -> str:
    port = (called.address or "").rpartition(":")[2]
    way_out = f"give {called.host.host} another `address`"
    if "else" not in why and "name" not in why:
        way_out = f"open port {port} of {called.host.host} to {caller.host.host}, or {way_out}"
    return (
        f"{caller.id} on {caller.host.host} cannot reach {called.id} on {called.host.host} at {called.address} "
        f"({why}): {way_out}"
    )


async def install_dfl(hosts: Iterable[Host], extras: Sequence[str], say: Callable[[str], None]) -> None:
    """On all at once. FailedError names a host where it did not work."""
    name, content = build_wheel()
    await asyncio.gather(*(_install_on(host, name, content, (extras, say)) for host in hosts))


async def _install_on(host: Host, name: str, content: bytes, how: tuple[Sequence[str], Callable[[str], None]]) -> None:
    extras, say = how
    order = {"directory": host.directory, "name": name, "content": base64.b64encode(content).decode(), "extras": extras}
    try:
        async with agent(host, host.python) as one:
            if await one.ask("installed", directory=order["directory"], content=order["content"], extras=extras):
                return
            say(
                f"{host.host}: makes a Python environment in {host.environment} with dfl {version('dfl')} and what it "
                "needs, by pip; the first time that takes minutes"
            )
            await one.ask("install", **order)
        async with agent(host, host.interpreter(installed=True)) as one:
            if why := await one.ask("device", name="auto"):
                raise CommandRejectedError(why)
    except (CommandRejectedError, UnreachableError) as error:
        raise FailedError(f"{host.host}: dfl could not be installed: {error}") from None
    say(f"{host.host}: dfl {version('dfl')} is installed")


WHEEL_METADATA = "Wheel-Version: 1.0\nGenerator: dfl-launch\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
WHEEL_TIME = (1980, 1, 1, 0, 0, 0)
"""The time of every file in it: the same code gives the same bytes."""


def build_wheel() -> tuple[str, bytes]:
    """Its file name and its content, as the specification of binary distributions has them (PyPA, wheel 1.0)."""
    version = distribution("dfl").version
    record, buffer = [], io.BytesIO()
    info = f"dfl-{version}.dist-info"
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in (*_packages(), *_about(info)):
            archive.writestr(zipfile.ZipInfo(name, WHEEL_TIME), content, zipfile.ZIP_DEFLATED)
            digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
            record.append(f"{name},sha256={digest},{len(content)}\n")
        archive.writestr(zipfile.ZipInfo(f"{info}/RECORD", WHEEL_TIME), "".join([*record, f"{info}/RECORD,,\n"]))
    return f"dfl-{version}-py3-none-any.whl", buffer.getvalue()


def _packages() -> Iterator[tuple[str, bytes]]:
    for package in (launcher, peer):
        root = Path(package.__path__[0])
        for path in sorted(root.rglob("*")):
            if path.is_file() and "__pycache__" not in path.parts:
                yield path.relative_to(root.parent).as_posix(), path.read_bytes()


def _about(info: str) -> Iterator[tuple[str, bytes]]:
    yield f"{info}/WHEEL", WHEEL_METADATA.encode()
    for name in ("METADATA", "entry_points.txt"):
        yield f"{info}/{name}", (distribution("dfl").read_text(name) or "").encode()


REACH, END = 60.0, 30.0
"""Seconds that a host is waited for to place files, and to end peers."""
KEEPER = (Path(__file__).parent / "programs" / "ssh_keeper.py").read_text()


class SshDeployment(Deployment):
    """links: by host."""

    def __init__(self, run: Run, places: Mapping[str, Placement], links: Mapping[str, HostConnection]) -> None:
        self._run, self._places, self._links = run, places, links
        self._over: set[str] = set()
        """Peers that ended while no launcher saw it."""
        self._starting: set[str] = set()
        self._roots: dict[str, str] = {}
        """The run's directory on each host, absolute."""

    def _link(self, id: str) -> HostConnection:
        return self._links[self._places[id].host.host]

    def _ids(self, link: HostConnection) -> list[str]:
        return [id for id, place in self._places.items() if place.host == link.host]

    async def prepare(self, configs: Mapping[str, Mapping[str, object]]) -> None:
        """Ships settings and certificates, and finds out who runs already."""
        run = settled_owner(self._run, self._places)
        answers = await self._everywhere(
            lambda link: link.ask("place", run=run, ids=self._ids(link), files=self._files(self._ids(link), configs))
        )
        self._roots = {host: answer["root"] for host, answer in answers.items()}
        codes = {id: code for answer in answers.values() for id, code in answer["codes"].items()}
        if any(answer["running"] for answer in answers.values()) or [*codes.values()] == [0] * len(self._places):
            self._over = {*codes}
        else:
            await self._everywhere(lambda link: link.ask("forget", ids=self._ids(link)))

    def _files(self, ids: Sequence[str], configs: Mapping[str, Mapping[str, object]]) -> dict[str, tuple[str, int]]:
        """name: (text, permissions), for these peers and nobody else."""
        files = {"federation.yaml": (shipped(self._run.spec).dump(), 0o600)}
        for id in ids:
            files[f"{id}.yaml"] = (dump_yaml(configs[id]), 0o600)
            if self._run.certs:
                found = certificate_files(self._run.certs, id).values()
                files |= {path.name: (path.read_text(), 0o600) for path in found}
        return files

    async def _everywhere(self, do: Any) -> dict[str, Any]:
        """What each host answers, by host; FailedError naming one that does not."""

        async def one(link: HostConnection) -> Any:
            try:
                async with asyncio.timeout(REACH):
                    return await do(link)
            except TimeoutError:
                raise FailedError(f"{link.host.host} cannot be reached: {link.why or 'timed out'}") from None

        answers = await asyncio.gather(*map(one, self._links.values()))
        return dict(zip(self._links, answers, strict=True))

    async def start(self, id: str) -> RemotePeer:
        link = self._link(id)
        peer = RemotePeer(id, link.host, self._run.files.out(id), link.wake)
        if id in self._over:
            self._over.remove(id)
        else:
            self._starting.add(id)
            await link.ask("start", id=id, keeper=KEEPER)
            self._starting.remove(id)
        link.follow(peer)
        return peer

    async def stop_all(self) -> None:
        for id in self._starting:  # whether it was started nobody knows
            link = self._link(id)
            link.follow(peer := RemotePeer(id, link.host, self._run.files.out(id), link.wake))
            peer.signal(signal.SIGKILL)
        links = self._links.values()
        for link in links:
            if link.running and link.why:
                self._run.say(f"{link.host.host}: waiting up to {END:g} s to end {', '.join(link.running)} there")
        with suppress(TimeoutError):
            async with asyncio.timeout(END):
                await asyncio.gather(*(link.ended() for link in links))
        for link in links:
            if link.running:
                self._run.say(
                    f"{link.host.host} could not be reached ({link.why or 'no answer'}): {', '.join(link.running)} may "
                    "still run there; when it is back, end them with "
                    f"`dfl-launch attach {self._run.files.path}` and Ctrl-C"
                )

    async def collect(self) -> None:
        await asyncio.gather(*map(self._collect, self._links.values()))

    async def _collect(self, link: HostConnection) -> None:
        if link.running:  # it could not be reached
            return
        names = wanted_files(self._run, link.host)
        for id in self._ids(link):
            await collect_files(link, f"{self._roots[link.host.host]}/{id}", self._run.files.out(id), names)


def shipped(spec: Spec) -> Spec:
    """The directory of code is one of this machine; only who uses code of their own has it on the hosts too."""
    return spec if spec.own_code else spec.model_copy(update={"code": None})


COLLECT_REACH = 60.0
"""Seconds that a host is waited for; the files themselves take as long as they take."""

CHUNK = 4 << 20
"""Bytes that are asked for at a time."""


def wanted_files(run: Run, host: Host) -> tuple[str, ...]:
    """Return the files that are fetched of a peer there. Traces hold what was trained, as models do."""
    return tuple(name for name in WANTED if name not in (MODEL, BEST_MODEL)) if host.models == "leave" else run.wanted


async def collect_files(link: HostConnection, there: str, out: Path, names: Iterable[str] = WANTED) -> None:
    """Those of its files that are there, each whole or not at all; tried again when the connection is lost meanwhile.

    FailedError when it cannot.
    """
    import asyncssh

    while True:
        connection = await _connected(link)
        try:
            async with connection.start_sftp_client() as sftp:
                await _bring(sftp, link.host, there, out, names)
                return
        except asyncssh.SFTPError as error:
            if not isinstance(error, asyncssh.SFTPConnectionLost | asyncssh.SFTPNoConnection):
                raise FailedError(f"{link.host.host}: {there} cannot be collected: {error.reason}") from None
        except asyncssh.ChannelOpenError as error:
            if not await _is_lost(connection):
                raise FailedError(
                    f"{link.host.host}: SFTP does not work there ({error.reason}); have it allowed"
                ) from None
        except asyncssh.Error:
            pass  # the connection was lost: there will be another
        except OSError as error:
            if not await _is_lost(connection):
                raise FailedError(write_failure(out, error)) from None
        await asyncio.sleep(0)


async def _connected(link: HostConnection) -> "asyncssh.SSHClientConnection":
    try:
        async with asyncio.timeout(COLLECT_REACH):
            return (await link.agent()).connection
    except TimeoutError:
        raise FailedError(f"{link.host.host} cannot be reached: {link.why or 'timed out'}") from None


async def _is_lost(connection: "asyncssh.SSHClientConnection") -> bool:
    await asyncio.sleep(0)  # it is marked as closed a step after its transport is
    closed: bool = connection.is_closed()
    return closed


async def _bring(sftp: "asyncssh.SFTPClient", host: Host, there: str, out: Path, names: Iterable[str]) -> None:
    import asyncssh

    left = host.bytes_of_a_peer
    for name in names:
        try:
            async with sftp.open(f"{there}/{name}", "rb") as file:
                left -= await _copy(file, out / name, left)
        except (asyncssh.SFTPNoSuchFile, asyncssh.SFTPNoSuchPath):
            continue
        if left < 0:
            raise FailedError(host.too_much(there))


async def _copy(file: "asyncssh.SFTPClientFile", here: Path, most: int) -> int:
    """How many bytes it has; when there are more than `most`, the file is not made, and the rest is not asked for."""
    here.parent.mkdir(mode=0o700, exist_ok=True)
    beside, size = here.with_name(f".{here.name}.part"), 0
    beside.unlink(missing_ok=True)
    descriptor = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    try:
        with os.fdopen(descriptor, "wb") as made:
            while size <= most and (data := cast(bytes, await file.read(min(CHUNK, most + 1 - size)))):
                size += len(data)
                if size <= most:
                    made.write(data)
        if size <= most:
            beside.replace(here)
    finally:
        beside.unlink(missing_ok=True)
    return size


async def clear_hosts(run: Run) -> None:
    """Ends the peers and removes their files. FailedError, before any of it, names hosts that cannot be reached."""
    placed = earlier_hosts(run)
    async with probe_hosts({name: host for name, (host, _) in placed.items()}) as met:
        away = [
            f"{name} cannot be reached ({why}), and {', '.join(placed[name][1])} of the earlier run may still be there"
            for name, why in met.items()
            if isinstance(why, str)
        ]
        if away:
            raise FailedError(f"{'; '.join(away)}: try again when that is mended, or choose another --out")
        await asyncio.gather(
            *(_clear_host(run, one, placed[name][1]) for name, one in met.items() if isinstance(one, HostProbe))
        )


async def _clear_host(run: Run, visit: HostProbe, ids: list[str]) -> None:
    directory = visit.host.run(run.files.path.name)
    try:
        await visit.ask("discard", directory=directory, run=known_owner(run), ids=ids)
    except CommandRejectedError as error:
        raise FailedError(f"{visit.host.host}: {error}") from None
