"""Peers as processes of this machine, copies of a fork server."""

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

from launcher.engines.base import Deployment, Engine, Run
from launcher.engines.local import preflight
from launcher.engines.local.fork_server import Child, ForkServer
from peer.learning.device import in_turn
from peer.settings import Settings


class LocalSettings(Settings):
    """There is nothing to choose."""


class LocalDeployment(Deployment):
    """Starts every peer from one fork server; all write into the run's directory themselves."""

    def __init__(self, run: Run, server: ForkServer) -> None:
        self._files, self._server = run.files, server

    async def start(self, id: str) -> Child:
        return await self._server.start(["--config", str(self._files.config(id)), "--quiet"], self._files.log(id))


class LocalEngine(Engine[LocalSettings]):
    """`--on local`, the default: every peer ends with the launcher, however that ends."""

    name = "local"
    Settings = LocalSettings

    def check(self, run: Run) -> None:
        preflight.check(run)

    def config(self, run: Run, id: str) -> Mapping[str, object]:
        """Of several GPUs each peer has one."""
        return {**super().config(run, id), "device": in_turn(run.device, run.spec.ids.index(id))}

    @asynccontextmanager
    async def deploy(self, run: Run) -> AsyncIterator[Deployment]:
        async with self.fork_server(run.lock) as server:
            yield LocalDeployment(run, server)

    def fork_server(self, lock: int) -> ForkServer:
        return ForkServer(keep=(lock,) if lock >= 0 else ())
