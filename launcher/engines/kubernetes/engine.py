"""Peers in the pods of a Kubernetes cluster."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from launcher.engines.base import Deployment, Engine, Run
from launcher.engines.kubernetes import preflight
from launcher.engines.kubernetes.cluster import Cluster
from launcher.engines.kubernetes.deployment import KubernetesDeployment
from launcher.engines.kubernetes.identity import identity, known, place
from launcher.engines.kubernetes.order import Order
from launcher.engines.kubernetes.settings import KubernetesSettings
from peer.errors import FailedError, InputError
from peer.tasks import background, uninterrupted


class KubernetesEngine(Engine[KubernetesSettings]):
    """`--on kubernetes`: a Job starts crashed peers again, and peers go on when the launcher is gone."""

    name = "kubernetes"
    restarts_peers = True
    outlives_launcher = True
    Settings = KubernetesSettings

    def check(self, run: Run) -> None:
        preflight.check(run, self.settings)

    def clear(self, run: Run) -> None:
        if known(run):
            try:
                asyncio.run(self._clear(run))
            except FailedError as error:
                raise InputError(f"what an earlier launch has left in the cluster cannot be removed: {error}") from None

    async def _clear(self, run: Run) -> None:
        whose = await identity(run, self.settings)
        await Cluster(whose.kubectl(self.settings), place(run, whose).name).clear(claim=True)

    @asynccontextmanager
    async def deploy(self, run: Run) -> AsyncIterator[Deployment]:
        new = known(run) is None
        whose = await identity(run, self.settings)
        whose.write(run)
        order = Order(run, place(run, whose), self.settings)
        deployment = KubernetesDeployment(run, Cluster(whose.kubectl(self.settings), order.name), order, new)
        await deployment.prepare()
        try:
            async with background() as tasks:
                for task in deployment.tasks():
                    tasks.create_task(task)
                yield deployment
        finally:
            await uninterrupted(deployment.close)
