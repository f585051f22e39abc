"""What many peers in one process leave out: signs of life that say nothing there."""

from math import inf

import pytest

from peer.runtime.lifecycle import RuntimeLimits

USUAL = RuntimeLimits()


@pytest.mark.parametrize("peers", [3, 20])
def test_few_live_as_ever(peers: int) -> None:
    few = USUAL.in_one_process(peers, patience=60)
    assert few.timeouts.heartbeat_interval == USUAL.timeouts.heartbeat_interval
    assert few.timeouts.suspect_after == USUAL.timeouts.suspect_after
    assert few.reminders == USUAL.reminders
    assert few.timeouts.resources == inf


def test_many_together_give_no_more_signs_of_life_than_few() -> None:
    many = USUAL.in_one_process(400, patience=60)
    assert many.timeouts.heartbeat_interval == 20 * USUAL.timeouts.heartbeat_interval
    assert (
        many.timeouts.suspect_after / many.timeouts.heartbeat_interval
        == USUAL.timeouts.suspect_after / USUAL.timeouts.heartbeat_interval
    )
    assert many.timeouts.retry == USUAL.timeouts.retry


def test_nobody_is_given_up_for_a_sign_of_life_that_is_not_due() -> None:
    for peers in (100, 10_000):
        for patience in (1.0, 20.0, 600.0):
            bounds = USUAL.in_one_process(peers, patience)
            assert bounds.timeouts.heartbeat_interval <= max(USUAL.timeouts.heartbeat_interval, patience / 4)
