"""How often something may happen, at any times."""

import asyncio

from hypothesis import given
from hypothesis import strategies as st

from peer.network.limits import RateLimiter


async def clocked(burst: int, seconds: float) -> tuple[RateLimiter, list[float]]:
    """By a clock that stands where the list says."""
    pace, now = RateLimiter(burst, seconds), [asyncio.get_running_loop().time()]
    pace._spent_until, pace._clock = now[0], lambda: now[0]
    return pace, now


@given(st.integers(1, 5), st.floats(0.01, 100.0), st.lists(st.floats(0.0, 50.0, allow_subnormal=False), max_size=60))
def test_whoever_waits_as_long_as_it_says_waits_no_longer(burst: int, seconds: float, pauses: list[float]) -> None:
    pace, now = asyncio.run(clocked(burst, seconds))
    began, taken = now[0], 0
    for pause in pauses:
        now[0] += pause
        taken += pace.try_acquire()
        assert taken <= burst + (now[0] - began) / seconds + 1e-6
    for _ in range(3):  # what is less than the clock can tell takes one more turn
        now[0] += pace.wait
    assert pace.try_acquire()
