"""Optimisers and schedulers of torch's by name: to the bit what a plain loop with them does."""

from copy import deepcopy
from typing import Any

import pytest
import torch
from plain_loops import EPOCHS, LR, PHASE, SIZE, plain, small, trained
from pydantic import ValidationError
from small_models import batch_norm_model, samples
from torch import Tensor, nn

from peer.errors import InputError
from peer.learning.model.layout import Split
from peer.learning.model.model import Model
from peer.learning.model.shape_check import Example
from peer.learning.training.optimiser import (
    ELEMENTWISE,
    OPTIMISERS,
    SGD,
    UNSUPPORTED_OPTIMISERS,
    KeptOptimisers,
    Optimiser,
)
from peer.learning.training.phase import Phase, Training
from peer.learning.training.scheduler import SCHEDULERS, Scheduler
from peer.learning.training.trainer import Trainer

ARGUMENTS: dict[str, dict[str, Any]] = {
    "ASGD": {"t0": 3},
    "AdamW": {"weight_decay": 0.1, "betas": [0.8, 0.99], "amsgrad": True},
    "RMSprop": {"momentum": 0.9, "centered": True},
    "SGD": {"momentum": 0.9, "nesterov": True, "weight_decay": 0.01},
}
USUAL = sorted({*OPTIMISERS} - {*UNSUPPORTED_OPTIMISERS} - {"Muon"})


def matrices() -> Model:
    """Without biases."""
    with torch.random.fork_rng():
        torch.manual_seed(3)
        extractor = nn.Sequential(nn.Linear(4, 6, bias=False), nn.ReLU())
        return Model(Split(extractor, nn.Linear(6, 3, bias=False)), settings="bare", example=Example.zeros((4,), 3))


def fits_a_plain_loop(made: Model, name: str, arguments: dict[str, Any]) -> None:
    module = deepcopy(made.module)
    ours = trained(made, Training(optimiser=Optimiser(name=name, **arguments)))
    theirs = plain(module, getattr(torch.optim, name)(module.parameters(), lr=LR, **arguments))
    assert torch.equal(ours, theirs)


@pytest.mark.parametrize("name", USUAL)
def test_every_optimiser_is_that_of_a_plain_loop(name: str) -> None:
    fits_a_plain_loop(small(), name, ARGUMENTS.get(name, {}))


def test_one_for_matrices_gets_matrices() -> None:
    fits_a_plain_loop(matrices(), "Muon", {})


@pytest.mark.parametrize("name", sorted(ELEMENTWISE))
def test_elementwise_ones_are_the_same_over_one_long_tensor(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What stands in the list was tried; all others are given each tensor in its own shape."""
    how = Training(optimiser=Optimiser(name=name, **ARGUMENTS.get(name, {})))
    flat = trained(small(), how)
    monkeypatch.setattr("peer.learning.training.optimiser.ELEMENTWISE", frozenset[str]())
    assert torch.equal(flat, trained(small(), how))


def test_groups_by_patterns_of_names() -> None:
    made = batch_norm_model()
    module, few = deepcopy(made.module), {"weight_decay": 0.0, "lr": 0.01}
    how = Training(optimiser=Optimiser(name="AdamW", weight_decay=0.5, groups={"*.bias": few, "head.*": {}}))
    ours = trained(made, how)
    named = [*module.named_parameters()]
    biases, others = ([p for name, p in named if name.endswith("bias") is wanted] for wanted in (True, False))
    optimiser = torch.optim.AdamW([{"params": others}, {"params": biases, **few}], lr=LR, weight_decay=0.5)
    theirs = plain(module, optimiser)
    assert torch.equal(ours[torch.cat([torch.arange(s.start, s.stop) for s in made.trainable("model")])], theirs)


def test_the_learning_rate_is_the_protocol_s_unless_one_is_given() -> None:
    given = trained(small(), Training(optimiser=Optimiser(name="Adagrad", lr=0.2)))
    module = small().module
    assert torch.equal(given, plain(module, torch.optim.Adagrad(module.parameters(), lr=0.2)))


def test_a_phase_of_one_s_own_protocol_names_one() -> None:
    phase = Phase("model", EPOCHS, Optimiser(name="NAdam", lr=LR), SIZE, keep="model")
    assert torch.equal(trained(small(), Training(), phase), trained(small(), Training(optimiser={"name": "NAdam"})))  # type: ignore[arg-type]


CALLS: dict[str, dict[str, Any]] = {
    "StepLR": {"step_size": 2, "gamma": 0.5},
    "MultiStepLR": {"milestones": [1, 2, 4], "gamma": 0.5},
    "ConstantLR": {"factor": 0.5, "total_iters": 2},
    "LinearLR": {"start_factor": 0.25, "total_iters": 4},
    "ExponentialLR": {"gamma": 0.8},
    "CosineAnnealingLR": {"T_max": 5, "eta_min": 0.001},
    "ReduceLROnPlateau": {"patience": 0, "threshold": 0.5, "factor": 0.5},
    "CyclicLR": {"base_lr": 0.001, "max_lr": 0.1, "step_size_up": 2},
    "CosineAnnealingWarmRestarts": {"T_0": 2, "T_mult": 2},
    "OneCycleLR": {"max_lr": 0.1, "total_steps": 60},
    "PolynomialLR": {"total_iters": 9, "power": 2.0},
    "SequentialLR": {
        "schedulers": [{"name": "LinearLR", "total_iters": 2}, {"name": "ExponentialLR", "gamma": 0.5}],
        "milestones": [2],
    },
    "ChainedScheduler": {
        "schedulers": [{"name": "ConstantLR", "factor": 0.5}, {"name": "StepLR", "step_size": 2}],
    },
}


def test_every_scheduler_is_tried() -> None:
    assert {*CALLS} == {*SCHEDULERS} - {"LRScheduler", "LambdaLR", "MultiplicativeLR"}


def over(name: str, optimiser: torch.optim.Optimizer) -> Any:
    arguments = dict(CALLS[name])
    parts = [SCHEDULERS[one.pop("name")](optimiser, **one) for one in map(dict, arguments.pop("schedulers", []))]
    if name == "ChainedScheduler":
        return SCHEDULERS[name](parts)
    return SCHEDULERS[name](optimiser, *([parts] if parts else []), **arguments)


@pytest.mark.parametrize("every", ["round", "epoch", "step"])
@pytest.mark.parametrize("name", CALLS)
@pytest.mark.filterwarnings("ignore:.*epoch parameter in:UserWarning")
def test_every_scheduler_is_that_of_a_plain_loop(name: str, every: Any) -> None:
    """This holds even if the peer is another process after each round."""
    if name == "ReduceLROnPlateau" and every == "round":
        pytest.skip("a plain loop has no rounds, and so no loss of one")
    how = Training(
        optimiser=Optimiser(name="SGD", momentum=0.9),
        scheduler=Scheduler.model_validate({"name": name, "every": every, **CALLS[name]}),
    )
    module = small().module
    optimiser = torch.optim.SGD(module.parameters(), lr=LR, momentum=0.9)
    theirs = plain(module, optimiser, over(name, optimiser), every)
    state, vector = dict[str, Tensor](), small().vector
    for round in (1, 2, 3):
        again = small()
        again.vector.copy_(vector)
        trainer = Trainer(again, samples(), 1, "peer0", how)
        trainer.load_state(state)
        trainer.train(PHASE, round)
        state, vector = trainer.state(), again.vector
    assert torch.equal(vector, theirs)
    assert torch.equal(vector, trained(small(), how))


def test_rounds_without_training_count_and_new_optimisers_go_on() -> None:
    """The momentum begins anew in each round; the learning rate does not."""
    phase = Phase("model", 1, SGD(LR, 0.9), SIZE)
    how = Training(scheduler=Scheduler(name="ExponentialLR", gamma=0.5))
    ours, theirs = (Trainer(small(), samples(), 1, "peer0", one) for one in (how, Training()))
    for round in (2, 5):
        ours.train(phase, round)
        theirs.train(Phase("model", 1, SGD(LR * 0.5 ** (round - 1), 0.9), SIZE), round)
    assert torch.equal(ours.model.vector, theirs.model.vector)


@pytest.mark.parametrize("name", ["Adafactor", "NAdam", "ASGD", "Rprop", "Adagrad"])
def test_state_survives(name: str) -> None:
    how = Training(optimiser=Optimiser(name=name), scheduler=Scheduler(name="LinearLR"))
    whole = trained(small(), how)
    made = small()
    early = Trainer(made, samples(), 1, "peer0", how)
    early.train(PHASE, 1)
    late = Trainer(made, samples(), 1, "peer0", how)
    late.load_state(early.state())
    for round in (2, 3):
        late.train(PHASE, round)
    assert torch.equal(made.vector, whole)


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"name": "AdamV"}, "unknown optimiser `AdamV`; did you mean `Adam"),
    ({"name": "LBFGS"}, "`LBFGS` calls for the loss of a batch several times in a step"),
    ({"name": "SparseAdam"}, "`SparseAdam` wants sparse gradients"),
    ({"name": "AdamW", "weight_decai": 1}, "`AdamW` has no argument `weight_decai`; did you mean `weight_decay`?"),
    ({"name": "AdamW", "params": 1}, "has no argument `params`"),
    ({"name": "SGD", "momentum": -1}, "Invalid momentum value: -1"),
    ({"name": "SGD", "momentum": "much"}, "`SGD` takes no text as `momentum`"),
    ({"name": "SGD", "groups": {"*": {"momentun": 0}}}, "did you mean `momentum`?"),
]


@pytest.mark.parametrize(("given", "said"), WRONG)
def test_what_cannot_be_is_said(given: dict[str, Any], said: str) -> None:
    with pytest.raises(ValidationError) as error:
        Optimiser.model_validate(given)
    assert said in str(error.value)


def test_one_that_does_not_go_with_the_model_is_said() -> None:
    with pytest.raises(InputError, match=r"`Muon` does not go with model small: .*2D"):
        KeptOptimisers(small()).get("model", Optimiser(name="Muon"), None)
