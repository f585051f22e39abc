"""The mean of a model of 45 MB round the ring, in fedavg, beside gloo's `all_reduce` of the same vector.

Run: python -m benchmarks.means [--turns 3]. Four peers, 128 images of MNIST's size each in batches of 32, one epoch of
SGD with momentum a round, one thread; without certificates and with mutual TLS. gloo is torch.distributed among four
processes on loopback, which keep nothing and check nothing. Runs and gloo take turns. A peer's round is measured as in
benchmarks.rounds: all of it, with training and saving, from the end of the first round on.
"""

import argparse
import statistics
import tempfile
import time
from itertools import count
from multiprocessing import get_context
from multiprocessing.queues import SimpleQueue
from pathlib import Path

import torch
import torch.distributed
from torch import nn

from benchmarks import peers
from benchmarks.measure import Cost, Figure, in_turns, machine, median, ratios
from benchmarks.rounds import BATCH, PEERS, Timed, timed, together
from benchmarks.timed import mlp_larger

SHARD, ROUNDS = 4 * BATCH, 8
FEDERATIONS = ("fedavg", "fedavg, TLS")
GOAL = " (goal: at most 0.25, and 0.2 s of CPU)"


def all_reduce(rank: int, store: str, length: int, results: "SimpleQueue[Cost]") -> None:
    """One of the processes: its median cost of one."""
    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo", init_method=store, rank=rank, world_size=PEERS)
    vector, costs = torch.rand(length), []
    for _ in range(ROUNDS):
        torch.distributed.barrier()
        began, cpu = time.monotonic(), time.process_time()
        torch.distributed.all_reduce(vector)
        costs.append(Cost(time.monotonic() - began, time.process_time() - cpu))
    torch.distributed.destroy_process_group()
    results.put(median(costs[1:]))


def gloo(store: Path) -> Cost:
    """Return the cost of one `all_reduce`: the slowest process's wall clock, and CPU seconds per process."""
    model = nn.ModuleList(mlp_larger((1, *peers.PIXELS), peers.CLASSES))
    length = sum(parameter.numel() for parameter in model.parameters())
    context = get_context("spawn")
    results = context.SimpleQueue()
    processes = [
        context.Process(target=all_reduce, args=(rank, store.as_uri(), length, results)) for rank in range(PEERS)
    ]
    return together(processes, results)


def compare(turns: int) -> tuple[dict[str, list[Cost]], dict[str, list[Timed]]]:
    """Costs of a round and of gloo's `all_reduce`, and all that was measured of the federations' turns."""
    numbers, found = count(), {name: list[Timed]() for name in FEDERATIONS}
    with tempfile.TemporaryDirectory() as place, peers.fork_server() as running:
        data = Path(place) / "images.npz"
        peers.images(data, PEERS * SHARD)

        def federation(name: str) -> Cost:
            one = timed(
                Path(place) / f"turn{next(numbers)}",
                running,
                secured="TLS" in name,
                rounds=ROUNDS,
                protocol={"name": "benchmarks.timed:TimedMean", "epochs": 1},
                model={"name": f"benchmarks.timed:{mlp_larger.__name__}"},
                data={"name": "npz", "path": str(data)},
            )
            found[name].append(one)
            return one.round

        contestants = {name: lambda name=name: federation(name) for name in FEDERATIONS}
        taken = in_turns({**contestants, "gloo": lambda: gloo(Path(place) / f"store{next(numbers)}")}, turns)
    return taken, {name: measured[1:] for name, measured in found.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--turns", type=int, default=3)
    taken, found = compare(parser.parse_args().turns)
    print(f"the mean of 45 MB among {PEERS} peers:")
    for name, costs in taken.items():
        wall, cpu = median(costs)
        print(f"  {name:12} {wall:6.3f} s, {cpu:6.3f} s of CPU a peer")
    for name, turns in found.items():
        kinds = {kind: statistics.median(turn.threads[kind] for turn in turns) for kind in turns[0].threads}
        print(f"  a peer's CPU, {name}: " + ", ".join(f"{kind} {seconds:.3f} s" for kind, seconds in kinds.items()))
        print(f"  of a round {statistics.median(turn.communicate for turn in turns):.3f} s of `communicate`{GOAL}")
        parts = [turn.communicate / one.wall for turn, one in zip(turns, taken["gloo"], strict=True)]
        print(Figure(f"means, {name}: `communicate` of a round, of gloo's all_reduce", parts))
        parts = [one.cpu for one in ratios(taken[name], taken["gloo"])]
        print(Figure(f"means, {name}: CPU of a round, of gloo's all_reduce", parts))
    print(machine())


if __name__ == "__main__":
    main()
