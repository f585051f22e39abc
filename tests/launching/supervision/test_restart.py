"""The restart policy with a clock of its own."""

import pytest

from launcher.supervision.supervisor import RestartPolicy, Restarts


def crash(policy: Restarts, now: float, round: int = 0) -> float | None:
    """A start at `now` and a SIGKILL a moment later."""
    policy.started(round, now)
    return policy.delay(-9, failed=False, round=round, now=now + 0.1)


def test_delays_double_until_the_limit() -> None:
    policy = Restarts()
    assert [crash(policy, now) for now in range(6)] == [0.5, 1.0, 2.0, 4.0, 8.0, None]
    assert policy.total == 5


def test_a_completed_round_begins_a_new_row() -> None:
    policy = Restarts(RestartPolicy(limit=2))
    assert [crash(policy, 0), crash(policy, 1)] == [0.5, 1.0]
    policy.started(3, now=2)
    assert policy.delay(-11, failed=False, round=4, now=2.1) == 0.5
    assert policy.total == 3


def test_a_steady_peer_begins_a_new_row() -> None:
    policy = Restarts(RestartPolicy(limit=1, stable_after=60))
    assert crash(policy, 0) == 0.5
    policy.started(0, now=10)
    assert policy.delay(-9, failed=False, round=0, now=70) == 0.5
    assert crash(policy, 80) is None


@pytest.mark.parametrize("code", [0, 2, 75, 143, 130, -15])
def test_these_ends_are_no_crash(code: int) -> None:
    policy = Restarts()
    policy.started(0, 0)
    assert policy.delay(code, failed=False, round=0, now=1) is None
    assert policy.total == 0


@pytest.mark.parametrize("code", [2, 75])
def test_a_refusal_after_a_crash_may_pass_but_not_for_ever(code: int) -> None:
    """Somebody else has taken the dead peer's port, for a moment; or the certificates have expired meanwhile."""
    policy = Restarts(RestartPolicy(limit=2))
    assert crash(policy, 0) == 0.5
    policy.started(0, 1)
    assert policy.delay(code, failed=False, round=0, now=1.1) == 1.0
    policy.started(0, 2)
    assert policy.delay(code, failed=False, round=0, now=2.1) is None


@pytest.mark.parametrize("code", [2, 75])
def test_a_refusal_after_a_completed_round_is_a_crash(code: int) -> None:
    """As when a peer listens anew in the next view, and another program has taken its port."""
    policy = Restarts()
    policy.started(3, 0)
    assert policy.delay(code, failed=False, round=4, now=1) == 0.5


def test_exit_1_is_a_crash_unless_the_peer_said_that_it_gives_up() -> None:
    policy = Restarts()
    policy.started(0, 0)
    assert policy.delay(1, failed=True, round=0, now=1) is None
    assert policy.delay(1, failed=False, round=0, now=1) == 0.5
