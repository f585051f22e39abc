"""A launcher that a test starts, and what its run's directory shows of the peers, wherever these are."""

import json
import subprocess
from pathlib import Path
from typing import Any

from real_peers import until


class Launched:
    """`dfl-launch`, at work in the directory `out`."""

    patience = 240.0
    """Seconds for whatever is waited for."""

    def __init__(self, spec: Path, out: Path):
        self.spec, self.out = spec, out
        self.launcher: subprocess.Popen[str]

    def logs(self) -> str:
        """What the peers have said."""
        return "".join(f"--- {log}\n{log.read_text()}" for log in self.out.glob("*/log.txt"))

    def ended(self, code: int) -> str:
        """What the launcher has said, once it has ended with this code."""
        said, _ = self.launcher.communicate(timeout=self.patience)
        assert self.launcher.returncode == code, said + self.logs()
        return said

    def events(self, id: str, name: str) -> list[dict[str, Any]]:
        path = self.out / id / "events.jsonl"
        lines = path.read_text().splitlines(keepends=True) if path.exists() else []
        events = [json.loads(line) for line in lines if line.endswith("\n")]
        return [event for event in events if event["event"] == name]

    def reaches(self, round: int) -> None:
        """Returns when peer1 has completed the round, as seen from here."""

        def look() -> bool:
            assert self.launcher.poll() is None, self.ended(0)
            return any(event["round"] >= round for event in self.events("peer1", "round"))

        until(look, self.patience, f"peer1 completes round {round}")

    def kill(self) -> None:
        """End a launcher that still runs."""
        if self.launcher.poll() is None:
            self.launcher.kill()
            self.launcher.communicate()


def models(out: Path) -> dict[str, str]:
    """model_sha256 of the peers of a finished run."""
    summary = json.loads((out / "summary.json").read_text())
    return {peer["id"]: peer["model_sha256"] for peer in summary["per_peer"]}


def restarts(out: Path) -> int:
    return int(json.loads((out / "summary.json").read_text())["restarts"])
