"""What a model is trained for: the loss, how outputs become answers, and the figures that say how good they are."""

import math
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import ConfigDict
from torch import Tensor
from torch.utils._pytree import tree_map

from peer.errors import InputError
from peer.plugins import UserCodeError, in_words, user_code_errors
from peer.settings import Settings

Targets = NDArray[Any]


@dataclass(frozen=True)
class Figure:
    """One number by which a model is judged."""

    name: str
    better: Literal["up", "down"] = "up"

    def worst(self, values: Sequence[float]) -> float:
        """The worst of some, at least one."""
        return min(values) if self.better == "up" else max(values)


class Task(Settings):
    """The `task` block; a user's own is a subclass named `module:Name`.

    A figure is made of sums over the samples, so that it is the same whatever the batches: `tally` gives a row of
    numbers for each sample, `results` makes the figures of the rows' sum.
    """

    model_config = ConfigDict(validate_default=True)

    name: str
    """A name from the list of tasks, or `module:Name` of your own."""

    figures: ClassVar[tuple[Figure, ...]]
    """The first one is the headline: tables, the live view and early stopping go by it."""
    has_classes: ClassVar[bool] = False
    """Whether a target is one class's number, int64 of shape (): what splits by label, class mixes and `test: matched`
    need."""
    outputs_by_largest: ClassVar[bool] = False
    """Whether `outputs` goes by the largest target, unless it is given `classes`: these must then be given where only
    few targets are read beforehand."""
    inputs: ClassVar[Literal["float32", "int64"]] = "float32"
    """How the model takes numbers that are no pixels; int64 for tokens."""

    @property
    def headline(self) -> Figure:
        return self.figures[0]

    def targets(self, y: Targets, where: str, name: str) -> Targets:
        """Targets (n, ...) as the loss takes them: float32 or int64. InputError for what is none.

        `where` is the data's file and `name` the array's, for the message. Here: numbers of any shape.
        """
        if y.dtype.kind not in "biuf":
            raise InputError(f"{where}: {name} must hold numbers, but it holds {y.dtype}")
        return y.astype(np.float32 if y.dtype.kind == "f" else np.int64)

    def outputs(self, parts: Sequence[Targets], given: int | None, where: str) -> int:
        """How many numbers the model answers with, which its maker is given as `classes`.

        Here: those of one target. `parts` are the targets for training and for tests; `given` is what the data's
        `classes` says. InputError where it does not fit.
        """
        found = math.prod(parts[0].shape[1:])
        if given not in (None, found):
            raise InputError(f"{where}: `classes` is {given} and a target holds {found} numbers; leave it out")
        return found

    def outputs_in_words(self, count: int) -> str:
        """What so many outputs are, for people and for the handshake: `10 classes`."""
        return f"{count} output{'s' * (count != 1)}"

    @abstractmethod
    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """The mean loss of a batch, of shape (): of what the model gives for it, and what was wanted."""

    @abstractmethod
    def tally(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """For each sample of a batch a row of numbers, (n, k), that may be added up over any samples."""

    def results(self, sums: Tensor, samples: int) -> dict[str, float]:
        """The figures by name, of the rows' sum, float64 (k,). Here: column i's mean is figure i."""
        means = (sums / samples).tolist()
        return {figure.name: mean for figure, mean in zip(self.figures, means, strict=True)}

    def score(self, results: Mapping[str, float]) -> float:
        """How good that is, in 0..1, for protocols that go by it. Here: the headline, cut to 0..1, or 1/(1 + it)."""
        value = results[self.headline.name]
        return min(max(value, 0.0), 1.0) if self.headline.better == "up" else 1 / (1 + max(value, 0.0))

    def answers(self, outputs: Tensor) -> Tensor:
        """What `Model.predict` gives for the model's outputs (n, ...)."""
        return outputs

    def misfit(self, outputs: object, targets: Tensor, classes: int) -> str | None:
        """What a model should give for these targets, and gives not, in words; None if it can be judged.

        InputError where it is the task that is wrong, as one of a user's own may be.
        """
        try:
            with user_code_errors(self.name), torch.enable_grad():
                loss = self.loss(tree_map(_leaf, outputs), targets)
            with user_code_errors(self.name):
                rows = self.tally(outputs, targets)  # type: ignore[arg-type]
        except UserCodeError as error:
            given = f"{described(outputs)} and targets {tuple(targets.shape)} of {in_short(targets.dtype)}"
            raise InputError(f"{error}, given {given}; correct the task, or the model that gives them") from error
        except (TypeError, ValueError, RuntimeError, LookupError, AttributeError) as error:
            return f"what the task {self.name} can judge, not {described(outputs)} ({in_words(error)})"
        if not isinstance(loss, Tensor) or loss.shape != () or not loss.is_floating_point():
            raise InputError(f"the task `{self.name}`: its `loss` must be a floating-point tensor of shape ()")
        if not loss.requires_grad:
            raise InputError(f"the task `{self.name}`: its `loss` must be calculated by torch, without detaching")
        if not isinstance(rows, Tensor) or rows.ndim != 2 or len(rows) != len(targets):
            raise InputError(f"the task `{self.name}`: its `tally` must have a row for each sample")
        return None


def _leaf(output: Any) -> Any:
    """A tensor from which a gradient can be asked for, in place of one."""
    floating = isinstance(output, Tensor) and output.is_floating_point()
    return output.detach().requires_grad_() if floating else output


def described(outputs: object) -> str:
    """What a model gave, in words."""
    if not isinstance(outputs, Tensor):
        return f"a {type(outputs).__name__}"
    return f"outputs {tuple(outputs.shape)} of {in_short(outputs.dtype)}"


def in_short(dtype: torch.dtype) -> str:
    """Its name without torch's."""
    return str(dtype).removeprefix("torch.")


def misshapen(outputs: object, shape: tuple[int, ...], what: str) -> str | None:
    """The words of `misfit` for outputs that are no floating-point tensor (n, *shape); None for one."""
    if isinstance(outputs, Tensor) and tuple(outputs.shape[1:]) == shape and outputs.is_floating_point():
        return None
    return f"{what}, (n, {', '.join(map(str, shape))}), not {described(outputs)}"
