"""Federations of real peers for the benchmarks: written, started from a fork server, watched through their events."""

import asyncio
import json
import socket
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from benchmarks.measure import Cost
from launcher.certificates import make_certificates
from launcher.engines import local
from launcher.engines.local import Child, ForkServer
from launcher.run_files import certificate_files
from peer.spec.document import dump_yaml
from peer.spec.loading import load_spec

PIXELS, CLASSES = (28, 28), 10
SOURCE = str(Path(__file__).parent.parent)
"""Where peers import `benchmarks` from."""


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
    random, arrays = np.random.default_rng(0), {}
    for part, count in (("train", samples), ("test", samples // 6)):
        arrays[f"x_{part}"] = random.integers(0, 256, (count, *PIXELS), np.uint8)
        arrays[f"y_{part}"] = np.arange(count) % CLASSES
    np.savez(path, **arrays)  # type: ignore[arg-type]


def write(directory: Path, peers: int, device: str = "cpu", secured: bool = False, **spec: Any) -> list[str]:
    """federation.yaml and a config a peer; the peers' ids. secured: with certificates."""
    directory.mkdir(parents=True)
    ids = [f"peer{i}" for i in range(peers)]
    ring = [{"id": id, "address": f"127.0.0.1:{port}"} for id, port in zip(ids, free_ports(peers), strict=True)]
    (directory / "federation.yaml").write_text(json.dumps({"name": "bench", "ring": ring, "patience": 120, **spec}))
    if secured:
        make_certificates(load_spec(directory / "federation.yaml"), directory / "certs", days=2)
    for id in ids:
        config: dict[str, Any] = {"federation": "federation.yaml", "id": id, "device": device}
        if secured:
            config["tls"] = {name: str(file) for name, file in certificate_files(directory / "certs", id).items()}
        (directory / f"{id}.yaml").write_text(dump_yaml(config))
    return ids


async def start(server: ForkServer, directory: Path, ids: Sequence[str]) -> list[Child]:
    return [
        await server.start(["--config", str(directory / f"{id}.yaml"), "--quiet"], directory / f"{id}.log")
        for id in ids
    ]


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


def ended_cpu(server: ForkServer) -> float:
    """CPU seconds of all peers of this fork server that have ended."""
    times = psutil.Process(server.pid).cpu_times()
    return float(times.children_user + times.children_system)


@contextmanager
def fork_server() -> Iterator[tuple[asyncio.Runner, ForkServer]]:
    """A fork server, and the loop that runs it, for code that is not asynchronous."""
    with asyncio.Runner() as runner:
        running = local.fork_server()
        server = runner.run(running.__aenter__())
        try:
            yield runner, server
        finally:
            runner.run(running.__aexit__(None, None, None))


def turn(runner: asyncio.Runner, server: ForkServer, directory: Path, count: int, **spec: Any) -> Cost:
    """A whole federation: the wall clock without its start-up, the CPU seconds with it."""
    ids, before = write(directory, count, **spec), ended_cpu(server)
    runner.run(run(server, directory, ids))
    return Cost(seconds_of_work(directory, ids), ended_cpu(server) - before)
