"""Does the training go with the model, and the schedulers with the run? Found out before anything is started.

By one step of each phase, and by counting how often each scheduler goes on until the last round.
"""

import sys
from contextlib import redirect_stdout
from dataclasses import replace

from peer.errors import DivergedError, FailedError, InputError, OwnLossError
from peer.learning.data.samples import Samples
from peer.learning.device import device_errors
from peer.learning.model.layout import matches
from peer.learning.model.model import Model
from peer.learning.training.optimiser import SGD, Adam, KeptOptimisers, kind_of, options_of, stand_in
from peer.learning.training.phase import PROTOCOL_DEFAULTS, Budget, Phase, Training
from peer.learning.training.scheduler import MAX_DRY_RUN_STEPS, Schedule, key_of
from peer.learning.training.trainer import Trainer, batches_per_step
from peer.plugins import UserCodeError


@device_errors()
def try_training(model: Model, few: Samples, phases: tuple[Phase, ...], how: Training, rounds: int) -> None:
    """InputError with the way out where a step fails, by what it is given or by its own code.

    `few` are some training samples on any device, at least two for a model with BatchNorm. The model stays as it is.
    """
    own = any(phase.step or not isinstance(phase.optimiser, Adam | SGD) for phase in phases)
    if how == PROTOCOL_DEFAULTS and not own:
        return
    _check_patterns(model, how)
    vector, counters = model.vector.clone(), {name: counter.clone() for name, counter in model.counters.items()}
    try:
        for phase in phases:
            _try_phase(model, few, phase, how, rounds)
    except (DivergedError, OwnLossError):
        pass  # of two samples; what the loss or the rate is worth only all of them can say
    except FailedError as error:
        raise InputError(str(error)) from error
    except (RuntimeError, ValueError, TypeError, NotImplementedError) as error:
        raise InputError(f"`training` fails with model {model.name}: {_first_line(error, how)}") from error
    finally:
        model.rebind()
        model.copy_from(counters)
        model.vector.copy_(vector)
        model.gradient.zero_()


def _try_phase(model: Model, few: Samples, phase: Phase, how: Training, rounds: int) -> None:
    """One step, and the scheduler's course over all rounds."""
    shorter = {} if how.loop else {"budget": Budget(steps=1), "patience": None, "accumulate": 1}
    trainer = Trainer(model, few, 0, "check", how.model_copy(update=shorter))
    if how.loop:
        try:
            with redirect_stdout(sys.stderr):  # what trainers print is no part of an answer
                trainer.train(replace(phase, epochs=min(1, phase.epochs)), 1)
        except UserCodeError as error:
            raise InputError(f"{error}, when it was tried with {len(few)} samples") from error
    else:
        trainer.train(phase, 1)
    trainer.state()
    if (scheduler := how.applied(phase).scheduler) and phase.epochs and model.trainable(phase.part):
        optimiser = KeptOptimisers(model).get(phase.part, how.applied(phase).optimiser, None)
        Schedule(scheduler, optimiser).begin(min(rounds, MAX_DRY_RUN_STEPS), optimiser)


def _check_patterns(model: Model, how: Training) -> None:
    for pattern in how.optimiser.groups if how.optimiser else {}:
        if not any(matches(entry.name, (pattern,)) for entry in model.layout if entry.trainable):
            some = ", ".join(entry.name for entry in model.layout[:3])
            raise InputError(f"`training.optimiser.groups`: no parameter is called `{pattern}`; there are {some}, ...")


def _first_line(error: Exception, how: Training) -> str:
    said = str(error).strip().splitlines()[0].rstrip(".") if str(error).strip() else type(error).__name__
    if how.precision == "float32":
        return said
    return f"{said} (`precision` is {how.precision}); write `precision: float32` if that is why"


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
        schedule.dry_run(in_a_round * rounds)


def _in_a_round(model: Model, phase: Phase, samples: int, how: Training) -> int:
    """How often the phase's scheduler goes on in it; 0 if it does so by rounds."""
    in_an_epoch = len(batches_per_step(model, phase, samples, how))
    steps = how.budget.steps if how.budget and how.budget.steps else phase.epochs * in_an_epoch
    every = phase.scheduler.every if phase.scheduler else "round"
    return {"round": 0, "epoch": steps // in_an_epoch, "step": steps}[every]
