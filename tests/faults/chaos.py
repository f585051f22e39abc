"""Random kill -9, pauses, cuts, new certificates and a liar over real federations of ten, then simulated ones.

    python -m tests.faults.chaos --minutes 10 --seed 1

Federation after federation runs until the time is over, the protocols in a drawn order; each must end in the bits of
its undisturbed run. In every one a peer says wrong things of durable rounds, refuses at random, and lies about its
accuracy and its weight (about these in the undisturbed run too: they are part of what is computed). Prints what was
done to them, how soon a dead peer was shown, and how soon the ring moved on. Then federations whose members change
(faults.chaos_views), and the simulated ones, also with liars that hold keys of their own (faults.treason). At last
histories of the state machines alone (tests/views).
"""

import argparse
import json
import logging
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, as_completed, wait
from dataclasses import dataclass, field
from functools import partial
from itertools import cycle
from multiprocessing import get_context
from pathlib import Path
from random import Random
from statistics import median
from typing import Any

from every_protocol import SETTINGS, keys
from real_peers import Nursery, SmallFederation, digests

from faults import TESTS, departures, treason, views
from faults.accidents import Accidents
from faults.chaos_views import ordeals
from faults.gates import Gates
from faults.plans import check, in_peace
from faults.scenarios import HEALING, SCENARIOS
from faults.simulation import Outcome
from launcher.certificates import make_certificates
from launcher.run_files import certificate_files
from peer.protocols.registry import PROTOCOLS
from peer.spec.loading import load_spec

PEERS = 10
LIAR = "peer7"
FIRST_PORT = 21_000
REORDERED = {"fibfl++": {"reorder_every": 5}}
"""More settings of some protocol."""
SLOW = 2.0
"""Seconds within which a death must be shown."""
LONGEST = 300.0
"""Seconds that a federation may take after the last fault."""
HISTORIES = 100_000
"""How many histories of the state machines that decide on views are tried."""
IN_PEACE = 6
"""Simulated runs of each scenario in which nothing happens."""


@dataclass
class Figures:
    """What was done and what came of it."""

    counts: Counter[str] = field(default_factory=Counter)
    detected: list[float] = field(default_factory=list)
    """Seconds from a death to its display by a neighbour that had it as up."""
    moved_on: list[float] = field(default_factory=list)
    """Seconds from a restarted peer's `ready` until it is at work and its neighbours have it as up."""
    back: list[float] = field(default_factory=list)
    """Seconds from the start of a restarted process until it is ready: imports, data, checkpoints, handshakes."""
    slow: list[str] = field(default_factory=list)
    """What explains the slowest."""
    wrong: list[str] = field(default_factory=list)

    def show(self) -> None:
        print(", ".join(f"{count} {what}" for what, count in sorted(self.counts.items())))
        times = {
            "dead peer shown": self.detected,
            "ring moved on after ready": self.moved_on,
            "restarted peer ready": self.back,
        }
        for what, seconds in times.items():
            if seconds:
                ordered = sorted(seconds)
                late = ordered[int(0.99 * (len(ordered) - 1))]
                print(f"{what}: median {median(ordered):.2f} s, 99 % {late:.2f} s, longest {ordered[-1]:.2f} s")
        print(*self.slow, sep="\n")
        print("rounds lost: 0, all bits the same" if not self.wrong else "\n".join(self.wrong))


class Ordeal:
    """One federation, secured by certificates or in plaintext, and what is done to it."""

    def __init__(
        self, directory: Path, protocol: dict[str, Any], rounds: int, nursery: Nursery, random: Random, secured: bool
    ) -> None:
        self.random, self.protocol, self.rounds = random, protocol, rounds
        dialled = [FIRST_PORT + i for i in range(PEERS)]
        listening = [port + 100 for port in dialled]
        self.port = {f"peer{i}": port for i, port in enumerate(dialled)}
        directory.mkdir()
        content = {
            "name": "chaos",
            "rounds": rounds,
            "protocol": protocol,
            "data": {"name": "digits", "limit": 600, "validation": 0.1},
            "patience": 40,
            "ring": [{"id": id, "address": f"127.0.0.1:{port}"} for id, port in self.port.items()],
            **keys(protocol["name"], [*self.port]),
        }
        (directory / "federation.yaml").write_text(json.dumps(content))
        self.federation = SmallFederation(directory, load_spec(directory / "federation.yaml"), nursery)
        self.federation.env[LIAR] = {"LIAR": str(random.random())}
        self.started = time.time()
        self.certs = directory / "certs" if secured else None
        self.renew_certificates()
        for id, port in zip(self.federation.ids, listening, strict=True):
            files = certificate_files(self.certs, id) if self.certs else {}
            tls = {"tls": {name: str(path) for name, path in files.items()}} if files else {}
            self.federation.configure(id, listen=f"127.0.0.1:{port}", **tls)
        self.gates = Gates(dict(zip(dialled, listening, strict=True)))
        self.due: list[tuple[float, Callable[[], object]]] = []
        self.killed: list[tuple[str, float]] = []
        self.away: dict[str, list[tuple[float, float]]] = {}
        """When it was paused or behind a shut gate."""
        self.counts: Counter[str] = Counter()

    def run(self, until: float, every: float) -> bool:
        """Faults about every so many seconds until that time, then peace; whether all peers came to their end."""
        self.federation.start()
        strike, deadline = time.time() + 2.0, until + LONGEST
        while not self.over() and time.time() < deadline:
            self.await_next(min([strike, deadline, *(moment for moment, _ in self.due)]))
            now = time.time()
            for moment, work in [entry for entry in self.due if entry[0] <= now]:
                self.due.remove((moment, work))
                work()
            if strike <= now:
                strike = now + self.random.expovariate(1 / every)
                if now < until and not self.finished():
                    self.strike(now)
        return self.over()

    def await_next(self, moment: float) -> None:
        """Until that time, or until a peer ends."""
        ended = [peer.ended for peer in self.federation.peers.values() if peer.running] or [Future[int]()]
        wait(ended, max(0.0, moment - time.time()), FIRST_COMPLETED)

    def over(self) -> bool:
        return not self.due and all(not peer.running for peer in self.federation.peers.values())

    def finished(self) -> bool:
        """Whether everybody has its result; who dies after that only waits in vain for those who have left."""
        return all((self.federation.directory / id / "result.json").exists() for id in self.federation.ids)

    def strike(self, now: float) -> None:
        ids = self.federation.ids
        victim = self.random.randrange(PEERS)
        # A peer that starts while they are written, for 9 ms, may find files that do not go together, and ends.
        renewal = ["renew"] if self.certs and now - self.started > 3 else []
        what = self.random.choice(["kill", "kill", "kill two", "kill some", "pause", "reset", "shut", *renewal])
        match what:
            case "kill":
                self.kill(now, [ids[victim]])
            case "kill two":
                self.kill(now, [ids[victim], ids[victim - 1]])
            case "kill some":
                self.kill(now, self.random.sample(ids, self.random.randint(2, PEERS)))
            case "pause":
                self.pause(now, ids[victim], self.random.uniform(0.2, 5))
            case "reset":
                self.counts["connections reset"] += self.gates.reset(self.port[ids[victim]]) // 2
            case "shut":
                self.shut(now, ids[victim], self.random.uniform(0.2, 8))
            case "renew":
                self.renew_certificates()
                self.counts["certificates renewed"] += 1

    def kill(self, now: float, victims: list[str]) -> None:
        for id in victims:
            peer = self.federation.peers[id]
            if not peer.running:
                continue
            self.killed.append((id, time.time()))
            peer.signal(signal.SIGKILL)
            peer.wait(10)
            self.counts["kills"] += 1
            self.due.append((now + self.random.uniform(0, 4), lambda id=id: self.restart(id)))

    def restart(self, id: str) -> None:
        self.started = time.time()
        self.federation.start(id)

    def pause(self, now: float, id: str, seconds: float) -> None:
        peer = self.federation.peers[id]
        peer.signal(signal.SIGSTOP)
        self.counts["pauses"] += 1
        self.away.setdefault(id, []).append((now, now + seconds))
        self.due.append((now + seconds, lambda: peer.signal(signal.SIGCONT)))

    def shut(self, now: float, id: str, seconds: float) -> None:
        self.gates.shut(self.port[id])
        self.away.setdefault(id, []).append((now, now + seconds))
        self.counts["links shut"] += 1
        self.due.append((now + seconds, lambda: self.gates.unshut(self.port[id])))

    def renew_certificates(self) -> None:
        """Another CA and others of its certificates in the place of those that the peers use."""
        if self.certs:
            make_certificates(self.federation.spec, self.certs, days=2)

    def measure(self, figures: Figures) -> None:
        """Detection and recovery, from the peers' events."""
        figures.counts += self.counts
        events = {id: self.federation.events(id) for id in self.federation.ids}
        for victim, death in self.killed:
            observers = [id for id in events if id != victim]
            for other in observers if victim != LIAR else ():
                # The liar's false farewells use up the pace at which changes of its links are shown.
                shown = seen(events[other], victim, death, "up", ("down", "suspected"))
                if shown and not (self.was_away(other, death - 5, shown) or self.was_cut(victim, death, shown)):
                    figures.detected.append(shown - death)
                    if shown - death > SLOW:
                        figures.slow += self.explained(other, victim, death, events[other])
            start = first(events[victim], death, "resumed")
            ready = first(events[victim], death, "state", state="ready")
            if not (start and ready) or self.was_away(victim, death + 0.01, ready):
                continue
            figures.back.append(ready - start)
            at_work = [first(events[victim], ready, "state", state=state) for state in ("training", "communicating")]
            again = [
                moment
                for other in observers
                if (moment := seen(events[other], victim, death, "down", ("up",)))
                and not self.was_away(other, death - 5, moment)
            ]
            moments = [moment for moment in (min(filter(None, at_work), default=None), *again) if moment]
            if moments and not self.was_away(victim, death + 0.01, max(moments)):
                figures.moved_on.append(max(0.0, max(moments) - ready))

    def explained(self, other: str, victim: str, death: float, events: list[dict[str, Any]]) -> list[str]:
        """All that bears on a death that was shown late."""
        said = [e for e in events if e.get("neighbour") == victim and abs(e["time"] - death) < 15]
        deaths = [f"{id} at {at:.2f}" for id, at in self.killed if abs(at - death) < 15]
        return [f"{other} showed the death of {victim} at {death:.2f} late; killed: {deaths}", *map(str, said)]

    def was_away(self, id: str, begin: float, end: float) -> bool:
        """Whether that peer was itself dead, paused or cut off, so that it could not look."""
        return any(who == id and begin <= at <= end for who, at in self.killed) or self.was_cut(id, begin, end)

    def was_cut(self, id: str, begin: float, end: float) -> bool:
        return any(start <= end and stop >= begin for start, stop in self.away.get(id, []))

    def close(self) -> None:
        self.federation.end()
        self.gates.close()


def first(events: list[dict[str, Any]], after: float, name: str, **fields: Any) -> float | None:
    """When the first event of that kind came after a moment."""
    found = (e["time"] for e in events if e["time"] > after and e["event"] == name and fields.items() <= e.items())
    return next(found, None)


def seen(events: list[dict[str, Any]], victim: str, death: float, before: str, states: Sequence[str]) -> float | None:
    """When, after a death, a peer's link to the victim went from one state into others for the first time."""
    state = None
    for event in events:
        if event["event"] == "state" and event["state"] == "joining":
            state = None  # the observer itself was started again
        elif event["event"] == "link" and event["neighbour"] == victim:
            if event["time"] >= death and state == before and event["state"] in states:
                return float(event["time"])
            if event["time"] >= death and before == "up":
                return None
            state = event["state"]
    return None


def real(minutes: float, seed: int, every: float, figures: Figures) -> None:
    """Federations of real processes until the time is over."""
    random, nursery = Random(seed), Accidents()
    end = time.time() + 60 * minutes
    expected: dict[str, dict[str, str]] = {}
    try:
        with tempfile.TemporaryDirectory(prefix="chaos-") as place:
            for number, name in enumerate(cycle(random.sample([*PROTOCOLS], len(PROTOCOLS)))):
                if time.time() > end - 20:
                    break
                protocol = {"name": name, **SETTINGS[name], **REORDERED.get(name, {})}
                if protocol["name"] not in expected:
                    expected[protocol["name"]] = quiet(Path(place) / f"quiet{number}", protocol, nursery)
                ordeal = Ordeal(Path(place) / f"chaos{number}", protocol, ROUNDS, nursery, random, number % 2 == 1)
                began = time.time()
                try:
                    finished = ordeal.run(end, every)
                    judge(ordeal, finished, expected[protocol["name"]], figures)
                finally:
                    ordeal.close()
                secured = " with certificates" if ordeal.certs else ""
                print(f"{protocol['name']}{secured}: {time.time() - began:.0f} s, {dict(ordeal.counts)}", flush=True)
    finally:
        nursery.close()


ROUNDS = 30


def quiet(directory: Path, protocol: dict[str, Any], nursery: Nursery) -> dict[str, str]:
    ordeal = Ordeal(directory, protocol, ROUNDS, nursery, Random(0), secured=False)
    try:
        began = time.time()
        ordeal.run(0.0 + began, 1e9)
        print(f"{protocol['name']} undisturbed: {time.time() - began:.0f} s", flush=True)
        return digests(ordeal.federation.results())
    finally:
        ordeal.close()


def judge(ordeal: Ordeal, finished: bool, expected: dict[str, str], figures: Figures) -> None:
    name = ordeal.protocol["name"]
    ordeal.measure(figures)
    figures.counts["federations"] += 1
    codes = {id: peer.wait(1) for id, peer in ordeal.federation.peers.items() if not peer.running}
    if not finished or any(codes.values()):
        figures.wrong.append(f"{name}: not finished\n{ordeal.federation.account()}")
        return
    results = ordeal.federation.results()
    if digests(results) != expected:
        figures.wrong.append(f"{name}: ended in other bits")
    for id, result in results.items():
        if len(result["history"]) != ordeal.rounds:
            figures.wrong.append(f"{name}: {id} has {len(result['history'])} of {ordeal.rounds} rounds")
    figures.counts["rounds"] += ordeal.rounds


def simulated(seeds: int, seed: int, figures: Figures) -> None:
    """Every scenario with so many seeds, shared out among the cores; and in peace, in each kind of network twice."""
    numbers = range(seed * 100_000, seed * 100_000 + seeds)
    peaceful = [(peace, name, number) for name in SCENARIOS for number in range(IN_PEACE if seeds else 0)]
    plans = [(adversity, name, number) for number in numbers for name in SCENARIOS]
    changing = [(departing, name, number) for number in numbers for name in HEALING]
    lying = [(among_liars, name, number) for number in numbers for name in treason.SIGNED]
    runs = [*peaceful, *plans, *changing, *lying]
    quietly = partial(logging.disable, logging.WARNING)
    with ProcessPoolExecutor(mp_context=get_context("spawn"), initializer=quietly) as pool:
        done = as_completed([pool.submit(*run) for run in runs])
        for finished, one in enumerate(done, start=1):
            counts, wrong = one.result()
            figures.counts += counts
            figures.wrong += wrong
            print(*wrong, sep="\n", end="\n" if wrong else "", flush=True)
            if finished % (len(runs) // 20 or 1) == 0:
                print(f"{finished:,} of {len(runs):,} simulations, {len(figures.wrong)} wrong", flush=True)


Judged = tuple[Counter[str], list[str]]
"""What was done in a simulation, and what was wrong, each with the command that repeats it."""


def peace(name: str, number: int) -> Judged:
    wrong = [f"{name!r} in peace, seed {number}: {what}" for what in in_peace(name, number)]
    return Counter({"simulated runs in peace": 1}), wrong


def adversity(name: str, number: int) -> Judged:
    return judged("plans", name, number, *check(name, number))


def departing(name: str, number: int) -> Judged:
    counts, wrong = Counter[str](), list[str]()
    for module, kind in ((views, "views"), (departures, "departures")):
        outcome, found = module.check(name, number)
        more, said = judged(kind, name, number, outcome, found)
        counts += more + Counter({"simulated views": len(outcome.views)})
        wrong += said
    return counts, wrong


def among_liars(name: str, number: int) -> Judged:
    counts, wrong = judged("treason", name, number, *treason.check(name, number))
    return counts + Counter({"simulated runs among liars": 1}), wrong


def judged(module: str, name: str, number: int, outcome: Outcome, wrong: Sequence[str]) -> Judged:
    done = {"simulated runs": 1, "simulated kills": len(outcome.kills), "simulated cuts": outcome.cuts}
    return Counter(done), [f"python -m tests.faults.{module} {name!r} {number}: {what}" for what in wrong]


def histories(many: int, seed: int, figures: Figures) -> None:
    """So many, shared out among the cores."""
    cores = os.cpu_count() or 1
    share, path = -(-many // cores), Path(TESTS) / "views" / "world.py"
    env = os.environ | {"PYTHONPATH": os.pathsep.join((str(path.parents[2]), os.environ.get("PYTHONPATH", "")))}
    begun = [
        subprocess.Popen(
            [sys.executable, str(path), str(seed * 1_000_000 + core * share), str(share)],
            stdout=subprocess.PIPE,
            text=True,
            env=env,
        )
        for core in range(cores if many else 0)
    ]
    for one in begun:
        said, _ = one.communicate()
        figures.wrong += said.splitlines()
        if one.returncode:
            figures.wrong.append(f"{one.args} has ended with {one.returncode}")
        figures.counts["simulated histories"] += share


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--minutes", type=float, default=10, help="of real processes")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--every", type=float, default=2.5, help="seconds between faults, on average")
    parser.add_argument("--bypass", type=float, default=5, help="minutes of federations whose members change")
    parser.add_argument("--seeds", type=int, default=200, help="simulated runs of each scenario")
    parser.add_argument("--histories", type=int, default=HISTORIES, help="of the state machines that decide on views")
    arguments = parser.parse_args()
    figures = Figures()
    path = [*sys.path]
    real(arguments.minutes, arguments.seed, arguments.every, figures)
    figures.wrong += ordeals(arguments.bypass, arguments.seed, figures.counts)
    sys.path[:] = path  # federations leave the places of their own code there, and child processes take it over
    simulated(arguments.seeds, arguments.seed, figures)
    histories(arguments.histories, arguments.seed, figures)
    figures.show()
    return 1 if figures.wrong else 0


if __name__ == "__main__":
    sys.exit(main())
