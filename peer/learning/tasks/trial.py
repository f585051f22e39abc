"""A task tried on a few outputs and targets: whether it makes a loss and figures of them."""

from collections.abc import Mapping
from math import isnan
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_map

from peer.errors import InputError
from peer.learning.tasks.base import Task
from peer.plugins import UserCodeError, in_words, user_code_errors

WRONG = (TypeError, ValueError, RuntimeError, LookupError, AttributeError, ArithmeticError)
"""What a task raises that is given what it cannot take."""


def judged(task: Task, outputs: object, targets: Tensor) -> str | None:
    """What a model should give for these targets, and gives not, in words; None if the task can judge it.

    InputError where it is the task that is wrong, as one of a user's own may be.
    """
    try:
        with user_code_errors(task.name), torch.enable_grad():
            loss = task.loss(tree_map(_leaf, outputs), targets)
        with user_code_errors(task.name):
            rows = task.tally(outputs, targets)  # type: ignore[arg-type]
    except UserCodeError as error:
        given = f"{described(outputs)} and targets {tuple(targets.shape)} of {in_short(targets.dtype)}"
        raise InputError(f"{error}, given {given}; correct the task, or the model that gives them") from error
    except WRONG as error:
        return f"what the task {task.name} can judge, not {described(outputs)} ({in_words(error)})"
    if not isinstance(loss, Tensor) or loss.shape != () or not loss.is_floating_point():
        raise InputError(
            f"the task `{task.name}`: its `loss` must be a floating-point tensor of shape (), not {described(loss, '')}"
        )
    if not loss.requires_grad:
        raise InputError(f"the task `{task.name}`: its `loss` must be calculated by torch, without detaching")
    if not isinstance(rows, Tensor) or rows.ndim != 2 or len(rows) != len(targets):
        raise InputError(
            f"the task `{task.name}`: its `tally` must be of shape ({len(targets)}, k), a row for each sample, "
            f"not {described(rows, '')}"
        )
    _check_figures(task, rows)
    return None


def _check_figures(task: Task, rows: Tensor) -> None:
    """InputError where no figures come of these rows."""
    try:
        with user_code_errors(task.name):
            results: object = task.results(rows.sum(0, dtype=torch.float64), len(rows))
    except (UserCodeError, *WRONG) as error:
        columns = f"of a tally of {rows.shape[1]} columns its `results` cannot be made"
        raise InputError(f"the task `{task.name}`: {columns}: {_said(error)}") from error
    names = [figure.name for figure in task.figures]
    if not isinstance(results, Mapping) or not all(_is_number(results.get(name)) for name in names):
        raise InputError(f"the task `{task.name}`: its `results` must return a number for each of {', '.join(names)}")
    try:
        with user_code_errors(task.name):
            score: object = task.score(results)
    except (UserCodeError, *WRONG) as error:
        raise InputError(f"the task `{task.name}`: its `score` cannot be made: {_said(error)}") from error
    untold = any(isnan(results[name]) for name in names)  # as it may be on so few samples: then the score is, too
    if not _is_number(score) or not (0 <= score <= 1 or (untold and isnan(score))):  # type: ignore[operator,arg-type]
        raise InputError(f"the task `{task.name}`: its `score` must return a number in 0..1, not {score!r}")


def _said(error: Exception) -> str:
    return str(error) if isinstance(error, UserCodeError) else in_words(error)


def _is_number(value: object) -> bool:
    return isinstance(value, float | int) and not isinstance(value, bool)


def _leaf(output: Any) -> Any:
    """A tensor from which a gradient can be asked for, in place of one."""
    floating = isinstance(output, Tensor) and output.is_floating_point()
    return output.detach().requires_grad_() if floating else output


def described(given: object, what: str = "outputs ") -> str:
    """What a model, or a task, gave, in words."""
    if not isinstance(given, Tensor):
        return f"a {type(given).__name__}"
    return f"{what}{tuple(given.shape)} of {in_short(given.dtype)}"


def in_short(dtype: torch.dtype) -> str:
    """Its name without torch's."""
    return str(dtype).removeprefix("torch.")


def misshapen(outputs: object, shape: tuple[int, ...], what: str) -> str | None:
    """The words of `misfit` for outputs that are no floating-point tensor (n, *shape); None for one."""
    if isinstance(outputs, Tensor) and tuple(outputs.shape[1:]) == shape and outputs.is_floating_point():
        return None
    return f"{what}, (n, {', '.join(map(str, shape))}), not {described(outputs)}"
