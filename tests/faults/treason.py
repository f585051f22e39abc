"""Liars with keys of their own in federations whose members change, together and with faults beside.

python -m tests.faults.treason "signed four" 12345        replays one run and prints what happened
"""

import sys
from dataclasses import replace
from random import Random

from faults import views
from faults.scenarios import HEALING, specification
from faults.simulation import Kill, Order, Outcome, simulate
from faults.wires import Weather

SIGNED = tuple(name for name, scenario in HEALING.items() if scenario.signed)


def plan(name: str, seed: int) -> tuple[list[Kill], Weather, tuple[Order, ...]]:
    """Plan who lies until when, with faults in two of three runs; now and then a liar is to be expelled, or an honest
    member to leave."""
    random, scenario, spec = Random(f"treason {name} {seed}"), HEALING[name], specification(name)
    faulty = spec.tolerated(True)
    kills, weather = views.plan(name, seed) if random.random() < 0.67 else ([], Weather(random.choice([0.002, 0.2])))
    traitors = tuple(random.sample(scenario.ids, faulty))
    # Whose disk is emptied has forgotten what it had promised, as a liar does.
    kills = [replace(kill, wipe=False) for kill in kills]
    leaver = random.random() < 0.3 and scenario.peers > 3 * faulty + 1
    if scenario.peers - leaver == 3 * faulty + 1:  # without another there would be more liars than so few can bear
        kills = [replace(kill, away=tuple(min(seconds, 3.0) for seconds in kill.away)) for kill in kills]
    weather = replace(weather, traitors=traitors, treason=random.choice([5.0, 15.0, 40.0]))
    honest = tuple(id for id in scenario.ids if id not in traitors)
    orders = (Order(random.uniform(0.3, 8.0), traitors[0], honest),) if random.random() < 0.15 else ()
    orders += (Order(random.uniform(0.3, 8.0), random.choice(honest)),) if leaver else ()
    return kills, weather, orders


def check(name: str, seed: int) -> tuple[Outcome, list[str]]:
    """Run the plan of a seed; what is wrong with the outcome."""
    kills, weather, orders = plan(name, seed)
    outcome = simulate(name, seed, kills, weather, orders=orders)
    if outcome.over:
        return outcome, outcome.faults
    wrong = views.wrong_with(name, outcome)
    for id, digest in outcome.digests.items():
        if not digest and id not in {*weather.traitors, *outcome.absent, *outcome.gone}:
            wrong.append(f"{id} was there all the time and has not finished")
    return outcome, wrong


def main() -> None:
    name, seed = sys.argv[1], int(sys.argv[2])
    kills, weather, orders = plan(name, seed)
    print(*kills, weather, *orders, sep="\n")
    views.tell(*check(name, seed))


if __name__ == "__main__":
    main()
