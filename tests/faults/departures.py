"""Members that are told to leave, and that are voted out, at random moments of a run and with faults beside.

python -m tests.faults.departures "healing fibfl" 12345        replays one run and prints what happened
"""

import sys
from dataclasses import replace
from random import Random

from faults import views
from faults.scenarios import HEALING
from faults.simulation import Kill, Order, Outcome, simulate
from faults.wires import Weather


def plan(name: str, seed: int) -> tuple[list[Kill], Weather, tuple[Order, ...]]:
    """Orders drawn by the seed, and in two of three runs some faults."""
    random, ids = Random(f"departures {name} {seed}"), HEALING[name].ids
    # Fewer are left, so that a few emptied disks may be a majority's.
    kills, weather = views.plan(name, seed) if random.random() < 0.67 else ([], Weather(random.choice([0.002, 0.2])))
    kills, orders = [replace(kill, wipe=False) for kill in kills], []
    for _ in range(random.choice([1, 1, 2])):
        victim = random.choice(ids)
        others = [id for id in ids if id != victim]
        by = tuple(random.sample(others, random.randint(1, len(others)))) if random.random() < 0.5 else ()
        orders.append(Order(random.uniform(0.3, 8.0), victim, by))
    return kills, weather, tuple(orders)


def check(name: str, seed: int) -> tuple[Outcome, list[str]]:
    """Run the plan of a seed; what is wrong with the outcome."""
    kills, weather, orders = plan(name, seed)
    outcome = simulate(name, seed, kills, weather, orders=orders)
    return outcome, views.wrong_with(name, outcome)


def main() -> None:
    name, seed = sys.argv[1], int(sys.argv[2])
    kills, weather, orders = plan(name, seed)
    print(*kills, weather, *orders, sep="\n")
    views.tell(*check(name, seed))


if __name__ == "__main__":
    main()
