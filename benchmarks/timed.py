"""Models of several sizes, and a gossip-sgd and a fedavg whose peers write down what each kind of thread has taken,
after the first and the last round: for benchmarks.rounds, benchmarks.means and benchmarks.memory."""

import json
import math
import os
import threading
import time
from pathlib import Path

from torch import nn

from peer.protocols.base import Peer
from peer.protocols.fedavg import FedAvg
from peer.protocols.gossip_sgd import GossipSGD


def mlp_tiny(shape: tuple[int, ...], classes: int) -> tuple[nn.Module, nn.Module]:
    return _mlp(shape, 8, 8), nn.Linear(8, classes)


def mlp_small(shape: tuple[int, ...], classes: int) -> tuple[nn.Module, nn.Module]:
    return _mlp(shape, 256, 128), nn.Linear(128, classes)


def mlp_large(shape: tuple[int, ...], classes: int) -> tuple[nn.Module, nn.Module]:
    return _mlp(shape, 2048, 2048), nn.Linear(2048, classes)


def mlp_larger(shape: tuple[int, ...], classes: int) -> tuple[nn.Module, nn.Module]:
    return _mlp(shape, 3000, 2960), nn.Linear(2960, classes)


def mlp_huge(shape: tuple[int, ...], classes: int) -> tuple[nn.Module, nn.Module]:
    return _mlp(shape, 8192, 7600), nn.Linear(7600, classes)


def _mlp(shape: tuple[int, ...], first: int, second: int) -> nn.Module:
    inputs = math.prod(shape)
    return nn.Sequential(nn.Flatten(), nn.Linear(inputs, first), nn.ReLU(), nn.Linear(first, second), nn.ReLU())


def cpu_by_thread() -> dict[str, float]:
    """CPU seconds of this process so far: `training`, `saving`, `event loop`, and `gRPC` for threads not Python's."""
    names = {thread.native_id: thread.name for thread in threading.enumerate()} | {os.getpid(): "event loop"}
    taken = dict.fromkeys(("training", "saving", "event loop", "gRPC"), 0.0)
    for task in Path("/proc/self/task").iterdir():
        name = names.get(int(task.name), "")
        kind = {"event loop": name, "": "gRPC"}.get(name, "training" if "train" in name else "saving")
        runtime = (task / "schedstat").read_text().split()[0]
        taken[kind] += int(runtime) / 1e9
    return taken


def write_line(directory: str, peer: Peer) -> None:
    """After the first and the last round: what this takes, half a millisecond, is not the runtime's."""
    if peer.round not in (1, peer.rounds):
        return
    line = {"time": time.time(), **cpu_by_thread()}
    with (Path(directory) / f"{peer.id}.jsonl").open("a") as file:
        file.write(json.dumps(line) + "\n")


class Timed(GossipSGD):
    """GossipSGD under a name of its own."""

    name: str = "benchmarks.timed:Timed"  # type: ignore[assignment]
    times: str = ""
    """The directory into which each peer writes its lines."""

    async def round(self, peer: Peer) -> None:
        await super().round(peer)
        write_line(self.times, peer)


class TimedMean(FedAvg):
    """FedAvg under a name of its own."""

    name: str = "benchmarks.timed:TimedMean"  # type: ignore[assignment]
    times: str = ""
    """The directory into which each peer writes its lines."""

    async def round(self, peer: Peer) -> None:
        await super().round(peer)
        write_line(self.times, peer)
