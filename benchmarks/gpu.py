"""A GPU at work: an epoch of ResNet-18 by the trainer against plain loops, and four peers on one GPU against one peer.

Run: python -m benchmarks.gpu [--device cuda:1]. Images are 3 × 32 × 32, batches of 128, SGD with momentum. The loops
run in this process, in turns with the trainer, each until the GPU has nothing left to do. The trainer gives the same
bits each time; `not determin.` is the trainer without that, as the loops are:

- `tensors`: shuffled batches by index from tensors on the GPU, torch's fused SGD, no value read before the end;
- `DataLoader`: over a TensorDataset on the CPU, its batches pinned, `loss.item()` after each step.

The peers are real ones: four of FedAvg, each with as many samples as the one that trains alone; what counts is how many
samples a second all four train on, what they send, evaluate and save included, of what the one does. The first round,
in which CUDA starts, does not count. Without a GPU nothing is measured. `--device cpu --samples 64 --batch 16` tries it
all on a CPU, whose figures say nothing of a GPU.
"""

import argparse
import asyncio
import tempfile
import time
from collections.abc import Callable, Iterable
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

from benchmarks import peers
from benchmarks.measure import Cost, in_turns, machine, median, ratio
from launcher.engines.local import ForkServer
from peer.errors import InputError
from peer.learning.data.samples import InMemory
from peer.learning.device import choose_device, prepare_device
from peer.learning.model.model import Model
from peer.learning.model.shape_check import Example
from peer.learning.model.zoo import build
from peer.learning.training.optimiser import SGD
from peer.learning.training.phase import Phase
from peer.learning.training.trainer import Trainer

MODEL, SHAPE, CLASSES, ROUNDS, PEERS = "resnet18", (3, 32, 32), 10, 4, 4
LR, MOMENTUM = 0.05, 0.9
Turn = Callable[[], Cost]
Batches = Callable[[], Iterable[tuple[Tensor, Tensor]]]


def model(device: torch.device) -> Model:
    return build(MODEL, Example.zeros(SHAPE, CLASSES), seed=1, device=device)


def images(samples: int) -> InMemory:
    generator = torch.Generator().manual_seed(0)
    return InMemory(torch.rand(samples, *SHAPE, generator=generator), torch.arange(samples) % CLASSES)


def timed(device: torch.device, epoch: Callable[[], object], deterministic: bool) -> Turn:
    """Until all is computed that the epoch asks for; `deterministic`: by algorithms that give the same bits again."""

    def wait() -> None:
        if device.type == "cuda":
            torch.cuda.synchronize(device)

    def turn() -> Cost:
        torch.use_deterministic_algorithms(deterministic)
        wait()
        wall, cpu = time.perf_counter(), time.process_time()
        epoch()
        wait()
        return Cost(time.perf_counter() - wall, time.process_time() - cpu)

    return turn


def plain_loop(device: torch.device, batches: Batches, *, told: bool) -> Callable[[], object]:
    """An epoch as one would write it without a library; `told`: the loss after each step."""
    made = model(device)
    made.learn("model")
    module = made.module
    optimiser = torch.optim.SGD(module.parameters(), LR, MOMENTUM, fused=True)

    def epoch() -> float:
        module.train()
        total, losses = torch.zeros((), device=device), 0.0
        for x, y in batches():
            optimiser.zero_grad()
            loss = functional.cross_entropy(module(x), y)
            torch.autograd.backward(loss)
            optimiser.step()
            if told:
                losses += loss.item()
            else:
                total += loss.detach()
        return losses + float(total)

    return epoch


def contestants(device: torch.device, samples: int, batch: int) -> dict[str, Turn]:
    here = images(samples)
    there, numbers = here.to(device), count()
    trainer, phase = (
        Trainer(model(device), there, 1, "peer0"),
        Phase("model", 1, SGD(LR, MOMENTUM), batch, keep="bench"),
    )
    loader = DataLoader(TensorDataset(here.x, here.y), batch, shuffle=True, pin_memory=device.type == "cuda")

    def by_index() -> Iterable[tuple[Tensor, Tensor]]:
        for at in torch.split(torch.randperm(samples, device=device), batch):
            yield there.x[at], there.y[at]

    def copied() -> Iterable[tuple[Tensor, Tensor]]:
        for x, y in loader:
            yield x.to(device, non_blocking=True), y.to(device, non_blocking=True)

    def trained() -> object:
        return trainer.train(phase, next(numbers))

    return {
        "trainer": timed(device, trained, deterministic=True),
        "not determin.": timed(device, trained, deterministic=False),
        "tensors": timed(device, plain_loop(device, by_index, told=False), deterministic=False),
        "DataLoader": timed(device, plain_loop(device, copied, told=True), deterministic=False),
    }


def seconds_a_round(runner: asyncio.Runner, server: ForkServer, place: Path, ids: list[str]) -> float:
    """Return the seconds per round of all peers together, without the first round."""
    runner.run(peers.run(server, place, ids))
    ends = [[event["time"] for event in peers.events(place, id, "round")] for id in ids]
    return float(max(one[-1] for one in ends) - max(one[0] for one in ends)) / (ROUNDS - 1)


def sharing(device: str, samples: int, batch: int, turns: int) -> list[float]:
    """How many samples a second four peers train on, of what one does."""
    training = {"epochs": 1, "batch_size": batch, "lr": LR}
    protocols = {
        1: {"name": "solo", "like": "fedavg", "settings": training},
        PEERS: {"name": "fedavg", **training},
    }
    found = []
    with tempfile.TemporaryDirectory() as directory, peers.fork_server() as (runner, server):
        for turn in range(turns):
            seconds = {}
            for number, protocol in protocols.items():
                place = Path(directory) / f"{turn}-{number}"
                data = arrays(Path(directory) / f"{number}.npz", number * samples)
                spec: dict[str, Any] = {"rounds": ROUNDS, "model": MODEL, "protocol": protocol, "data": data}
                ids = peers.write(place, number, device, **spec)
                seconds[number] = seconds_a_round(runner, server, place, ids)
            found.append(PEERS * seconds[1] / seconds[PEERS])
    return found


def arrays(path: Path, samples: int) -> dict[str, str]:
    """Data of so many training samples, written once; the spec's `data`."""
    if not path.exists():
        made = images(samples + CLASSES)
        x, y = (made.x * 255).byte().numpy(), made.y.numpy()
        np.savez(path, x_train=x[CLASSES:], y_train=y[CLASSES:], x_test=x[:CLASSES], y_test=y[:CLASSES])
    return {"name": "npz", "path": str(path)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda", help="cuda, cuda:N or cpu")
    parser.add_argument("--samples", type=int, default=25_600, help="of a peer, and of an epoch")
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--turns", type=int, default=3)
    asked = parser.parse_args()
    try:
        device = choose_device(asked.device)
        prepare_device(device, None, deterministic=True)
    except InputError:
        print(f"There is no `{asked.device}` here, so nothing was measured; --device cpu tries it all on a CPU.")
        return
    what = torch.cuda.get_device_name(device) if device.type == "cuda" else "a CPU"
    four = sharing(asked.device, asked.samples, asked.batch, asked.turns)
    costs = in_turns(contestants(device, asked.samples, asked.batch), asked.turns)
    print(f"{MODEL} on {what}, {asked.samples} samples of {SHAPE}, batches of {asked.batch}; {machine()}")
    for name, taken in costs.items():
        cost, times = median(taken), ratio(costs["trainer"], taken)
        print(
            f"  {name:13} {cost.wall:7.3f} s wall {cost.cpu:7.3f} s CPU   the trainer takes {times.wall:.2f} × its wall"
        )
    print(f"  four peers train on {sorted(four)[len(four) // 2]:.2f} × the samples a second of one, on the same device")


if __name__ == "__main__":
    main()
