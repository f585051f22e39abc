"""Faults drawn by a seed: who dies when, who lies, what is cut, how long anything takes.

python -m tests.faults.plans fibfl 12345        replays one run and prints what happened
"""

import sys
from random import Random

from faults.scenarios import SCENARIOS
from faults.simulation import Kill, Outcome, simulate, undisturbed
from faults.wires import Stall, Weather


def plan(name: str, seed: int) -> tuple[list[Kill], Weather]:
    """Some faults, drawn by the seed."""
    random, scenario = Random(f"{name} {seed}"), SCENARIOS[name]
    steps = undisturbed(name).steps
    kills = []
    for _ in range(random.choice([1, 1, 2, 3, 5, 8])):
        victim = random.choice(scenario.ids)
        kind = random.choice(["callback", "callback", "send", "receive", "disk", "blocking"])
        at = scenario.ids.index(victim)
        also = random.choice(
            [
                (),
                (),
                (),
                (scenario.ids[at - 1],),
                (scenario.ids[at - 1], scenario.ids[(at + 1) % scenario.peers]),
                tuple(random.sample(scenario.ids, random.randrange(scenario.peers))),
                tuple(scenario.ids),
            ]
        )
        count = random.randint(1, max(1, int(1.3 * steps[victim][kind])))
        away = tuple(random.choice([0.0, 0.2, 2.0, 8.0]) * random.random() for _ in range(scenario.peers))
        kills.append(Kill(victim, kind, count, also, away, random.random() < 0.3, random.random() < 0.4))
    slowest, stalls = random.choice([0.002, 0.02, 0.2]), list[Stall]()
    for _ in range(random.choice([0, 0, 1, 3])):
        pair = random.sample(scenario.ids, 2)
        start = random.uniform(0.2, 5)
        end = start + random.choice([1, 5, 40]) * random.random()
        stalls.append(Stall(pair[0], pair[1], start, end))
        if random.random() < 0.6:
            stalls.append(Stall(pair[1], pair[0], start, end))
    cut = random.choice([0, 0, 0.002, 0.02, 0.05])
    return kills, Weather(slowest, cut, stalls=tuple(stalls), liars=liars(name, seed))


def liars(name: str, seed: int) -> tuple[str, ...]:
    """The members that lie: in every second plan one or several, up to all but one."""
    peers = SCENARIOS[name].peers
    count = 1 + seed // 2 % (peers - 1) if seed % 2 else 0
    return tuple(Random(f"liars {name} {seed}").sample(SCENARIOS[name].ids, count))


def check(name: str, seed: int) -> tuple[Outcome, list[str]]:
    """Run the plan of a seed; what is wrong with the outcome."""
    kills, weather = plan(name, seed)
    outcome = simulate(name, seed, kills, weather)
    wrong = list(outcome.faults)
    expected = expected_bits(name, outcome)
    wrong += [f"{id} ended in other bits" for id, digest in outcome.digests.items() if digest != expected[id]]
    return outcome, wrong


def in_peace(name: str, seed: int) -> list[str]:
    """Run without a fault, on a network that is quick, slow or in between; what is wrong, someone's vain wait too."""
    return simulate(name, seed, [], Weather(slowest=(0.002, 0.2, 0.02)[seed % 3])).faults


def expected_bits(name: str, outcome: Outcome) -> dict[str, str | None]:
    """The bits of the undisturbed run; if there are secrets, those of the first peer for all."""
    if SCENARIOS[name].secret:
        return dict.fromkeys(outcome.digests, next(iter(outcome.digests.values())))
    return undisturbed(name).digests


def main() -> None:
    name, seed = sys.argv[1], int(sys.argv[2])
    kills, weather = plan(name, seed)
    print(*kills, weather, sep="\n")
    outcome, wrong = check(name, seed)
    print(*outcome.kills, f"{outcome.cuts} cuts, {outcome.seconds:.1f} virtual seconds", *wrong, sep="\n")
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
