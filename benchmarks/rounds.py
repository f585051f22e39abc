"""A round of gossip-sgd beside plain loops over the same samples, and where a peer's CPU goes, thread by thread.

Run: python -m benchmarks.rounds [--turns 3]. Four peers on a ring, 600 images of MNIST's size each, batches of 32, one
epoch of SGD with momentum a round, one thread; a tiny model (25 kB), of which next to nothing travels, a small one
(0.94 MB) and a large one (23.3 MB). The loops are what a simulation usually is: a DataLoader over a TensorDataset and
torch's SGD, a process for each core. Start-up is apart. Runs and loops take turns. A peer's CPU is its own, from the
end of its first round on (`benchmarks.timed`): of the thread that trains, of those that save, of the event loop, and of
the rest, which are gRPC's.
"""

import argparse
import asyncio
import json
import os
import statistics
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from itertools import count
from multiprocessing import get_context
from multiprocessing.context import SpawnProcess
from multiprocessing.queues import SimpleQueue
from multiprocessing.synchronize import Barrier
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

from benchmarks import peers
from benchmarks.measure import Cost, Figure, in_turns, machine, median, ratios
from benchmarks.timed import mlp_large, mlp_small, mlp_tiny
from launcher.engines.local import ForkServer

PEERS, SHARD, BATCH, LR, MOMENTUM = 4, 600, 32, 0.01, 0.9
MODELS = {"25 kB": mlp_tiny, "0.94 MB": mlp_small, "23.3 MB": mlp_large}
ROUNDS = {"25 kB": 60, "0.94 MB": 6, "23.3 MB": 6}
GOALS = {"25 kB": " (goal: at most 10)", "23.3 MB": " (goal: at most 120)"}
"""Goals in milliseconds, which depend on the machine and are not recorded."""


def loops(model: str, share: int, barrier: Barrier, results: "SimpleQueue[Cost]") -> None:
    """What a process for one core takes for a round of its share of the peers, while the other cores do the same."""
    torch.set_num_threads(1)
    trained = []
    for _ in range(share):
        extractor, head = MODELS[model]((1, *peers.PIXELS), peers.CLASSES)
        module = nn.Sequential(extractor, head)
        samples = TensorDataset(torch.rand(SHARD, 1, *peers.PIXELS), torch.arange(SHARD) % peers.CLASSES)
        loader = DataLoader(samples, batch_size=BATCH, shuffle=True)
        trained.append((module, loader, torch.optim.SGD(module.parameters(), LR, MOMENTUM)))
    costs = []
    barrier.wait()
    for _ in range(ROUNDS[model]):
        began, cpu = time.monotonic(), time.process_time()
        for module, loader, optimiser in trained:
            for x, y in loader:
                optimiser.zero_grad()
                torch.autograd.backward(functional.cross_entropy(module(x), y))
                optimiser.step()
        costs.append(Cost(time.monotonic() - began, time.process_time() - cpu))
    results.put(median(costs[1:]))


def plain_loops(model: str) -> Cost:
    """Return the cost of one round of all peers: the slowest core's wall clock, and CPU seconds per peer."""
    cores, context = min(len(os.sched_getaffinity(0)), PEERS), get_context("spawn")
    barrier, results = context.Barrier(cores), context.SimpleQueue()
    shares = [len(range(core, PEERS, cores)) for core in range(cores)]
    processes = [context.Process(target=loops, args=(model, share, barrier, results)) for share in shares]
    return together(processes, results)


def together(processes: Sequence[SpawnProcess], results: "SimpleQueue[Cost]") -> Cost:
    """Run processes that do the work of all peers and put their costs into `results`; return the slowest one's wall
    clock, and CPU seconds per peer."""
    for process in processes:
        process.start()
    costs = [results.get() for _ in processes]
    for process in processes:
        process.join()
    return Cost(max(cost.wall for cost in costs), sum(cost.cpu for cost in costs) / PEERS)


def rounds_of(directory: Path) -> list[list[dict[str, float]]]:
    """By peer: after the first and the last round the time, and CPU seconds by kind of thread."""
    return [[json.loads(line) for line in file.read_text().splitlines()] for file in sorted(directory.glob("*.jsonl"))]


class Timed(NamedTuple):
    """A federation of timed peers."""

    round: Cost
    """The cost of one round: wall clock, and CPU seconds per peer."""
    threads: Counter[str]
    """CPU seconds a peer and round by kind of thread."""
    communicate: float
    """Seconds a peer and round in which it communicates."""


def timed(place: Path, running: tuple[asyncio.Runner, ForkServer], secured: bool = False, **spec: Any) -> Timed:
    """Run one in a directory that is not there yet; `protocol` and `data` of `spec` are for a timed protocol."""
    times, directory, rounds = place / "times", place / "run", spec["rounds"]
    times.mkdir(parents=True)
    protocol = {"batch_size": BATCH, "lr": LR, "momentum": MOMENTUM, "times": str(times), **spec.pop("protocol")}
    given = {"protocol": protocol, "code": peers.SOURCE, "evaluate_every": rounds, **spec}
    peers.turn(*running, directory, PEERS, secured=secured, **given)
    ends = rounds_of(times)
    span = max(one[-1]["time"] for one in ends) - min(one[0]["time"] for one in ends)
    each = [{kind: (one[-1][kind] - one[0][kind]) / (rounds - 1) for kind in one[0] if kind != "time"} for one in ends]
    threads = Counter({kind: statistics.mean(one[kind] for one in each) for kind in each[0]})
    told = [
        event["seconds"]
        for id in sorted(times.glob("*.jsonl"))
        for event in peers.events(directory, id.stem, "round")[1:]
    ]
    communicate = statistics.mean(seconds["communicate"] for seconds in told)
    return Timed(Cost(span / (rounds - 1), threads.total()), threads, communicate)


def compare(model: str, turns: int) -> tuple[dict[str, list[Cost]], list[Counter[str]]]:
    """Costs of a round, and, of each turn, CPU seconds a peer and round by kind of thread."""
    numbers, threads = count(), list[Counter[str]]()
    with tempfile.TemporaryDirectory() as place, peers.fork_server() as running:
        data = Path(place) / "images.npz"
        peers.images(data, PEERS * SHARD)

        def federation() -> Cost:
            found = timed(
                Path(place) / f"turn{next(numbers)}",
                running,
                rounds=ROUNDS[model],
                protocol={"name": "benchmarks.timed:Timed", "topology": "ring"},
                model={"name": f"benchmarks.timed:{MODELS[model].__name__}"},
                data={"name": "npz", "path": str(data)},
            )
            threads.append(found.threads)
            return found.round

        taken = in_turns({"federation": federation, "loops": lambda: plain_loops(model)}, turns)
    return taken, threads[1:]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--turns", type=int, default=3)
    turns = parser.parse_args().turns
    for model in MODELS:
        taken, threads = compare(model, turns)
        print(f"{PEERS} peers of gossip-sgd on a ring, {model}:")
        for name, costs in taken.items():
            wall, cpu = median(costs)
            print(f"  {name:10} {wall:6.3f} s a round, {cpu:6.3f} s of CPU a peer")
        kinds = {kind: statistics.median(turn[kind] for turn in threads) for kind in threads[0]}
        print("  a peer's CPU: " + ", ".join(f"{kind} {seconds:.4f} s" for kind, seconds in kinds.items()))
        against = ratios(taken["federation"], taken["loops"])
        print(Figure(f"rounds, {model}: wall clock of DataLoader loops'", [one.wall for one in against], 1.2))
        print(Figure(f"rounds, {model}: CPU of DataLoader loops'", [one.cpu for one in against]))
        beyond = [turn.total() - turn["training"] for turn in threads]
        print(f"  of it {1000 * statistics.median(beyond):.1f} ms beyond training{GOALS.get(model, '')}")
        parts = [one / loop.cpu for one, loop in zip(beyond, taken["loops"], strict=True)]
        print(Figure(f"rounds, {model}: CPU beyond training, of DataLoader loops'", parts))
    print(machine())


if __name__ == "__main__":
    main()
