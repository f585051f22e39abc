"""Training and evaluation read no value of the model's device before their end: a GPU would wait for each.

On `meta` reading one raises. So a phase takes all its steps there, and fails only where its loss is told. Not seen so
are torch's fused kernels and autocast, of which `meta` has none.
"""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from meta_device import META
from small_models import samples
from torch import Tensor, nn

from peer.learning.data.samples import Batch, InMemory
from peer.learning.model.layout import Split
from peer.learning.model.model import Model
from peer.learning.model.shape_check import Example
from peer.learning.model.zoo import build
from peer.learning.tasks import Classification, LanguageModel, Multilabel, Regression, Segmentation, Task
from peer.learning.training.optimiser import Optimiser
from peer.learning.training.phase import Phase, Training
from peer.learning.training.scheduler import Scheduler
from peer.learning.training.step import TrainingStep
from peer.learning.training.trainer import Trainer

READ = "item\\(\\) cannot be called on meta tensors|Cannot copy out of meta tensor"


def batch_norm() -> Model:
    extractor = nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5), nn.ReLU(), nn.Dropout(0.5))
    return Model(Split(extractor, nn.Linear(5, 3)), settings="bn", example=Example.zeros((4,), 3), device=META)


def hook(vector: Tensor, gradient: Tensor) -> None:
    gradient.add_(vector, alpha=0.1)


def loss(outputs: Tensor, targets: Tensor, positions: Tensor) -> Tensor:
    return (outputs.logsumexp(1) - outputs.gather(1, targets[:, None])[:, 0] + positions).mean()


def step(step: TrainingStep, batch: Batch) -> Tensor:
    return step.loss(step(batch.inputs), batch)


SGD = Optimiser(name="SGD", lr=0.1, momentum=0.9)  # type: ignore[call-arg]
EACH_STEP = Scheduler(name="StepLR", every="step", step_size=2)  # type: ignore[call-arg]


@pytest.mark.parametrize(
    ("phase", "how"),
    [
        ({}, Training()),
        ({"optimiser": Optimiser(name="Adam", lr=0.1)}, Training()),
        ({"part": "extractor", "gradient_hook": hook}, Training(clip_gradient=1.0, clip_value=0.5)),
        ({"part": "head"}, Training()),
        ({"loss": loss, "keep": "it"}, Training(accumulate=2)),
        ({"scheduler": EACH_STEP}, Training()),
        ({"step": step}, Training()),
    ],
    ids=["sgd", "adam", "hook and clipping", "features of a frozen extractor", "loss", "scheduler", "step"],
)
def test_a_phase_takes_all_its_steps_before_a_value_is_read(phase: dict[str, Any], how: Training) -> None:
    trainer = Trainer(batch_norm(), samples(), 1, "peer0", how)
    with pytest.raises(RuntimeError, match=READ):
        trainer.train(Phase(**{"part": "model", "epochs": 2, "optimiser": SGD, "batch_size": 8} | phase), 1)
    assert trainer.steps == 2 * (3 if how.accumulate == 2 else 5)


def with_its_own_loss(trainer: Trainer) -> object:
    return trainer.train(Phase("model", 0, SGD, loss=loss), 1)


@pytest.mark.parametrize("evaluate", [Trainer.accuracy, with_its_own_loss])
def test_an_evaluation_passes_all_batches_before_a_value_is_read(evaluate: Callable[[Trainer], object]) -> None:
    made, seen = batch_norm(), list[int]()
    made.module.register_forward_hook(lambda module, given, found: seen.append(len(given[0])))
    trainer = Trainer(made, samples(600), 1, "peer0")
    with pytest.raises(RuntimeError, match=READ):
        evaluate(trainer)
    assert seen == [256, 256, 88]


@pytest.mark.parametrize(
    ("task", "outputs", "targets"),
    [
        (Classification(), (6, 3), (6,)),
        (Multilabel(name="multilabel"), (6, 3), (6, 3)),
        (Regression(name="regression"), (6, 3), (6, 3)),
        (Segmentation(name="segmentation", dice_weight=0.5, ignore=2), (6, 3, 4, 4), (6, 4, 4)),
        (LanguageModel(name="language-model", vocabulary=3), (6, 5, 3), (6, 5)),
    ],
    ids=lambda given: given.name if isinstance(given, Task) else "",
)
def test_no_task_reads_a_value_of_a_batch(task: Task, outputs: tuple[int, ...], targets: tuple[int, ...]) -> None:
    dtype = torch.float32 if outputs == targets else torch.int64
    given = torch.zeros(outputs, device=META), torch.zeros(targets, dtype=dtype, device=META)
    assert task.loss(*given).shape == ()
    assert len(task.tally(*given)) == 6


def test_positions_and_batches_lie_where_the_model_does() -> None:
    made = build("mlp", Example.zeros((4,), 3), seed=1, device=META)
    trainer = Trainer(made, samples(), 1, "peer0")
    assert isinstance(trainer.samples, InMemory)
    positions = next(trainer.batches(8, 1))
    batch = next(trainer.samples.drawn([positions], 1))
    found = [made.vector, made.gradient, positions, batch.inputs, batch.targets, made(batch.inputs)]
    assert {tensor.device for tensor in found} == {META}
