"""Random losses over real federations whose members change: deaths and pauses for longer than `absence`, and returns.

    python -m tests.faults.chaos_views --minutes 5 --seed 1

`make chaos` does it, too. In each federation of ten one peer at most dies for good, now and then one comes back without
its directory, several are away at once. At the end all who are alive must be members, know the same views, and have
played every round as these say (healing.judge).
"""

import argparse
import json
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

from healing import ABSENCE, chain, healing, hurry, judge
from real_peers import Nursery, SmallFederation

from faults.accidents import Accidents
from launcher.certificates import make_certificates
from launcher.run_files import certificate_files
from peer.spec.loading import load_spec
from peer.views.view import View

PEERS, ROUNDS = 10, 250
FIRST_PORT = 21_500
STRIKES = 40.0
"""Seconds of a federation in which peers are struck."""
PATIENCE = 120.0
"""Seconds after the last return until all are members, and until all have finished."""


class Ordeal:
    """One federation and what is done to it."""

    def __init__(self, directory: Path, nursery: Nursery, random: Random, secured: bool) -> None:
        self.random, self.counts = random, Counter[str]()
        addresses = [f"127.0.0.1:{FIRST_PORT + i}" for i in range(PEERS)]

        def build(protocol: dict[str, Any], peers: int, **spec: Any) -> SmallFederation:
            ring = [{"id": f"peer{i}", "address": address} for i, address in enumerate(addresses[:peers])]
            content = {"name": "chaos", "protocol": protocol, "patience": 60, "ring": ring, **spec}
            directory.mkdir()
            (directory / "federation.yaml").write_text(json.dumps(content))
            return SmallFederation(directory, load_spec(directory / "federation.yaml"), nursery)

        self.federation = healing(build, PEERS, rounds=ROUNDS)
        if secured:
            make_certificates(self.federation.spec, directory / "certs", days=2)
        for id in self.federation.ids:
            files = certificate_files(directory / "certs", id) if secured else {}
            tls = {"tls": {name: str(path) for name, path in files.items()}} if files else {}
            self.federation.configure(id, **tls)
        self.due: list[tuple[float, Callable[[], None]]] = []
        self.away: set[str] = set()
        self.gone: set[str] = set()
        """Dead for good."""
        self.wiped: set[str] = set()

    @property
    def alive(self) -> list[str]:
        return [id for id in self.federation.ids if id not in self.away]

    def run(self) -> tuple[View, ...]:
        """AssertionError says what is wrong with its end."""
        self.federation.start()
        began = time.time()
        while time.time() < began + STRIKES or self.due:
            time.sleep(self.random.expovariate(1 / 2))  # from one strike to the next; nothing is awaited
            if time.time() < began + STRIKES:
                self.strike()
            for moment, work in [entry for entry in self.due if entry[0] <= time.time()]:
                self.due.remove((moment, work))
                work()
        self.await_members()
        hurry(self.federation)
        codes = self.federation.wait(PATIENCE)
        assert not any(codes.values()), codes
        return judge(self.federation, self.alive, sorted(self.wiped))

    def strike(self) -> None:
        victims = self.random.sample(self.alive, min(len(self.alive), self.random.choice([1, 1, 1, 2, 3])))
        seconds = self.random.choice([0.3, 1, 3, 5]) * ABSENCE * self.random.random()
        if len(self.alive) - len(victims) < 2:
            return
        if self.random.random() < 0.3:
            self.pause(victims, seconds)
        else:
            self.kill(victims, seconds)

    def kill(self, victims: list[str], seconds: float) -> None:
        for id in victims:
            self.federation.peers[id].signal(signal.SIGKILL)
        for id in victims:
            self.federation.peers.pop(id).wait(10)
            self.away.add(id)
            self.counts["kills"] += 1
            if not self.gone and self.random.random() < 0.1:
                self.gone.add(id)
                self.counts["dead for good"] += 1
            else:
                wipe = seconds > 2 * ABSENCE and self.random.random() < 0.3
                self.due.append((time.time() + seconds, lambda id=id, wipe=wipe: self.restart(id, wipe)))

    def restart(self, id: str, wipe: bool) -> None:
        """Without its directory only where the others have gone on without it."""
        if wipe and all(id not in self.known(other)[-1].members for other in self.alive):
            shutil.rmtree(self.federation.directory / id)
            self.wiped.add(id)
            self.counts["directories wiped"] += 1
        self.away.discard(id)
        self.federation.start(id)

    def pause(self, victims: list[str], seconds: float) -> None:
        for id in victims:
            self.federation.peers[id].signal(signal.SIGSTOP)
            self.away.add(id)
            self.counts["pauses"] += 1
            self.due.append((time.time() + seconds, lambda id=id: self.wake(id)))

    def wake(self, id: str) -> None:
        self.away.discard(id)
        self.federation.peers[id].signal(signal.SIGCONT)

    def await_members(self) -> None:
        """Until all who are alive are members, and nobody else is."""
        deadline = time.time() + PATIENCE
        while any({*self.known(id)[-1].members} != {*self.alive} for id in self.alive):
            assert time.time() < deadline, f"members after {PATIENCE:g} s: {[self.known(id)[-1] for id in self.alive]}"
            ended = [id for id, peer in self.federation.peers.items() if not peer.running]
            assert not ended, f"ended too soon: {ended}"
            time.sleep(0.5)  # files of other processes tell nobody that they have changed

    def known(self, id: str) -> tuple[View, ...]:
        return chain(self.federation, id)


def ordeals(minutes: float, seed: int, counts: Counter[str]) -> list[str]:
    """Federations until the time is over, every second one with certificates; what was wrong."""
    random, nursery, wrong = Random(seed), Accidents(), list[str]()
    end, number = time.time() + 60 * minutes, 0
    try:
        while time.time() < end:
            place = Path(tempfile.mkdtemp(prefix="chaos-"))
            ordeal, began = Ordeal(place / "federation", nursery, random, number % 2 == 1), time.time()
            number += 1
            try:
                views = ordeal.run()
                ordeal.counts["views"] += len(views) - 1
                shutil.rmtree(place)
            except (AssertionError, TimeoutError, OSError) as error:
                account = ordeal.federation.account()
                wrong.append(f"members, federation {number}, which is kept in {place}: {error!r}\n{account}")
            finally:
                ordeal.federation.end()
            counts += ordeal.counts + Counter(["federations whose members changed"])
            print(f"members: {time.time() - began:.0f} s, {dict(ordeal.counts)}", flush=True)
    finally:
        nursery.close()
    return wrong


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--minutes", type=float, default=5)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    counts = Counter[str]()
    wrong = ordeals(arguments.minutes, arguments.seed, counts)
    print(", ".join(f"{count} {what}" for what, count in sorted(counts.items())), *wrong, sep="\n")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
