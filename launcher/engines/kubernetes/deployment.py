"""The peers of a run in a cluster, as seen from the launcher."""

import asyncio
import signal
from collections.abc import Coroutine, Iterator, Sequence
from contextlib import suppress

from launcher.engines.base import Deployment, Process, Run
from launcher.engines.kubernetes import log
from launcher.engines.kubernetes.cluster import CLAIM, Cluster
from launcher.engines.kubernetes.files import Files, volume_place
from launcher.engines.kubernetes.kubectl import CutError
from launcher.engines.kubernetes.order import ORDER, Order
from launcher.engines.kubernetes.pods import PeerPods
from launcher.engines.kubernetes.state import Pod, State
from peer.errors import FailedError

LOOK = 30.0
"""Seconds after which the cluster is looked at where no watch has told anything."""
AGAIN = 2.0
"""Seconds before a connection that was cut is tried again."""
BURST = 0.2
"""Seconds in which changes are taken together: a cluster tells of many at a time."""
REACH, END = 60.0, 60.0
"""Seconds that the cluster is waited for to show the results, and to end the peers."""
TRIES = 3
"""To bring the results, where a connection is cut meanwhile."""
WRONG_INPUT = 2


class KubernetesDeployment(Deployment):
    """Makes in the cluster what is not there yet, and tells the peers what has become of their pods.

    new: whether nothing of the run has been in the cluster before.
    """

    def __init__(self, run: Run, cluster: Cluster, order: Order, new: bool) -> None:
        self._run, self._cluster, self._order, self._new = run, cluster, order, new
        ids = run.spec.ids
        self._peers = {id: PeerPods(index, run.files.out(id), self.ask) for index, id in enumerate(ids)}
        places = {id: volume_place(index, id) for index, id in enumerate(ids)}
        self._files = Files(cluster.kubectl, f"{order.name}-collect", run.files, places)
        self._state = State(None, [])
        self._begun = self._collected = self._over = False
        self._asked = self._done = 0
        """1 after SIGTERM, 2 after SIGKILL: what was asked for, and what the cluster has been told."""
        self._heard, self._told = set[str](), set[str]()
        self._news, self._still, self._readable = asyncio.Event(), asyncio.Event(), asyncio.Event()
        self._still.set()

    async def start(self, id: str) -> Process:
        return self._peers[id]

    def ask(self, number: int) -> None:
        """SIGTERM to all peers, or SIGKILL: a run's peers are ended together."""
        self._asked = max(self._asked, 2 if number == signal.SIGKILL else 1)
        self._news.set()

    async def prepare(self) -> None:
        """Takes up the Job that is there if it is the same and has not failed, else makes room for a new one."""
        state = await self._cluster.look()
        job = state.job
        if job and job.over != "Failed" and job.annotations.get(ORDER) == self._order.digest:
            self._state = state
            self._heard = {pod.name for pod in state.pods if pod.ended}
            self._begin()
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
        yield self._conduct()
        yield self._follow()
        yield from map(self._watch, ("job", "pod"))

    async def _conduct(self) -> None:
        while True:
            self._news.clear()
            try:
                await self._step()
            except CutError as error:
                self._tell(str(error))
            except FailedError as error:
                self._fail(error)
            with suppress(TimeoutError):
                await asyncio.wait_for(self._news.wait(), LOOK if self._asked == self._done else AGAIN)
            await asyncio.sleep(BURST)

    async def _follow(self) -> None:
        while True:
            await self._readable.wait()
            try:
                await self._files.follow()
            except CutError:
                self._news.set()
            except FailedError as error:
                self._fail(error)
            await asyncio.sleep(AGAIN)

    async def _watch(self, kind: str) -> None:
        while True:
            with suppress(TimeoutError):
                await self._cluster.watch(kind, self._news.set)
            self._news.set()
            await asyncio.sleep(AGAIN)

    async def _step(self) -> None:
        """Looks at the cluster once, and does what is to be done."""
        await self._obey()
        self._state = state = await self._cluster.look()
        if self._asked:
            self._still.clear() if state.running else self._still.set()
        else:
            await self._see_to_collector(state.collector)
            await self._see_to_job()
            await self._hear_of_failures([pod for pod in state.pods if pod.failed and pod.name not in self._heard])
            self._tell_pending()
        for peer in self._peers.values():
            peer.judge(state, bool(self._asked))

    async def _obey(self) -> None:
        if (asked := self._asked) > self._done:
            await self._log(self._state.pods)
            await (self._cluster.stop() if asked == 1 else self._cluster.kill())
            self._done = asked

    async def _see_to_collector(self, pod: Pod | None) -> None:
        if pod and pod.ready:
            return self._readable.set()
        self._readable.clear()
        if pod and pod.unpullable and not self._begun:
            raise FailedError(
                f"the cluster cannot pull the image `{self._order.settings.image}` ({pod.pending}); push it to where "
                "its nodes can, or name another with --option image=REGISTRY/NAME:TAG"
            )
        if pod and pod.ended:
            await self._cluster.remove_pod(pod.name)
        if pod is None or pod.ended:
            await self._cluster.apply([self._order.collector()])
        return None

    async def _see_to_job(self) -> None:
        if self._begun and self._state.job is None and not self._all_done:
            raise FailedError(f"somebody has deleted the job {self._order.name}; the same command resumes the run")
        if not self._begun and self._readable.is_set():
            await self._cluster.apply([self._order.job])
            self._begin()
            self._news.set()

    def _begin(self) -> None:
        self._begun = True
        self._still.clear()
        kubectl = self._cluster.kubectl
        self._run.say(f"job {self._order.name} in the namespace {kubectl.namespace or 'default'} of the cluster")

    async def _hear_of_failures(self, pods: list[Pod]) -> None:
        """The rest of what these pods said is brought before anybody judges their ends."""
        if not pods:
            return
        await self._files.caught_up()
        await self._log(pods)
        for pod in pods:
            self._heard.add(pod.name)
            hint = "; give it more with --option memory=4Gi" if pod.why == "OOMKilled" else ""
            self._run.say(f"{self._name(pod)}: the pod {pod.name} {pod.obituary}{hint}")

    async def _log(self, pods: Sequence[Pod]) -> None:
        """What it cannot have it does without: the pods' ends count."""
        with suppress(FailedError):
            await log.append(self._cluster, self._run, pods)

    def _name(self, pod: Pod) -> str:
        return "the pod for the results" if pod.index is None else self._run.spec.ids[pod.index]

    def _tell_pending(self) -> None:
        for pod in self._state.pods:
            if pod.pending:
                self._tell(f"{self._name(pod)} waits: {pod.pending}", pod.pending)

    def _tell(self, sentence: str, subject: str = "") -> None:
        """Once; of several pods that wait for the same, one stands for all."""
        if (subject or sentence) not in self._told:
            self._told.add(subject or sentence)
            self._run.say(sentence)

    def _fail(self, error: FailedError) -> None:
        """Ends all; whoever waits raises it."""
        for peer in self._peers.values():
            if not peer.ended.done():
                peer.ended.set_exception(error)
                peer.ended.exception()
        self.ask(signal.SIGKILL)

    @property
    def _codes(self) -> list[int | None]:
        """None: not ended yet, or nobody knows how."""
        ended = [peer.ended for peer in self._peers.values()]
        return [one.result() if one.done() and not one.exception() else None for one in ended]

    @property
    def _all_done(self) -> bool:
        return all(code == 0 for code in self._codes)

    async def end(self) -> None:
        self._over = True
        if self._all_done:
            return
        self.ask(signal.SIGKILL)
        try:
            await asyncio.wait_for(self._still.wait(), END)
        except TimeoutError:
            self._run.say(
                f"the cluster has not ended all peers yet; `kubectl get pods --selector=job-name={self._order.name}` "
                "shows them"
            )

    async def collect(self) -> None:
        if not self._all_done and not self._readable.is_set():
            return
        await self._log(self._state.pods)
        try:
            async with asyncio.timeout(REACH):
                await self._readable.wait()
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
        first = self._new and (not self._begun or WRONG_INPUT in self._codes)
        kept = not (first or (self._all_done and self._collected))
        by_hand = f"kubectl delete {CLAIM}/{self._order.name}"
        try:
            await self._cluster.clear(claim=not kept)
        except FailedError as error:
            self._run.say(f"{error}; what is left there: `kubectl get all,{CLAIM} {self._cluster.mine}`")
        if kept:
            self._run.say(f"the checkpoints stay in the cluster; who does not go on removes them with `{by_hand}`")
