"""Thousands of short random histories: loss, repetition, reordering, death, partition, rivals, entering and leaving.

A failure names its seed. VIEWS_SEEDS=100000 tries as many.
"""

import os
from collections import Counter

from world import World

SEEDS = int(os.environ.get("VIEWS_SEEDS", "400"))


def test_what_must_never_be_is_not_and_a_decision_comes_in_the_end() -> None:
    ends, planned, longest = Counter[str](), 0, 0
    for seed in range(SEEDS):
        world = World(seed)
        wrong = world.run()
        assert not wrong, f"World({seed}).run(): {wrong}"
        ends.update(world.ends)
        planned += sum(view.planned for view in world.decided.values())
        longest = max(longest, len(world.decided) - 1)
    assert ends.keys() == {"decided", "released", "short", "outdone", "outdated"}, "every way to end is met"
    assert planned > SEEDS / 20, "planned views are met"
    assert longest >= 4, "and long chains"
