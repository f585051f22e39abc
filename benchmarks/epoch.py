"""One epoch of the trainer against a DataLoader loop: 6,000 samples, mlp, batches of 64, Adam, one thread.

Run: python -m benchmarks.epoch. The contestants take turns in one process and the ratio is that of their
medians, so that a machine whose speed changes favours none; its load is printed beside. Compared are:

- `images`: DataLoader over a Subset of torchvision's MNIST with ToTensor, default Adam, `loss.item()` a step,
  as simulations of federated learning on images do it (only where torchvision is installed);
- `tensors`: the same over a TensorDataset, the leanest usual loop;
- `streamed`: the trainer on images that stay in arrays, read batch by batch, without workers, as with `stream: true`;
- `floor`: the bare forward and backward passes over the same batches, without optimiser, shuffling or loss:
  what no trainer can beat without changing the arithmetic.
"""

import argparse
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import DataLoader, Dataset, Subset, TensorDataset

from benchmarks.measure import Cost, in_turns, machine, median
from peer.errors import InputError
from peer.learning.data import batch_reader
from peer.learning.data.batch_loader import BatchLoader, StreamedSamples
from peer.learning.data.samples import InMemory
from peer.learning.model.layout import ModelPart
from peer.learning.model.shape_check import Example
from peer.learning.model.zoo import build
from peer.learning.tasks import Classification
from peer.learning.training.optimiser import Adam
from peer.learning.training.phase import Phase
from peer.learning.training.trainer import Trainer
from peer.learning.vision import torchvision

SAMPLES, BATCH = 6000, 64
PARTS: tuple[ModelPart, ...] = ("model", "extractor")
Epoch = Callable[[], object]


def mnist(pixels: Tensor, labels: Tensor) -> Dataset[Any]:
    """torchvision's MNIST, with these images in place of downloaded ones."""
    vision = torchvision()

    class Images(vision.datasets.MNIST):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            self.data, self.targets = pixels[:, 0], labels
            self.transform, self.target_transform = vision.transforms.ToTensor(), None

    made: Dataset[Any] = Images()
    return made


def plain_loop(module: nn.Module, data: Dataset[Any]) -> Epoch:
    optimiser = torch.optim.Adam(module.parameters(), lr=0.01)
    loader = DataLoader(data, batch_size=BATCH, shuffle=True)

    def epoch() -> float:
        total = 0.0
        for x, y in loader:
            optimiser.zero_grad()
            loss = functional.cross_entropy(module(x), y)
            torch.autograd.backward(loss)
            optimiser.step()
            total += loss.item() * len(y)
        return total / SAMPLES

    return epoch


def floor(module: nn.Module, samples: InMemory) -> Epoch:
    def epoch() -> None:
        for x, y in zip(torch.split(samples.x, BATCH), torch.split(samples.y, BATCH), strict=True):
            torch.autograd.backward(functional.cross_entropy(module(x), y))

    return epoch


def streamed(pixels: Tensor, labels: Tensor) -> StreamedSamples:
    """The samples, converted to float32 when they are needed."""
    part = batch_reader.DataPart(pixels.numpy())
    stream = BatchLoader(batch_reader.BatchReader("images", {"train": part}, Classification(), 255.0))
    return StreamedSamples(stream, "train", np.arange(SAMPLES), labels)


def contestants(shape: tuple[int, ...], part: ModelPart) -> dict[str, Epoch]:
    generator = torch.Generator().manual_seed(0)
    pixels = torch.randint(0, 256, (SAMPLES, *shape), generator=generator, dtype=torch.uint8)
    labels = torch.randint(0, 10, (SAMPLES,), generator=generator)
    samples = InMemory(pixels.float() / 255, labels)

    def module() -> nn.Module:
        made = build("mlp", Example.zeros(shape, 10), seed=1)
        made.learn(part)
        return made.module

    trainer = Trainer(build("mlp", Example.zeros(shape, 10), seed=1), samples, 1, "peer0")
    streaming = Trainer(build("mlp", Example.zeros(shape, 10), seed=1), streamed(pixels, labels), 1, "peer0")
    phase = Phase(part, 1, Adam(), BATCH, keep="bench")
    rounds = iter(range(10**6))
    epochs: dict[str, Epoch] = {
        "trainer": lambda: trainer.train(phase, next(rounds)),
        "streamed": lambda: streaming.train(phase, next(rounds)),
        "tensors": plain_loop(module(), TensorDataset(samples.x, samples.y)),
        "floor": floor(module(), samples),
    }
    try:
        epochs["images"] = plain_loop(module(), Subset(mnist(pixels, labels), range(SAMPLES)))
    except InputError as error:
        print(f"without the loop over images: {error}")
    return epochs


def cost(epoch: Epoch) -> Cost:
    wall, cpu = time.perf_counter(), time.process_time()
    epoch()
    return Cost(time.perf_counter() - wall, time.process_time() - cpu)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=7, help="turns of each contestant")
    repeats = parser.parse_args().repeats
    torch.set_num_threads(1)
    for shape in ((1, 8, 8), (1, 28, 28)):
        for part in PARTS:
            turns = {name: partial(cost, epoch) for name, epoch in contestants(shape, part).items()}
            seconds = {name: median(costs) for name, costs in in_turns(turns, repeats).items()}
            print(f"mlp, {SAMPLES} samples of {shape}, batch {BATCH}, training the {part}:")
            wall, cpu = seconds["trainer"]
            for name, (w, c) in seconds.items():
                print(f"  {name:8} {w:6.3f} s wall {c:6.3f} s CPU   {w / wall:5.2f} × wall {c / cpu:5.2f} × CPU")
    print(machine())


if __name__ == "__main__":
    main()
