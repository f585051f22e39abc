"""A federation of three fake peers, and `dfl-launch run` of it over the real fork server."""

import json
import os
from pathlib import Path

import pytest
from fake_runs import HERE, FakeEngine, Run
from rich.console import Console

from launcher.commands import run as run_command
from launcher.engines.local import LocalSettings
from launcher.output import Output
from launcher.supervision.supervisor import RestartPolicy
from peer.spec.loading import load_spec


@pytest.fixture
def small(tmp_path: Path) -> Path:
    file = tmp_path / "small.yaml"
    file.write_text("name: small\nrounds: 3\nprotocol: {name: fibfl}\ndata: {name: digits}\n")
    return file


@pytest.fixture
def run(tmp_path: Path, small: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Runs three fake peers in tmp_path/out; returns the exit code and what was printed."""
    monkeypatch.setenv("PYTHONPATH", str(HERE), prepend=os.pathsep)
    quick = RestartPolicy(limit=2, first_delay=0.01, grace=1.0)
    monkeypatch.setattr(RestartPolicy, "from_spec", lambda *_, **__: quick)

    def run(
        fresh: bool = False, seed: int = 42, port: int = 7700, beside: bool = False, **behaviours: str
    ) -> tuple[int, str]:
        monkeypatch.setenv("FAKE_PEERS", json.dumps(behaviours))
        with (tmp_path / "screen").open("w") as screen:
            output = Output()
            output.console = Console(file=screen, width=120)
            spec = load_spec(small, peers=3, seed=seed, port=port)
            order = run_command.RunOptions(
                spec, tmp_path / "out", fresh=fresh, engine=FakeEngine(LocalSettings()), beside=beside
            )
            code = run_command.run(order, output).code
        return code, (tmp_path / "screen").read_text()

    return run
