"""Keeps the peers of a run alive: starts them, restarts those that crash, shows what they do, and ends them all.

    supervise       all of it, of one run: what `dfl-launch run` does between its checks and its summary
    Supervisor      runs every peer to its end
    RestartPolicy   how often, and after how long; LossTolerance: without which peers the others can go on
    Stop            Ctrl-C, SIGTERM or a closed terminal

- A crash is followed by another start, a decision is not: wrong input, certificates that are not valid now, a stop, or
  a peer that says itself that it cannot go on. Wrong input after a restart or a completed round counts as a crash: its
  cause may be an address that was taken for a moment.
- Two peers whose data differ wait until somebody corrects one of them. Here both have what one person gave them, so
  that counts as wrong input. No peer could decide this: a single mistaken or hostile neighbour would end it.
- Wrong input ends the run, but not before the others have looked at theirs: a person corrects all of it at once.
- A run bears the losses that its peers go on without, and no others.
- A person who stops the launcher ends the peers, or detaches from them where they outlive it; a second time, they are
  killed at once. While the place is prepared or files are fetched, the next signal ends that.
- A display that breaks ends the peers: they must not go on unseen.
"""

import asyncio
import signal
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import AsyncExitStack, closing, contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple, Self

from rich.console import Console

from launcher.engines.base import Deployment, Engine, Process, Run
from launcher.monitor.federation import BEFORE_ROUNDS, Federation, last_lines
from launcher.monitor.live_table import Display, display
from launcher.reports.summary import TimeSpent
from peer.errors import FailedError
from peer.process import REFUSED, STOPPED, STOPS, WRONG_INPUT, exit_words, heard_stops
from peer.spec.blocks import describe_behaviours
from peer.spec.federation import Spec
from peer.tasks import background, in_thread, unless
from peer.telemetry.events import Misbehaving
from peer.text import printable
from peer.topology import receivers
from peer.views.view import View


class Stop:
    """Ctrl-C, SIGTERM or a closed terminal; a second one forces.

    peers_outlive_launcher: then a closed terminal detaches from them.
    """

    def __init__(self, peers_outlive_launcher: bool = False) -> None:
        self.asked, self.forced = asyncio.Event(), asyncio.Event()
        self.code = 0
        self.detach = False
        """Whether the peers are to go on."""
        self._peers_outlive_launcher = peers_outlive_launcher

    def ask(self, number: signal.Signals) -> None:
        if self.asked.is_set():
            self.forced.set()
        elif number == signal.SIGHUP:
            self.detach = self._peers_outlive_launcher
        self.code = self.code or STOPS[number]
        self.asked.set()

    @contextmanager
    def listening(self) -> Iterator[Self]:
        loop, heard = asyncio.get_running_loop(), heard_stops()
        for number in heard:
            loop.add_signal_handler(number, self.ask, number)
        try:
            yield self
        finally:
            for number in heard:
                loop.remove_signal_handler(number)


@dataclass(frozen=True)
class RestartPolicy:
    """How often a peer is started again, and how long it may take to end. All but `limit` are seconds."""

    limit: int = 5
    """Restarts in a row."""
    first_delay: float = 0.5
    """Seconds before the first restart in a row; each waits twice as long as the one before."""
    stable_after: float = 60.0
    """A peer that has run for so long does not crash because it was started: a new row begins."""
    grace: float = 20.0
    """Seconds between the first signal and SIGKILL, in which a peer writes its checkpoint."""
    stop_signal: signal.Signals = signal.SIGTERM
    """The first signal that a peer gets to stop."""

    @classmethod
    def from_spec(cls, spec: Spec, limit: int) -> Self:
        """The policy for a spec. At the end all peers are to stop, and none is to leave the others."""
        return cls(limit=limit, stop_signal=signal.SIGINT if spec.on_stop == "leave" else signal.SIGTERM)


@dataclass
class Restarts:
    """The restarts of one peer: so many in a row, and in all. A row ends, too, with a round that is completed."""

    policy: RestartPolicy = RestartPolicy()
    total: int = field(default=0, init=False)
    in_row: int = field(default=0, init=False)
    _started: float = field(default=0.0, init=False)
    _round: int = field(default=0, init=False)

    def started(self, round: int, now: float) -> None:
        """The peer was started at `now` (seconds), when it had completed `round` rounds."""
        self._started, self._round = now, round

    def refused(self, code: int, round: int) -> bool:
        """Whether this is wrong input: the peer has neither crashed nor completed a round in this launch."""
        return code in REFUSED and not self.total and round <= self._round

    def delay(self, code: int, failed: bool, round: int, now: float) -> float | None:
        """Seconds to wait before starting the peer again; None if it is not to be started.

        failed: the peer itself said that it cannot go on (a diverged model, a neighbour that never came).
        """
        if code == 0 or self.refused(code, round) or code in STOPPED or failed:
            return None
        if round > self._round or now - self._started >= self.policy.stable_after:
            self.in_row = 0
        if self.in_row == self.policy.limit:
            return None
        self.in_row += 1
        self.total += 1
        return float(self.policy.first_delay * 2 ** (self.in_row - 1))


@dataclass(frozen=True)
class LossTolerance:
    """at_least: members that every view has; None where every peer is needed. faulty: f, how many may lie."""

    at_least: int | None = None
    faulty: int = 0

    @classmethod
    def from_spec(cls, spec: Spec, certificates: bool) -> Self:
        if spec.on_loss != "bypass":
            return cls()
        return cls(spec.protocol.least_members(len(spec.ids)), spec.tolerated(certificates))

    def allows(self, failed: Collection[str], view: View) -> bool:
        """Whether the view's other members can decide to go on without these, and are enough."""
        if self.at_least is None:
            return not failed
        left = [id for id in view.members if id not in failed]
        return len(left) >= self.at_least and view.is_quorum(left, self.faulty)


LOG_LINES = 15


@dataclass
class Supervisor:
    """Runs every peer of a federation to its end.

    codes: the exit code of each peer that will not be started again.
    refused: the peers whose input is wrong.
    """

    run: Run
    federation: Federation
    policy: RestartPolicy = field(default_factory=RestartPolicy)
    tolerance: LossTolerance = field(default_factory=LossTolerance)
    codes: dict[str, int] = field(default_factory=dict, init=False)
    restarts: int = field(default=0, init=False)
    refused: set[str] = field(default_factory=set, init=False)
    _deployment: Deployment = field(init=False)
    _failures: list[str] = field(default_factory=list, init=False)
    _running: dict[str, Process] = field(default_factory=dict, init=False)
    _wrong_since: float = field(default=0.0, init=False)
    _before: dict[str, int] = field(init=False)
    """The rounds that each peer had completed before this launch."""

    def __post_init__(self) -> None:
        self._before = {id: view.completed for id, view in self.federation.peers.items()}

    def _has_played(self, id: str) -> bool:
        """Whether a peer has sent in this launch, whatever its host says: no receiver completes a round without it."""
        spec, peers = self.run.spec, self.federation.peers
        return any(peers[to].completed > self._before[to] for to in receivers(spec.protocol.graph, spec.ids, id))

    async def until_end(self, deployment: Deployment, ids: Sequence[str], stop: Stop) -> None:
        """Return when no peer runs any more, or when they are to go on without the launcher.

        That is when all have ended, so many have failed for good that the others cannot finish, or have finished
        without them, or a stop is requested.
        """
        self._deployment = deployment
        try:
            async with background() as tasks:
                stopping = tasks.create_task(stop.asked.wait())
                keepers = {tasks.create_task(self._keep(id), name=id) for id in ids}
                while keepers and not self._over() and not stopping.done():
                    awaited = {*keepers, stopping}
                    _, left = await asyncio.wait(awaited, timeout=POLL_SECONDS, return_when=asyncio.FIRST_COMPLETED)
                    keepers &= left
                    self._take_refusals()
        finally:
            if not stop.detach:
                await self._end(stop.forced)

    def _over(self) -> bool:
        """Whether there is nothing left to wait for: too few are left, or the members of the view have finished."""
        return self.finished or not (self._goes_on() or self._others_look())

    @property
    def finished(self) -> bool:
        """Whether all members of the last round have finished."""
        finishers = self.federation.views.finishers
        return bool(finishers) and all(self.codes.get(id) == 0 for id in finishers)

    def _goes_on(self) -> bool:
        """Whether the others can finish without those that have failed for good.

        Wrong input before anything was played is no such loss, nor are certificates that are not valid then: they have
        to be corrected.
        """
        failed = [id for id, code in self.codes.items() if code != 0 and code not in STOPPED]
        return not self.refused and self.tolerance.allows(failed, self.federation.view)

    def _others_look(self) -> bool:
        """Whether something is wrong already, and others still look at their data or have not met their neighbours."""
        self._wrong_since = self._wrong_since or time.monotonic()
        left = [view for id, view in self.federation.peers.items() if id not in self.codes]
        look = any(view.state in BEFORE_ROUNDS and not view.waits for view in left)
        return look and time.monotonic() < self._wrong_since + LOOK_SECONDS

    @property
    def failed(self) -> bool:
        """Whether a peer has ended with anything but success or a stop."""
        return any(code not in (0, *STOPPED) for code in self.codes.values())

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
            process = await self._deployment.start(id)
            self._running[id] = process
            code = await process.wait()
            del self._running[id]
            self.restarts += process.restarts
            for line in self.federation.look_at(id):
                self.run.say(line)
            delay = restarts.delay(code, view.failure is not None, view.completed, time.monotonic())
            if delay is None:
                if restarts.refused(code, view.completed) and not self._has_played(id):
                    self.refused.add(id)
                self._ended(id, code)
                return
            view.end("restarting")
            view.restarts = restarts.total
            self.restarts += 1
            self._tell_end(id, code, f"{id}: restarting in {delay:g} s")
            await asyncio.sleep(delay)

    def _ended(self, id: str, code: int) -> None:
        self.codes[id] = code
        view = self.federation.peers[id]
        if code == 0:
            view.end("left" if view.state == "left" else "done")
        elif code in STOPPED:
            view.end("stopped")
            self.run.say(f"{id} stopped; {self._deployment.way_on(id)}")
        else:
            view.end("failed")
            so = "; the others continue without it" if self._goes_on() else "; stopping the run"
            self._tell_end(id, code, f"{id} will not be restarted{so}")
            last = (view.failure or " ".join(last_lines(self.run.files.log(id), 1))).removeprefix("dfl-peer: ")
            ended = id if code == WRONG_INPUT else f"{id} {exit_words(code)}"
            self._failures.append(f"{ended}: {last}" if last else f"{id} {exit_words(code)}")

    def _tell_end(self, id: str, code: int, then: str) -> None:
        ended, log = f"{id} {exit_words(code)}", self.run.files.log(id)
        last = "".join(f"\n    {line}" for line in last_lines(log, LOG_LINES))
        refused = id in self.refused and not self.restarts  # then nothing is left of a run that has just begun
        where = "last log lines" if refused else f"last lines of {log}"
        self.run.say(f"{ended}; {where}:{last or ' (empty)'}\n{then}")
        self.federation.recent.extend((ended, then))

    def _take_refusals(self) -> None:
        """Count peers whose data differ from a neighbour's as ones that have ended with wrong input."""
        found = [(id, other) for id, other in self.federation.refusals if id not in self.codes]
        if not found or self._others_look():
            return
        for id, other in found:
            said = other.reason.removeprefix("refused: ").partition(" (before that")[0]
            named = said.replace("its data has", f"the data of {other.id} has")
            named = named.replace("this peer's data", f"that of {id}").replace("this peer's", f"that of {id}")
            why = printable(named.replace("the other's", f"that of {other.id}"))
            self.codes[id] = WRONG_INPUT
            self.refused.add(id)
            self.run.say(f"{why}; stopping the run")
            self._failures.append(why)

    async def _end(self, forced: asyncio.Event) -> None:
        """End all that still run: ask them to, and send SIGKILL after the grace, or at once if forced."""
        self.federation.ending = True
        for process in self._running.values():
            process.signal(self.policy.stop_signal)
        async with background() as tasks:
            everyone = tasks.create_task(self._everyone())
            hurried = tasks.create_task(forced.wait())
            await asyncio.wait((everyone, hurried), timeout=self.policy.grace, return_when=asyncio.FIRST_COMPLETED)
            for process in self._running.values():
                process.signal(signal.SIGKILL)  # reaches only those that have not ended
            await self._deployment.stop_all()
            # An unreachable place reports no end: that has been said, and is not waited for without a limit.
            await asyncio.wait((everyone,), timeout=self.policy.grace)

    async def _everyone(self) -> None:
        """Wait for all that still run; a lost fork server has been reported by the keepers."""
        for id, process in self._running.items():
            with suppress(FailedError):
                code = await process.wait()
                self.codes.setdefault(id, code)


POLL_SECONDS = 0.25
"""Seconds between two looks at the peers' files."""
LOOK_SECONDS = 5.0
"""Seconds after one peer's wrong input for which the others may still look at theirs."""
SAVE_SECONDS = 2.0
"""Seconds of a launch that are forgotten at most when it is killed."""


class Supervised(NamedTuple):
    """How the supervision of a run ended."""

    peers: Supervisor
    stop: Stop
    refused: bool
    """Whether a peer found wrong input before anything else had happened: nothing is to be left of the run."""
    spent: TimeSpent
    """The time spent, earlier launches included; the caller saves it, unless nothing is to be left."""


async def supervise(engine: Engine[Any], run: Run, federation: Federation, console: Console) -> Supervised:
    """Start the peers, or take up those that run, and watch over them to the end.

    federation: one that has heard of the past already.
    """
    begun, spec, saved = time.monotonic(), run.spec, run.files.totals
    view, earlier = federation.view, TimeSpent.read(saved)
    stop = Stop(engine.outlives_launcher)
    with closing(federation), stop.listening(), display(console) as screen:
        for drift in spec.data.drift:
            screen.say(f"the data drift: {drift}")
        if spec.behaviour:
            screen.say(str(Misbehaving(peers=describe_behaviours(spec.behaviour))))
        run = replace(run, say=screen.say)
        policy = RestartPolicy.from_spec(spec, limit=0 if engine.restarts_peers else RestartPolicy.limit)
        tolerance = LossTolerance.from_spec(spec, run.certs is not None)
        supervisor = Supervisor(run, federation, policy, tolerance)

        def spent() -> TimeSpent:
            return earlier.plus(time.monotonic() - begun, supervisor.restarts)

        async with AsyncExitStack() as place:
            if deployment := await unless(stop.asked, place.enter_async_context(engine.deploy(run))):
                async with background() as tasks:
                    tasks.create_task(watch(federation, screen))
                    tasks.create_task(keep(spent, saved))
                    await supervisor.until_end(deployment, spec.ids, stop)
            else:
                stop.detach = False
                screen.say("no peer was started; any that ran before go on")
            stopped = stop.asked.is_set()  # Ctrl-C while files are collected comes too late to stop a run
            if deployment and not stop.detach:
                await unless(stop.forced if stopped else stop.asked, deployment.collect())
        show(federation, screen)
    played = supervisor.restarts > 0 or federation.view != view
    return Supervised(supervisor, stop, bool(supervisor.refused) and not (played or stopped), spent())


async def watch(federation: Federation, screen: Display) -> None:
    while True:
        show(federation, screen)
        await asyncio.sleep(POLL_SECONDS)


def show(federation: Federation, screen: Display) -> None:
    for line in federation.look(time.time()):
        screen.say(line)
    screen.show(federation)
    for line in federation.take_early_end():
        screen.say(line)


async def keep(spent: Callable[[], TimeSpent], path: Path) -> None:
    """Save it every few seconds, for a launcher that is killed at some time."""
    while True:
        await asyncio.sleep(SAVE_SECONDS)
        with suppress(OSError, FailedError):  # on a full disk the peers go on, and so does their supervision
            await in_thread(spent().write, path)
