"""A loss of one's own in the place of cross-entropy: what it is given, what it may draw, and what is no loss."""

import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch
from small_models import model, recorded, run, samples
from torch import Tensor, nn
from torch.nn import functional

from peer.errors import DivergedError, OwnLossError
from peer.learning.data.samples import Batch
from peer.learning.model.layout import ModelPart
from peer.learning.model.model import Model
from peer.learning.training.optimiser import SGD
from peer.learning.training.phase import Phase
from peer.learning.training.step import TrainingStep, largest_magnitude
from peer.learning.training.trainer import Trainer


def trained(phase: Phase, make: Callable[[], Model] = model) -> Tensor:
    trainer = Trainer(make(), samples(), 1, "peer0")
    run(trainer, [phase], range(2))
    return trainer.model.vector


@pytest.mark.parametrize("part", ["model", "head", "extractor"])
def test_a_loss_of_ones_own_takes_the_place_of_cross_entropy(part: ModelPart) -> None:
    def cross_entropy(logits: Tensor, labels: Tensor, positions: Tensor) -> Tensor:
        return -logits.log_softmax(1)[torch.arange(len(labels)), labels].mean()

    usual = Phase(part, 2, SGD(0.05, 0.9), batch_size=8, keep="all")
    torch.testing.assert_close(trained(replace(usual, loss=cross_entropy)), trained(usual))


def test_label_smoothing_is_torchs() -> None:
    def smoothed(logits: Tensor, labels: Tensor, positions: Tensor) -> Tensor:
        return functional.cross_entropy(logits, labels, label_smoothing=0.2)

    made, batches = recorded()
    data = samples()
    plain = nn.Linear(4, 3)
    plain.load_state_dict(made.module.get_submodule("extractor.layer").state_dict())
    loss = Trainer(made, data, 1, "peer0").train(Phase("model", 1, SGD(0.05), batch_size=8, loss=smoothed), 0)
    labels = {tuple(x.tolist()): int(y) for x, y in zip(data.x, data.y, strict=True)}
    criterion, optimiser = nn.CrossEntropyLoss(label_smoothing=0.2), torch.optim.SGD(plain.parameters(), lr=0.05)
    total = 0.0
    for x in batches:
        optimiser.zero_grad()
        value = criterion(plain(x), torch.tensor([labels[tuple(row)] for row in x.tolist()]))
        value.backward()
        optimiser.step()
        total += value.item() * len(x)
    torch.testing.assert_close(made.vector, torch.cat([p.detach().flatten() for p in plain.parameters()]))
    assert loss == pytest.approx(total / len(data), rel=1e-6)


@pytest.mark.parametrize("part", ["model", "head"])
@pytest.mark.parametrize("epochs", [0, 2])
def test_the_positions_are_those_of_the_batch_in_the_samples(part: ModelPart, epochs: int) -> None:
    trainer = Trainer(model(), samples(), 1, "peer0")
    seen: list[Tensor] = []

    def loss(logits: Tensor, labels: Tensor, positions: Tensor) -> Tensor:
        seen.append(positions)
        assert torch.equal(labels, trainer.samples.y[positions])
        torch.testing.assert_close(logits, trainer.model(trainer.samples.x[positions]))
        return functional.cross_entropy(logits, labels)

    trainer.train(Phase(part, epochs, SGD(), batch_size=8, loss=loss), 3)
    assert torch.cat(seen).bincount().tolist() == [max(epochs, 1)] * 37
    if epochs:
        drawn = Trainer(model(), samples(), 1, "peer0").batches(8, 3, epochs)
        assert all(torch.equal(a, b) for a, b in zip(seen, drawn, strict=True))


def test_what_a_loss_draws_replays_and_leaves_the_process_alone() -> None:
    def noisy(logits: Tensor, labels: Tensor, positions: Tensor) -> Tensor:
        return functional.cross_entropy(logits + torch.randn_like(logits), labels)

    phase = Phase("model", 2, SGD(0.05), batch_size=8, loss=noisy)
    state = torch.get_rng_state()
    first = trained(phase)
    assert torch.equal(torch.get_rng_state(), state)
    torch.rand(3)
    assert torch.equal(trained(phase), first)


def test_without_steps_the_loss_is_ones_own_of_the_model_as_it_is() -> None:
    trainer = Trainer(model(), samples(300), 1, "peer0")
    phase = Phase("model", 0, SGD(), loss=lambda logits, labels, positions: logits.square().mean())
    expected = trainer.model(trainer.samples.x).square().mean().item()
    assert trainer.train(phase, 0) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("loss", "error", "sentence"),
    [
        (lambda logits, *_: logits, ValueError, r"tensor of shape \(\), not \(8, 3\) of float32"),
        (lambda logits, *_: float(logits.detach().sum()), ValueError, r"tensor of shape \(\), not a float"),
        (lambda logits, *_: logits.argmax(), ValueError, r"floating-point tensor .*, not \(\) of int64"),
        (lambda logits, *_: logits.detach().mean(), ValueError, "without detaching"),
        (
            lambda logits, *_: logits.sum() / 0,
            OwnLossError,
            r"peer3: the loss of `test_own_loss:<lambda>` is -?inf in round 4, though the model's outputs are finite, "
            r"[\d.]+ at most; correct that loss$",
        ),
        (
            lambda logits, *_: (logits * 0).square().sum().sqrt(),
            OwnLossError,
            "peer3: the gradient of the loss of `test_own_loss:<lambda>` is not finite in round 4, though",
        ),
        (
            lambda logits, *_: (logits * 1e30).square().sum(),
            OwnLossError,
            "peer3: the loss of `test_own_loss:<lambda>` is inf in round 4, though",
        ),
    ],
)
def test_a_loss_that_is_no_loss_is_told_in_a_sentence(
    loss: Callable[..., Tensor], error: type[Exception], sentence: str
) -> None:
    trainer = Trainer(model(), samples(), 1, "peer3")
    with pytest.raises(error, match=sentence) as caught:
        trainer.train(Phase("model", 1, SGD(), batch_size=8, loss=loss), 4)
    assert "\n" not in str(caught.value)


def test_outputs_that_grow_without_bound_are_the_learning_rates_fault() -> None:
    trainer = Trainer(model(), samples(), 1, "peer3")
    phase = Phase("model", 9, SGD(1e3), batch_size=8, loss=lambda logits, *_: logits.square().mean())
    with pytest.raises(DivergedError, match=r"round 4.*; lower the learning rate, now 1000\.0"):
        trainer.train(phase, 4)


def test_a_loss_that_fails_once_is_remembered_after_the_model_is_not_finite() -> None:
    calls: list[int] = []

    def loss(logits: Tensor, labels: Tensor, positions: Tensor) -> Tensor:
        calls.append(1)
        return functional.cross_entropy(logits, labels) * (torch.nan if len(calls) == 3 else 1)

    trainer = Trainer(model(), samples(), 1, "peer3")
    with pytest.raises(OwnLossError, match=r"`test_own_loss:.*loss` is nan in round 4, though the model's outputs"):
        trainer.train(Phase("model", 2, SGD(), batch_size=8, loss=loss), 4)


def test_a_step_of_ones_own_that_gives_nan_is_blamed() -> None:
    def step(step: TrainingStep, batch: Batch) -> Tensor:
        return step.loss(step(batch.inputs), batch) * torch.nan

    trainer = Trainer(model(), samples(), 1, "peer3")
    with pytest.raises(OwnLossError, match="step` is nan in round 4, though the model's weights are finite"):
        trainer.train(Phase("model", 1, SGD(), batch_size=8, step=step), 4)


def test_phases_are_equal_if_their_losses_are_the_same_function() -> None:
    def loss(logits: Tensor, labels: Tensor, positions: Tensor) -> Tensor:
        return functional.cross_entropy(logits, labels)

    phase = Phase("model", 1, SGD(), loss=loss)
    assert phase == Phase("model", 1, SGD(), loss=loss) == replace(phase, keep=None)
    assert phase != replace(phase, loss=None)


@pytest.mark.parametrize("given", [[3.0, -4.0], [-2.0], [0.0, math.inf, -1.0], [1.0, -math.inf], [9.0, math.nan], []])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_the_largest_number_of_a_tensor(given: list[float], dtype: torch.dtype) -> None:
    expected = np.abs(np.array(given)).max(initial=0.0)
    np.testing.assert_equal(largest_magnitude(torch.tensor(given, dtype=dtype)).numpy(), expected)
