"""Schedules: one for each that a phase names, and who goes on when."""

from contextlib import nullcontext
from typing import Any

import pytest
import torch
from plain_loops import EPOCHS, LR, SIZE, small
from small_models import samples

from peer.errors import InputError
from peer.learning.training.checks import check_length
from peer.learning.training.optimiser import SGD, Adam, Optimiser
from peer.learning.training.phase import Phase, Training
from peer.learning.training.scheduler import Scheduler
from peer.learning.training.trainer import Trainer

LEVEL = Training(scheduler=Scheduler(name="StepLR", step_size=100))
"""It changes nothing in so few rounds: all is as without it."""


def after(phases: tuple[Phase, ...], how: Training, *, restarted: bool = False) -> torch.Tensor:
    made = small()
    trainer = Trainer(made, samples(), 1, "peer0", how)
    for round in (1, 2):
        if restarted:
            again = Trainer(made, samples(), 1, "peer0", how)
            again.load_state(trainer.state())
            trainer = again
        for phase in phases:
            trainer.train(phase, round)
    return made.vector.clone()


def test_phases_of_one_part_have_each_its_own_rate_and_kind() -> None:
    phases = (
        Phase("model", 1, SGD(0.5), SIZE),
        Phase("model", 1, SGD(0.01), SIZE),
        Phase("model", 1, Adam(0.02), SIZE, keep="model"),
        Phase("model", 1, Optimiser(name="AdamW", lr=0.003), SIZE, keep="head"),
        Phase("head", 1, SGD(0.1, momentum=0.5), SIZE),
    )
    unscheduled = after(phases, Training())
    assert torch.equal(after(phases, LEVEL), unscheduled)
    assert torch.equal(after(phases, LEVEL, restarted=True), unscheduled)


def test_what_is_dropped_begins_anew() -> None:
    phase = Phase("model", EPOCHS, Adam(LR), SIZE, keep="model")
    how = Training(scheduler=Scheduler(name="ExponentialLR", gamma=0.1, every="epoch"))
    made = small()
    begun = made.vector.clone()
    trainer = Trainer(made, samples(), 1, "peer0", how)
    trainer.train(phase, 1)
    once = made.vector.clone()
    trainer.drop("model")
    assert trainer.state() == {}
    made.vector.copy_(begun)
    trainer.train(Phase("head", 0, Adam(LR)), 2)
    trainer.train(phase, 1)
    assert torch.equal(made.vector, once)


def test_a_plateau_goes_by_rounds_in_which_there_was_a_loss() -> None:
    phase = Phase("model", 1, SGD(LR), SIZE)
    how = Training(scheduler=Scheduler(name="ReduceLROnPlateau", patience=0, factor=0.1))
    ours, theirs = (Trainer(small(), samples(), 1, "peer0", one) for one in (how, Training()))
    for round in (5, 9):
        ours.train(phase, round)
        theirs.train(phase, round)
    assert torch.equal(ours.model.vector, theirs.model.vector), "its loss has not risen yet"


@pytest.mark.parametrize(
    ("every", "others", "enough"),
    [
        ("step", {}, 2 * 2 * 3 * 5),
        ("step", {"accumulate": 2}, 2 * 2 * 3 * 3),
        ("step", {"budget": {"steps": 7}}, 2 * 3 * 7),
        ("epoch", {}, 2 * 2 * 3),
        ("epoch", {"budget": {"steps": 11}}, 2 * 2 * 3),
    ],
)
def test_a_scheduler_that_ends_before_the_run_is_said(every: str, others: dict[str, Any], enough: int) -> None:
    phases = (Phase("model", 2, SGD(LR, 0.5), SIZE),) * 2
    for total in (enough - 1, enough):
        scheduler = {"name": "OneCycleLR", "max_lr": 0.1, "total_steps": total, "every": every}
        how = Training.model_validate({"scheduler": scheduler, **others})
        trainer, ended = Trainer(small(), samples(), 1, "peer0", how), total < enough
        with pytest.raises(InputError, match=f"ends after {total} .* {enough} .*longer") if ended else nullcontext():
            check_length(small(), phases, 37, how, 3)
        with pytest.raises(InputError, match="has come to its end") if ended else nullcontext():
            for round in (1, 2, 3):
                trainer.train(phases[0], round)
                trainer.train(phases[1], round)


def test_what_a_budget_in_seconds_comes_to_is_not_known() -> None:
    scheduler = {"name": "OneCycleLR", "max_lr": 0.1, "total_steps": 2, "every": "step"}
    how = Training.model_validate({"scheduler": scheduler, "budget": {"seconds": 1}})
    check_length(small(), (Phase("model", 2, SGD(LR, 0.5), SIZE),), 37, how, 3)
