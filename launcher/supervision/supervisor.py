"""Keeps the peers of a run alive: starts them, notices who dies, starts crashed ones again, ends them all."""

import asyncio
import signal
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from launcher.engines.base import Deployment, Process
from launcher.monitor.federation_view import Federation
from launcher.monitor.tail import last_lines
from launcher.run_files import RunFiles
from launcher.supervision.losses import Bearable
from launcher.supervision.restart import STOPPED, WRONG_INPUT, Policy, Restarts
from launcher.supervision.stop import Stop
from peer.errors import FailedError
from peer.tasks import background

LOG_LINES = 15


@dataclass
class Supervisor:
    """Runs every peer of a federation to its end.

    say: told, in one line or several, what a person should know at once.
    codes: the exit code of each peer that will not be started again.
    """

    deployment: Deployment
    files: RunFiles
    federation: Federation
    say: Callable[[str], None]
    policy: Policy = field(default_factory=Policy)
    bearable: Bearable = field(default_factory=Bearable)
    codes: dict[str, int] = field(default_factory=dict, init=False)
    restarts: int = field(default=0, init=False)
    _failures: list[str] = field(default_factory=list, init=False)
    _running: dict[str, Process] = field(default_factory=dict, init=False)

    async def run(self, ids: Sequence[str], stop: Stop) -> None:
        """Returns when no peer runs any more, or when they are to go on without the launcher.

        That is when all have ended, so many have failed for good that the others cannot finish, or have finished
        without them, or somebody asks it to stop.
        """
        try:
            async with background() as tasks:
                stopping = tasks.create_task(stop.asked.wait())
                keepers = {tasks.create_task(self._keep(id), name=id) for id in ids}
                while keepers and not self._over() and not stopping.done():
                    done, _ = await asyncio.wait({*keepers, stopping}, return_when=asyncio.FIRST_COMPLETED)
                    keepers = {keeper for keeper in keepers if keeper not in done}
        finally:
            if not stop.leaves:
                await self._end(stop.hurry)

    def _over(self) -> bool:
        """Whether there is nothing left to wait for: too few are left, or the members of the view have finished."""
        return self.finished or not self._goes_on()

    @property
    def finished(self) -> bool:
        """Whether all have who take part in the last round."""
        return all(self.codes.get(id) == 0 for id in self.federation.views.finishers)

    def _goes_on(self) -> bool:
        """Whether the others can finish without those that have failed for good.

        Wrong input is none of the losses that happen: somebody has to correct it.
        """
        failed = [id for id, code in self.codes.items() if code != 0 and code not in STOPPED]
        wrong = any(self.codes[id] == WRONG_INPUT and not self.federation.peers[id].restarts for id in failed)
        return not wrong and self.bearable.without(failed, self.federation.view)

    @property
    def why(self) -> str:
        """Why peers have failed for good, in one sentence."""
        return "; ".join(self._failures)

    async def _keep(self, id: str) -> None:
        """One peer, from its first start to the end that is not followed by another."""
        view, restarts = self.federation.peers[id], Restarts(self.policy)
        while True:
            view.start()
            restarts.started(view.completed, time.monotonic())
            process = await self.deployment.start(id)
            self._running[id] = process
            code = await process.wait()
            del self._running[id]
            self.restarts += process.restarts
            for line in self.federation.look_at(id):
                self.say(line)
            delay = restarts.delay(code, view.failure is not None, view.completed, time.monotonic())
            if delay is None:
                self._ended(id, code)
                return
            view.end("restarting")
            view.restarts = restarts.total
            self.restarts += 1
            self.say(f"{self._obituary(id, code)}\n{id} starts again in {delay:g} s")
            await asyncio.sleep(delay)

    def _ended(self, id: str, code: int) -> None:
        self.codes[id] = code
        view = self.federation.peers[id]
        if code == 0:
            view.end("left" if view.state == "left" else "done")
        elif code in STOPPED:
            view.end("stopped")
            self.say(f"{id} was stopped; to go on: dfl-peer --config {self.files.config(id)}")
        else:
            view.end("failed")
            so = "; the others go on without it" if self._goes_on() else ", so the run ends"
            self.say(f"{self._obituary(id, code)}\n{id} is not started again{so}")
            last = view.failure or " ".join(last_lines(self.files.log(id), 1))
            self._failures.append(f"{id} {end(code)}" + (f": {last}" if last else ""))

    def _obituary(self, id: str, code: int) -> str:
        last = "".join(f"\n    {line}" for line in last_lines(self.files.log(id), LOG_LINES))
        refused = code == WRONG_INPUT and not self.restarts  # then nothing is left of a run that has just begun
        where = "its last words" if refused else f"the end of {self.files.log(id)}"
        return f"{id} {end(code)}; {where}:{last or ' (empty)'}"

    async def _end(self, hurry: asyncio.Event) -> None:
        """Ends whoever still runs: asks them to, and after the grace or in a hurry SIGKILL."""
        self.federation.ending = True
        for process in self._running.values():
            process.signal(self.policy.asks_by)
        async with asyncio.TaskGroup() as tasks:
            everyone = tasks.create_task(self._everyone())
            hurried = tasks.create_task(hurry.wait())
            await asyncio.wait((everyone, hurried), timeout=self.policy.grace, return_when=asyncio.FIRST_COMPLETED)
            hurried.cancel()
            for process in self._running.values():
                process.signal(signal.SIGKILL)  # reaches only those that have not ended
            await self.deployment.end()
            # Of a place that cannot be reached no end is heard: that has been said, and nobody waits for it for ever.
            await asyncio.wait((everyone,), timeout=self.policy.grace)
            everyone.cancel()

    async def _everyone(self) -> None:
        """Waits for all that still run; a lost fork server has been reported by the keepers."""
        for id, process in self._running.items():
            with suppress(FailedError):
                self.codes[id] = await process.wait()


def end(code: int) -> str:
    """What became of a process, by its exit code."""
    return f"was killed by {signal_name(-code)}" if code < 0 else f"ended with exit code {code}"


def signal_name(number: int) -> str:
    """Such as SIGKILL; real-time signals have numbers only."""
    return signal.Signals(number).name if number in [*signal.Signals] else f"signal {number}"
