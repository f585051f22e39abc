"""The peers of a run in a cluster, as seen from the launcher."""

import asyncio
import signal
from collections.abc import Coroutine, Iterator
from contextlib import suppress

from launcher.engines.base import Deployment, Process, Run
from launcher.engines.kubernetes.cluster import CLAIM, Cluster
from launcher.engines.kubernetes.control_loop import AGAIN, ControlLoop
from launcher.engines.kubernetes.files import Files, volume_place
from launcher.engines.kubernetes.kubectl import CutError
from launcher.engines.kubernetes.order import ORDER, Order
from peer.errors import FailedError

REACH, END = 60.0, 60.0
"""Seconds that the cluster is waited for to show the results, and to end the peers."""
TRIES = 3
"""To bring the results, where a connection is cut meanwhile."""
WRONG_INPUT = 2


class KubernetesDeployment(Deployment):
    """new: whether nothing of the run has been in the cluster before."""

    def __init__(self, run: Run, cluster: Cluster, order: Order, new: bool) -> None:
        self._run, self._cluster, self._order, self._new = run, cluster, order, new
        places = {id: volume_place(index, id) for index, id in enumerate(run.spec.ids)}
        self._files = Files(cluster.kubectl, f"{order.name}-collect", run.files, places)
        self._loop = ControlLoop(run, cluster, order, self._files)
        self._collected = self._over = False

    async def prepare(self) -> None:
        """Takes up the Job that is there if it is the same and has not failed, else makes room for a new one."""
        state = await self._cluster.look()
        job = state.job
        if job and job.over != "Failed" and job.annotations.get(ORDER) == self._order.digest:
            self._loop.take_up(state)
            return
        try:
            await self._cluster.remove_peers()
            await self._cluster.apply(self._order.beside())
        except FailedError:
            with suppress(FailedError):
                await self._cluster.clear(claim=self._new)
            raise

    def tasks(self) -> Iterator[Coroutine[None, None, None]]:
        """What is to be done for as long as the launcher works."""
        yield self._loop.run()
        yield self._loop.follow()
        yield from map(self._loop.watch, ("job", "pod"))

    async def start(self, id: str) -> Process:
        return self._loop.peers[id]

    async def end(self) -> None:
        self._over = True
        if self._loop.all_done:
            return
        self._loop.ask(signal.SIGKILL)
        try:
            await asyncio.wait_for(self._loop.still.wait(), END)
        except TimeoutError:
            shown = f"kubectl get pods --selector=job-name={self._order.name}"
            self._run.say(f"the cluster has not ended all peers yet; `{shown}` shows them")

    async def collect(self) -> None:
        if not self._loop.all_done and not self._loop.readable.is_set():
            return
        await self._loop.log()
        try:
            await asyncio.wait_for(self._loop.readable.wait(), REACH)
        except TimeoutError:
            raise FailedError("the results cannot be read in the cluster now; the same command tries again") from None
        await self._files.caught_up()
        await self._bring()
        self._collected = True

    async def _bring(self) -> None:
        for left in reversed(range(TRIES)):
            try:
                await self._files.bring()
                break
            except CutError:
                if not left:
                    raise
                await asyncio.sleep(AGAIN)

    async def close(self) -> None:
        """Removes what is in the cluster, but for the checkpoints where somebody may want to go on from them."""
        if not self._over:
            return
        first = self._new and (not self._loop.begun or WRONG_INPUT in self._loop.codes)
        kept = not (first or (self._loop.all_done and self._collected))
        try:
            await self._cluster.clear(claim=not kept)
        except FailedError as error:
            self._run.say(f"{error}; what is left there: `kubectl get all,{CLAIM} {self._cluster.mine}`")
        if kept:
            by_hand = f"kubectl delete {CLAIM}/{self._order.name}"
            self._run.say(f"the checkpoints stay in the cluster; who does not go on removes them with `{by_hand}`")
