"""What a run leaves behind besides its model: one line a round, and the result."""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from peer.files import sync, write_atomically

AUDIT, EVENTS = "audit.jsonl", "events.jsonl"


def close_torn_lines(out: Path) -> None:
    """End a line that a crash left unfinished, so that it does not swallow the next one."""
    for path in (out / AUDIT, out / EVENTS):
        if path.exists() and not path.read_bytes().endswith(b"\n"):
            with path.open("a") as file:
                file.write("\n")


def sync_lines(out: Path) -> None:
    """Put the lines written so far on disk: a checkpoint must not outlive them."""
    for path in (out / AUDIT, out / EVENTS):
        if path.exists():
            sync(path)


def append_audit(out: Path, line: dict[str, Any]) -> None:
    """One finished round; a round that was replayed after a crash appears again, and its last line counts."""
    with (out / AUDIT).open("a") as file:
        file.write(json.dumps(line) + "\n")


def history(out: Path) -> list[dict[str, Any]]:
    """The `round` events of this peer, one a round in order, as far as they are in events.jsonl."""
    try:
        lines = (out / EVENTS).read_bytes().splitlines()
    except FileNotFoundError:
        return []
    rounds: dict[int, dict[str, Any]] = {}
    for event in objects(lines):
        if event.get("event") == "round" and isinstance(event.get("round"), int):
            rounds[event["round"]] = {k: v for k, v in event.items() if k not in ("event", "time")}
    return [rounds[number] for number in sorted(rounds)]


def objects(lines: Iterable[bytes]) -> list[dict[str, Any]]:
    """The JSON objects among the lines; a line that a crash or the disk has spoilt is passed over."""
    found = []
    for line in lines:
        try:
            value = json.loads(line)
        except ValueError:
            continue
        if isinstance(value, dict):
            found.append(value)
    return found


def write_result(out: Path, result: dict[str, Any]) -> None:
    write_atomically(out / "result.json", json.dumps(result, indent=1).encode())
