"""Peers in containers of this machine, each with its own directory of the run and nothing else of it.

In reading order: what can be chosen, the engine, what it checks, what a container sees of this machine, how a
container is asked for, and the deployment: the run's network and its containers. What becomes of one container is in
`docker_container.py`.

In a container the run's directory is /dfl, as far as it concerns its peer. Data lie where they lie on this machine, so
that the spec need not change.

An earlier launch may have left containers: a label tells which run they are of, and another, a digest of all that was
asked for, whether one is what would be made now. Then it is taken up; else it is removed.
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

from pydantic import BeforeValidator, Field

from launcher.engines.base import IMAGE_WANTED, Deployment, Engine, Image, Run, certificates_beside
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
from launcher.plan import plan
from launcher.run_files import certificate_files
from peer.errors import FailedError, InputError
from peer.learning.data.sources import Source
from peer.settings import Settings, Wanted
from peer.spec.federation import Spec
from peer.spec.loading import FIRST_PORT
from peer.spec.peer import in_plaintext
from peer.tasks import background, shielded


def _size(given: Any) -> Any:
    """As the engine writes it; a number is bytes."""
    number = isinstance(given, int) and not isinstance(given, bool)
    return str(given).lower() if number or isinstance(given, str) else given


def _texts(given: Any) -> Any:
    """GPUs may be listed by their numbers, which YAML takes for numbers."""
    return tuple(str(one) if type(one) is int else one for one in given) if isinstance(given, list) else given


Memory = Annotated[str, Field(pattern=r"^[1-9][0-9]*[bkmg]?$"), BeforeValidator(_size)]
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
"""Where the image's HEALTHCHECK asks."""


class DockerEngine(Engine[DockerSettings]):
    """`--on docker`: the engine starts crashed peers again, and peers go on when the launcher is gone."""

    name = "docker"
    restarts_peers = True
    outlives_launcher = True
    Settings = DockerSettings

    def with_addresses(self, spec: Spec) -> Spec:
        """A peer's id is its host's name. A bridge of this machine, made for the run, has no other listener."""
        placed = in_containers(spec)
        return in_plaintext(placed) if self.settings.network is None else placed

    def check(self, run: Run) -> None:
        with as_input_error(), closing(connect()) as client:
            check_image(client, self.settings.image)
            check_network(client, self.settings.network)
        check_ids(run.spec)
        check_container_device(run.device, self.settings.gpus, "a container", "all")
        check_secrecy(run)
        check_resources(run.spec, run.files.path)
        check_room(plan(run.spec), run.files.path)  # the plan also finds whether data and model fit together

    def config(self, run: Run, id: str) -> Mapping[str, object]:
        config = {**super().config(run, id), "listen": f"0.0.0.0:{FIRST_PORT}", "health": HEALTH}
        return config | ({"tls": certificates_beside(id)} if run.certs else {})

    def clear(self, run: Run) -> None:
        with refusals(), closing(connect()) as client:
            remove_containers(client, run, running=True)

    @asynccontextmanager
    async def deploy(self, run: Run) -> AsyncIterator[Deployment]:
        with closing(await asyncio.to_thread(connect)) as client:
            with refusals():
                user = await asyncio.to_thread(user_of, client)
            deployment = DockerDeployment(run, client, self.settings, user)
            try:
                with refusals():
                    await asyncio.to_thread(deployment.prepare)
                async with background() as tasks:
                    tasks.create_task(deployment.listen())
                    yield deployment
            finally:
                await shielded(deployment.close)


def in_containers(spec: Spec) -> Spec:
    """The spec with addresses on the containers' network; where code lies only if there is some."""
    ring = tuple(member.model_copy(update={"address": f"{member.id}:{FIRST_PORT}"}) for member in spec.ring)
    return spec.model_copy(update={"ring": ring, "code": spec.code if spec.own_code else None})


def user_of(client: Any) -> str:
    """Whose rights a container has on this machine: the caller's. An engine of one's own calls him root inside."""
    rootless = any("rootless" in option for option in client.info().get("SecurityOptions") or ())
    return "0:0" if rootless else f"{os.getuid()}:{os.getgid()}"


def check_image(client: Any, name: str) -> None:
    docker = docker_sdk()
    try:
        with refusals():
            client.images.get(name)
    except FailedError as error:
        missing = isinstance(error.__context__, docker.errors.ImageNotFound)
        raise InputError(no_image(name) if missing else str(error)) from None


def check_network(client: Any, name: str | None) -> None:
    with refusals():
        if name and not client.networks.list(names=[name]):
            raise InputError(f"the Docker engine has no network `{name}`; make it with `docker network create {name}`")


def check_ids(spec: Spec) -> None:
    """On the containers' network an id is a host's name."""
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
    """All that the peer's container may see of this machine."""
    files = run.files
    found = [Shared(RUN_PLACE / file.name, file) for file in (files.federation, files.config(id))]
    found.append(Shared(RUN_PLACE / id, files.out(id), writable=True))
    if run.certs:
        certificates = certificate_files(run.certs, id)
        found += [Shared(RUN_PLACE / name, certificates[what]) for what, name in certificates_beside(id).items()]
    read = [path for source in sources(run.spec, id) for path in data_files(source, id).values()]
    read += [*code_files(run.spec), *recorded_files(run.spec, id), *weight_files(run.spec)]
    found += [Shared(path, path) for path in dict.fromkeys(read)]
    private = [files.path, *([run.certs] if run.certs else [])]
    return found + [Shared(path) for path in dict.fromkeys(hidden(private, read))]


def hidden(private: Collection[Path], seen: Collection[Path]) -> Iterator[Path]:
    """Where a container would have the private directories, for they lie in what it sees, by whatever links."""
    for above in seen:
        for path in private:
            if path.resolve().is_relative_to(above.resolve()):
                yield above / path.resolve().relative_to(above.resolve())


def data_files(source: Source, id: str) -> dict[str, Path]:
    """The files and directories that are there of those that the peer's data name, by key."""
    if source.name == "digits":  # they come with the package
        return {}
    return {key: path for key, path in source.of_peer(id) if isinstance(path, Path) and path.exists()}


def sources(spec: Spec, id: str) -> list[Source]:
    """The federation's data, and those of the peer's own."""
    own = next(member.data for member in spec.ring if member.id == id)
    return [spec.data, *([own] if own else [])]


def code_files(spec: Spec) -> Iterator[Path]:
    """The modules and packages that lie where a user's own code does; other files there may be anybody's secrets."""
    if spec.code and spec.own_code:
        yield from sorted(spec.code.glob("*.py"))
        yield from sorted(package.parent for package in spec.code.glob("*/__init__.py"))


def weight_files(spec: Spec) -> Iterator[Path]:
    """The weights that the model begins with, where the spec names some that are there."""
    if spec.model.weights and spec.model.weights.exists():
        yield spec.model.weights


def recorded_files(spec: Spec, id: str) -> Iterator[Path]:
    """What the peer itself wrote in an earlier run, where the spec names one."""
    if spec.recording and (events := spec.recording / id / "events.jsonl").exists():
        yield events


SCRATCH = {"/tmp": "size=64m,mode=1777"}
LOG_LIMITS = {"max-size": "5m", "max-file": "2"}
"""log.txt has all of it."""


def docker_name(run: Run, *parts: str) -> str:
    """Of a container or network of this run: told apart from those of another directory."""
    mark = hashlib.sha256(str(run.files.path).encode()).hexdigest()[:8]
    return "-".join(("dfl", run.spec.name.strip("._-") or "run", mark, *parts))


def run_labels(run: Run, **more: str) -> dict[str, str]:
    return {RUN: str(run.files.path), **more}


def run_filter(run: Run) -> dict[str, str]:
    """The filter for what belongs to this run."""
    return {"label": f"{RUN}={run.files.path}"}


def container_spec(run: Run, id: str, settings: DockerSettings, user: str) -> dict[str, Any]:
    """The arguments of the SDK's `containers.create` but for the network."""
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
    return asked | {"labels": run_labels(run, **{PEER: id, ORDER: _digest(asked, run, id)})}


def gpu_request(gpus: Any) -> dict[str, Any]:
    chosen = {"device_ids": list(gpus)} if isinstance(gpus, tuple) else {"count": -1 if gpus == "all" else gpus}
    return {"driver": "nvidia", "capabilities": [["gpu"]], **chosen}


def _mount(docker: Any, one: Shared) -> Any:
    if one.source is None:
        return docker.types.Mount(str(one.target), None, type="tmpfs", tmpfs_size=4096)
    return docker.types.Mount(str(one.target), str(one.source), type="bind", read_only=not one.writable)


def _digest(asked: Mapping[str, Any], run: Run, id: str) -> str:
    """Tells whether a container that is there already is what would be made now, for the directory of now."""
    out = run.files.out(id).stat()
    content = [asked, run.spec.agreement.digest, out.st_dev, out.st_ino]
    return hashlib.sha256(json.dumps(content, sort_keys=True, default=str).encode()).hexdigest()


RUNNING = ("running", "paused", "restarting")


class DockerDeployment(Deployment):
    """Starts a container a peer; hears of their ends by the engine's events."""

    def __init__(self, run: Run, client: Any, settings: DockerSettings, user: str) -> None:
        self._run, self._client, self._settings, self._user = run, client, settings, user
        self._containers: dict[str, Container] = {}
        self._network = settings.network or docker_name(run)

    async def start(self, id: str) -> Container:
        return await shielded(self._start, id)  # nothing stops an engine that is about to make a container

    async def _start(self, id: str) -> Container:
        with refusals():
            handle = await asyncio.to_thread(self._handle, id)
        container = Container(handle, self._run.files.out(id), self._settings.restarts)
        self._containers[id] = container
        container.follow()
        return container

    def prepare(self) -> None:
        """Makes the run's network, unless it is there."""
        if self._settings.network or self._client.networks.list(filters=run_filter(self._run)):
            return
        docker = docker_sdk()
        pool = [docker.types.IPAMPool(subnet=str(self._settings.subnet))] if self._settings.subnet else None
        self._client.networks.create(
            self._network,
            driver="bridge",
            internal=True,  # peers talk to each other and to nobody else
            ipam=docker.types.IPAMConfig(pool_configs=pool),
            labels=run_labels(self._run),
        )

    def _handle(self, id: str) -> Any:
        """The container that an earlier launch has left, if it is the same, or one that is made and started."""
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
        """Tells the containers of what happens to them. FailedError when the engine does not answer any more."""
        async for news in ContainerEvents(self._client, run_filter(self._run)).heard():
            for id, container in self._containers.items():
                if news.peer in (id, ""):
                    container.heard(news)

    async def stop_all(self) -> None:
        """Removes all that is left, also what was started for a supervisor that no longer waited for it."""
        with refusals():
            await asyncio.to_thread(remove_containers, self._client, self._run, running=True)

    async def close(self) -> None:
        """Removes what has ended, and the network when nobody is left on it."""
        for container in self._containers.values():
            await container.close()
        with refusals():
            await asyncio.to_thread(remove_containers, self._client, self._run)


def remove_containers(client: Any, run: Run, running: bool = False) -> None:
    """Removes the run's containers that have ended, or all of them, and its network when nobody is on it."""
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
