"""What a peer with a large model holds at its peak, beside a plain loop's: in models beyond that.

Run: python -m benchmarks.memory [--protocol gossip-sgd] [--peers 3] [--rounds 4]. A model of 275 MB, batches of 32 of
random images, SGD with momentum, one thread; a checkpoint after every round, an evaluation in the last. The loop is a
DataLoader over a TensorDataset and torch's SGD. A process' peak of private memory is its largest resident set
(VmHWM) less what it shares with other processes, which is nearly the same at all times.
"""

import argparse
import asyncio
import tempfile
import time
from collections.abc import Iterable
from multiprocessing import get_context
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

from benchmarks import peers
from benchmarks.measure import Figure, machine
from benchmarks.timed import mlp_huge
from launcher.engines.local import fork_server

SHARD, BATCH, LR, MOMENTUM = 64, 32, 0.01, 0.9
EVERY_S = 0.5
MB = 1_000_000


def kilobytes(path: str) -> dict[str, int]:
    """The figures in a file of /proc whose lines read `Name:  12 kB`, by name."""
    lines = (line.split() for line in Path(path).read_text().splitlines())
    return {line[0]: int(line[1]) for line in lines if line[-1] == "kB"}


class Peaks:
    """Bytes of private memory at each process' peak."""

    def __init__(self) -> None:
        self.bytes: dict[int, int] = {}

    def look(self, pids: Iterable[int]) -> None:
        for pid in pids:
            try:
                peak, now = kilobytes(f"/proc/{pid}/status"), kilobytes(f"/proc/{pid}/smaps_rollup")
            except (FileNotFoundError, ProcessLookupError):
                continue  # it has ended
            if peak:
                self.bytes[pid] = (peak["VmHWM:"] - now["Shared_Clean:"] - now["Shared_Dirty:"]) << 10


def loop() -> None:
    torch.set_num_threads(1)
    module = nn.Sequential(*mlp_huge((1, *peers.PIXELS), peers.CLASSES))
    samples = TensorDataset(torch.rand(SHARD, 1, *peers.PIXELS), torch.arange(SHARD) % peers.CLASSES)
    loader = DataLoader(samples, batch_size=BATCH, shuffle=True)
    optimiser = torch.optim.SGD(module.parameters(), LR, MOMENTUM)
    for x, y in loader:
        optimiser.zero_grad()
        torch.autograd.backward(functional.cross_entropy(module(x), y))
        optimiser.step()


def plain_loop() -> int:
    """Bytes at its peak."""
    peaks, process = Peaks(), get_context("spawn").Process(target=loop)
    process.start()
    while process.is_alive():
        peaks.look([process.pid or 0])
        process.join(EVERY_S)
    return max(peaks.bytes.values())


async def federation(directory: Path, count: int, protocol: str, rounds: int) -> list[int]:
    """Bytes at each peer's peak."""
    peers.images(directory.with_suffix(".npz"), count * SHARD)
    ids = peers.write(
        directory,
        count,
        rounds=rounds,
        evaluate_every=rounds,
        code=peers.SOURCE,
        protocol={"name": protocol, "batch_size": BATCH, "lr": LR, "momentum": MOMENTUM},
        model={"name": f"benchmarks.timed:{mlp_huge.__name__}"},
        data={"name": "npz", "path": str(directory.with_suffix(".npz"))},
    )
    peaks = Peaks()
    async with fork_server() as server:
        running = await peers.start(server, directory, ids)
        ended = asyncio.gather(*(process.wait() for process in running))
        while not ended.done():
            peaks.look(process.pid for process in running)
            await asyncio.wait([ended], timeout=EVERY_S)
    if any(ended.result()):
        raise RuntimeError(f"peers ended with {ended.result()}; see the logs in {directory}")
    return [*peaks.bytes.values()]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--protocol", default="gossip-sgd")
    parser.add_argument("--peers", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=4)
    given = parser.parse_args()
    model = sum(4 * one.numel() for half in mlp_huge((1, *peers.PIXELS), peers.CLASSES) for one in half.parameters())
    alone = plain_loop()
    with tempfile.TemporaryDirectory() as place:
        began = time.monotonic()
        each = asyncio.run(federation(Path(place) / "run", given.peers, given.protocol, given.rounds))
        took = time.monotonic() - began
    print(f"{given.peers} peers of {given.protocol}, {given.rounds} rounds in {took:.0f} s, {model / MB:.0f} MB:")
    print(f"  a peer's peak {', '.join(f'{one / MB:.0f}' for one in each)} MB, the loop's {alone / MB:.0f} MB")
    beyond = [(one - alone) / model for one in each]
    print(Figure(f"memory, {given.protocol}: models beyond the plain loop's peak", beyond, 3))
    print(machine())


if __name__ == "__main__":
    main()
