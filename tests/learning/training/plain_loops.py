"""The loops that people write, over the batches that a trainer takes."""

from collections.abc import Callable, Iterator
from contextlib import nullcontext
from typing import Any

import torch
from small_models import samples
from torch import Tensor, nn
from torch.nn import functional

from peer.learning.model.layout import Split
from peer.learning.model.model import Model
from peer.learning.model.shape_check import Example
from peer.learning.randomness import torch_generator
from peer.learning.training.optimiser import SGD
from peer.learning.training.phase import Phase, Training
from peer.learning.training.trainer import Trainer

SIZE, EPOCHS, ROUNDS, LR = 8, 2, 3, 0.05
PHASE = Phase("model", EPOCHS, SGD(LR), SIZE, keep="model")
N = 37


def small() -> Model:
    with torch.random.fork_rng():
        torch.manual_seed(3)
        extractor = nn.Sequential(nn.Linear(4, 6), nn.Tanh())
        return Model(Split(extractor, nn.Linear(6, 3)), settings="small", example=Example.zeros((4,), 3))


def trained(model: Model, how: Training, phase: Phase = PHASE, rounds: int = ROUNDS) -> Tensor:
    """The vector after some rounds of one phase."""
    trainer = Trainer(model, samples(N), 1, "peer0", how)
    for round in range(1, rounds + 1):
        trainer.train(phase, round)
    return model.vector.clone()


def epochs(rounds: int = ROUNDS) -> Iterator[tuple[int, list[tuple[Tensor, Tensor]]]]:
    """Yield the round, from 1, and the batches of each epoch."""
    data = samples(N)
    for round in range(1, rounds + 1):
        generator = torch_generator(1, "peer0", round, "order 0")
        for _ in range(EPOCHS):
            order = torch.randperm(N, generator=generator)
            yield round, [(data.x[at], data.y[at]) for at in order.split(SIZE)]


def plain(
    module: nn.Module,
    optimiser: torch.optim.Optimizer,
    scheduler: Any = None,
    every: str = "round",
    precision: torch.dtype | None = None,
) -> Tensor:
    """The parameters, flat, after a loop in plain torch."""
    scaler = torch.amp.GradScaler("cpu", enabled=precision == torch.float16)
    context: Callable[[], Any] = (lambda: torch.autocast("cpu", precision)) if precision else nullcontext
    last, losses = 1, list[float]()

    def advance() -> None:
        mean = sum(losses) / N
        scheduler.step(mean) if isinstance(scheduler, torch.optim.lr_scheduler.ReduceLROnPlateau) else scheduler.step()

    for round, batches in epochs():
        if scheduler is not None and every == "round" and round != last:
            advance()
        last, losses[:] = round, []
        for x, y in batches:
            optimiser.zero_grad()
            with context():
                loss = functional.cross_entropy(module(x), y)
            scaler.scale(loss).backward()
            scaler.step(optimiser)
            scaler.update()
            losses.append(loss.item() * len(y))
            if scheduler is not None and every == "step":
                advance()
        if scheduler is not None and every == "epoch":
            advance()
    return torch.cat([parameter.detach().flatten() for parameter in module.parameters()])
