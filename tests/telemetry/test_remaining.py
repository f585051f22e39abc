"""How long the rest of a run takes, by its last rounds alone."""

import pytest

from peer.telemetry.remaining import ROUNDS_COUNTED, Remaining


def seen(*ended: float) -> Remaining:
    """A run whose rounds end at these times."""
    remaining = Remaining()
    for round, now in enumerate(ended, 1):
        remaining.see(round, now)
    return remaining


def test_nothing_is_said_before_the_second_round() -> None:
    assert seen().seconds(10, now=100.0) is None
    assert seen(100.0).seconds(10, now=100.0) is None
    assert seen(100.0, 102.0).seconds(10, now=102.0) == 2.0 * 8


def test_one_long_round_counts_for_no_more_than_one() -> None:
    assert seen(1.0, 2.0, 3.0, 500.0, 501.0).seconds(10, now=501.0) == 1.0 * 5


def test_only_the_last_rounds_count() -> None:
    slow, quick = [10.0 * n for n in range(ROUNDS_COUNTED)], [1000.0 + n for n in range(ROUNDS_COUNTED + 1)]
    assert seen(*slow, *quick).seconds(2 * ROUNDS_COUNTED + 2, now=quick[-1]) == 1.0


@pytest.mark.parametrize(("spent", "left"), [(0.0, 8.0), (1.5, 6.5), (60.0, 6.0), (-60.0, 8.0)])
def test_the_time_runs_within_a_round_and_stands_still_where_that_takes_longer(spent: float, left: float) -> None:
    assert seen(0.0, 2.0).seconds(6, now=2.0 + spent) == left


def test_rounds_that_end_between_two_looks_share_the_time() -> None:
    remaining = seen(0.0)
    remaining.see(5, 8.0)
    assert remaining.seconds(10, now=8.0) == 2.0 * 5


def test_no_round_is_measured_across_a_start_or_a_step_back() -> None:
    remaining = seen(0.0, 1.0, 2.0)
    remaining.begin(3)
    remaining.see(4, 900.0)
    remaining.see(2, 1000.0)
    remaining.see(3, 2000.0)
    assert remaining.seconds(6, now=2000.0) == 1.0 * 3


def test_no_time_is_left_after_the_last_round() -> None:
    assert seen(0.0, 1.0, 2.0).seconds(3, now=2.0) is None
