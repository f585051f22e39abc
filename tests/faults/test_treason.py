"""Liars with keys of their own among real peers, simulated; and that what once did harm does none.

A failure names its federation and seed; `python -m tests.faults.treason FEDERATION SEED` replays it.
"""

import pytest

from faults.treason import SIGNED, check

SEED = 1
"""Of each federation. `make chaos` runs more."""


@pytest.mark.parametrize("name", SIGNED)
def test_liars_end_hold_up_and_divide_nobody(name: str) -> None:
    outcome, wrong = check(name, SEED)
    assert not wrong, f"python -m tests.faults.treason {name!r} {SEED}: {wrong} after {outcome.kills}"
