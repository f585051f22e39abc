"""A federation that goes on for as long as a test needs it, on little CPU: short rounds, with a pause in each."""

from pathlib import Path

from real_peers import Build, SmallFederation

BENCHMARKS = Path(__file__).parent.parent / "benchmarks"


def endless(federation: Build) -> SmallFederation:
    """Three peers with 5,000 rounds before them."""
    protocol = {"name": "paced:Paced", "pause": 0.1, "head_epochs": 1, "extractor_epochs": 1}
    return federation(protocol, rounds=5000, data={"name": "digits", "limit": 60}, code=str(BENCHMARKS))
