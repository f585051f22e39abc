"""A whole federation in a simulation: one seed, one weather and one list of deaths determine everything.

Everything above the pipes and below the clock is the real thing: runtime, journal, checkpoints, links, protocols.
"""

import asyncio
import hashlib
import json
import shutil
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from random import Random
from typing import Any
from unittest.mock import patch

import torch
from safetensors.numpy import load_file

from faults import invariants
from faults.clock import Life, OneThread, VirtualLoop, in_life
from faults.conspiracy import Conspiracy
from faults.disk import Disk, delete_a_byte
from faults.liars import Lies
from faults.promises import Promises
from faults.scenarios import PATIENCE, certificates, specification
from faults.wires import Weather, Wires, factory
from launcher.run_files import certificate_files
from launcher.views import Views
from peer.errors import FailedError
from peer.network.limits import Limits
from peer.network.wire.messages import Resources
from peer.runtime.lifecycle import RuntimeLimits
from peer.runtime.membership.membership import Membership
from peer.runtime.membership.proposer import ExcludedError, ExpelledError
from peer.runtime.membership.view_runner import ViewRunner
from peer.runtime.runtime import Runtime
from peer.runtime.setup import prepare
from peer.spec.federation import Spec
from peer.spec.peer import TLS, PeerConfig
from peer.telemetry.events import (
    CallerRefused,
    Conflict,
    Departed,
    EndedUnacknowledged,
    Event,
    ReleaseSeen,
    Returning,
    RoundDone,
)
from peer.telemetry.telemetry import Telemetry
from peer.views.statements import Expel
from peer.views.view import View

FRAME = 24
"""Bytes of a vector in a frame: messages of the tiny model have several."""
TOO_LONG = 900.0
"""Virtual seconds in which every run must have ended."""
TOO_BUSY = 4000
"""Callbacks of one process in one virtual second."""
SLOW = 0.05
"""How often a call of the thread that trains takes seconds."""


@dataclass(frozen=True)
class Kill:
    """`victim` dies at its `count`-th step of a kind, counted over all its lives, and others with it."""

    victim: str
    kind: str
    count: int
    also: tuple[str, ...] = ()
    away: tuple[float, ...] = (1.0,)
    """Seconds until each of them is started again."""
    power: bool = False
    """The machine goes down with it: what was not fsynced is lost."""
    damage: bool = False
    """One byte of the newest checkpoint is gone when it starts again."""
    wipe: bool = False
    """Its directory is empty when it starts again."""


@dataclass(frozen=True)
class Order:
    """Given `moment` virtual seconds after the beginning: `victim` is to leave, or, by those, to be voted out."""

    moment: float
    victim: str
    by: tuple[str, ...] = ()


@dataclass
class Outcome:
    """How a run ended."""

    digests: dict[str, str | None]
    steps: dict[str, Counter[str]]
    kills: list[str] = field(default_factory=list)
    cuts: int = 0
    faults: list[str] = field(default_factory=list)
    """What must not be."""
    seconds: float = 0.0
    """Virtual seconds that the run took."""
    views: list[str] = field(default_factory=list)
    """The decided views, by the member that knows the most."""
    again: "Outcome | None" = None
    """The outcome of the run that replays the views."""
    gone: dict[str, str] = field(default_factory=dict)
    """The members that have left or were expelled."""
    late: dict[str, str] = field(default_factory=dict)
    """Without whom the others may have finished, and what it has said then."""
    over: bool = False
    """More members lied than a view of that size tolerates, or liars kept the run from beginning: then nothing can be
    said about what followed."""
    undecidable: bool = False
    """So many have lost their disks that the others can decide nothing."""
    absent: set[str] = field(default_factory=set)
    """The members that were away, or cut off from another."""


KEPT = Conflict | CallerRefused | EndedUnacknowledged | Returning | Departed | ReleaseSeen


class Quiet(Telemetry):
    """Keeps what must not be, and writes only what the result is made of."""

    def __init__(self, heard: list[Event]) -> None:
        super().__init__()
        self._heard, self.count = heard, 0

    def emit(self, event: Event) -> None:
        self.count += 1
        if isinstance(event, KEPT):
            self._heard.append(event)
        if self._file and isinstance(event, RoundDone):
            self._file.append(json.dumps(event.as_json()))


class Simulation:
    """One run."""

    def __init__(self, spec: Spec, seed: int, kills: list[Kill], weather: Weather, directory: Path) -> None:
        self.spec, self.out = spec, directory
        self.random = Random(seed)
        self.loop = VirtualLoop(Random(seed + 1))
        self.loop.set_exception_handler(self._unhandled)
        self.wires = Wires(self.loop, Random(seed + 2), weather)
        self.wires.lies = {id: Lies(Random(f"{seed} {id}"), self.spec.ids, self.spec.rounds) for id in weather.liars}
        self.disk = Disk()
        self.kills = list(kills)
        self.calm = not (kills or weather.cut or weather.stalls or weather.liars or weather.traitors)
        """Nothing is done to anybody: then nobody may wait in vain at the end."""
        self.steps: dict[str, Counter[str]] = {id: Counter() for id in self.spec.ids}
        self.announced = dict.fromkeys(self.spec.ids, -1)
        self.promises = Promises(directory)
        self.struck = {end for stall in weather.stalls for end in (stall.sender, stall.receiver)}
        """The members that were away, or cut off from another."""
        self.robbed: set[str] = set()
        """The members whose disks were lost for good."""
        self.emptied: dict[str, int] = {}
        """Of these, the members with an empty disk, each with the number of the last view then."""
        self.lives: dict[str, Life] = {}
        self.lived: dict[str, ViewRunner] = {}
        self.all: list[Life] = []
        self.done: set[str] = set()
        self.ended = asyncio.Event()
        self.outcome = Outcome({}, self.steps)
        self.heard: dict[str, list[Event]] = {id: [] for id in self.spec.ids}
        self.began = self.loop.time()
        self.look: Callable[[Simulation], None] = lambda _: None
        """Called each virtual second."""
        self.orders: tuple[Order, ...] = ()
        self.certificates: Path | None = None
        """Where they lie, if members have any."""
        self.honest = [id for id in spec.ids if id not in weather.traitors]
        self.told: dict[str, Quiet] = {}
        """What each has reported since it was last started."""
        self.reached: dict[tuple[str, int], int] = {}
        """The last round that each has begun in each view."""

    @property
    def runtimes(self) -> dict[str, Runtime]:
        """The runtimes of the peers that have one since they were last started; expelled peers have none."""
        return {id: lives.runtime for id, lives in self.lived.items() if lives.runtime}

    @property
    def views(self) -> tuple[View, ...]:
        """All that anybody honest knows of."""
        return max((lives.views for id, lives in self.lived.items() if id in self.honest), key=len)

    @property
    def betrayed(self) -> bool:
        """Whether a view was decided of which more members lie than it can bear."""
        traitors, faulty = {*self.wires.weather.traitors}, self.spec.tolerated(self.certificates is not None)
        return any(len(traitors & {*view.members}) > view.tolerates(faulty) for view in self.views)

    def run(self) -> Outcome:
        asyncio.set_event_loop(self.loop)
        try:
            self.loop.run_until_complete(self._run())
        finally:
            self.kills.clear()
            self.loop.bury(self.all)
            asyncio.set_event_loop(None)
            self.loop.close()
        self.outcome.cuts = self.wires.cut
        self.outcome.seconds = self.loop.time() - self.began
        return self.outcome

    async def _run(self) -> None:
        for id in self.spec.ids:
            self.loop.call_later(self.random.expovariate(2.0), self._start, id)
        for order in self.orders:
            self.loop.call_later(order.moment, self._give, order)
        if self.wires.weather.traitors:
            self.wires.conspiracy = plot = Conspiracy(self, self.random.getrandbits(32))
            self.all += plot.lives
            plot.begin()
            self.loop.call_later(self.wires.weather.treason, self._be_rid_of, plot)
        watching = asyncio.create_task(self._watch())
        try:
            await asyncio.wait_for(self.ended.wait(), TOO_LONG + 5 * self.spec.rounds)
        except TimeoutError:
            states = {
                id: f"{runtime.lifecycle.state} {runtime.peer.round} {runtime.network.durability.first_hand}"
                for id, runtime in self.runtimes.items()
            }
            self._fault(f"not over after {TOO_LONG:.0f} s: {states}")
        watching.cancel()
        self.outcome.absent = {*self.struck}
        for id in self.spec.ids:
            self.outcome.digests[id] = self._ended_in(self.out / id) if id in self.honest else None
        self.outcome.over |= self.kept_from_beginning
        if self.outcome.over:
            return
        if not self.spec.views:
            self.outcome.views = [str(view) for view in self.views]
            self.outcome.undecidable = self.undecidable
            self._judge(invariants.of_views(self))
        if self.spec.on_loss == "bypass":
            self._judge(invariants.of_what_all_hold(self))
            self._judge(invariants.of_token(self))

    def _ended_in(self, directory: Path) -> str | None:
        """The bits of a peer's model; where it keeps the best one, of that too, and after which rounds. None if it has
        no result that counts."""
        if not (directory / "result.json").exists():
            return None
        result = json.loads((directory / "result.json").read_text())
        if not Views(self.spec.ids, result["rounds"], self.views[1:]).counts(result["ring"]):
            return None
        if "best" not in result:
            return str(result["model_sha256"])
        arrays, digest = load_file(directory / "model.best.safetensors"), hashlib.sha256()
        for name in sorted(arrays):
            digest.update(arrays[name].tobytes())
        if digest.hexdigest() != result["best"]["model_sha256"]:
            self._fault(f"{directory.name}'s best model is not the one that its result names")
        return f"{result['model_sha256']} after {result['rounds']} rounds, best {result['best']}"

    def _judge(self, found: Iterable[str]) -> None:
        for what in found:
            self._fault(what)

    def _fault(self, what: str) -> None:
        if len(self.outcome.faults) < 20:
            self.outcome.faults.append(what)

    def _unhandled(self, _loop: Any, context: dict[str, Any]) -> None:
        error = context.get("exception")
        if isinstance(error, Exception) and not self.loop.burying:
            self._fault(f"unhandled: {context['message']}: {error!r}")

    def _be_rid_of(self, plot: Conspiracy) -> None:
        """Its liars are switched off, once the run has begun: without them it would not."""
        gates = [lives._membership and lives._membership.gate for id, lives in self.lived.items() if id in self.honest]
        begun = len(gates) == len(self.honest) and all(gate and gate.has_begun for gate in gates)
        if not begun and self.loop.time() < self.began + PATIENCE:
            self.loop.call_later(1.0, self._be_rid_of, plot)
            return
        plot.end()
        for id in plot.liars:
            if (life := self.lives.get(id)) and not life.dead:
                life.dead = True
                self.wires.gone(life)
            self._is_done(id)

    def _start(self, id: str) -> None:
        if id in self.done:  # a liar that was switched off
            return
        life = Life(id, self._fatal)
        self.lives[id] = life
        self.all.append(life)
        self.loop.create_task(self._live(id, life), context=in_life(life))

    async def _live(self, id: str, life: Life) -> None:
        member = next(member for member in self.spec.ring if member.id == id)
        files = certificate_files(self.certificates, id) if self.certificates else None
        config = PeerConfig(
            federation=self.out / "federation.yaml",
            id=id,
            device="cpu",
            out=self.out / id,
            tls=files and TLS(**files),  # type: ignore[arg-type]
        )
        setup = prepare(config, self.spec)
        transport, telemetry = factory(self.wires, member.address, life), Quiet(self.heard[id])
        self.told[id] = telemetry
        # Only where members change may a call outlive the task that waited for it.
        training = OneThread(Random(f"{id} {self.loop.time()}"), SLOW if self.spec.on_loss == "bypass" else 0.0)
        bounds = RuntimeLimits(limits=Limits(frame=FRAME))
        lives = ViewRunner(setup, transport, training, telemetry, bounds)  # type: ignore[arg-type]
        self.lived[id] = lives
        running = asyncio.create_task(lives.run())
        await asyncio.wait([running])
        error = running.exception() if id in self.honest else None
        if error and self._is_late(id, error):
            self.outcome.late[id] = str(error)
        elif error and not self._is_out(id, error):
            self._fault(f"{id} failed: {error!r}")
        self.loop.call_soon(self._over, id, life, context=in_life(None))

    def _give(self, order: Order) -> None:
        """To whom it concerns, if it lives: what it was told before counts, whatever becomes of it then."""
        for id in order.by or (order.victim,):
            life, lives = self.lives.get(id), self.lived.get(id)
            if life is None or life.dead or lives is None or (membership := lives._membership) is None:
                continue
            if order.by:
                asked = membership.handle(Expel(0, order.victim))
                life.tasks.append(self.loop.create_task(asked, context=in_life(life)))
            else:
                in_life(life).run(lives.leave, lambda: None)

    def _is_out(self, id: str, error: BaseException) -> bool:
        if isinstance(error, ExpelledError):
            self.outcome.gone[id] = "voted out"
            return any(order.by and order.victim == id for order in self.orders)
        return False

    def _is_late(self, id: str, error: BaseException) -> bool:
        """Whether the others may have finished without it."""
        waited = isinstance(error, FailedError) and str(error).startswith("gave up") and self.spec.on_loss == "bypass"
        away = id in self.struck or self.wires.weather.cut > 0 or self.kept_from_beginning
        alone = bool(self.done) or self.kept_from_beginning
        return away and (isinstance(error, ExcludedError) or (waited and alone))

    @property
    def kept_from_beginning(self) -> bool:
        """Whether liars were there, and an honest member has no first checkpoint yet: until then it waits for all, and
        whoever does not come ends its run."""
        begun = all(any((self.out / id / "checkpoint").glob("round-*.json")) for id in self.honest)
        return bool(self.wires.conspiracy) and len(self.views) == 1 and not begun

    def _over(self, id: str, life: Life) -> None:
        """The process has come to its end by itself."""
        life.dead = True
        self.wires.gone(life)
        if any(isinstance(event, Departed) for event in self.heard[id]):
            self.outcome.gone[id] = "left"
        if id in self.honest:
            self._judge(invariants.of_events(self, id))
            self._judge(invariants.of_archive(self, id))
        self._is_done(id)

    def _is_done(self, id: str) -> None:
        self.done.add(id)
        if self.done >= {*self.honest}:
            self.ended.set()

    def _fatal(self, life: Life, kind: str) -> bool:
        """Whether this step is the last one: looks it up in the plan."""
        steps = self.steps[life.id]
        steps[kind] += 1
        for kill in self.kills:
            if (kill.victim, kill.kind) == (life.id, kind) and kill.count <= steps[kind]:
                self.kills.remove(kill)
                victims = [life.id, *(id for id in kill.also if id != life.id)]
                for id, away in zip(victims, [*kill.away, *[1.0] * len(victims)], strict=False):
                    self._kill(id, kill, away)
                return True
        return False

    def _kill(self, id: str, kill: Kill, away: float) -> None:
        life = self.lives.get(id)
        if life is None or life.dead:
            return
        runtime = self.runtimes.get(id)
        state = f"{runtime.lifecycle.state} {runtime.peer.round}" if runtime else "starting"
        life.dead = True
        if runtime:
            self.announced[id] = max(self.announced[id], runtime.network.durability.own)
        self.wires.gone(life)
        self.struck.add(id)
        checkpoints = self.out / id / "checkpoint"
        if kill.power:
            for directory in (checkpoints, self.out / id / "journal", self.out / id):
                self.disk.power_cut(directory, self.random)
        if id in self.honest and (forgotten := self.promises.forgotten(id)):
            self._fault(f"{id} has forgotten {forgotten}")
        damaged = None
        if kill.damage:
            newest = max([int(p.stem.split("-")[1]) for p in checkpoints.glob("round-*.json")], default=-1)
            if newest > self.announced[id]:
                damaged = delete_a_byte(checkpoints, self.random)
        if kill.wipe:
            shutil.rmtree(self.out / id, ignore_errors=True)
            self.promises.given.pop(id, None)
            self.emptied[id] = self.views[-1].number
        if kill.wipe or damaged is not None:
            self.robbed.add(id)
        what = "wiped" if kill.wipe else "power cut" if kill.power else "killed"
        self.outcome.kills.append(f"{id} {what} at {kill.kind} ({state}), damaged {damaged}, away {away:.2f} s")
        self.loop.call_later(away, self._start, id, context=in_life(None))

    @property
    def undecidable(self) -> bool:
        """Whether so many members of the last view have lost what they promised that the others cannot leave them out:
        they wait, as they must."""
        view, faulty = self.views[-1], self.spec.tolerated(self.certificates is not None)
        again = {(id, one.number) for one in self.views for id, _ in one.entrants}
        lost = {id for id, at in self.emptied.items() if not any(who == id and when > at for who, when in again)}
        return not view.is_quorum({*view.members} - lost, faulty)

    async def _watch(self) -> None:
        """Looks, each second, whether anything grows or runs in circles."""
        before: dict[str, int] = {}
        while True:
            await asyncio.sleep(1)
            self.look(self)
            for id, runtime in self.runtimes.items():
                self.announced[id] = max(self.announced[id], runtime.network.durability.own)
            if self.wires.conspiracy and self.betrayed:
                self.outcome.over = True
                self.ended.set()
                return
            for id, runtime in self.runtimes.items():
                if id not in self.honest:
                    continue
                self._judge(invariants.of_stores(self, id, runtime))
                self._judge(invariants.of_words(self, id, runtime))
                if self.wires.conspiracy:
                    self._judge(invariants.of_memory(self, id))
                    self._judge(invariants.of_going_back(self, id, runtime))
                busy = self.steps[id]["callback"]
                if busy - before.get(id, 0) > TOO_BUSY:
                    self._fault(f"{id} ran {busy - before.get(id, 0)} callbacks in a second")
                before[id] = busy


def simulate(
    name: str,
    seed: int,
    kills: list[Kill],
    weather: Weather | None = None,
    look: Callable[[Simulation], None] = lambda _: None,
    again: list[Kill] | None = None,
    orders: tuple[Order, ...] = (),
) -> Outcome:
    """One run; the same arguments give the same run. `look` is shown the simulation each virtual second. again: what
    happens while its views are replayed; None: they are not."""
    torch.set_num_threads(1)
    place = Path("/dev/shm") if Path("/dev/shm").is_dir() else None
    directory = Path(tempfile.mkdtemp(prefix="simulated-", dir=place))
    resources = Resources(cpus=1, samples=1)
    try:
        with patch("peer.runtime.connection.measure", lambda *_: resources):
            spec = specification(name)
            simulation = Simulation(spec, seed, kills, weather or Weather(), directory)
            simulation.look, simulation.orders, simulation.certificates = look, orders, certificates(name)
            simulation.wires.secured = simulation.certificates is not None
            # Seconds are written into checkpoints: with the real ones, no two of them would have the same bytes.
            # And the dead go on holding their directories, as this process lives; the estimate of what a run needs of
            # the disk is the same at each start.
            with (
                simulation.disk.under(),
                patch("time.perf_counter", simulation.loop.time),
                patch("peer.runtime.run_directory.sole_use", nullcontext),
                patch("peer.runtime.setup.check_room", lambda *_: (0, 0)),
                patch.object(Membership, "handle", simulation.promises.heeded(Membership.handle)),
            ):
                outcome = simulation.run()
                if again is not None:
                    replayed = spec.model_copy(update={"views": "replay", "recording": directory})
                    repetition = Simulation(replayed, seed + 3, again, Weather(), directory / "again")
                    repetition.disk, repetition.certificates = simulation.disk, simulation.certificates
                    outcome.again = repetition.run()
                return outcome
    finally:
        shutil.rmtree(directory)


@cache
def undisturbed(name: str) -> Outcome:
    """The run in which nothing goes wrong."""
    outcome = simulate(name, 0, [])
    assert not outcome.faults, (name, outcome.faults)
    return outcome
