"""What a run leaves behind besides its model: one line a round, and the result."""

import json
from pathlib import Path
from typing import Any

from peer.files import write_atomically


def append_audit(out: Path, line: dict[str, Any]) -> None:
    """One finished round; a round that was replayed after a crash appears again, and its last line counts."""
    with (out / "audit.jsonl").open("a") as file:
        file.write(json.dumps(line) + "\n")


def history(out: Path) -> list[dict[str, Any]]:
    """The `round` events of this peer, one a round in order, from events.jsonl."""
    rounds: dict[int, dict[str, Any]] = {}
    for line in (out / "events.jsonl").read_text().splitlines():
        try:
            event = json.loads(line)
        except ValueError:
            continue  # a line that a crash left unfinished
        if event["event"] == "round":
            rounds[event["round"]] = {k: v for k, v in event.items() if k not in ("event", "time")}
    return [rounds[number] for number in sorted(rounds)]


def write_result(out: Path, result: dict[str, Any]) -> None:
    write_atomically(out / "result.json", json.dumps(result, indent=1).encode())
