"""What a federation can train for: the loss, how outputs become answers, and the figures that say how good they are.

`Task` is the interface and the settings of the `task` block; the built-in tasks follow, and at the end the table of
their names. A user's own task is a subclass of `Task`, named `module:Name`.
"""

import math
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Annotated, Any, ClassVar, Literal, Self, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import AfterValidator, ConfigDict, Field, FiniteFloat, PrivateAttr, field_validator, model_validator
from torch import Tensor
from torch.nn import functional
from torch.utils._pytree import tree_leaves

from peer.errors import InputError, suggest
from peer.learning.named_tensors import dtype_name
from peer.learning.training.metrics import Judged
from peer.plugins import load_class, load_function, user_code_errors
from peer.settings import Settings, Wanted, by_word

Targets = NDArray[Any]


@dataclass(frozen=True)
class Figure:
    """One number by which a model is evaluated."""

    name: str
    better: Literal["up", "down"] = "up"

    def worst(self, values: Sequence[float]) -> float:
        """Return the worst of at least one value."""
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
    """How the model takes numbers other than pixels; int64 for tokens."""

    evaluation_batch: ClassVar[int] = 256
    """Samples that are evaluated together; 1 where they differ in size."""

    @property
    def headline(self) -> Figure:
        return self.figures[0]

    def infer(self, forward: Callable[[Any], Tensor], inputs: Any) -> Tensor:
        """The outputs for inputs (n, ...) that nobody trains on, `forward` being the model's. Here: `forward(inputs)`;
        override it for windows that slide over a volume, flipped copies, or another precision."""
        return forward(inputs)

    @property
    def infers(self) -> bool:
        """Whether it has an `infer` of its own, by which inputs of other sizes than in training may be judged."""
        return type(self).infer is not Task.infer

    def inferred(self, forward: Callable[[Any], Tensor], inputs: Any) -> Tensor:
        """What `infer` gives; UserCodeError if one of a user's fails, InputError unless it is of as many samples."""
        if not self.infers:
            return forward(inputs)
        with user_code_errors(self.name):
            found = self.infer(forward, inputs)
        if isinstance(found, Tensor) and found.shape[:1] != (samples := tree_leaves(inputs)[0].shape[:1]):
            raise InputError(
                f"the task `{self.name}`: its `infer` must return outputs ({samples[0]}, ...), of each sample, not "
                f"{describe_output(found, '')}"
            )
        return found

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
                f"({len(y)}, ...), an entry for each sample of {where}, not "
                + (f"an array {made.shape} of {made.dtype}" if isinstance(made, np.ndarray) else type(made).__name__)
            )
        return made

    def outputs(self, parts: Sequence[Targets], given: int | None, where: str) -> int:
        """How many numbers the model answers with, which its maker is given as `classes`.

        Here: those of one target. `parts` are the targets for training and for tests; `given` is what the data's
        `classes` says. InputError where it does not fit.
        """
        found = math.prod(parts[0].shape[1:])
        if given not in (None, found):
            raise InputError(f"{where}: a target holds {found} numbers, not {given}; mend `classes` or `class_names`")
        return found

    def outputs_in_words(self, count: int) -> str:
        """What so many outputs are, for people and for the handshake: `10 classes`."""
        one, several = self._output_noun
        return f"{count} {one if count == 1 else several}"

    def kinds(self, outputs: int) -> int:
        """How many kinds of targets `mix` tells apart, where the model answers with so many numbers. Here: the classes;
        0 where the task has none."""
        return outputs if self.has_classes else 0

    def mix(self, targets: Targets, outputs: int) -> NDArray[Any] | None:
        """How much of the targets (n, ...) is of each kind, (kinds,), numbers from 0: `fibfl++` orders the ring by the
        kinds' shares. A kind means the same at every peer. None where that is not known. Here: the classes' counts."""
        return np.bincount(targets, minlength=outputs) if self.has_classes else None

    def with_common(self, targets: Targets) -> Self:
        """The task for data dealt to peers that all know these training targets, (n, ...). Here: this task itself."""
        return self

    @abstractmethod
    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """The mean loss of a batch, of shape (): of what the model gives for it, and what was wanted."""

    @abstractmethod
    def tally(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return, for each sample of a batch, a row of numbers, (n, k), that may be added up over any samples."""

    def results(self, sums: Tensor, samples: int) -> dict[str, float]:
        """The figures by name, of the rows' sum, float64 (k,). Here: column i's mean is figure i."""
        means = (sums / samples).tolist()
        return {figure.name: mean for figure, mean in zip(self.figures, means, strict=True)}

    def judge(self, rows: NDArray[np.float64]) -> dict[str, float]:
        """The figures by name, of the rows of all samples, (n, k). Here: the `results` of their sum; override it for a
        figure that is made of no sums, such as the area under a curve. NaN where a figure is not defined."""
        return self.results(torch.from_numpy(rows.sum(0)), len(rows))

    def of_classes(self, sums: Tensor) -> dict[str, Tensor]:
        """Figures of each class, float64 (classes,), of the rows' sum; NaN where one is not defined. Here: none."""
        return {}

    def score(self, results: Mapping[str, float]) -> float:
        """How good that is, in 0..1, for protocols that go by it. Here: the headline, cut to 0..1, or 1/(1 + it)."""
        value = results[self.headline.name]
        return min(max(value, 0.0), 1.0) if self.headline.better == "up" else 1 / (1 + max(value, 0.0))

    def answers(self, outputs: Tensor) -> Tensor:
        """What `Model.predict` gives for the model's outputs (n, ...)."""
        return outputs

    def answered(self, outputs: Tensor) -> Tensor:
        """What `answers` gives; UserCodeError if one of a user's fails, InputError unless it answers each sample."""
        with user_code_errors(self.name):
            found: object = self.answers(outputs)
        if not isinstance(found, Tensor) or found.shape[:1] != outputs.shape[:1]:
            raise InputError(
                f"the task `{self.name}`: its `answers` must return a tensor ({len(outputs)}, ...), an answer for each "
                f"sample, not {describe_output(found, '')}"
            )
        return found

    def misfit(self, outputs: object, targets: Tensor, classes: int) -> str | None:
        """What the model should give for these targets instead of `outputs`, in words; None if they fit. Here: anything
        fits, unless a built-in task says of which shape one output must be."""
        shape = self._output_shape(targets, classes)
        fits = isinstance(outputs, Tensor) and tuple(outputs.shape[1:]) == shape and outputs.is_floating_point()
        if shape is None or fits:
            return None
        return f"{self._output_words}, (n, {', '.join(map(str, shape))}), not {describe_output(outputs)}"

    _output_noun: ClassVar[tuple[str, str]] = ("output", "outputs")
    _output_words: ClassVar[str] = ""

    def _output_shape(self, targets: Tensor, classes: int) -> tuple[int, ...] | None:
        """The shape of the output for one sample; None where any will do."""
        return (classes,) if self._output_words else None


def describe_output(given: object, what: str = "outputs ") -> str:
    """Describe what a model or a task returned."""
    if not isinstance(given, Tensor):
        return f"a {type(given).__name__}"
    return f"{what}{tuple(given.shape)} of {dtype_name(given)}"


def loss_problem(loss: object) -> str | None:
    """Return what a loss should have been, and is not; None if it is a loss."""
    if isinstance(loss, Tensor) and loss.shape == () and loss.is_floating_point():
        return None
    return f"a floating-point tensor of shape (), not {describe_output(loss, '')}"


def _whole_numbers(y: Targets, what: str) -> Targets:
    """The targets as int64; InputError unless they are integers."""
    if y.dtype.kind not in "biu":
        raise InputError(f"{what} must be integers from 0, but they are {y.dtype}")
    return y.astype(np.int64)


def _rows(y: Targets, wanted: str) -> Targets:
    """The targets as rows (n, k); InputError if they are neither rows nor one number each."""
    if y.ndim not in (1, 2):
        raise InputError(f"{wanted}, not {y.shape}")
    return y[:, None] if y.ndim == 1 else y


ClassFigure = Literal[
    "accuracy",
    "auroc",
    "average-precision",
    "balanced-accuracy",
    "sensitivity",
    "specificity",
    "precision",
    "f1",
    "calibration-error",
]
"""Figures of classes, by their names in `judged_by`; metrics.py defines them."""
OwnFigure = Annotated[str, Field(pattern=r"^[\w.]+:\w+$")]
"""A function of the user's, `module:function`."""
FIGURES_WANTED = f"a list of different ones of [{', '.join(get_args(ClassFigure))}, module:function]"
WEIGHTS_WANTED = "a list of weights from 1e-6 to 1e6, one for each class, such as [1, 20]"


def _shown(name: str) -> str:
    """What a figure is called: a function of the user's without its module."""
    return name.rpartition(":")[2]


def _once(names: tuple[str, ...]) -> tuple[str, ...]:
    if len({*map(_shown, names)}) < len(names):
        raise ValueError(FIGURES_WANTED)
    return names


_MANY_CLASSES = 1000
"""A larger label, if it also exceeds the number of samples, is a row number or a hash taken for a label."""


class Classification(Task):
    """Cross entropy of logits (n, classes) and labels int64 (n,); the answer is the class of the largest logit."""

    name: Literal["classification"] = "classification"
    """One class a sample."""
    judged_by: Annotated[
        tuple[ClassFigure | OwnFigure, ...], Field(min_length=1), AfterValidator(_once), Wanted(FIGURES_WANTED)
    ] = ("accuracy",)
    """[Figures](tasks.md#rare-classes), the headline first."""

    class_weights: (
        Annotated[
            tuple[Annotated[FiniteFloat, Field(ge=1e-6, le=1e6)], ...], Field(min_length=2), Wanted(WEIGHTS_WANTED)
        ]
        | None
    ) = None
    """A weight per class in the loss: `[1, 20]` for a rare class 1."""
    focal: Annotated[FiniteFloat, Field(gt=0, le=100)] | None = None
    """γ of the focal loss, (1 − p)^γ times the cross entropy (Lin et al. 2017, Eq. 4)."""

    has_classes: ClassVar[bool] = True
    _output_noun: ClassVar[tuple[str, str]] = ("classes", "classes")

    @model_validator(mode="after")
    def _own_figures_have_names_of_their_own(self) -> Self:
        for name in self.judged_by:
            if ":" in name and _shown(name) in {"accuracy", *RESERVED_FIGURE_NAMES}:
                raise ValueError(f"tables or summaries have `{_shown(name)}` already; rename the function `{name}`")
        return self

    def targets(self, y: Targets, where: str, name: str) -> Targets:
        if y.ndim == 2 and y.shape[1] == 1:
            y = y[:, 0]
        if y.ndim != 1:
            raise InputError(f"{where}: {name} must be of shape (n,), one label a sample, not {y.shape}")
        labels = _whole_numbers(y, f"{where}: the labels in {name}")
        if len(labels) and labels.min() < 0:
            raise InputError(f"{where}: the labels in {name} must not be negative, but sample "
                             f"{int(labels.argmin())} has {int(labels.min())}")  # fmt: skip
        return labels

    def outputs(self, parts: Sequence[Targets], given: int | None, where: str) -> int:
        largest, samples = max(int(labels.max(initial=0)) for labels in parts), len(parts[0])
        if given is not None and largest >= given:
            raise InputError(f"{where}: label {largest} does not fit {given} classes, numbered from 0")
        if largest >= max(_MANY_CLASSES, samples):
            raise InputError(
                f"{where}: label {largest} among {samples} samples is not a class number; number the classes from 0"
            )
        classes = given or largest + 1
        if self.class_weights and len(self.class_weights) != classes:
            given_weights = f"`class_weights` has {len(self.class_weights)} weights"
            raise InputError(f"{where}: has {classes} classes, and {given_weights}; give one for each class")
        return classes

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        weight = outputs.new_tensor(self.class_weights) if self.class_weights else None  # of the outputs' type
        if self.focal is None:
            return functional.cross_entropy(outputs, targets, weight)
        each = functional.cross_entropy(outputs, targets, weight, reduction="none")
        missed = 1 - outputs.softmax(1).gather(1, targets[:, None])[:, 0]
        whole = len(targets) if weight is None else weight[targets].sum()
        # From tiny values on: the power's gradient is infinite at 0 where γ is below 1.
        return (missed.clamp(min=torch.finfo(outputs.dtype).tiny) ** self.focal * each).sum() / whole

    @property
    def figures(self) -> tuple[Figure, ...]:  # type: ignore[override]
        names = dict.fromkeys((*map(_shown, self.judged_by), "accuracy"))
        return tuple(Figure(name, better="down" if name == "calibration-error" else "up") for name in names)

    def tally(self, outputs: Tensor, targets: Tensor) -> Tensor:
        correct = (outputs.argmax(1) == targets)[:, None]
        if self.judged_by == ("accuracy",):
            return correct
        labels = torch.stack([targets, outputs.argmax(1)], 1)
        return torch.cat([correct, labels, outputs.double().softmax(1)], 1)

    def results(self, sums: Tensor, samples: int) -> dict[str, float]:
        return {"accuracy": float(sums[0] / samples)}

    def judge(self, rows: NDArray[np.float64]) -> dict[str, float]:
        found = super().judge(rows)
        if sumless := [name for name in self.judged_by if _shown(name) not in found and name != "accuracy"]:
            labels, scores = rows[:, 1].astype(np.int64), rows[:, 3:]
            judged = Judged(scores, *(rows[:, [column]] == np.arange(scores.shape[1]) for column in (1, 2)))
            for name in sumless:
                found[_shown(name)] = _own_figure(name, labels, scores) if ":" in name else judged.figure(name)
        return {figure.name: found[figure.name] for figure in self.figures if figure.name in found}

    def score(self, results: Mapping[str, float]) -> float:
        return results["accuracy"]

    def answers(self, outputs: Tensor) -> Tensor:
        return outputs.argmax(1)

    def misfit(self, outputs: object, targets: Tensor, classes: int) -> str | None:
        if not isinstance(outputs, Tensor):
            return f"one tensor of logits, not a {type(outputs).__name__}"
        if outputs.shape != (len(targets), classes) or outputs.dtype != torch.float32:
            return f"{classes} float32 logits, and gives {tuple(outputs.shape[1:])} of {dtype_name(outputs)}"
        return None


def _own_figure(name: str, labels: NDArray[np.int64], probabilities: NDArray[np.float64]) -> float:
    """What a function of the user's makes of labels (n,) and probabilities (n, classes); FailedError if it fails."""
    function = load_function(name)
    with user_code_errors(name):
        found = function(labels, probabilities)
        if not np.isscalar(found) and np.shape(found) != ():
            raise ValueError(f"it must return a number, not a {type(found).__name__}")
        return float(found)


class Multilabel(Task):
    """Binary cross entropy of logits (n, labels) and targets float32 (n, labels) of 0 and 1; the answer is which logits
    are positive, bool.

    `f1` is the micro-average 2·TP/(2·TP + FP + FN) over all labels and samples (1 where none holds or is found),
    `exact` the share of samples with all labels right.
    """

    name: Literal["multilabel"]
    """Any number of labels a sample; targets are 0 and 1, a column a label."""

    figures: ClassVar[tuple[Figure, ...]] = (Figure("f1"), Figure("exact"))
    _output_noun: ClassVar[tuple[str, str]] = ("label", "labels")
    _output_words: ClassVar[str] = "a logit for each label"

    def targets(self, y: Targets, where: str, name: str) -> Targets:
        labels = super().targets(y, where, name).astype(np.float32)
        labels = _rows(labels, f"{where}: {name} must be of shape (n, k), a row of labels a sample")
        wrong = np.flatnonzero(((labels != 0) & (labels != 1)).any(1))
        if len(wrong):
            raise InputError(f"{where}: the labels in {name} must be 0 or 1, but sample {wrong[0]} has another number")
        return labels

    def kinds(self, outputs: int) -> int:
        return outputs

    def mix(self, targets: Targets, outputs: int) -> NDArray[Any]:
        return targets.sum(0, dtype=np.float64)  # type: ignore[no-any-return]

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return functional.binary_cross_entropy_with_logits(outputs, targets)

    def tally(self, outputs: Tensor, targets: Tensor) -> Tensor:
        found, true = outputs > 0, targets > 0
        hits, misses = (found & true).sum(1), (found ^ true).sum(1)
        return torch.stack([hits, misses, misses == 0], 1)

    def results(self, sums: Tensor, samples: int) -> dict[str, float]:
        hits, misses, exact = sums.tolist()
        return {"f1": 2 * hits / (2 * hits + misses) if hits + misses else 1.0, "exact": exact / samples}

    def answers(self, outputs: Tensor) -> Tensor:
        return outputs > 0


DECILES = tuple(tenth / 10 for tenth in range(1, 10))
_LOSSES: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "mse": functional.mse_loss,
    "l1": functional.l1_loss,
    "huber": functional.huber_loss,
}


class Regression(Task):
    """The mean error of outputs (n, d) and targets float32 (n, d); the answers are the outputs.

    `rmse` and `mae` are over all n·d numbers. `r2` is 1 − Σ(y−ŷ)²/Σ(y−ȳ)², the mean over columns (constant columns: 1
    if exact, else 0).
    """

    name: Literal["regression"]
    """Numbers to foretell: one, or a row of them, a sample."""
    error: Literal["mse", "l1", "huber"] = "mse"
    """The training loss: squared, absolute, or Huber's, squared up to 1."""
    edges: Annotated[tuple[FiniteFloat, ...], Field(min_length=1, max_length=100)] | None = None
    """Ascending bounds of target ranges for `fibfl++`'s mix. Default: deciles of divided data; required for peers'
    own data."""

    _deciles: tuple[tuple[float, ...], ...] | None = PrivateAttr(None)
    """The deciles of each column of the common training targets."""
    figures: ClassVar[tuple[Figure, ...]] = (Figure("rmse", better="down"), Figure("mae", better="down"), Figure("r2"))
    _output_noun: ClassVar[tuple[str, str]] = ("number to foretell", "numbers to foretell")
    _output_words: ClassVar[str] = "a number for each target"

    def targets(self, y: Targets, where: str, name: str) -> Targets:
        with np.errstate(over="ignore"):
            numbers = super().targets(y, where, name).astype(np.float32)
        numbers = _rows(numbers, f"{where}: {name} must be of shape (n,) or (n, k), a number or a row of them a sample")
        wrong = np.flatnonzero(~np.isfinite(numbers).all(1))
        if len(wrong):
            raise InputError(f"{where}: {name} has a value that is not a finite float32 in sample {wrong[0]}")
        return numbers

    @field_validator("edges")
    @classmethod
    def _ascending(cls, edges: tuple[float, ...] | None) -> tuple[float, ...] | None:
        if edges and any(low >= high for low, high in pairwise(edges)):
            raise ValueError(f"edges ascend, each above the one before, and not {', '.join(map(str, edges))}")
        return edges

    def kinds(self, outputs: int) -> int:
        return outputs * (len(self.edges or DECILES) + 1)

    def mix(self, targets: Targets, outputs: int) -> NDArray[Any] | None:
        edges = self._deciles if self.edges is None else outputs * (self.edges,)
        if edges is None:
            return None
        ranges = [np.searchsorted(of_one, column, "right") for of_one, column in zip(edges, targets.T, strict=True)]
        return np.concatenate([np.bincount(found, minlength=self.kinds(1)) for found in ranges])

    def with_common(self, targets: Targets) -> Self:
        known = self.model_copy()
        known._deciles = tuple(map(tuple, np.quantile(targets.astype(np.float64), DECILES, axis=0).T.tolist()))
        return known

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return _LOSSES[self.error](outputs, targets)

    def tally(self, outputs: Tensor, targets: Tensor) -> Tensor:
        true = targets.double()
        wrong = outputs.double() - true
        return torch.cat([wrong**2, wrong.abs(), true, true**2], 1)

    def results(self, sums: Tensor, samples: int) -> dict[str, float]:
        squared, absolute, total, squares = sums.view(4, -1).unbind()
        spread = squares - total**2 / samples
        # What rounding leaves of a constant column is not a spread.
        constant = spread <= samples * torch.finfo(torch.float64).eps * squares
        r2 = torch.where(constant, (squared == 0).double(), 1 - squared / spread)
        return {
            "rmse": float((squared / samples).mean().sqrt()),
            "mae": float((absolute / samples).mean()),
            "r2": float(r2.mean()),
        }

    def judge(self, rows: NDArray[np.float64]) -> dict[str, float]:
        if type(self).tally is Regression.tally:
            # Beside a large mean, sums of squares would lose the spread.
            *wrong, true, _ = np.split(rows, 4, 1)
            true = true - true.mean(0)
            rows = np.concatenate([*wrong, true, true**2], 1)
        return super().judge(rows)

    def score(self, results: Mapping[str, float]) -> float:
        return min(max(results["r2"], 0.0), 1.0)


class Segmentation(Task):
    """Cross entropy of logits (n, classes, H, W) and classes int64 (n, H, W), or (n, D, H, W) for volumes; the answers
    are the largest logits' classes, (n, H, W).

    Over all pixels but the ignored: `dice` is the class mean of 2·|A∩B|/(|A|+|B|), `iou` of |A∩B|/|A∪B|, `pixels` the
    share that is right. Classes that neither occur nor are found do not count.
    """

    name: Literal["segmentation"]
    """A class for each pixel."""
    dice_weight: Annotated[float, Field(ge=0)] = 0.0
    """Weight of 1 − soft dice beside the cross entropy."""
    background: bool = True
    """Whether class 0 counts in `dice` and `iou`."""
    ignore: int | None = None
    """The class of pixels that do not count, often 255."""

    figures: ClassVar[tuple[Figure, ...]] = (Figure("dice"), Figure("iou"), Figure("pixels"))
    _output_noun: ClassVar[tuple[str, str]] = ("class a pixel", "classes a pixel")
    _output_words: ClassVar[str] = "a logit for each class of each pixel"
    outputs_by_largest: ClassVar[bool] = True

    def targets(self, y: Targets, where: str, name: str) -> Targets:
        if y.ndim in (4, 5) and 1 in (y.shape[1], y.shape[-1]):
            y = y[:, 0] if y.shape[1] == 1 else y[..., 0]
        if y.ndim not in (3, 4):
            raise InputError(
                f"{where}: {name} must be of shape (n, H, W) or (n, D, H, W), a class for each pixel, not {y.shape}"
            )
        masks = _whole_numbers(y, f"{where}: the classes in {name}")
        wrong = np.flatnonzero(((masks < 0) & (masks != self.ignore)).any(_SPACE[: masks.ndim - 1]))
        if len(wrong):
            raise InputError(f"{where}: the classes in {name} must not be negative, but sample {wrong[0]} has one")
        return masks

    def outputs(self, parts: Sequence[Targets], given: int | None, where: str) -> int:
        largest = max(int(masks[masks != self.ignore].max(initial=0)) for masks in parts)
        if given is not None and largest >= given:
            raise InputError(
                f"{where}: class {largest} does not fit {given} classes, numbered from 0; where it is nobody's, write "
                f"`ignore: {largest}` into `task`"
            )
        if largest >= _MANY_CLASSES:
            raise InputError(f"{where}: class {largest} is not a class number; number the classes from 0")
        return given or largest + 1

    def kinds(self, outputs: int) -> int:
        return outputs

    def mix(self, targets: Targets, outputs: int) -> NDArray[Any]:
        return np.bincount(targets[targets != self.ignore], minlength=outputs)

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        if self.ignore is None:
            loss = _cross_entropy(outputs, targets, "mean")
        else:
            total = _cross_entropy(outputs, targets, "sum", self.ignore)
            loss = total / self._known(targets).sum().clamp(min=1)
        return loss + self.dice_weight * self._soft_dice_loss(outputs, targets) if self.dice_weight else loss

    def _soft_dice_loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        known = self._known(targets)[:, None]
        found, true = outputs.softmax(1) * known, _planes(targets, outputs.shape[1]) & known
        over = (0, *_SPACE[1 : targets.ndim])
        both, sizes = (found * true).sum(over), (found + true).sum(over)
        return 1 - ((2 * both + 1) / (sizes + 1)).mean()

    def tally(self, outputs: Tensor, targets: Tensor) -> Tensor:
        known = self._known(targets)
        found = outputs.argmax(1)
        of_classes, of_planes = _SPACE[: targets.ndim - 1], _SPACE[1 : targets.ndim]
        right = ((found == targets) & known).sum(of_classes)[:, None]
        a = _planes(found, outputs.shape[1]) & known[:, None]
        b = _planes(targets, outputs.shape[1]) & known[:, None]
        planes = [plane.sum(of_planes) for plane in (a & b, a, b)]
        return torch.cat([right, known.sum(of_classes)[:, None], *planes], 1)

    def results(self, sums: Tensor, samples: int) -> dict[str, float]:
        right, pixels = sums[:2].tolist()
        each = {name: of[0 if self.background else 1 :] for name, of in self.of_classes(sums).items()}
        means = {name: float(of[~of.isnan()].mean()) for name, of in each.items()}
        empty = {"dice": 1.0, "iou": 1.0} if math.isnan(means["dice"]) else {}
        return means | empty | {"pixels": right / pixels if pixels else 1.0}

    def of_classes(self, sums: Tensor) -> dict[str, Tensor]:
        both, found, true = sums[2:].view(3, -1)
        return {"dice": 2 * both / (found + true), "iou": both / (found + true - both)}

    def answers(self, outputs: Tensor) -> Tensor:
        return outputs.argmax(1)

    def _output_shape(self, targets: Tensor, classes: int) -> tuple[int, ...]:
        return (classes, *targets.shape[1:])

    def _known(self, targets: Tensor) -> Tensor:
        return torch.ones_like(targets, dtype=torch.bool) if self.ignore is None else targets != self.ignore


_SPACE = (1, 2, 3, 4)
"""Dimensions of images and volumes behind n, or from the second on behind n and classes."""


def _planes(classes: Tensor, count: int) -> Tensor:
    """(n, H, W) → bool (n, count, H, W), or with D before H: where each class is."""
    return classes[:, None] == torch.arange(count, device=classes.device).view(-1, *[1] * (classes.ndim - 1))


def _cross_entropy(outputs: Tensor, targets: Tensor, reduction: str, ignore: int | None = None) -> Tensor:
    """The cross entropy of logits (n, classes, *places) and classes (n, *places)."""
    shape = targets.shape
    if outputs.is_cuda:  # where only the kernel for one place a sample gives the same bits each time
        outputs, targets = outputs.movedim(1, -1).flatten(0, -2), targets.flatten()
    ignored = -100 if ignore is None else ignore  # -100: torch's own, which no class has
    loss = functional.cross_entropy(outputs, targets, reduction=reduction, ignore_index=ignored)
    return loss.view(shape) if reduction == "none" else loss


class LanguageModel(Task):
    """Cross entropy of logits (n, T, vocabulary) and tokens int64 (n, T); the answers are the likeliest tokens, (n, T).

    The data give both: `x, y = tokens[:, :-1], tokens[:, 1:]` for the next token. `perplexity` is exp of the cross
    entropy, `accuracy` the share of tokens that were likeliest.
    """

    name: Literal["language-model"]
    """What comes next: tokens for tokens."""
    vocabulary: Annotated[int, Field(ge=2)]
    """Number of tokens."""
    ignore: int = -100
    """The target that does not count, such as padding."""

    figures: ClassVar[tuple[Figure, ...]] = (Figure("perplexity", better="down"), Figure("accuracy"))
    inputs: ClassVar[Literal["float32", "int64"]] = "int64"
    _output_noun: ClassVar[tuple[str, str]] = ("token", "tokens")
    _output_words: ClassVar[str] = "a logit for each token of the vocabulary at each place"

    def targets(self, y: Targets, where: str, name: str) -> Targets:
        if y.dtype.kind not in "biu" or y.ndim != 2:
            raise InputError(
                f"{where}: {name} must be of shape (n, T), a whole number for each token, not {y.shape} of {y.dtype}"
            )
        tokens = y.astype(np.int64)
        wrong = ((tokens < 0) | (tokens >= self.vocabulary)) & (tokens != self.ignore)
        if wrong.any():
            raise InputError(
                f"{where}: {name} has the token {tokens[wrong][0]}, and `vocabulary` is {self.vocabulary}, numbered "
                f"from 0; mend one of them, or write `ignore` into `task`"
            )
        return tokens

    def outputs(self, parts: Sequence[Targets], given: int | None, where: str) -> int:
        if given not in (None, self.vocabulary):
            raise InputError(
                f"{where}: `classes` is {given} and the task's `vocabulary` {self.vocabulary}; leave it out"
            )
        return self.vocabulary

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return self._each(outputs, targets).sum() / (targets != self.ignore).sum().clamp(min=1)

    def tally(self, outputs: Tensor, targets: Tensor) -> Tensor:
        asked = targets != self.ignore
        right = (outputs.argmax(2) == targets) & asked
        return torch.stack([self._each(outputs, targets).double().sum(1), right.sum(1), asked.sum(1)], 1)

    def results(self, sums: Tensor, samples: int) -> dict[str, float]:
        entropy, right, asked = sums / sums[2].clamp(min=1)
        return {"perplexity": float(entropy.exp()), "accuracy": float(right) if asked else 1.0}

    def score(self, results: Mapping[str, float]) -> float:
        return 1 / results["perplexity"]

    def answers(self, outputs: Tensor) -> Tensor:
        return outputs.argmax(2)

    def _output_shape(self, targets: Tensor, classes: int) -> tuple[int, ...]:
        return (*targets.shape[1:], classes)

    def _each(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """The cross entropy at each place, (n, T); 0 where nothing is asked for."""
        return _cross_entropy(outputs.transpose(1, 2), targets, "none", self.ignore)


TASKS: dict[str, type[Task]] = by_word("name", Classification, Multilabel, Regression, Segmentation, LanguageModel)

RESERVED_FIGURE_NAMES = frozenset(
    {
        *("id", "peer", "state", "restarts", "round", "loss", "samples", "sent", "waits for", "trouble"),
        *("train", "communicate", "evaluate", "train/comm/eval", "matched", "global", "paper", "local", "curve"),
    }
)
"""What tables and summaries call something else, beside a figure."""


def task_class(name: str) -> type[Task]:
    """The class called `name`, or the user's `module:Name`; InputError when there is none."""
    if ":" not in name and name not in TASKS:
        raise InputError(f"unknown task `{name}`; {suggest(name, [*TASKS, 'module:Name'])}")
    if ":" not in name:
        return TASKS[name]
    found = load_class(name, Task)
    _check_figures(found, name)
    return found


def _check_figures(found: type[Task], name: str) -> None:
    """InputError unless tables and summaries can hold its figures beside their own."""
    figures: object = getattr(found, "figures", ())
    if isinstance(figures, property):  # as of Classification, whose settings name them
        with user_code_errors(name):
            figures = found.model_construct(name=name).figures
    if not isinstance(figures, tuple) or not figures or not all(isinstance(one, Figure) for one in figures):
        raise InputError(f'`{name}` has no figures; write figures = (Figure("error", better="down"),)')
    if wrong := next((one for one in figures if one.better not in ("up", "down")), None):
        raise InputError(f"`{name}` has a figure `{wrong.name}` that is better {wrong.better!r}; write up or down")
    if not isinstance(found.evaluation_batch, int) or found.evaluation_batch < 1:
        raise InputError(f"`evaluation_batch` of `{name}` is {found.evaluation_batch!r}; it is a number from 1 on")
    if found.inputs not in ("float32", "int64"):
        raise InputError(f"`inputs` of `{name}` is {found.inputs!r}; it is float32, or int64 for tokens")
    names = [one.name for one in figures]
    if twice := next((one for one in names if names.count(one) > 1), None):
        raise InputError(f"`{name}` has two figures that are called `{twice}`; give each its own name")
    if taken := next((one for one in names if one in RESERVED_FIGURE_NAMES), None):
        raise InputError(f"`{name}` has a figure `{taken}`, which tables or summaries have already; rename it")
