"""The containers of a run on this machine's engine, and their network."""

import asyncio
from contextlib import suppress
from typing import Any

from launcher.engines.base import Deployment, Run
from launcher.engines.docker.container import Container
from launcher.engines.docker.errors import docker_sdk, refusals
from launcher.engines.docker.events import Events
from launcher.engines.docker.log import Log
from launcher.engines.docker.orders import ORDER, labels, name, of_run, order
from launcher.engines.docker.settings import DockerSettings
from peer.tasks import uninterrupted

RUNNING = ("running", "paused", "restarting")


class DockerDeployment(Deployment):
    """Starts a container a peer; hears of their ends by the engine's events."""

    def __init__(self, run: Run, client: Any, settings: DockerSettings, user: str) -> None:
        self._run, self._client, self._settings, self._user = run, client, settings, user
        self._containers: dict[str, Container] = {}
        self._network = settings.network or name(run)

    async def start(self, id: str) -> Container:
        return await uninterrupted(self._start, id)  # nothing stops an engine that is about to make a container

    async def _start(self, id: str) -> Container:
        with refusals():
            handle = await asyncio.to_thread(self._handle, id)
        container = Container(handle, self._run.files.out(id), self._settings.restarts)
        self._containers[id] = container
        container.follow()
        return container

    def prepare(self) -> None:
        """Makes the run's network, unless it is there."""
        if self._settings.network or self._client.networks.list(filters=of_run(self._run)):
            return
        docker = docker_sdk()
        pool = [docker.types.IPAMPool(subnet=str(self._settings.subnet))] if self._settings.subnet else None
        self._client.networks.create(
            self._network,
            driver="bridge",
            internal=True,  # peers talk to each other and to nobody else
            ipam=docker.types.IPAMConfig(pool_configs=pool),
            labels=labels(self._run),
        )

    def _handle(self, id: str) -> Any:
        """The container that an earlier launch has left, if it is the same, or one that is made and started."""
        asked = order(self._run, id, self._settings, self._user)
        with suppress(docker_sdk().errors.NotFound):
            left = self._client.containers.get(asked["name"])
            done = left.status == "exited" and left.attrs["State"]["ExitCode"] == 0
            if left.labels.get(ORDER) == asked["labels"][ORDER] and (done or left.status in RUNNING):
                return left
            if left.status in RUNNING:
                left.kill()
            Log(left, self._run.files.log(id)).catch_up()
            left.remove(force=True, v=True)
        endpoint = self._client.api.create_endpoint_config(aliases=[id])
        network = {"network": self._network, "networking_config": {self._network: endpoint}}
        made = self._client.containers.create(**asked, **network)
        made.start()
        return made

    async def listen(self) -> None:
        """Tells the containers of what happens to them. FailedError when the engine does not answer any more."""
        async for news in Events(self._client, of_run(self._run)).heard():
            for id, container in self._containers.items():
                if news.peer in (id, ""):
                    container.heard(news)

    async def end(self) -> None:
        """Removes all that is left, also what was started for a supervisor that no longer waited for it."""
        with refusals():
            await asyncio.to_thread(remove, self._client, self._run, running=True)

    async def close(self) -> None:
        """Removes what has ended, and the network when nobody is left on it."""
        for container in self._containers.values():
            await container.close()
        with refusals():
            await asyncio.to_thread(remove, self._client, self._run)


def remove(client: Any, run: Run, running: bool = False) -> None:
    """Removes the run's containers that have ended, or all of them, and its network when nobody is on it."""
    docker = docker_sdk()
    left = client.containers.list(all=True, filters=of_run(run), ignore_removed=True)
    for container in left:
        if running or container.status not in RUNNING:
            with suppress(docker.errors.NotFound):
                container.remove(force=True, v=True)
    if running or all(container.status not in RUNNING for container in left):
        for network in client.networks.list(filters=of_run(run)):
            with suppress(docker.errors.NotFound):
                network.remove()
