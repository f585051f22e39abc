"""Does a scheduler last as long as the run? Counted before anything is started."""

import torch

from peer.learning.model.model import Model
from peer.learning.training.batches import cut, normalises
from peer.learning.training.optimiser import kind_of, options_of, stand_in
from peer.learning.training.phase import Phase
from peer.learning.training.scheduler import Schedule, key_of
from peer.learning.training.settings import Training


def check_length(model: Model, phases: tuple[Phase, ...], samples: int, how: Training, rounds: int) -> None:
    """InputError where a scheduler that goes on by steps or epochs ends before rounds of these phases do.

    They are counted as if the peer trained in every round and to the end of each phase; by a budget in seconds they
    cannot be.
    """
    if how.budget and how.budget.seconds:
        return
    found = dict[str, tuple[Schedule, int]]()
    for phase in map(how.applied, phases):
        if phase.scheduler is None or not phase.epochs or not model.trainable(phase.part):
            continue
        key = key_of(phase.keep, phase.part, phase.optimiser, phase.scheduler)
        optimiser = stand_in(kind_of(phase.optimiser), [options_of(phase.optimiser)])
        schedule, before = found.get(key) or (Schedule(phase.scheduler, optimiser), 0)
        found[key] = schedule, before + _in_a_round(model, phase, samples, how)
    for schedule, in_a_round in found.values():
        schedule.follow(in_a_round * rounds)


def _in_a_round(model: Model, phase: Phase, samples: int, how: Training) -> int:
    """How often the phase's scheduler goes on in it; 0 if it does so by rounds."""
    batches = len(cut(torch.arange(samples), phase.batch_size, pairs=normalises(model, phase.part)))
    in_an_epoch = -(-batches // how.accumulate)
    steps = how.budget.steps if how.budget and how.budget.steps else phase.epochs * in_an_epoch
    every = phase.scheduler.every if phase.scheduler else "round"
    return {"round": 0, "epoch": steps // in_an_epoch, "step": steps}[every]
