"""Thousands of short random histories: loss, repetition, reordering, death, partition, rivals, entering and leaving.

A failure names its seed. VIEWS_SEEDS=100000 tries as many; `make test` tries the first alone.
"""

import os
from collections import Counter
from itertools import pairwise

import pytest
from world import World

SEEDS = int(os.environ.get("VIEWS_SEEDS", "400"))


@pytest.mark.parametrize("seeds", [200, pytest.param(SEEDS, marks=pytest.mark.long)])
def test_what_must_never_be_is_not_and_a_decision_comes_in_the_end(seeds: int) -> None:
    ends, planned, longest, left, out, back = Counter[str](), 0, 0, 0, 0, 0
    for seed in range(seeds):
        world = World(seed)
        wrong = world.run()
        assert not wrong, f"World({seed}).run(): {wrong}"
        ends.update(world.ends)
        planned += sum(view.planned for view in world.decided.values())
        left += sum({*a.members} > {*b.members} and b.planned for a, b in pairwise(world.decided.values()))
        out += bool(world.decided[max(world.decided)].expelled)
        back += bool(world.rules.rewinds)
        longest = max(longest, len(world.decided) - 1)
    assert ends.keys() == {"decided", "released", "no_quorum", "preempted", "superseded"}, "every way to end is met"
    assert planned > seeds / 20, "planned views are met"
    assert min(left, out, back) >= seeds / 40, "members leave, are voted out, and go back all together"
    assert longest >= 4, "and long chains"
