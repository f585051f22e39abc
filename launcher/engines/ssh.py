"""Peers on the machines of a lab, over SSH. They keep running without the launcher, until they are done or it stops
them.

In reading order: the engine; which run the files on the hosts belong to, so that no launcher takes another's for its
own; what would keep peers from running on their hosts or from reaching each other, all of it reported before a start;
the deployment; what is fetched at the end; and `--fresh` and `dfl-launch discard`, after which nothing of an earlier
run stays on its hosts, even on those that are no longer listed.

At the end, what the summary needs of a peer is fetched by SFTP, and its checkpoints stay where they are. Which files
there are to be is known here: no name, no size and no listing from a host is trusted.

Which peer runs on which host is in `ssh_hosts.py`, how a host is reached in `ssh_connection.py`, `--install` in
`ssh_install.py`, and what runs there in `programs/ssh_host.py` and `programs/ssh_keeper.py`.
"""

import asyncio
import getpass
import os
import secrets
import signal
import socket
import time
from collections.abc import AsyncIterator, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from importlib.metadata import version
from pathlib import Path
from typing import Any, cast

import asyncssh

from launcher.engines.base import Deployment, Engine, Run, certificates_beside, shipped
from launcher.engines.preflight import as_input_error, check_secrecy
from launcher.engines.programs.ssh_host import torch_build
from launcher.engines.ssh_connection import Agent, HostConnection, RemotePeer, probe_hosts
from launcher.engines.ssh_hosts import Host, Placement, SshSettings, placement
from launcher.engines.ssh_install import install_dfl
from launcher.run_files import certificate_files
from peer.errors import FailedError, InputError
from peer.files import write_failure
from peer.spec.federation import Spec
from peer.spec.peer import check_device
from peer.tasks import background, within
from peer.telemetry.events import LAST_MOMENT
from peer.telemetry.results import BEST_MODEL, MODEL, WANTED
from peer.text import duration, shown


class SshEngine(Engine[SshSettings]):
    """`--on ssh`: peers keep running without the launcher, until they are done or it stops them."""

    name = "ssh"
    outlives_launcher = True
    Settings = SshSettings

    def with_addresses(self, spec: Spec) -> Spec:
        places = placement(self.settings.hosts, spec)
        ring = tuple(member.model_copy(update={"address": places[member.id].address}) for member in spec.ring)
        return spec.model_copy(update={"ring": ring})

    def check(self, run: Run) -> None:
        check_device(run.device)
        check_secrecy(run)
        asyncio.run(check_hosts(run, placement(self.settings.hosts, run.spec), self.settings.install))

    def config(self, run: Run, id: str) -> Mapping[str, object]:
        place = placement(self.settings.hosts, run.spec)[id]
        config = {**super().config(run, id), "device": place.host.device or run.device}
        config |= {"listen": place.listen} if place.address else {}
        return config | ({"tls": certificates_beside(id)} if run.certs else {})

    def discard(self, run: Run, running: bool = False) -> str:
        return asyncio.run(discard_run(run, running))

    @asynccontextmanager
    async def deploy(self, run: Run) -> AsyncIterator[Deployment]:
        places = placement(self.settings.hosts, run.spec)
        hosts = {place.host.host: place.host for place in places.values()}
        links = {name: HostConnection(host, host.run(run.files.path.name), run.say) for name, host in hosts.items()}
        if self.settings.install:
            await install_dfl(hosts.values(), run.device, self.settings.extras, run.say)
        run.say(where_models_go([*hosts.values()]))
        async with background() as tasks:
            for link in links.values():
                tasks.create_task(link.keep(link.host.interpreter(self.settings.install)))
            deployment = SshDeployment(run, places, links)
            await deployment.prepare()
            yield deployment


def where_models_go(hosts: Sequence[Host]) -> str:
    """Return what leaves the hosts at the end, to be shown before the run begins."""
    kept = ", ".join(host.host for host in hosts if host.models == "leave")
    if fetched := ", ".join(host.host for host in hosts if host.models == "fetch"):
        stay = f"those on {kept} stay there" if kept else "`models: leave` in hosts.yaml leaves them there"
        return f"at the end the models on {fetched}, heads included, are copied to this machine; {stay}"
    return f"the models stay on {kept}"


def known_owner(run: Run) -> dict[str, str]:
    """Return the run's owner and token; the token is empty before the first launch, which makes one."""
    written = run.read_place()
    owner = f"{getpass.getuser()}@{socket.gethostname()}:{run.files.path}"
    return {"owner": written.get("owner", owner), "token": written.get("token", "")}


def record_owner(run: Run, places: Mapping[str, Placement]) -> dict[str, str]:
    """Return the same, with a token. Raises InputError if a peer would continue where its checkpoints are not."""
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
    """Return the hosts on which the run's peers were placed last, by name, and which peers were on each."""
    written = run.read_place()
    found = {name: Host.model_validate(content) for name, content in written.get("machines", {}).items()}
    ids: dict[str, str] = written.get("hosts", {})
    return {name: (host, [id for id in ids if ids[id] == _where(host)]) for name, host in found.items()}


def _where(host: Host) -> str:
    return f"{host.host}:{host.directory}"


PYTHON = (3, 11)
RUN_BYTES, INSTALL_BYTES = 200 << 20, 6 << 30
"""Disk space needed for a run, and to install PyTorch and the rest."""
CLOCK_TOLERANCE_S = 30.0
"""Seconds by which a host's clock may differ from this machine's without a word."""
Answer = dict[str, Any]


async def check_hosts(run: Run, places: Mapping[str, Placement], install: bool) -> None:
    """Raise InputError with everything that was found. Creates nothing, neither here nor there."""
    hosts = {place.host.host: place.host for place in places.values()}
    async with probe_hosts(hosts) as (here, unreachable):
        problems = [f"{name}: {why}" for name, why in unreachable.items()]
        answers = await asyncio.gather(*(_survey(run, one, places) for one in here.values()))
        found = dict(zip(here, answers, strict=True))
        for name, answer in found.items():
            if lacking := [*_lacking(answer, here[name].host, install)]:
                problems.append(f"{name}: {'; '.join(lacking)}")
        problems += clock_problems(run, {name: answer["ahead"] for name, answer in found.items()})
        if not install:
            problems += await device_problems(run, here, found)
        running = {id for answer in answers for id in answer["running"]}
        problems += await unreachable_peers(run.spec, places, here, running)
    if problems:
        raise InputError(*problems)


async def _survey(run: Run, one: Agent, places: Mapping[str, Placement]) -> Answer:
    ids = [id for id, place in places.items() if place.host == one.host]
    directory = one.host.run(run.files.path.name)
    with as_input_error(f"{one.host.host}: {{}}"):
        asked = time.time()
        found: Answer = await one.ask("survey", directory=directory, run=known_owner(run), ids=ids)
        return found | {"ahead": seconds_ahead(found.get("time"), asked, time.time())}


def seconds_ahead(there: Any, asked: float, answered: float) -> float:
    """Return by how much, at least, a clock is ahead that showed `there` at some moment between two of this machine's;
    negative: behind. All in Unix seconds. FailedError for what is no time, as a host may tell anything."""
    if not isinstance(there, float) or not 0 <= there <= LAST_MOMENT:
        raise FailedError("it does not tell its time")
    return there - min(max(there, asked), answered)


def clock_problems(run: Run, ahead: Mapping[str, float]) -> list[str]:
    """Return the hosts by whose clocks the run's certificates are not valid, and say which others are wrong.

    ahead: by how many seconds, at least, each host's clock is ahead of this machine's; negative: behind.
    """
    from peer.network.transport.tls import CertificatePaths  # or each `--help` would wait for X.509

    files = [(id, certificate_files(run.certs, id)) for id in run.spec.ids] if run.certs else []
    bundles, problems = [CertificatePaths(id, **paths).read() for id, paths in files], []
    for name, seconds in ahead.items():
        if abs(seconds) < CLOCK_TOLERANCE_S:
            continue
        told = f"{name}'s clock is {duration(abs(seconds))} {'ahead of' if seconds > 0 else 'behind'} this machine's"
        there = datetime.now(UTC) + timedelta(seconds=seconds)
        if problem := next(filter(None, (one.problem(there) for one in bundles)), ""):
            problems.append(f"{told}, and so its peers could not start ({problem})")
        else:
            run.say(f"{told}; the times in its events and its log are, too")
    return problems


def _lacking(answer: Answer, host: Host, install: bool) -> Iterator[str]:
    """What the host must have and does not."""
    python, ours = ".".join(map(str, answer["python"])), version("dfl")
    if (*answer["python"],) < PYTHON:
        yield f"`{host.python}` is Python {python}, and dfl needs 3.11 or newer; name another in `python`"
    elif install and not answer["venv"]:
        yield f"`{host.python}` has no venv module; install it (python3-venv), or name another in `python`"
    elif not install and answer["dfl"] is None:
        yield f"`{host.python}` has no dfl; name one that has in `python`, or have it installed with --install"
    elif not install and answer["dfl"] != ours:
        yield f"dfl is {answer['dfl']} there and {ours} here; install the same, or give --install"
    room = INSTALL_BYTES if install and not answer["installed"] else RUN_BYTES
    if answer["free"] < room:
        free, needed = (f"{bytes / 1e6:,.0f} MB" for bytes in (answer["free"], room))
        yield f"{answer['there']}: {free} are free and {needed} needed; make room, or give another `directory`"
    if not answer["writable"]:
        yield f"{answer['there']} cannot be written to; give another `directory`"
    yield from answer["obstacles"]


async def device_problems(run: Run, here: Mapping[str, Agent], found: Mapping[str, Answer]) -> list[str]:
    """Ask the hosts that have this dfl whether they can use their device."""
    wanted = {name: one.host.device or run.device for name, one in here.items()}
    able = [name for name in here if found[name]["dfl"] == version("dfl") and wanted[name] not in ("auto", "cpu")]
    answers = await asyncio.gather(*(_why_not(here[name], "device", name=wanted[name]) for name in able))
    return [f"{name}: {why}" for name, why in zip(able, answers, strict=True) if why]


DIAL_TIMEOUT_S = 5.0


async def unreachable_peers(
    spec: Spec, places: Mapping[str, Placement], agents: Mapping[str, Agent], running: Collection[str]
) -> list[str]:
    """Return the problems between peers on hosts that can be reached.

    A host answers with a token at the addresses of its peers; peers that run already listen there themselves.
    """
    met = {id: agents[place.host.host] for id, place in places.items() if place.host.host in agents}
    tokens = {id: "" if id in running or not places[id].address else secrets.token_hex(8) for id in met}
    silent = [id for id in met if tokens[id]]
    refused = await asyncio.gather(
        *(_why_not(met[id], "listen", address=places[id].listen, token=tokens[id]) for id in silent)
    )
    deaf = {id: why for id, why in zip(silent, refused, strict=True) if why}
    pairs = [
        (id, other)
        for id in spec.ids
        for other in spec.partners(id)
        if id in met and other in met and other not in deaf and places[other].address
    ]
    reasons = await asyncio.gather(*(_dial(met[id], places[other], tokens[other]) for id, other in pairs))
    problems = [
        f"{id} cannot listen at {places[id].listen} of {places[id].host.host}: {why}; end what uses it, or give the "
        "host another `port` or `listen`"
        for id, why in deaf.items()
    ]
    return problems + [
        _cannot_reach(places[id], places[other], why) for (id, other), why in zip(pairs, reasons, strict=True) if why
    ]


async def _dial(one: Agent, called: Placement, token: str) -> str:
    return await _why_not(one, "dial", address=called.address, token=token, seconds=DIAL_TIMEOUT_S)


async def _why_not(one: Agent, do: str, **order: Any) -> str:
    """Return why the host cannot do that; empty if it can."""
    try:
        return await one.ask(do, **order) or ""
    except FailedError as error:
        return str(error)


def _cannot_reach(caller: Placement, called: Placement, why: str) -> str:
    port = (called.address or "").rpartition(":")[2]
    hint = f"give {called.host.host} another `address`"
    if "else" not in why and "name" not in why:
        hint = f"open port {port} of {called.host.host} to {caller.host.host}, or {hint}"
    return (
        f"{caller.id} on {caller.host.host} cannot reach {called.id} on {called.host.host} at {called.address} "
        f"({why}): {hint}"
    )


STOP_TIMEOUT_S = 30.0
"""Seconds for a host to end its peers."""
KEEPER = (Path(__file__).parent / "programs" / "ssh_keeper.py").read_text()


class SshDeployment(Deployment):
    """links: by host."""

    def __init__(self, run: Run, places: Mapping[str, Placement], links: Mapping[str, HostConnection]) -> None:
        self._run, self._places, self._links = run, places, links
        self._ended_unseen: set[str] = set()
        """Peers that ended while no launcher ran."""
        self._starting: set[str] = set()

    def _link(self, id: str) -> HostConnection:
        return self._links[self._places[id].host.host]

    def _ids(self, link: HostConnection) -> list[str]:
        return [id for id, place in self._places.items() if place.host == link.host]

    async def prepare(self) -> None:
        """Send settings and certificates, and find out which peers run already."""
        run = record_owner(self._run, self._places)

        async def place(link: HostConnection) -> Answer:
            ids = self._ids(link)
            answer: Answer = await link.ask_within("place", run=run, ids=ids, files=self._files(ids))
            link.root = answer["root"]
            return answer

        links = self._links.values()
        answers = await asyncio.gather(*map(place, links))
        builds = {link.host.host: shown(answer["torch"]) for link, answer in zip(links, answers, strict=True)}
        if differing := differing_builds({**builds, "this machine": torch_build()}):
            self._run.say(differing)
        codes = {id: code for answer in answers for id, code in answer["codes"].items()}
        if any(answer["running"] for answer in answers) or [*codes.values()] == [0] * len(self._places):
            self._ended_unseen = {*codes}
        else:
            await asyncio.gather(*(link.ask_within("forget", ids=self._ids(link)) for link in links))

    def _files(self, ids: Sequence[str]) -> dict[str, str]:
        """The text of each file by its name, for these peers alone."""
        texts = {"federation.yaml": shipped(self._run.spec).dump()}
        for id in ids:
            read = [self._run.files.config(id)]
            if self._run.certs:
                read += certificate_files(self._run.certs, id).values()
            texts |= {path.name: path.read_text() for path in read}
        return texts

    async def start(self, id: str) -> RemotePeer:
        if id in self._ended_unseen:
            self._ended_unseen.remove(id)
        else:
            self._starting.add(id)
            await self._link(id).ask("start", id=id, keeper=KEEPER)
            self._starting.remove(id)
        return self._follow(id)

    def _follow(self, id: str) -> RemotePeer:
        return self._link(id).follow(id, self._run.files.out(id))

    async def stop_all(self) -> None:
        for id in self._starting:  # the order may have arrived or not
            self._follow(id).signal(signal.SIGKILL)
        links = self._links.values()
        for link in links:
            if link.running and link.problem:
                names = ", ".join(link.running)
                self._run.say(f"{link.host.host}: waiting up to {STOP_TIMEOUT_S:g} s to end {names} there")
        await within(STOP_TIMEOUT_S, asyncio.gather(*(link.wait_ended() for link in links)))
        for link in links:
            if link.running:
                self._run.say(
                    f"{link.host.host} could not be reached ({link.problem or 'no answer'}): "
                    f"{', '.join(link.running)} may still run there; once it is back, end them with "
                    f"`dfl-launch attach {self._run.files.path}` and Ctrl-C"
                )

    async def collect(self) -> None:
        await asyncio.gather(*map(self._collect, self._links.values()))

    async def _collect(self, link: HostConnection) -> None:
        if link.running:  # it could not be reached
            return
        for id in self._ids(link):
            names = wanted_files(self._run, link.host)
            await collect_files(link, f"{link.root}/{id}", self._run.files.out(id), names)


def differing_builds(builds: Mapping[str, str]) -> str:
    """Return which torch is where, by place, if it is not the same everywhere; else nothing."""
    where: dict[str, list[str]] = {}
    for place, build in builds.items():
        where.setdefault(build, []).append(place)
    if len(where) < 2:
        return ""
    listed = ", ".join(f"{build} on {' and '.join(places)}" for build, places in where.items())
    return f"torch differs ({listed}); another build may compute other bits, though peers work together all the same"


CHUNK_BYTES = 4 << 20
"""Bytes that are asked for at a time."""


def wanted_files(run: Run, host: Host) -> tuple[str, ...]:
    """Return the files that are fetched of a peer there. Traces hold what was trained, as models do."""
    return tuple(name for name in WANTED if name not in (MODEL, BEST_MODEL)) if host.models == "leave" else run.wanted


async def collect_files(link: HostConnection, there: str, out: Path, names: Iterable[str] = WANTED) -> None:
    """Fetch those of the files that are there, each whole or not at all, over a new connection if one is lost.

    Raises FailedError if it cannot.
    """
    while True:
        connection = (await link.agent_within()).connection
        try:
            async with connection.start_sftp_client() as sftp:
                await _fetch(sftp, link.host, there, out, names)
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


async def _is_lost(connection: asyncssh.SSHClientConnection) -> bool:
    await asyncio.sleep(0)  # it is marked as closed a step after its transport is
    closed: bool = connection.is_closed()
    return closed


async def _fetch(sftp: asyncssh.SFTPClient, host: Host, there: str, out: Path, names: Iterable[str]) -> None:
    left = host.bytes_of_a_peer
    for name in names:
        try:
            async with sftp.open(f"{there}/{name}", "rb") as file:
                left -= await _copy(file, out / name, left)
        except (asyncssh.SFTPNoSuchFile, asyncssh.SFTPNoSuchPath):
            continue
        if left < 0:
            raise FailedError(host.too_much(there))


async def _copy(file: asyncssh.SFTPClientFile, here: Path, limit: int) -> int:
    """Return the size of the file. If it exceeds the limit, no file is made and the rest is not asked for."""
    here.parent.mkdir(mode=0o700, exist_ok=True)
    beside, size = here.with_name(f".{here.name}.part"), 0
    beside.unlink(missing_ok=True)
    descriptor = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    try:
        with os.fdopen(descriptor, "wb") as made:
            while size <= limit and (data := cast(bytes, await file.read(min(CHUNK_BYTES, limit + 1 - size)))):
                size += len(data)
                if size <= limit:
                    made.write(data)
        if size <= limit:
            beside.replace(here)
    finally:
        beside.unlink(missing_ok=True)
    return size


def obstacles(run: Run, answers: Mapping[str, Answer]) -> Iterator[str]:
    """Why what is on these hosts may not be removed, by their answers."""
    attach = f"`dfl-launch attach {run.files.path}`"
    for name, answer in answers.items():
        finished = [id for id, code in answer["codes"].items() if code == 0]
        if answer["running"]:
            yield f"{name}: {', '.join(answer['running'])} still running; {attach} and Ctrl-C end that"
        elif finished and not run.files.summary.exists():
            yield f"{name}: the results of {', '.join(finished)} are not here yet; {attach} fetches them"


async def discard_run(run: Run, running: bool) -> str:
    """Remove the files of the run's peers, with `running` also of those that run, which are ended; return which.

    FailedError, before any of it, names hosts that cannot be reached; InputError, unless `running`, peers that run, and
    those that have finished and whose results are not here.
    """
    placed, whose = earlier_hosts(run), known_owner(run)
    async with probe_hosts({name: host for name, (host, _) in placed.items()}) as (here, unreachable):
        if unreachable:
            raise FailedError(
                *(
                    f"{name} cannot be reached ({why}), and {', '.join(placed[name][1])} of the earlier run may still "
                    "be there: nothing was discarded; try again when that is mended"
                    for name, why in unreachable.items()
                )
            )

        async def ask(name: str, do: str) -> Any:
            host, ids = placed[name]
            try:
                return await here[name].ask(do, directory=host.run(run.files.path.name), run=whose, ids=ids)
            except FailedError as error:
                raise FailedError(f"{name}: {error}") from None

        if not running:
            answers = await asyncio.gather(*(ask(name, "survey") for name in here))
            if problems := [*obstacles(run, dict(zip(here, answers, strict=True)))]:
                raise InputError(*problems)
        await asyncio.gather(*(ask(name, "discard") for name in here))
    return f"keys, checkpoints and models on {', '.join(here)}" if here else ""
