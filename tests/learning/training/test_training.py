"""The `training` block's other keys: accumulation, precision, early stopping, budgets, a step of one's own."""

from copy import deepcopy
from typing import Any

import pytest
import torch
from plain_loops import EPOCHS, LR, PHASE, SIZE, N, epochs, plain, small, trained
from pydantic import ValidationError
from small_models import samples
from torch import Tensor
from torch.nn import functional

from peer.errors import FailedError, InputError
from peer.learning.data.samples import Batch, InMemory
from peer.learning.training.checks import try_training
from peer.learning.training.optimiser import SGD
from peer.learning.training.phase import Phase, Training
from peer.learning.training.step import TrainingStep
from peer.learning.training.trainer import Trainer


def block(**keys: Any) -> Training:
    return Training.model_validate(keys)


@pytest.mark.parametrize("accumulate", [3, 4])
def test_accumulation_is_the_plain_loop_s_and_nearly_a_large_batch(accumulate: int) -> None:
    made = small()
    module = deepcopy(made.module)
    ours = trained(made, block(accumulate=accumulate))
    optimiser = torch.optim.SGD(module.parameters(), lr=LR)
    for _, batches in epochs():
        for first in range(0, len(batches), accumulate):
            group = batches[first : first + accumulate]
            optimiser.zero_grad()
            total = sum(len(y) for _, y in group)
            for x, y in group:
                (functional.cross_entropy(module(x), y) * (len(y) / total)).backward()
            optimiser.step()
    theirs = torch.cat([p.detach().flatten() for p in module.parameters()])
    torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-6)
    large = trained(small(), Training(), Phase("model", EPOCHS, SGD(LR), SIZE * accumulate, keep="model"))
    torch.testing.assert_close(ours, large, rtol=1e-5, atol=1e-6)


def test_full_groups_are_a_plain_loop_to_the_bit() -> None:
    made, data = small(), samples(36)
    module = deepcopy(made.module)
    phase = Phase("model", 1, SGD(LR), 4)
    Trainer(made, data, 1, "peer0", block(accumulate=3)).train(phase, 1)
    optimiser = torch.optim.SGD(module.parameters(), lr=LR, fused=True)
    order = torch.cat([*Trainer(small(), data, 1, "peer0").batches(4, 1)]).split(4)
    for number, at in enumerate(order, start=1):
        (functional.cross_entropy(module(data.x[at]), data.y[at]) / 3).backward()
        if number % 3 == 0:
            optimiser.step()
            optimiser.zero_grad()
    assert torch.equal(made.vector, torch.cat([p.detach().flatten() for p in module.parameters()]))


@pytest.mark.parametrize("precision", ["bfloat16", "float16"])
def test_mixed_precision_is_the_plain_loop_s(precision: str) -> None:
    made = small()
    module = deepcopy(made.module)
    ours = trained(made, block(precision=precision, optimiser="AdamW"))
    optimiser = torch.optim.AdamW(module.parameters(), lr=LR)
    assert torch.equal(ours, plain(module, optimiser, precision=getattr(torch, precision)))
    assert ours.dtype == torch.float32
    assert not torch.equal(ours, trained(small(), block(optimiser="AdamW")))


@pytest.mark.parametrize("part", ["head", "extractor"])
def test_mixed_precision_of_a_part(part: Any) -> None:
    made = small()
    before = made.vector.clone()
    trained(made, block(precision="bfloat16"), Phase(part, 2, SGD(LR), SIZE))
    moved = (made.vector != before).nonzero()[:, 0]
    assert made.part(part).start <= int(moved.min()) <= int(moved.max()) < made.part(part).stop


def test_a_step_that_is_left_out_is_no_correction_s() -> None:
    """The scale begins too high for this loss: the first steps find an infinite gradient and are left out."""
    seen: list[bool] = []
    phase = Phase(
        "model",
        3,
        SGD(LR),
        SIZE,
        loss=lambda outputs, targets, positions: functional.cross_entropy(outputs, targets) * 100,
        gradient_hook=lambda parameters, gradient: seen.append(bool(gradient.isfinite().all())),
    )
    trainer = Trainer(small(), samples(), 1, "peer0", block(precision="float16"))
    trainer.train(phase, 1)
    assert trainer.steps == 15
    assert 0 < len(seen) < 15
    assert all(seen)
    assert float(trainer.state()[".scale"][0]) < 65536


def test_clipping_by_value() -> None:
    seen: list[float] = []
    phase = Phase(
        "model", 1, SGD(LR), gradient_hook=lambda parameters, gradient: seen.append(float(gradient.abs().max()))
    )
    trained(small(), block(clip_value=1e-3), phase)
    assert max(seen) == pytest.approx(1e-3)


def test_a_correction_that_goes_unheeded_is_refused() -> None:
    trained(small(), block(), Phase("model", 1, SGD(LR), gradient_hook=lambda parameters, gradient: gradient.add_(1)))
    with pytest.raises(
        InputError, match="returns a new gradient, and a `gradient_hook` changes the one that it is given"
    ):
        trained(small(), block(), Phase("model", 1, SGD(LR), gradient_hook=lambda parameters, gradient: gradient + 1))


def test_a_phase_ends_when_what_is_held_back_gets_worse() -> None:
    made, held_back = small(), samples()
    trainer = Trainer(made, samples(), 1, "peer0", Training(patience=2))
    trainer.set_data(samples(), InMemory(held_back.x, (held_back.y + 1) % 3))
    trainer.train(Phase("model", 200, SGD(0.1), SIZE), 1)
    assert trainer.steps == 3 * -(-N // SIZE), "one epoch that is the best so far, and two that are worse"
    trainer.set_data(samples(), samples())
    trainer.train(Phase("model", 5, SGD(1e-3), SIZE), 2)
    assert trainer.steps == 5 * -(-N // SIZE), "it falls in every epoch"
    trainer.set_data(samples())
    trainer.train(Phase("model", 5, SGD(1e-3), SIZE), 3)
    assert trainer.steps == 5 * -(-N // SIZE), "there is nothing to go by"


def test_a_budget_of_steps_is_that_many_and_the_first_of_many_epochs() -> None:
    trainer = Trainer(small(), samples(), 1, "peer0", block(budget={"steps": 10}))
    trainer.train(Phase("model", 99, SGD(LR), SIZE), 1)
    assert trainer.steps == 10
    assert torch.equal(trainer.model.vector, trained(small(), Training(), Phase("model", 2, SGD(LR), SIZE), rounds=1))
    for steps in (3, 7):
        trainer.train(Phase("model", 1, SGD(LR), SIZE), 2, steps)
        assert trainer.steps == steps
    trainer.train(Phase("model", 0, SGD(LR), SIZE), 3)
    assert trainer.steps == 0, "a phase without epochs stays one"


def test_a_budget_of_seconds_takes_a_step_at_least_and_can_be_repeated() -> None:
    ends = []
    for steps in (None, 1):
        trainer = Trainer(small(), samples(), 1, "peer0", block(budget={"seconds": 1e-9}))
        trainer.train(PHASE, 1, steps)
        assert trainer.steps == 1
        ends.append(trainer.model.vector.clone())
    assert torch.equal(*ends)


def noisy(step: TrainingStep, batch: Batch, scale: float = 0.1) -> Tensor:
    count = step.state.setdefault("count", torch.zeros(()))
    count += 1
    drawn = torch.randn_like(batch.inputs) * scale / count
    return step.loss(step(batch.inputs + drawn), batch)


@pytest.mark.parametrize("part", ["model", "head"])
def test_a_step_of_one_s_own_draws_and_remembers_to_the_bit(part: Any) -> None:
    phase = Phase(part, 1, SGD(LR, 0.9), SIZE, keep=part, step=noisy)
    whole = trained(small(), Training(), phase)
    made = small()
    trainer = Trainer(made, samples(), 1, "peer0")
    for round in (1, 2, 3):
        again = Trainer(made, samples(), 1, "peer0")
        again.load_state(trainer.state())
        trainer = again
        trainer.train(phase, round)
    assert torch.equal(made.vector, whole)
    assert float(trainer.state()[".step/count"]) == 3 * 5


def keeping(value: Any) -> Any:
    def keep(step: TrainingStep, batch: Batch) -> Tensor:
        step.state["kept"] = value(step)
        return step.loss(step(batch.inputs), batch)

    return keep


def plain_step(step: TrainingStep, batch: Batch) -> Tensor:
    loss = step.loss(step(batch.inputs), batch)
    loss.backward()  # type: ignore[no-untyped-call]
    return loss.detach()


@pytest.mark.parametrize("function", [plain_step, lambda step, batch: step.loss(step(batch.inputs), batch)])
def test_a_step_may_do_the_backward_pass_itself(function: Any) -> None:
    phase = Phase("model", EPOCHS, SGD(LR), SIZE, keep="model", step=function)
    assert torch.equal(trained(small(), Training(), phase), trained(small(), Training()))


@pytest.mark.parametrize(
    ("function", "said"),
    [
        (lambda step, batch: 1.0, "it must return its loss, a floating-point tensor of shape"),
        (lambda step, batch: step.loss(step(batch.inputs), batch).detach(), "no gradient"),
        (lambda step, batch: step.los(), "AttributeError"),
        (keeping(lambda step: 1), r"state\['kept'\] = int: only tensors are kept, by a name; write torch"),
        (keeping(lambda step: step.parameters), r"a view of the model; write \.clone\(\)"),
    ],
)
def test_a_wrong_step_is_said(function: Any, said: str) -> None:
    phase = Phase("model", 1, SGD(LR), SIZE, step=function)
    made = small()
    before = made.vector.clone()
    with pytest.raises(FailedError, match=said):
        trained(small(), Training(), phase)
    with pytest.raises(InputError, match=said):
        try_training(made, samples(), (phase,), Training(), 3)
    assert torch.equal(made.vector, before)


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"budget": {}}, "give either `steps` or `seconds`"),
    ({"budget": {"steps": 1, "seconds": 1}}, "give either `steps` or `seconds`"),
    ({"budget": {"steps": 1}, "patience": 1}, "leave out one of them"),
    ({"step": "m:f", "accumulate": 2}, "leave out `accumulate`"),
    ({"step": "m:f", "precision": "float16"}, "write `precision: bfloat16`"),
    ({"step": "f"}, "pattern"),
    ({"scheduler": "CosineAnnealing"}, "unknown scheduler `CosineAnnealing`; did you mean `CosineAnnealingLR`?"),
    ({"scheduler": {"name": "StepLR", "stepsize": 1}}, "no argument `stepsize`; did you mean `step_size`?"),
    ({"optimiser": {"name": "AdamW", "betas": [0.9]}}, "`AdamW` does not work with `betas: [0.9]`: "),
    (
        {"optimiser": {"name": "SGD", "momentum": 0.9, "weight_decay": -1}},
        "`SGD` does not work with `weight_decay: -1`",
    ),
    ({"optimiser": {"name": "SGD", "groups": {"*.b": {"momentun": 0}}}}, "`groups`, `*.b`: `SGD` has no argument `mom"),
    ({"scheduler": "StepLR"}, "`StepLR` needs `step_size`; write it beside the name"),
    ({"scheduler": "SequentialLR"}, "`SequentialLR` needs `schedulers`"),
    (
        {"scheduler": {"name": "StepLR", "step_size": 1, "schedulers": [{"name": "ConstantLR"}]}},
        "no argument `schedulers`",
    ),
    ({"optimiser": {"name": "AdamW", "betas": ["a", "b"]}}, "`AdamW` takes no text as `betas`, and it is 'a'"),
    ({"scheduler": {"name": "MultiStepLR", "milestones": "ab"}}, "takes no text as `milestones`, and it is 'ab'"),
    ({"scheduler": {"name": "ReduceLROnPlateau", "cooldown": "x"}}, "takes no text as `cooldown`, and it is 'x'"),
]


@pytest.mark.parametrize(("keys", "said"), WRONG)
def test_what_cannot_be_is_said(keys: dict[str, Any], said: str) -> None:
    with pytest.raises(ValidationError) as error:
        block(**keys)
    assert said in str(error.value)


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ({"optimiser": "Muon"}, "`Muon` does not go with model small"),
        ({"optimiser": {"name": "SGD", "groups": {"*.bais": {}}}}, r"no parameter is called `\*.bais`"),
        (
            {"scheduler": {"name": "StepLR", "step_size": 0}},
            "scheduler `StepLR` does not work with `step_size: 0`: .* zero",
        ),
        ({"scheduler": {"name": "CosineAnnealingLR", "T_max": 0}}, "does not work with `T_max: 0`: .* zero"),
        (
            {
                "scheduler": {
                    "name": "ChainedScheduler",
                    "schedulers": [{"name": "StepLR", "step_size": 0, "gamma": 0.5}],
                }
            },
            "scheduler `StepLR` does not work with `step_size: 0`, `gamma: 0.5`",
        ),
        (
            {"scheduler": {"name": "ReduceLROnPlateau", "patience": 2, "factor": 2}},
            "^scheduler .* with `factor: 2`: Fac",
        ),
        ({"scheduler": {"name": "OneCycleLR", "max_lr": 1, "total_steps": 5}}, "has come to its end"),
        ({"scheduler": {"name": "CyclicLR", "base_lr": 1, "max_lr": 2, "cycle_momentum": 1, "mode": "x"}}, "mode"),
    ],
)
def test_what_does_not_go_with_the_model_or_the_rounds_is_said_before_the_start(keys: Any, said: str) -> None:
    made = small()
    before = made.vector.clone()
    with pytest.raises(InputError, match=said):
        try_training(made, samples(), (PHASE,), block(**keys), 8)
    assert torch.equal(made.vector, before)
