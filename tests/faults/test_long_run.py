"""Nothing grows with the rounds; `python -m tests.faults.long_run` looks at 2,000 of them."""

from faults.long_run import Growth, run


def test_nothing_grows() -> None:
    growth = Growth()
    outcome = run(240, 40, growth)
    assert not outcome.faults
    assert outcome.cuts > 20
    for name in ("megabytes", "files", "objects"):
        assert growth.grown(name) < 1.05, (name, getattr(growth, name))
    assert max(growth.checkpoint_bytes) < 2 * min(growth.checkpoint_bytes)
    assert max(growth.frames) < 200
    assert max(growth.messages) < 200
