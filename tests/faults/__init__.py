"""Faults of every kind: simulated by the seed, injected into real processes, and at random until the time is over."""

import sys
from pathlib import Path

TESTS = str(Path(__file__).parents[1])
if TESTS not in sys.path:  # pytest has put it there; `python -m tests.faults.chaos` has not
    sys.path.insert(0, TESTS)
