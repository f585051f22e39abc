"""A simulated run that was healed, once more: its views replayed give its bits, whatever happens meanwhile."""

import pytest

from faults.scenarios import HEALING
from faults.simulation import Kill, simulate
from faults.views import plan

SECRET = {name for name, scenario in HEALING.items() if scenario.secret}
RUNS = [(name, 1) for name in HEALING if name not in SECRET]


@pytest.mark.parametrize(("name", "seed"), RUNS)
def test_the_same_bits(name: str, seed: int) -> None:
    kills, weather = plan(name, seed)
    killed = Kill("peer1", "disk", 40 + 10 * seed, away=(0.5,))
    recorded = simulate(name, seed, kills, weather, again=[killed] if name == "healing fibfl" else [])
    replayed = recorded.again
    assert replayed
    assert not replayed.faults
    ended = {id: digest for id, digest in recorded.digests.items() if digest}
    assert {id: replayed.digests[id] for id in ended} == ended, recorded.views
