"""Members that stay away for longer than `absence`, partitions, and returns: what must hold of views whatever happens.

python -m tests.faults.views fibfl 12345        replays one run and prints what happened
"""

import sys
from collections.abc import Iterator
from dataclasses import replace
from random import Random
from typing import NoReturn

from faults.scenarios import HEALING, specification
from faults.simulation import Kill, Outcome, simulate, undisturbed
from faults.wires import Stall, Weather

KINDS = ("callback", "callback", "send", "receive", "disk", "blocking")


def plan(name: str, seed: int) -> tuple[list[Kill], Weather]:
    """Some faults, drawn by the seed."""
    random, scenario = Random(f"views {name} {seed}"), HEALING[name]
    steps = undisturbed(name).steps
    kills = []
    for number in range(random.choice([0, 1, 2, 3, 4])):
        victim = random.choice(scenario.ids)
        kind = random.choice([*KINDS, *["views"] * 4 * (number > 0)])
        also = random.choice([(), (), (), tuple(random.sample(scenario.ids, random.randrange(scenario.peers)))])
        count = random.randint(1, max(40, int((1.0 if number else 0.7) * steps[victim][kind])))
        away = tuple(random.choice([0.2, 4.0, 12.0, 40.0]) * random.random() for _ in range(scenario.peers))
        power, damage, wipe = (random.random() < likely for likely in (0.3, 0.15, 0.05))
        kills.append(Kill(victim, kind, count, also, away, power, damage, wipe))
    # Of more empty disks no quorum could go on: it would not know what was promised.
    emptied = [kill for kill in kills if kill.wipe]
    most = (scenario.peers - 1 - specification(name).tolerated(scenario.signed)) // 2
    if len({id for kill in emptied for id in (kill.victim, *kill.also)}) > most:
        kills = [replace(kill, wipe=False) for kill in kills]
    stalls = [*partitions(random, scenario.ids)] if random.random() < 0.5 or not kills else []
    return kills, Weather(random.choice([0.002, 0.02, 0.2]), random.choice([0, 0, 0.01]), stalls=tuple(stalls))


def partitions(random: Random, ids: tuple[str, ...]) -> Iterator[Stall]:
    """Partitions of every shape: two halves, one member alone, one way only, some pairs only."""
    for _ in range(random.choice([1, 1, 2])):
        start = random.uniform(0.2, 8)
        end = start + random.choice([3, 8, 30]) * random.random()
        one = set(random.sample(ids, random.randint(1, len(ids) - 1)))
        both, whole = random.random() < 0.7, random.random() < 0.8
        for a in sorted(one):
            for b in sorted({*ids} - one):
                if whole or random.random() < 0.5:
                    yield Stall(a, b, start, end)
                    if both:
                        yield Stall(b, a, start, end)


def check(name: str, seed: int) -> tuple[Outcome, list[str]]:
    """Run the plan of a seed, and once more with its views replayed; what is wrong with the outcome."""
    kills, weather = plan(name, seed)
    outcome = simulate(name, seed, kills, weather, again=[])
    return outcome, wrong_with(name, outcome)


def wrong_with(name: str, outcome: Outcome) -> list[str]:
    """What must not be, whatever has happened."""
    ended = {digest for digest in outcome.digests.values() if digest}
    wrong = [*outcome.faults]
    if not ended and not outcome.undecidable:
        wrong.append("nobody has finished")
    if specification(name).protocol.common == "model" and len(ended) > 1:
        wrong.append(f"the global model is not the same at all members: {outcome.digests}")
    if outcome.again and not wrong:
        wrong += [f"replayed: {fault}" for fault in outcome.again.faults]
        others = {id: outcome.again.digests[id] for id, digest in outcome.digests.items() if digest}
        if not HEALING[name].secret and others != {id: outcome.digests[id] for id in others}:
            wrong.append(f"replayed, it ends in other bits: {others}, not {outcome.digests}")
    return wrong


def tell(outcome: Outcome, wrong: list[str]) -> NoReturn:
    """What has happened, and what is wrong with it."""
    said = f"{outcome.cuts} cuts, {outcome.seconds:.1f} virtual seconds, {outcome.gone or 'nobody left'}"
    late = [f"{id}: {what}" for id, what in outcome.late.items()]
    print(*outcome.kills, said, *late, *outcome.views, *wrong, sep="\n")
    sys.exit(1 if wrong else 0)


def main() -> None:
    name, seed = sys.argv[1], int(sys.argv[2])
    kills, weather = plan(name, seed)
    print(*kills, weather, sep="\n")
    tell(*check(name, seed))


if __name__ == "__main__":
    main()
