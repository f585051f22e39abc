"""Many peers of fibfl in one process: CPU seconds of their start and of a round, and memory.

Run: python -m benchmarks.in_process [--peers 1000] [--rounds 2]. Every peer has 20 images of 8 by 8 random pixels and
the model `mlp` (117,642 parameters, 0.47 MB), trains it for 1 epoch of the head and 20 of the extractor a round, and is
tested on 360 images. Each run is a process of its own. What a round costs is the difference between a run of several
rounds and one of a single round, which does everything else once, too: the start, and the end with its results. The
same training and testing of 50 peers by plain PyTorch loops, one after the other with nothing else, is timed between.
"""

import argparse
import asyncio
import json
import resource
import tempfile
import time
from collections.abc import Callable
from multiprocessing import get_context
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from benchmarks.measure import machine
from peer.learning.model.zoo import mlp
from peer.runtime.in_process import run_in_process
from peer.spec.loading import load_spec

SHARD, TEST, PIXELS, CLASSES, EPOCHS, LR = 20, 360, (8, 8), 10, 20, 0.01
ALONE = 50
"""Peers without a federation."""


class Taken(NamedTuple):
    """CPU seconds, and the most bytes that the process held."""

    cpu: float
    memory: int


def images(path: Path, peers: int) -> None:
    """Random pixels, labels in turn; what is learnt does not matter here."""
    random, arrays = np.random.default_rng(0), {}
    for part, count in (("train", peers * SHARD), ("test", TEST)):
        arrays[f"x_{part}"] = random.integers(0, 256, (count, *PIXELS), np.uint8)
        arrays[f"y_{part}"] = np.arange(count) % CLASSES
    np.savez(path, **arrays)  # type: ignore[arg-type]


def federation(place: Path, peers: int, rounds: int) -> None:
    """All of a run."""
    images(place / "images.npz", peers)
    data, protocol = {"name": "npz", "path": "images.npz"}, {"name": "fibfl", "extractor_epochs": EPOCHS, "lr": LR}
    spec = {"rounds": rounds, "protocol": protocol, "model": {"name": "mlp"}, "data": data, "patience": 600}
    (place / "federation.yaml").write_text(json.dumps(spec))
    asyncio.run(run_in_process(load_spec(place / "federation.yaml", peers=peers), place / "run"))


def loops(_place: Path, peers: int, rounds: int) -> None:
    """Do the same training and testing as one would write it without a library."""
    torch.set_num_threads(1)
    generator = torch.Generator().manual_seed(0)
    tested = torch.rand(TEST, *PIXELS, generator=generator)
    for _ in range(peers):
        halves = mlp(PIXELS, CLASSES)
        model, x, y = nn.Sequential(*halves), torch.rand(SHARD, *PIXELS), torch.arange(SHARD) % CLASSES
        optimisers = [torch.optim.Adam(half.parameters(), lr=LR) for half in halves]
        for _ in range(rounds):
            for trained, epochs in ((1, 1), (0, EPOCHS)):
                for number, half in enumerate(halves):
                    half.requires_grad_(number == trained)
                for _ in range(epochs):
                    order = torch.randperm(SHARD)
                    optimisers[trained].zero_grad()
                    torch.autograd.backward(functional.cross_entropy(model(x[order]), y[order]))
                    optimisers[trained].step()
            with torch.no_grad():
                model(tested)


def measured(work: Callable[[Path, int, int], None], peers: int, rounds: int) -> Taken:
    """In this process, which does nothing else before or after."""
    with tempfile.TemporaryDirectory() as place:
        before = time.process_time()
        work(Path(place), peers, rounds)
        return Taken(time.process_time() - before, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10)


def apart(work: Callable[[Path, int, int], None], peers: int, rounds: int) -> Taken:
    """In a process of its own."""
    with get_context("spawn").Pool(1) as process:
        return process.apply(measured, (work, peers, rounds))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peers", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=2, help="of the longer run; at least 2")
    asked = parser.parse_args()
    work = {federation: asked.peers, loops: ALONE}
    taken = {(one, rounds): apart(one, work[one], rounds) for rounds in (1, asked.rounds) for one in work}
    a_round, alone = ((taken[one, asked.rounds].cpu - taken[one, 1].cpu) / (asked.rounds - 1) for one in work)
    ratio = (a_round / asked.peers) / (alone / ALONE)
    print(f"{asked.peers} peers of fibfl in one process, runs of 1 and of {asked.rounds} rounds:")
    print(f"CPU seconds a round: {a_round:.2f} (goal: at most {0.03 * asked.peers:g})")
    print(f"of a plain loop's training and testing: {ratio:.2f} times ({1000 * alone / ALONE:.0f} ms a peer)")
    print(f"CPU seconds of start and end: {taken[federation, 1].cpu - a_round:.2f}")
    print(f"GiB of memory at most: {taken[federation, asked.rounds].memory / (1 << 30):.2f} (goal: at most 2.5)")
    print(machine())


if __name__ == "__main__":
    main()
