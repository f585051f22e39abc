"""What `promtool` says of the example configuration and of a peer's figures."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from prometheus_client import generate_latest

from peer.telemetry.events import LinkChanged, RoundDone, StateChanged
from peer.telemetry.metrics import Metrics

ROOT = Path(__file__).parent.parent.parent
pytestmark = pytest.mark.skipif(shutil.which("promtool") is None, reason="needs promtool (Debian's package prometheus)")


def test_the_example_configuration() -> None:
    config = ROOT / "deploy" / "prometheus" / "prometheus.yml"
    subprocess.run(["promtool", "check", "config", config], check=True, stdout=sys.stderr)


def test_the_figures_are_named_as_is_usual() -> None:
    """But for the times of creation, which the library adds as gauges without a help text of its own."""
    metrics = Metrics()
    for event in (
        StateChanged(state="training", round=1),
        LinkChanged(neighbour="peer1", state="up"),
        RoundDone(round=1, accuracy={"matched": 0.5}, loss=1.0, seconds={"train": 1.0}, notes={"gamma": 0.5}),
    ):
        metrics.on_event(event)
    text = generate_latest(metrics.registry)
    told = subprocess.run(["promtool", "check", "metrics"], input=text, capture_output=True, check=False)
    assert (told.returncode, told.stdout, told.stderr) == (0, b"", b"")
