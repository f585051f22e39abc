"""What `promtool` says of the example configuration, its alerts and a peer's figures."""

import re
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


def test_each_alert_comes_when_it_should_and_only_then() -> None:
    """What `rules_test.yml` says of each; `check config` above has checked the rules, too."""
    cases = Path(__file__).with_name("rules_test.yml")
    subprocess.run(["promtool", "test", "rules", cases], check=True, stdout=sys.stderr)
    rules = (ROOT / "deploy" / "prometheus" / "rules.yml").read_text()
    assert {*re.findall(r"alert: (\w+)", rules)} == {*re.findall(r"alertname: (\w+)", cases.read_text())}


def test_the_figures_are_named_as_is_usual() -> None:
    """But for the times of creation, which the library adds as gauges without a help text of its own."""
    metrics = Metrics(Path())
    for event in (
        StateChanged(state="training", round=1),
        LinkChanged(neighbour="peer1", state="up"),
        RoundDone(round=1, accuracy={"matched": 0.5}, loss=1.0, seconds={"train": 1.0}, notes={"gamma": 0.5}),
    ):
        metrics.on_event(event)
    text = generate_latest(metrics.registry)
    told = subprocess.run(["promtool", "check", "metrics"], input=text, capture_output=True, check=False)
    assert (told.returncode, told.stdout, told.stderr) == (0, b"", b"")
