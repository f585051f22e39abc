"""Peers in containers of this machine, each with its own directory of the run and nothing else of it."""

import asyncio
import os
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, closing
from typing import Any

from launcher.engines.base import Deployment, Engine, Run
from launcher.engines.docker import preflight
from launcher.engines.docker.deployment import DockerDeployment, remove
from launcher.engines.docker.errors import connect, refusals
from launcher.engines.docker.settings import DockerSettings
from launcher.engines.docker.sharing import certificate_names
from peer.spec.federation import Spec
from peer.spec.peer import FIRST_PORT
from peer.tasks import background, uninterrupted

HEALTH = "127.0.0.1:7800"
"""Where the image's HEALTHCHECK asks."""


class DockerEngine(Engine[DockerSettings]):
    """`--on docker`: the engine starts crashed peers again, and peers go on when the launcher is gone."""

    name = "docker"
    restarts_peers = True
    outlives_launcher = True
    Settings = DockerSettings

    def place(self, spec: Spec) -> Spec:
        """A peer's id is its host's name. On a bridge of this machine, made for the run, nobody else listens."""
        placed = in_containers(spec)
        return placed.in_plaintext() if self.settings.network is None else placed

    def check(self, run: Run) -> None:
        preflight.check(run, self.settings)

    def config(self, run: Run, id: str) -> Mapping[str, object]:
        config = {**super().config(run, id), "listen": f"0.0.0.0:{FIRST_PORT}", "health": HEALTH}
        return config | ({"tls": certificate_names(id)} if run.certs else {})

    def clear(self, run: Run) -> None:
        with refusals(), closing(connect()) as client:
            remove(client, run, running=True)

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
                await uninterrupted(deployment.close)


def in_containers(spec: Spec) -> Spec:
    """The spec with addresses on the containers' network; where code lies only if there is some."""
    ring = tuple(member.model_copy(update={"address": f"{member.id}:{FIRST_PORT}"}) for member in spec.ring)
    return spec.model_copy(update={"ring": ring, "code": spec.code if spec.own_code else None})


def user_of(client: Any) -> str:
    """Whose rights a container has on this machine: the caller's. An engine of one's own calls him root inside."""
    rootless = any("rootless" in option for option in client.info().get("SecurityOptions") or ())
    return "0:0" if rootless else f"{os.getuid()}:{os.getgid()}"
