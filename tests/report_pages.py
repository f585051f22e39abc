"""Pages for tests: of real runs in one process, and what stands in them."""

import asyncio
import json
import re
from pathlib import Path
from typing import Any

from launcher.reports import summary_json
from launcher.reports.summary import TimeSpent, summarise
from peer.runtime.in_process import run_in_process
from peer.spec.loading import load_spec

EMBEDDED = re.compile(r'<script type="application/json" id="document">(.*?)</script>', re.DOTALL)


QUICK = {"name": "fibfl++", "head_epochs": 1, "extractor_epochs": 1}


def federate(directory: Path, protocol: Any = QUICK, peers: int = 4, **more: Any) -> Path:
    """A finished run with its summary.json, as `dfl-launch run` leaves it but for what is its own."""
    directory.mkdir()
    data = {"name": "digits", "limit": 300, "partition": {"kind": "dirichlet", "alpha": 0.5}}
    content = {"name": "small", "rounds": 3, "protocol": protocol, "data": data, **more}
    (directory / "federation.yaml").write_text(json.dumps(content))
    spec = load_spec(directory / "federation.yaml", peers=peers)
    asyncio.run(run_in_process(spec, directory))
    summary_json.write(directory / "summary.json", summarise(spec, directory, TimeSpent(7.25, 1)))
    return directory


def document(page: Path) -> dict[str, Any]:
    """What the page draws itself from."""
    (text,) = EMBEDDED.findall(page.read_text(encoding="utf-8"))
    content: dict[str, Any] = json.loads(text)
    return content


def cards(run: dict[str, Any]) -> dict[str, Any]:
    return {card["key"]: card["value"] for card in run["cards"]}


def say(place: Path, *events: dict[str, Any]) -> None:
    """Events more in a peer's directory."""
    with (place / "events.jsonl").open("a") as file:
        file.writelines(json.dumps(event) + "\n" for event in events)
