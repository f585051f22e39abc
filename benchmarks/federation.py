"""Ten peers run fibfl; the same local training by plain PyTorch loops on the same cores, with no communication.

Run: python -m benchmarks.federation [--turns 2]. Equal shards of 300 images of MNIST's size, FIRMA's model, 1 epoch of
the head and 20 of the extractor a round, one thread each. Start-up is apart on all sides. The loops run in one process
a core, peer after peer:

- `DataLoader`: what a simulation usually is, a DataLoader over a TensorDataset and the default Adam;
- `tensors`: the same without the DataLoader, batches being slices of a shuffled copy of the shard;
- `trainer`: this project's own trainer, called directly: what the runtime, its evaluation after every round, its
  checkpoints and its communication cost on top of the same training.
"""

import argparse
import os
import tempfile
import time
from collections.abc import Callable, Iterable
from itertools import count
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

from benchmarks import peers
from benchmarks.measure import Cost, Figure, in_turns, machine, median, ratios
from peer.learning.data.samples import InMemory
from peer.learning.model.shape_check import Example
from peer.learning.model.zoo import build
from peer.learning.training.optimiser import Adam
from peer.learning.training.phase import Phase
from peer.learning.training.trainer import Trainer

PEERS, SHARD, ROUNDS, HEAD, EXTRACTOR, BATCH, LR = 10, 300, 4, 1, 20, 64, 0.01


def shard() -> InMemory:
    pixels = torch.randint(0, 256, (SHARD, 1, *peers.PIXELS), dtype=torch.uint8)
    return InMemory(pixels.float() / 255, torch.arange(SHARD) % peers.CLASSES)


Batches = Callable[[], Iterable[tuple[Tensor, Tensor]]]
Loop = Callable[[], None]


def plain_loop(batches: Batches) -> Loop:
    """A peer's rounds, written as one would without a library."""
    halves = build("mlp", Example.zeros((1, *peers.PIXELS), peers.CLASSES), seed=1).halves
    assert halves
    model = nn.Sequential(*halves)
    phases = [
        (half, torch.optim.Adam(half.parameters(), lr=LR), epochs)
        for half, epochs in ((model[1], HEAD), (model[0], EXTRACTOR))
    ]

    def rounds() -> None:
        for _ in range(ROUNDS):
            for half, optimiser, epochs in phases:
                for part in model:
                    part.requires_grad_(part is half)
                for _ in range(epochs):
                    for x, y in batches():
                        optimiser.zero_grad()
                        torch.autograd.backward(functional.cross_entropy(model(x), y))
                        optimiser.step()

    return rounds


def dataloader_loop() -> Loop:
    samples = shard()
    loader = DataLoader(TensorDataset(samples.x, samples.y), batch_size=BATCH, shuffle=True)
    return plain_loop(lambda: loader)


def tensors_loop() -> Loop:
    samples = shard()

    def batches() -> Iterable[tuple[Tensor, Tensor]]:
        order = torch.randperm(SHARD)
        return zip(torch.split(samples.x[order], BATCH), torch.split(samples.y[order], BATCH), strict=True)

    return plain_loop(batches)


def trainer_loop() -> Loop:
    trainer = Trainer(build("mlp", Example.zeros((1, *peers.PIXELS), peers.CLASSES), seed=1), shard(), 1, "peer")
    phases = (
        Phase("head", HEAD, Adam(LR), BATCH, keep="head"),
        Phase("extractor", EXTRACTOR, Adam(LR), BATCH, keep="extractor"),
    )
    numbers = count(1)

    def rounds() -> None:
        for _ in range(ROUNDS):
            number = next(numbers)
            for phase in phases:
                trainer.train(phase, number)

    return rounds


LOOPS = {"DataLoader": dataloader_loop, "tensors": tensors_loop, "trainer": trainer_loop}


def worker(conductor: Connection, share: int) -> None:
    """One core's process: runs the rounds of its share of the peers when told to, one peer after the other."""
    torch.set_num_threads(1)
    loops = {name: [make() for _ in range(share)] for name, make in LOOPS.items()}
    conductor.send("ready")
    while (name := conductor.recv()) is not None:
        cpu = time.process_time()
        for rounds in loops[name]:
            rounds()
        conductor.send(time.process_time() - cpu)


class Workers:
    """Worker processes, one per core."""

    def __init__(self) -> None:
        cores, context = len(os.sched_getaffinity(0)), get_context("spawn")
        self._conductors, self._processes = [], []
        for number in range(min(cores, PEERS)):
            ours, theirs = context.Pipe()
            share = len(range(number, PEERS, cores))
            self._conductors.append(ours)
            self._processes.append(context.Process(target=worker, args=(theirs, share), daemon=True))
            self._processes[-1].start()
        for conductor in self._conductors:
            conductor.recv()

    def turn(self, name: str) -> Cost:
        began = time.monotonic()
        for conductor in self._conductors:
            conductor.send(name)
        cpu = sum(conductor.recv() for conductor in self._conductors)
        return Cost(time.monotonic() - began, cpu)

    def close(self) -> None:
        for conductor, process in zip(self._conductors, self._processes, strict=True):
            conductor.send(None)
            process.join(10)


def spec(data: Path) -> dict[str, object]:
    parameters = {"head_epochs": HEAD, "extractor_epochs": EXTRACTOR, "batch_size": BATCH, "lr": LR}
    return {"rounds": ROUNDS, "protocol": {"name": "fibfl", **parameters}, "data": {"name": "npz", "path": str(data)}}


def compare(turns: int) -> dict[str, list[Cost]]:
    """Costs of "federation" and of the loops; a federation's CPU seconds include its start-up."""
    workers, numbers = Workers(), count()
    with tempfile.TemporaryDirectory() as place, peers.fork_server() as (runner, server):
        data = Path(place) / "images.npz"
        peers.images(data, PEERS * SHARD)

        def federation() -> Cost:
            return peers.turn(runner, server, Path(place) / f"run{next(numbers)}", PEERS, **spec(data))

        contestants = {"federation": federation, **{n: (lambda n=n: workers.turn(n)) for n in LOOPS}}  # type: ignore[misc]
        taken = in_turns(contestants, turns)
    workers.close()
    return taken


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--turns", type=int, default=2)
    taken = compare(parser.parse_args().turns)
    print(f"{PEERS} peers, {ROUNDS} rounds of fibfl, {SHARD} images each:")
    for name, costs in taken.items():
        wall, cpu = median(costs)
        print(f"  {name:10} {wall:6.2f} s, {cpu:6.2f} s of CPU{' with start-up' * (name == 'federation')}")
    for name, bar in (("DataLoader", 1.15), ("tensors", 1.15), ("trainer", None)):
        walls = [one.wall for one in ratios(taken["federation"], taken[name])]
        print(Figure(f"federation: wall clock of the {name} loops'", walls, bar))
    print(machine())


if __name__ == "__main__":
    main()
