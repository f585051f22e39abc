"""Samples and models of a few numbers, to train on."""

from collections.abc import Iterable

import torch
from torch import Tensor, nn

from peer.learning.data.samples import InMemory, Samples
from peer.learning.model.layout import Split
from peer.learning.model.model import Model
from peer.learning.model.shape_check import Example
from peer.learning.model.zoo import build
from peer.learning.training.phase import Phase
from peer.learning.training.trainer import Trainer


def samples(n: int = 37, seed: int = 0) -> Samples:
    generator = torch.Generator().manual_seed(seed)
    y = torch.randint(0, 3, (n,), generator=generator)
    return InMemory(torch.randn(n, 4, generator=generator) + y[:, None], y)


def model(seed: int = 1) -> Model:
    return build("mlp", Example.zeros((4,), 3), seed=seed)


def batch_norm_model(dropout: float = 0.0) -> Model:
    with torch.random.fork_rng():
        torch.manual_seed(3)
        extractor = nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5), nn.ReLU(), nn.Dropout(dropout))
        return Model(Split(extractor, nn.Linear(5, 3)), settings="bn", example=Example.zeros((4,), 3))


class Recorder(nn.Module):
    """A linear layer that keeps the inputs of its training passes."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 3)
        self.batches: list[Tensor] = []

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            self.batches.append(x.clone())
        out: Tensor = self.layer(x)
        return out


def recorded() -> tuple[Model, list[Tensor]]:
    recorder = Recorder()
    made = Model(Split(recorder, nn.Identity()), settings="recorder", example=Example.zeros((4,), 3))
    recorder.batches.clear()
    return made, recorder.batches


def run(trainer: Trainer, phases: Iterable[Phase], rounds: Iterable[int]) -> None:
    for round in rounds:
        for phase in phases:
            trainer.train(phase, round)
