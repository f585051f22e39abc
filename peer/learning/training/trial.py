"""Does the training go with the model? Found out by a step of each phase, before anything is started."""

from fnmatch import fnmatchcase

import torch

from peer.errors import DivergedError, FailedError, InputError, OwnLossError
from peer.learning.data.samples import Samples
from peer.learning.model.model import Model
from peer.learning.training.optimisers import Optimisers
from peer.learning.training.phase import Phase
from peer.learning.training.scheduler import MOST, Schedule
from peer.learning.training.settings import AS_IT_IS, Budget, Training
from peer.learning.training.trainer import SGD, Adam, Trainer


def try_training(model: Model, few: Samples, phases: tuple[Phase, ...], how: Training, rounds: int) -> None:
    """InputError with the way out where a step fails, by what it is given or by its own code.

    `few` are some training samples on any device, at least two for a model with BatchNorm. The model stays as it is.
    """
    own = any(phase.step or not isinstance(phase.optimiser, Adam | SGD) for phase in phases)
    if how == AS_IT_IS and not own:
        return
    _check_patterns(model, how)
    kept = model.vector.clone(), {name: counter.clone() for name, counter in model.counters.items()}
    try:
        for phase in phases:
            _try(model, few, phase, how, rounds)
    except (DivergedError, OwnLossError):
        pass  # of two samples; what the loss or the rate is worth only all of them can say
    except FailedError as error:
        raise InputError(str(error)) from error
    except (RuntimeError, ValueError, TypeError, NotImplementedError) as error:
        raise InputError(f"`training` fails with model {model.name}: {_first_line(error, how)}") from error
    finally:
        _put_back(model, *kept)


def _try(model: Model, few: Samples, phase: Phase, how: Training, rounds: int) -> None:
    """One step, and the scheduler's course over all rounds."""
    once = how.model_copy(update={"budget": Budget(steps=1), "patience": None, "accumulate": 1})
    trainer = Trainer(model, few, 0, "check", once)
    trainer.train(phase, 1)
    trainer.state()
    if (scheduler := how.applied(phase).scheduler) and phase.epochs and model.trainable(phase.part):
        optimiser = Optimisers(model).get(phase.part, how.applied(phase).optimiser, None)
        Schedule(scheduler, optimiser).begin(min(rounds, MOST), optimiser)


def _check_patterns(model: Model, how: Training) -> None:
    for pattern in how.optimiser.groups if how.optimiser else {}:
        if not any(fnmatchcase(entry.name, pattern) for entry in model.layout if entry.trainable):
            some = ", ".join(entry.name for entry in model.layout[:3])
            raise InputError(f"`training.optimiser.groups`: no parameter is called `{pattern}`; there are {some}, ...")


def _put_back(model: Model, vector: torch.Tensor, counters: dict[str, torch.Tensor]) -> None:
    model.rebind()
    model.vector.copy_(vector)
    for name, counter in model.counters.items():
        counter.copy_(counters[name])
    model.gradient.zero_()


def _first_line(error: Exception, how: Training) -> str:
    said = str(error).strip().splitlines()[0].rstrip(".") if str(error).strip() else type(error).__name__
    if how.precision == "float32":
        return said
    return f"{said} (`precision` is {how.precision}); write `precision: float32` if that is why"
