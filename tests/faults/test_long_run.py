"""Nothing grows with the rounds; `python -m tests.faults.long_run` looks at 2,000 of them."""

import pytest

from faults.long_run import Growth, run


@pytest.mark.parametrize("rounds", [120, pytest.param(240, marks=pytest.mark.long)])
def test_nothing_grows(rounds: int) -> None:
    growth = Growth()
    outcome = run(rounds, rounds // 6, growth)
    assert not outcome.faults
    assert outcome.cuts > rounds // 12
    for name in ("megabytes", "files", "objects"):
        assert growth.grown(name) < 1.05, (name, getattr(growth, name))
    assert max(growth.checkpoint_bytes) < 2 * min(growth.checkpoint_bytes)
    assert max(growth.frames) < 200
    assert max(growth.messages) < 200
