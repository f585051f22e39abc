"""What a model is trained for: the loss, how outputs become answers, and the figures that say how good they are."""

import math
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import ConfigDict
from torch import Tensor

from peer.errors import InputError
from peer.plugins import user_code_errors
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

    def read_targets(self, y: Targets, where: str, name: str) -> Targets:
        """What `targets` makes of them; InputError, too, where a user's own makes what no loss could take."""
        with user_code_errors(self.name):
            made = self.targets(y, where, name)
        if not isinstance(made, np.ndarray) or made.dtype not in (np.float32, np.int64) or len(made) != len(y):
            raise InputError(
                f"the task `{self.name}`: its `targets` must return a NumPy array of float32 or int64 of shape "
                f"({len(y)}, ...), an entry for each sample of {where}, not {_kind(made)}"
            )
        return made

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

    def kinds(self, outputs: int) -> int:
        """How many kinds of targets `mix` tells apart, where the model answers with so many numbers. Here: the classes;
        0 where the task has none."""
        return outputs if self.has_classes else 0

    def mix(self, targets: Targets, outputs: int) -> NDArray[Any] | None:
        """How much of the targets (n, ...) is of each kind, (kinds,), numbers from 0: `fibfl++` orders the ring by the
        kinds' shares. A kind means the same at every peer. None where that is not known. Here: the classes' counts."""
        return np.bincount(targets, minlength=outputs) if self.has_classes else None

    def with_common(self, targets: Targets) -> Self:
        """The same for data that are dealt to the peers, which all know these training targets. Here: itself."""
        return self

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
        """What a model should give for these targets, and gives not, in words; None if it fits. Here: anything does."""
        return None


def _kind(value: object) -> str:
    """What a user's code returned, in words."""
    if isinstance(value, np.ndarray):
        return f"an array {value.shape} of {value.dtype}"
    return f"{type(value).__name__}"
