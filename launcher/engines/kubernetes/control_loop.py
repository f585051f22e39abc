"""Makes what a run has in its cluster be as it should be: looks at it, does what is missing, looks again."""

import asyncio
import signal
from collections.abc import Collection, Sequence
from contextlib import suppress

from launcher.engines.base import Run
from launcher.engines.kubernetes import log
from launcher.engines.kubernetes.cluster import Cluster
from launcher.engines.kubernetes.files import Files
from launcher.engines.kubernetes.kubectl import CutError
from launcher.engines.kubernetes.order import Order
from launcher.engines.kubernetes.pods import PeerPods
from launcher.engines.kubernetes.state import Pod, State
from launcher.engines.kubernetes.telling import Telling
from peer.errors import FailedError

LOOK = 30.0
"""Seconds after which the cluster is looked at where no watch has told anything."""
AGAIN = 2.0
"""Seconds before a connection that was cut is tried again."""
BURST = 0.2
"""Seconds in which changes are taken together: a cluster tells of many at a time."""
COLLECTORS = 5
"""So many pods for the results may end before the first peer has begun."""


class ControlLoop:
    """state: of the last look. begun: whether there is a Job. still: whether no peer runs. readable: the results."""

    def __init__(self, run: Run, cluster: Cluster, order: Order, files: Files) -> None:
        self._run, self._cluster, self._order, self._files = run, cluster, order, files
        self._telling = Telling(run.say, run.spec.ids)
        self.peers = {id: PeerPods(index, run.files.out(id), self.ask) for index, id in enumerate(run.spec.ids)}
        self.state, self.begun = State(None, []), False
        self._collectors = 0
        self._asked = self._done = 0
        """1 after SIGTERM, 2 after SIGKILL: what was asked for, and what the cluster has been told."""
        self._heard = set[str]()
        self._news, self.still, self.readable = asyncio.Event(), asyncio.Event(), asyncio.Event()
        self.still.set()

    def ask(self, number: int) -> None:
        """SIGTERM to all peers, or SIGKILL: a run's peers are ended together."""
        self._asked = max(self._asked, 2 if number == signal.SIGKILL else 1)
        self._news.set()

    def take_up(self, state: State) -> None:
        """A Job that is there."""
        self.state, self._heard = state, {pod.name for pod in state.pods if pod.ended}
        self._begin()

    def _begin(self) -> None:
        self.begun = True
        self.still.clear()
        self._run.say(f"job {self._order.name} in the namespace {self._cluster.namespace} of the cluster")

    @property
    def codes(self) -> Collection[int | None]:
        """Of all peers; None: not ended yet, or nobody knows how."""
        ended = [peer.ended for peer in self.peers.values()]
        return [one.result() if one.done() and not one.exception() else None for one in ended]

    @property
    def all_done(self) -> bool:
        return all(code == 0 for code in self.codes)

    async def run(self) -> None:
        """For as long as the launcher works, as the others below."""
        while True:
            self._news.clear()
            try:
                await self._step()
            except CutError as error:
                self._telling.once(str(error))
            except FailedError as error:
                self._fail(error)
            with suppress(TimeoutError):
                await asyncio.wait_for(self._news.wait(), LOOK if self._asked == self._done else AGAIN)
            await asyncio.sleep(BURST)

    async def follow(self) -> None:
        """Brings the peers' events."""
        while True:
            await self.readable.wait()
            try:
                await self._files.follow()
            except CutError:
                self._news.set()
            except FailedError as error:
                self._fail(error)
            await asyncio.sleep(AGAIN)

    async def watch(self, kind: str) -> None:
        """Wakes the loop when one of this kind changes."""
        while True:
            with suppress(TimeoutError):
                await self._cluster.watch(kind, self._news.set)
            self._news.set()
            await asyncio.sleep(AGAIN)

    async def _step(self) -> None:
        await self._obey()
        self.state = state = await self._cluster.look()
        if self._asked:
            self.still.clear() if state.running else self.still.set()
        else:
            await self._see_to_collector(state.collector)
            await self._see_to_job()
            await self._hear_of_failures([pod for pod in state.pods if pod.failed and pod.name not in self._heard])
            self._telling.pending(state.pods)
        for peer in self.peers.values():
            peer.judge(state, bool(self._asked))

    async def _obey(self) -> None:
        if (asked := self._asked) > self._done:
            await self.log()
            await (self._cluster.stop() if asked == 1 else self._cluster.kill())
            self._done = asked

    async def _see_to_collector(self, pod: Pod | None) -> None:
        if pod and pod.ready:
            return self.readable.set()
        self.readable.clear()
        if pod and not self.begun:
            self._check(pod)
        if pod and pod.ended:
            self._collectors += 1
            await self._cluster.remove_pod(pod.name)
        if pod is None or pod.ended:
            await self._cluster.apply([self._order.collector()])
        return None

    def _check(self, pod: Pod) -> None:
        """FailedError where the pods of the run will not come to run."""
        image = self._order.settings.image
        if pod.unpullable:
            raise FailedError(
                f"the cluster cannot pull the image `{image}` ({pod.pending}); push it to where its nodes can, or name "
                "another with --option image=REGISTRY/NAME:TAG"
            )
        if pod.ended and self._collectors == COLLECTORS:
            raise FailedError(f"the pod {pod.name} {pod.obituary}; is `{image}` an image of deploy/Dockerfile?")

    async def _see_to_job(self) -> None:
        if self.begun and self.state.job is None and not self.all_done:
            raise FailedError(f"somebody has deleted the job {self._order.name}; the same command resumes the run")
        if not self.begun and self.readable.is_set():
            await self._cluster.apply([self._order.job])
            self._begin()
            self._news.set()

    async def _hear_of_failures(self, pods: Sequence[Pod]) -> None:
        """The rest of what these pods said is brought before anybody judges their ends."""
        if pods:
            await self._files.caught_up()
            await self.log(pods)
            for pod in pods:
                self._heard.add(pod.name)
                self._telling.failed(pod)

    async def log(self, pods: Sequence[Pod] = ()) -> None:
        """Brings what these pods have printed, or all; what it cannot have it does without."""
        with suppress(FailedError):
            await log.append(self._cluster, self._run, pods or self.state.pods)

    def _fail(self, error: FailedError) -> None:
        """Ends all; whoever waits raises it."""
        for peer in self.peers.values():
            if not peer.ended.done():
                peer.ended.set_exception(error)
                peer.ended.exception()
        self.ask(signal.SIGKILL)
