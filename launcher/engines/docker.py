"""Peers in containers of this machine, each with its own directory of the run and nothing else of it.

In reading order: the settings, the engine, its checks, what a container sees of this machine, what a container is made
with, and the deployment: the run's network and its containers. `docker_container.py` follows one container to its end.

In a container the run's directory is /dfl, as far as it concerns its peer. Data lie where they lie on this machine, so
that the spec need not change.

An earlier launch may have left containers. A label says which run they belong to; another, a digest of all they were
made with, whether one is what would be made now. Then it is taken over; otherwise it is removed.
"""

import asyncio
import hashlib
import json
import os
from collections.abc import AsyncIterator, Collection, Iterator, Mapping
from contextlib import asynccontextmanager, closing, suppress
from dataclasses import dataclass
from ipaddress import IPv4Network
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, StringConstraints

from launcher.engines.base import IMAGE_WANTED, Deployment, Engine, Image, Run, as_text, certificates_beside, shipped
from launcher.engines.docker_container import (
    ORDER,
    PEER,
    RUN,
    Container,
    ContainerEvents,
    ContainerLog,
    connect,
    docker_sdk,
    no_image,
    refusals,
    restart_policy,
)
from launcher.engines.preflight import (
    as_input_error,
    check_container_device,
    check_resources,
    check_room,
    check_secrecy,
)
from launcher.run_files import certificate_files
from peer.errors import InputError
from peer.learning.data.sources import Source
from peer.settings import Settings, Wanted
from peer.spec.federation import Spec
from peer.spec.loading import FIRST_PORT
from peer.spec.peer import in_plaintext
from peer.tasks import background, in_thread, shielded
from peer.telemetry.results import EVENTS
from peer.text import plural


def _texts(given: Any) -> Any:
    """YAML reads the numbers of GPUs as numbers, the engine wants text."""
    return tuple(map(as_text, given)) if isinstance(given, list) else given


Memory = Annotated[str, StringConstraints(pattern=r"^[1-9][0-9]*[bkmgBKMG]?$", to_lower=True), BeforeValidator(as_text)]
"""As the engine writes it; a number is bytes."""
Gpus = Annotated[
    Annotated[int, Field(ge=1)] | Literal["all"] | Annotated[tuple[str, ...], Field(min_length=1)],
    BeforeValidator(_texts),
]


class DockerSettings(Settings):
    """Settings of `--on docker` and of `dfl-launch compose`."""

    image: Annotated[Image, Wanted(IMAGE_WANTED)] = "dfl"
    """The image of the peers; see deploy/Dockerfile."""
    memory: Annotated[Memory | None, Wanted("bytes, or a number with k, m or g, such as 800m or 4g")] = None
    """The most memory a peer may have: bytes, or with k, m or g. Not given: the machine's."""
    cpus: Annotated[
        Annotated[float, Field(gt=0, le=10_000)] | None, Wanted("a number of cores above 0, such as 1.5")
    ] = None
    """Cores that a peer may keep busy. Not given: the machine's."""
    gpus: Annotated[Gpus | None, Wanted("all, a number from 1 on, or a list such as [0, 1]")] = None
    """GPUs that every peer sees: how many, `all`, or a list of their numbers or UUIDs, for several peers to share."""
    pids: Annotated[int, Field(ge=64), Wanted("a number from 64 on, such as 512")] = 512
    """The most threads and processes a peer may have."""
    restarts: Annotated[int, Field(ge=0, le=1000), Wanted("a number from 0 to 1000, such as 5")] = 5
    """How often the engine starts a peer that crashed again."""
    network: Annotated[str | None, Wanted("the name of a network that is there, as `docker network ls` has it")] = None
    """A network of the engine's that is there already. Not given: a bridge is made for the run, and removed with it."""
    subnet: Annotated[IPv4Network | None, Wanted("a network's first address and its bits, such as 10.99.0.0/24")] = None
    """Addresses of the bridge that is made, such as 10.99.0.0/24. Not given: the engine chooses."""


HEALTH = "127.0.0.1:7800"
"""The address that the image's HEALTHCHECK asks."""


class DockerEngine(Engine[DockerSettings]):
    """`--on docker`: the engine restarts crashed peers, and peers keep running without the launcher."""

    name = "docker"
    restarts_peers = True
    outlives_launcher = True
    Settings = DockerSettings

    def with_addresses(self, spec: Spec) -> Spec:
        """A peer's id is its host's name. A bridge of this machine, made for the run, has no other listener."""
        placed = in_containers(spec)
        return in_plaintext(placed) if self.settings.network is None else placed

    def check(self, run: Run) -> None:
        with as_input_error(), closing(connect()) as client, refusals():
            check_engine(client, self.settings.image, self.settings.network)
        check_ids(run.spec)
        check_container_device(run.device, self.settings.gpus, "a container", "all")
        check_secrecy(run)
        check_resources(run.spec, run.files.path)
        check_room(run)

    def config(self, run: Run, id: str) -> Mapping[str, object]:
        config = {**super().config(run, id), "listen": f"0.0.0.0:{FIRST_PORT}", "health": HEALTH}
        return config | ({"tls": certificates_beside(id)} if run.certs else {})

    def discard(self, run: Run, running: bool = False) -> str:
        with refusals(), closing(connect()) as client:
            left = client.containers.list(all=True, filters=run_filter(run), ignore_removed=True)
            alive = [container.name for container in left if container.status in RUNNING]
            if alive and not running:
                raise InputError(
                    f"{', '.join(alive)} still run; end them with `dfl-launch attach {run.files.path}` and Ctrl-C"
                )
            remove_containers(client, run, running)
            return plural(len(left), "container") if left else ""

    @asynccontextmanager
    async def deploy(self, run: Run) -> AsyncIterator[Deployment]:
        with closing(await asyncio.to_thread(connect)) as client:
            with refusals():
                user = await asyncio.to_thread(user_of, client)
            deployment = DockerDeployment(run, client, self.settings, user)
            try:
                with refusals():
                    await in_thread(deployment.prepare)  # or the network could be made after the end
                async with background() as tasks:
                    tasks.create_task(deployment.listen())
                    yield deployment
            finally:
                await shielded(deployment.close)


def in_containers(spec: Spec) -> Spec:
    """Return the spec with addresses on the containers' network; `code` stays only if there is user code."""
    ring = tuple(member.model_copy(update={"address": f"{member.id}:{FIRST_PORT}"}) for member in spec.ring)
    return shipped(spec).model_copy(update={"ring": ring})


def user_of(client: Any) -> str:
    """Return the user of a container: the caller of this machine, root inside a rootless engine."""
    rootless = any("rootless" in option for option in client.info().get("SecurityOptions") or ())
    return "0:0" if rootless else f"{os.getuid()}:{os.getgid()}"


def check_engine(client: Any, image: str, network: str | None) -> None:
    try:
        client.images.get(image)
    except docker_sdk().errors.ImageNotFound:
        raise InputError(no_image(image)) from None
    if network and not client.networks.list(names=[network]):
        raise InputError(
            f"the Docker engine has no network `{network}`; make it with `docker network create {network}`"
        )


def check_ids(spec: Spec) -> None:
    """Check that every id can be a host's name on the containers' network."""
    for id in spec.ids:
        if id.isdigit() or len(id) > 63 or id.startswith("-") or id.endswith("-"):
            raise InputError(
                f"`{id}` cannot name a host, as a container needs it: a letter, at most 63 characters and no hyphen "
                "at either end; rename this peer"
            )


RUN_PLACE = Path("/dfl")


@dataclass(frozen=True)
class Shared:
    """A file or directory of this machine and where a container has it; without a source, nothing is seen there."""

    target: Path
    source: Path | None = None
    writable: bool = False


def shared(run: Run, id: str) -> list[Shared]:
    """Return all that the peer's container may see of this machine."""
    files = run.files
    found = [Shared(RUN_PLACE / file.name, file) for file in (files.federation, files.config(id))]
    found.append(Shared(RUN_PLACE / id, files.out(id), writable=True))
    if run.certs:
        certificates = certificate_files(run.certs, id)
        found += [Shared(RUN_PLACE / name, certificates[what]) for what, name in certificates_beside(id).items()]
    read = [path for _, _, path in paths_read(run.spec, id)]
    found += [Shared(path, path) for path in dict.fromkeys(read)]
    private = [files.path, *([run.certs] if run.certs else [])]
    return found + [Shared(path) for path in dict.fromkeys(hidden(private, read))]


def hidden(private: Collection[Path], seen: Collection[Path]) -> Iterator[Path]:
    """Return where a container would see the private directories in what it sees, by whatever links."""
    for above in seen:
        for path in private:
            if path.resolve().is_relative_to(above.resolve()):
                yield above / path.resolve().relative_to(above.resolve())


def paths_read(spec: Spec, id: str) -> Iterator[tuple[str, str, Path]]:
    """What the peer reads of this machine: its kind, a name among those of the kind, and the path.

    Kinds: `data` of the federation and the peer's `own` by their keys, `code`, `recording` (what the peer itself wrote
    in an earlier run) and `weights`, with which the model begins.
    """
    for kind, source in (("data", spec.data), ("own", own_data(spec, id))):
        if source:
            yield from ((kind, key, path) for key, path in data_files(source, id).items())
    yield from (("code", path.name, path) for path in code_files(spec))
    if spec.recording and (events := spec.recording / id / EVENTS).exists():
        yield "recording", f"{id}/{EVENTS}", events
    if (weights := spec.model.of_peer(id).weights) and weights.exists():
        yield "weights", weights.name, weights


def own_data(spec: Spec, id: str) -> Source | None:
    return next(member.data for member in spec.ring if member.id == id)


def data_files(source: Source, id: str) -> dict[str, Path]:
    """Return the files and directories that the peer's data name, by key, as far as they are there."""
    if source.name == "digits":  # they come with the package
        return {}
    return {key: path for key, path in source.of_peer(id) if isinstance(path, Path) and path.exists()}


def code_files(spec: Spec) -> Iterator[Path]:
    """The modules and packages beside the user code; other files there may be secret."""
    if spec.code and spec.own_code:
        yield from sorted(spec.code.glob("*.py"))
        yield from sorted(package.parent for package in spec.code.glob("*/__init__.py"))


SCRATCH = {"/tmp": "size=64m,mode=1777"}
LOG_LIMITS = {"max-size": "5m", "max-file": "2"}
"""All of the output is in log.txt."""


def docker_name(run: Run, *parts: str) -> str:
    """Return a name for a container or network of this run, unlike those of another directory."""
    mark = hashlib.sha256(str(run.files.path).encode()).hexdigest()[:8]
    return "-".join(("dfl", run.spec.name.strip("._-") or "run", mark, *parts))


def run_filter(run: Run) -> dict[str, str]:
    """Return the engine's filter for what belongs to this run."""
    return {"label": f"{RUN}={run.files.path}"}


def container_spec(run: Run, id: str, settings: DockerSettings, user: str) -> dict[str, Any]:
    """Return the arguments of the SDK's `containers.create` but for the network."""
    docker = docker_sdk()
    asked: dict[str, Any] = {
        "image": settings.image,
        "command": [str(RUN_PLACE / run.files.config(id).name), "--quiet"],
        "name": docker_name(run, id),
        "hostname": id,
        "user": user,
        "group_add": [str(group) for group in os.getgroups()],
        "environment": {"HOME": "/tmp"},
        "read_only": True,
        "cap_drop": ["ALL"],
        "security_opt": ["no-new-privileges:true"],
        "pids_limit": settings.pids,
        "tmpfs": SCRATCH,
        "mounts": [_mount(docker, one) for one in shared(run, id)],
        "restart_policy": restart_policy(settings.restarts),
        "log_config": docker.types.LogConfig(type="json-file", config=LOG_LIMITS),
    }
    if settings.memory:
        asked |= {"mem_limit": settings.memory, "memswap_limit": settings.memory}
    if settings.cpus:
        asked["nano_cpus"] = round(settings.cpus * 1e9)
    if settings.gpus:
        asked["device_requests"] = [docker.types.DeviceRequest(**gpu_request(settings.gpus))]
    return asked | {"labels": {RUN: str(run.files.path), PEER: id, ORDER: _digest(asked, run, id)}}


def gpu_request(gpus: Any) -> dict[str, Any]:
    chosen = {"device_ids": list(gpus)} if isinstance(gpus, tuple) else {"count": -1 if gpus == "all" else gpus}
    return {"driver": "nvidia", "capabilities": [["gpu"]], **chosen}


def _mount(docker: Any, one: Shared) -> Any:
    if one.source is None:
        return docker.types.Mount(str(one.target), None, type="tmpfs", tmpfs_size=4096)
    return docker.types.Mount(str(one.target), str(one.source), type="bind", read_only=not one.writable)


def _digest(asked: Mapping[str, Any], run: Run, id: str) -> str:
    """Return what changes if a container would now be made differently, or for a new directory of that name."""
    out = run.files.out(id).stat()
    content = [asked, run.spec.agreement.digest, out.st_dev, out.st_ino]
    return hashlib.sha256(json.dumps(content, sort_keys=True, default=str).encode()).hexdigest()


RUNNING = ("running", "paused", "restarting")


class DockerDeployment(Deployment):
    """Starts a container per peer, and follows them by the engine's events."""

    def __init__(self, run: Run, client: Any, settings: DockerSettings, user: str) -> None:
        self._run, self._client, self._settings, self._user = run, client, settings, user
        self._containers: dict[str, Container] = {}
        self._network = settings.network or docker_name(run)

    async def start(self, id: str) -> Container:
        return await shielded(self._start, id)  # an engine that is about to make a container cannot be stopped

    async def _start(self, id: str) -> Container:
        with refusals():
            handle = await asyncio.to_thread(self._handle, id)
        container = Container(handle, self._run.files.out(id), self._settings.restarts)
        self._containers[id] = container
        return container

    def prepare(self) -> None:
        """Make the run's network, unless it is there."""
        if self._settings.network or self._client.networks.list(filters=run_filter(self._run)):
            return
        docker = docker_sdk()
        pool = [docker.types.IPAMPool(subnet=str(self._settings.subnet))] if self._settings.subnet else None
        self._client.networks.create(
            self._network,
            driver="bridge",
            internal=True,  # peers reach each other and nothing else
            ipam=docker.types.IPAMConfig(pool_configs=pool),
            labels={RUN: str(self._run.files.path)},
        )

    def _handle(self, id: str) -> Any:
        """Return the container that an earlier launch has left, if it is the same, or a new one, started."""
        asked = container_spec(self._run, id, self._settings, self._user)
        with suppress(docker_sdk().errors.NotFound):
            left = self._client.containers.get(asked["name"])
            done = left.status == "exited" and left.attrs["State"]["ExitCode"] == 0
            if left.labels.get(ORDER) == asked["labels"][ORDER] and (done or left.status in RUNNING):
                return left
            if left.status in RUNNING:
                left.kill()
            ContainerLog(left, self._run.files.log(id)).catch_up()
            left.remove(force=True, v=True)
        endpoint = self._client.api.create_endpoint_config(aliases=[id])
        network = {"network": self._network, "networking_config": {self._network: endpoint}}
        made = self._client.containers.create(**asked, **network)
        made.start()
        return made

    async def listen(self) -> None:
        """Pass on the engine's events to the containers. Raises FailedError once the engine no longer answers."""
        async for event in ContainerEvents(self._client, run_filter(self._run)).follow():
            for id, container in self._containers.items():
                if event.peer in (id, ""):
                    container.on_event(event)

    async def stop_all(self) -> None:
        """Remove all containers, even one whose start the supervisor no longer waited for."""
        with refusals():
            await asyncio.to_thread(remove_containers, self._client, self._run, running=True)

    async def close(self) -> None:
        """Remove what has ended, and the network once no container runs on it."""
        for container in self._containers.values():
            await container.close()
        with refusals():
            await asyncio.to_thread(remove_containers, self._client, self._run)


def remove_containers(client: Any, run: Run, running: bool = False) -> None:
    """Remove the run's containers that have ended, or all, and its network once no container runs on it."""
    docker = docker_sdk()
    left = client.containers.list(all=True, filters=run_filter(run), ignore_removed=True)
    for container in left:
        if running or container.status not in RUNNING:
            with suppress(docker.errors.NotFound):
                container.remove(force=True, v=True)
    if running or all(container.status not in RUNNING for container in left):
        for network in client.networks.list(filters=run_filter(run)):
            with suppress(docker.errors.NotFound):
                network.remove()
