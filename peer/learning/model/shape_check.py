"""Checks that a model fits the data and the task, by running it once before anything else is done with it.

A few samples go through in evaluation and in training mode; then the task must make a loss, figures and a score of
the outputs. Each mistake is reported as one sentence that names the code at fault: the model, or a custom task.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from math import isnan
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map

from peer.errors import InputError
from peer.learning.data.samples import Batch, InMemory, Samples
from peer.learning.model.layout import spread
from peer.learning.randomness import global_stream
from peer.learning.tasks import Classification, Task, describe_output, loss_problem
from peer.plugins import UserCodeError, describe_error, user_code_errors

TASK_ERRORS = (TypeError, ValueError, RuntimeError, LookupError, AttributeError, ArithmeticError)
"""What a task may raise for outputs that it cannot take."""


def task_problem(task: Task, outputs: object, targets: Tensor) -> str | None:
    """Return what a model should give for these targets, and does not; None if the task can evaluate it.

    Raises InputError if it is the task that is wrong, as a custom one may be.
    """
    try:
        with user_code_errors(task.name):
            with torch.enable_grad():
                loss = task.loss(tree_map(_leaf, outputs), targets)
            rows = task.tally(outputs, targets)  # type: ignore[arg-type]
    except UserCodeError as error:
        given = f"{describe_output(outputs)} and targets {describe_output(targets, '')}"
        raise InputError(f"{error}, given {given}; correct the task, or the model that gives them") from error
    except TASK_ERRORS as error:
        return f"what the task {task.name} can judge, not {describe_output(outputs)} ({describe_error(error)})"
    if why := loss_problem(loss):
        raise InputError(f"the task `{task.name}`: its `loss` must be {why}")
    if not loss.requires_grad:
        raise InputError(f"the task `{task.name}`: its `loss` must be calculated by torch, without detaching")
    if not isinstance(rows, Tensor) or rows.ndim != 2 or len(rows) != len(targets):
        raise InputError(
            f"the task `{task.name}`: its `tally` must be of shape ({len(targets)}, k), a row for each sample, "
            f"not {describe_output(rows, '')}"
        )
    _check_figures(task, rows)
    return None


def _check_figures(task: Task, rows: Tensor) -> None:
    """Raise InputError unless the task makes its figures and score of these rows."""
    try:
        with user_code_errors(task.name):
            results: object = task.judge(rows.double().cpu().numpy())
    except (UserCodeError, *TASK_ERRORS) as error:
        columns = f"of a tally of {rows.shape[1]} columns its `results` cannot be made"
        raise InputError(f"the task `{task.name}`: {columns}: {_error_text(error)}") from error
    names = [figure.name for figure in task.figures]
    if not isinstance(results, Mapping) or not all(_is_number(results.get(name)) for name in names):
        raise InputError(f"the task `{task.name}`: its `results` must return a number for each of {', '.join(names)}")
    try:
        with user_code_errors(task.name):
            score: object = task.score(results)
    except (UserCodeError, *TASK_ERRORS) as error:
        raise InputError(f"the task `{task.name}`: its `score` cannot be made: {_error_text(error)}") from error
    untold = any(isnan(results[name]) for name in names)  # as it may be on so few samples: then the score is, too
    if not _is_number(score) or not (0 <= score <= 1 or (untold and isnan(score))):  # type: ignore[operator,arg-type]
        raise InputError(f"the task `{task.name}`: its `score` must return a number in 0..1, not {score!r}")


def _error_text(error: Exception) -> str:
    return str(error) if isinstance(error, UserCodeError) else describe_error(error)


def _is_number(value: object) -> bool:
    return isinstance(value, float | int) and not isinstance(value, bool)


def _leaf(output: Any) -> Any:
    """Detach a floating tensor and let it require a gradient."""
    floating = isinstance(output, Tensor) and output.is_floating_point()
    return output.detach().requires_grad_() if floating else output


def takes_several(shape: Any) -> bool:
    """Whether that is the shape of several inputs, a tuple or dict of shapes."""
    return isinstance(shape, dict) or any(isinstance(one, tuple | list) for one in shape)


@dataclass(frozen=True)
class Example:
    """Inputs (n, *shape), or a tuple or dict of such, like those that the model is for, n at least 2, and what of a
    task judges its outputs."""

    inputs: Any
    task: Task
    classes: int
    targets: Tensor | None = None
    """(n, ...); None where there are none at hand, as beside a saved model: then any outputs will do."""
    tested: Batch | None = None
    """Some test samples, where they may differ from these in shape."""

    @property
    def shape(self) -> Any:
        """The shape of one input; a tuple or dict of shapes for several."""
        return tree_map(lambda x: tuple(x.shape[1:]), self.inputs)

    @property
    def tokens(self) -> str:
        """The range of tokens, in words; empty where inputs are not tokens."""
        if not isinstance(self.inputs, Tensor) or self.inputs.dtype != torch.int64:
            return ""
        known = self.task.outputs_in_words(self.classes)
        return f" with tokens from {int(self.inputs.min())} to {int(self.inputs.max())} (the task has {known})"

    @classmethod
    def zeros(
        cls, shape: Any, classes: int, task: Task = Classification(), dtypes: Sequence[str] | None = None
    ) -> "Example":
        """Make an example without data; of several inputs, a tuple or dict of shapes and the dtypes in their order."""
        labels = torch.zeros(2, dtype=torch.int64) if task.has_classes else None
        if not takes_several(shape):
            return cls(torch.zeros(2, *shape, dtype=getattr(torch, task.inputs)), task, classes, labels)
        kinds = [getattr(torch, name) for name in dtypes or ()]
        named = shape if isinstance(shape, dict) else dict(enumerate(shape))
        made = {key: torch.zeros(2, *one, dtype=kind) for (key, one), kind in zip(named.items(), kinds, strict=True)}
        return cls(made if isinstance(shape, dict) else tuple(made.values()), task, classes, labels)

    @classmethod
    def from_samples(cls, samples: Samples, classes: int, task: Task, test: Samples | None = None) -> "Example":
        """Take a few samples, and of those that the model is tested on, where that may fail for itself; zeros of their
        shape where outputs do not depend on values."""
        if test is not None and (task.infers or not isinstance(test, InMemory)):
            two, many = samples.pair(), min(2, task.evaluation_batch)
            return cls(two.inputs, task, classes, two.targets, next(iter(test.first(many).in_order(many))))
        if task.has_classes and isinstance(samples, InMemory) and task.inputs == "float32":
            return cls.zeros(samples.shape, classes, task)
        two = samples.pair()
        if task.inputs == "int64" and isinstance(samples, InMemory) and isinstance(test, InMemory):
            tested = test.pair()
            if (tested.inputs.shape, tested.targets.shape) == (two.inputs.shape, two.targets.shape):
                inputs, targets = torch.cat([two.inputs, tested.inputs]), torch.cat([two.targets, tested.targets])
                return cls(inputs, task, classes, targets)
        return cls(two.inputs, task, classes, two.targets)

    def misfit(self, outputs: object, targets: Tensor | None) -> str | None:
        """What the model should have given for these targets, in words; None if it fits, or they are not known."""
        if targets is None:
            return None
        return self.task.misfit(outputs, targets, self.classes) or task_problem(self.task, outputs, targets)


@torch.no_grad()
def dry_pass(module: nn.Module, name: str, example: Example) -> bool:
    """Run a few samples through in evaluation and in training mode; return whether training drew random numbers.

    Raises InputError naming the model, the input's shape and the reason if the task cannot evaluate the outputs.
    Buffers and the random stream are left as they were; layers whose sizes follow the input (Lazy…) take them here.
    """
    with global_stream(None):
        try:
            wrong = example.misfit(spread(module.eval(), example.inputs), example.targets)
            buffers = [(buffer, buffer.clone()) for buffer in module.buffers()]
            before = torch.get_rng_state()
            spread(module.train(), example.inputs)
            draws = not torch.equal(before, torch.get_rng_state())
        except InputError:
            raise
        except Exception as error:  # a layer that the input does not suit, or a mistake in a user's `forward`
            raise InputError(
                f"model {name} does not take inputs of shape {example.shape}{example.tokens}: {describe_error(error)}"
            ) from error
        if wrong:
            raise InputError(f"model {name}, for an input of shape {example.shape}, must give {wrong}")
        if example.tested is not None:
            _try_test(module.eval(), name, example, example.tested)
            module.train()
    for buffer, value in buffers:
        buffer.copy_(value)
    return draws


def _try_test(module: nn.Module, name: str, example: Example, tested: Batch) -> None:
    """Raise InputError if the model cannot be tested on samples like those of the example."""
    shape = tree_map(lambda x: tuple(x.shape[1:]), tested.inputs)
    try:
        wrong = example.misfit(example.task.inferred(partial(spread, module), tested.inputs), tested.targets)
    except InputError:
        raise
    except UserCodeError as error:
        raise InputError(f"{error}, given test inputs of shape {shape}; correct it") from error
    except Exception as error:
        hint = "" if example.task.infers else "; make them alike by `test_transforms`, or give the task an `infer`"
        raise InputError(
            f"model {name}, made for inputs of shape {example.shape}, does not take test inputs of shape {shape}: "
            f"{describe_error(error)}{hint}"
        ) from error
    if wrong:
        whose = f"`infer` of the task {example.task.name}" if example.task.infers else f"model {name}"
        raise InputError(f"{whose}, for a test input of shape {shape}, must give {wrong}")
