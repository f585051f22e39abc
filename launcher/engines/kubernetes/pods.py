"""A peer as the pods that the Job makes for it, one after the other."""

import asyncio
import signal
from collections.abc import Callable
from pathlib import Path

from launcher.engines.base import Process
from launcher.engines.kubernetes.state import Pod, State
from launcher.engines.last_event import last_event
from peer.telemetry.events import Failed
from peer.telemetry.results import EVENTS


class PeerPods(Process):
    """index: its place in the ring. ask: told of signals."""

    def __init__(self, index: int, out: Path, ask: Callable[[int], None]) -> None:
        self.index, self._out, self._ask = index, out, ask
        self._pods = 0
        self.ended: asyncio.Future[int] = asyncio.get_running_loop().create_future()

    @property
    def restarts(self) -> int:
        return max(0, self._pods - 1)

    async def wait(self) -> int:
        return await asyncio.shield(self.ended)

    def signal(self, number: int) -> None:
        if not self.ended.done():
            self._ask(number)

    def judge(self, state: State, stopping: bool) -> None:
        """Ends with the exit code, once the cluster or the peer itself has decided that there will be no other pod."""
        pods = state.of_peer(self.index)
        self._pods = max(self._pods, len(pods))
        last = pods[-1] if pods else None
        if not self.ended.done() and (code := self._code(state, last, stopping)) is not None:
            self.ended.set_result(code)

    def _code(self, state: State, last: Pod | None, stopping: bool) -> int | None:
        job = state.job
        if (job and self.index in job.completed) or (last and last.phase == "Succeeded"):
            return 0
        if last and not last.ended:
            return None
        seen = last.code if last else None
        final = stopping or (job is not None and (bool(job.over) or self.index in job.failed))
        if seen and (final or self._gives_up()):
            return seen
        return (-signal.SIGTERM if stopping or not last else -signal.SIGKILL) if final else None

    def _gives_up(self) -> bool:
        """Whether the peer itself has said that it cannot go on."""
        return isinstance(last_event(self._out / EVENTS), Failed)
