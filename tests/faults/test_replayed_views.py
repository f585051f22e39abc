"""A replay of views that is itself disturbed; undisturbed ones are those of every run in `test_views.py`."""

import pytest

from faults.simulation import Kill, simulate

GONE = Kill("peer2", "send", 60, away=(7.0,))
"""For so long that the others go on without it."""


@pytest.mark.parametrize(("victim", "step"), [("peer1", 75), ("peer2", 60)])
def test_a_peer_of_a_replay_is_killed(victim: str, step: int) -> None:
    recorded = simulate("healing three", 1, [GONE], again=[Kill(victim, "disk", step, away=(0.5,), power=True)])
    assert len(recorded.views) > 2
    assert recorded.again
    assert recorded.again.kills
    assert not recorded.again.faults
    assert recorded.again.digests == recorded.digests
