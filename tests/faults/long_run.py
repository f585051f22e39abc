"""What grows over thousands of rounds and hundreds of broken connections: nothing may.

python -m tests.faults.long_run --rounds 2000 --cuts 200
"""

import argparse
import gc
import os
import sys
from dataclasses import dataclass, field

import psutil

from faults.scenarios import SCENARIOS, long
from faults.simulation import Outcome, Simulation, simulate
from faults.wires import Weather

MESSAGES_A_ROUND = 60
"""About so many messages pass between the peers in one round."""


@dataclass
class Growth:
    """Samples over the run."""

    every: int = 5
    megabytes: list[float] = field(default_factory=list)
    files: list[int] = field(default_factory=list)
    objects: list[int] = field(default_factory=list)
    frames: list[int] = field(default_factory=list)
    messages: list[int] = field(default_factory=list)
    checkpoint_bytes: list[int] = field(default_factory=list)
    _calls: int = 0

    def look(self, simulation: Simulation) -> None:
        self._calls += 1
        if self._calls % self.every or len(simulation.runtimes) < len(simulation.spec.ids):
            return
        process = psutil.Process()
        networks = [runtime.network for runtime in simulation.runtimes.values()]
        gc.collect()
        self.megabytes.append(process.memory_info().rss / 2**20)
        self.files.append(process.num_fds())
        self.objects.append(gc.get_freeze_count() + len(gc.get_objects()))
        self.frames.append(sum(len(link.outbox._frames) for n in networks for link in n.links.values()))
        self.messages.append(sum(len(inbox.messages) for n in networks for inbox in n._receiver.inboxes.values()))
        checkpoints = [path for id in simulation.spec.ids for path in (simulation.out / id / "checkpoint").glob("*")]
        self.checkpoint_bytes.append(sum(os.stat(path).st_size for path in checkpoints))

    def show(self) -> None:
        for name, values in vars(self).items():
            if isinstance(values, list):
                print(f"{name:17} {values[len(values) // 4]:>10.0f} -> {values[-1]:>10.0f}, most {max(values):.0f}")

    def grown(self, name: str) -> float:
        """The last quarter's mean over the second's: 1 when flat."""
        values = getattr(self, name)
        quarter = len(values) // 4
        return float(sum(values[-quarter:]) / max(1, sum(values[quarter : 2 * quarter])))


def run(rounds: int, cuts: int, growth: Growth) -> Outcome:
    """Three peers, so many rounds, about so many connections cut."""
    gc.collect()
    gc.freeze()  # what was loaded before need not be walked over for each sample, which counts it nevertheless
    scenario = long(rounds)
    SCENARIOS[scenario.name] = scenario
    try:
        weather = Weather(0.002, cut=cuts / (rounds * MESSAGES_A_ROUND), calm_after=1e9)
        return simulate(scenario.name, 1, [], weather, growth.look)
    finally:
        del SCENARIOS[scenario.name]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rounds", type=int, default=2000)
    parser.add_argument("--cuts", type=int, default=200)
    arguments = parser.parse_args()
    growth = Growth()
    outcome = run(arguments.rounds, arguments.cuts, growth)
    print(f"{arguments.rounds} rounds, {outcome.cuts} connections cut")
    growth.show()
    print(*outcome.faults, sep="\n")
    return 1 if outcome.faults else 0


if __name__ == "__main__":
    sys.exit(main())
