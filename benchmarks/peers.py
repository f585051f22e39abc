"""Federations of real peers for the benchmarks: written, started from a fork server, watched through their events."""

import asyncio
import json
import resource
import socket
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from launcher.processes import ForkServer, Process
from peer.document import dump_yaml

PIXELS, CLASSES = (28, 28), 10


def free_ports(count: int) -> list[int]:
    """Ports below the ephemeral ones at which nobody listens now."""
    found: list[int] = []
    for port in range(20_000, 32_000):
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)):
                found.append(port)
        if len(found) == count:
            return found
    raise OSError("no free ports between 20000 and 32000")


def images(path: Path, samples: int) -> None:
    """A data set as large as MNIST's are: random pixels, labels in turn; what is learnt does not matter here."""
    random = np.random.default_rng(0)
    for part, count in (("train", samples), ("test", samples // 6)):
        pixels = random.integers(0, 256, (count, *PIXELS), np.uint8)
        np.savez(path.with_name(f"{part}.npz"), x=pixels, y=np.arange(count) % CLASSES)
    arrays = {
        f"{name}_{part}": np.load(path.with_name(f"{part}.npz"))[name] for part in ("train", "test") for name in "xy"
    }
    np.savez(path, **arrays)


def write(directory: Path, peers: int, **spec: Any) -> list[str]:
    """federation.yaml and a config a peer; the peers' ids."""
    directory.mkdir(parents=True)
    ids = [f"peer{i}" for i in range(peers)]
    ring = [{"id": id, "address": f"127.0.0.1:{port}"} for id, port in zip(ids, free_ports(peers), strict=True)]
    (directory / "federation.yaml").write_text(json.dumps({"name": "bench", "ring": ring, "patience": 120, **spec}))
    for id in ids:
        config = {"federation": "federation.yaml", "id": id, "device": "cpu"}
        (directory / f"{id}.yaml").write_text(dump_yaml(config))
    return ids


async def start(server: ForkServer, directory: Path, ids: Sequence[str]) -> list[Process]:
    return [await server.start(["--config", str(directory / f"{id}.yaml")], directory / f"{id}.log") for id in ids]


async def run(server: ForkServer, directory: Path, ids: Sequence[str]) -> None:
    """All peers to their end."""
    codes = await asyncio.gather(*(process.wait() for process in await start(server, directory, ids)))
    if any(codes):
        raise RuntimeError(f"peers ended with {codes}; see the logs in {directory}")


def events(directory: Path, id: str, name: str) -> list[dict[str, Any]]:
    """The whole lines of a peer's events.jsonl so far, of one kind."""
    path = directory / id / "events.jsonl"
    lines = path.read_text().splitlines(keepends=True) if path.exists() else []
    found = [json.loads(line) for line in lines if line.endswith("\n")]
    return [event for event in found if event["event"] == name]


def seconds_of_work(directory: Path, ids: Sequence[str]) -> float:
    """Wall clock from the first peer's first training to the last peer's last round: start-up and end apart."""
    begun = min(e["time"] for id in ids for e in events(directory, id, "state") if e["state"] == "training")
    return float(max(events(directory, id, "round")[-1]["time"] for id in ids) - begun)


def children_cpu() -> float:
    """CPU seconds of all processes of this one that have ended."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime
