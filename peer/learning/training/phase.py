"""What is asked of the trainer: a protocol's phases, and the `training` block, which says how they are trained.

A `Phase` is some epochs of one part of the model; `Training` holds what is not the protocol's business, and
`applied` joins the two.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import partial
from typing import Annotated, Any, Literal, Self, get_args

import torch
from pydantic import BeforeValidator, ConfigDict, Field, model_validator
from torch import Tensor

from peer.errors import InputError
from peer.learning.data.samples import Batch
from peer.learning.device import device_errors
from peer.learning.model.layout import ModelPart
from peer.learning.tasks import Task, loss_problem
from peer.learning.training.optimiser import AnyOptimiser, Optimiser
from peer.learning.training.scheduler import Scheduler
from peer.plugins import load_function, reference, takes, user_code_errors
from peer.settings import Settings

GradientHook = Callable[[Tensor, Tensor], object]
Loss = Callable[[Tensor, Tensor, Tensor], Tensor]
StepFunction = Callable[..., Any]
"""Called with a `peer.learning.training.step.TrainingStep` and a batch; gives its mean loss, of shape ()."""


@dataclass(frozen=True)
class Phase:
    """`epochs` passes over the shard that train `part` and leave the rest as it is."""

    part: ModelPart
    epochs: int
    optimiser: AnyOptimiser
    batch_size: int = 64
    keep: str | None = None
    """The name under which the optimiser's state survives the phase; None: a new optimiser each time."""
    gradient_hook: GradientHook | None = None
    """Called before each step with the part's slices of the model's `vector` and `gradient`. It may add a
    correction, such as a proximal term, to the gradient in place; where buffers lie that has no effect."""

    loss: Loss | None = None
    """In place of the task's: loss(outputs, targets, positions (n,) of the batch in the peer's
    training samples) gives its mean over the batch, a tensor of shape (). What it draws from torch replays.

    Two phases are equal only if they have the same function here (as for `gradient_hook`): a lambda or closure
    that `local()` makes anew each time is another one."""

    scheduler: Scheduler | None = None
    """How the learning rate goes on from phase to phase; None: it is the optimiser's."""
    step: StepFunction | None = None
    """Replaces forward pass and loss, like a federation's `training.step`."""

    def __post_init__(self) -> None:
        if self.part not in get_args(ModelPart):
            raise ValueError(f"a phase trains {', '.join(get_args(ModelPart))}, and not {self.part!r}")
        if not isinstance(self.optimiser, AnyOptimiser):
            raise ValueError("the optimiser of a phase is one of `peer`, such as SGD(lr=0.05), with its brackets")
        if self.epochs < 0 or self.batch_size < 1:
            raise ValueError(
                f"a phase has 0 epochs or more, in batches of 1 or more: not {self.epochs}, {self.batch_size}"
            )
        for name, function, given in (
            ("gradient_hook", self.gradient_hook, ("parameters", "gradient")),
            ("loss", self.loss, ("outputs", "targets", "positions")),
        ):
            if function is not None and not takes(function, given):
                raise ValueError(f"`{name}` of a phase is called as {name}({', '.join(given)})")

    def own_loss(self, task: Task) -> str | None:
        """The user code that gives the loss, as `module:Name`; None if the loss is built in."""
        function = self.step or self.loss
        name = reference(function) if function else task.name
        return name if ":" in name and not name.startswith("peer.") else None

    def correct(self, parameters: Tensor, gradient: Tensor) -> None:
        """Let `gradient_hook` change the gradient; InputError for one that returns another, which would go unheeded."""
        assert self.gradient_hook is not None
        found = self.gradient_hook(parameters, gradient)
        in_place = {one.untyped_storage().data_ptr() for one in (parameters, gradient)}
        if isinstance(found, Tensor) and found.untyped_storage().data_ptr() not in in_place:
            raise InputError(
                f"`{reference(self.gradient_hook)}` returns a new gradient, and a `gradient_hook` changes the one that "
                "it is given; write gradient.copy_(...), or add_ and the like"
            )

    def mean_loss(self, task: Task, outputs: Tensor, batch: Batch) -> Tensor:
        """Return the batch's loss, of shape ().

        Raises ValueError if the phase's own loss gives something else, UserCodeError if a custom task fails.
        """
        if self.loss is None:
            with user_code_errors(task.name), device_errors():
                return task.loss(outputs, batch.targets)
        found = self.loss(outputs, batch.targets, batch.positions)
        if why := loss_problem(found):
            raise ValueError(f"the loss of a phase must be {why}")
        if torch.is_grad_enabled() and not found.requires_grad:
            raise ValueError("the loss of a phase must be calculated from the outputs by torch, without detaching them")
        return found


Limit = Annotated[float, Field(gt=0)]
Precision = Literal["float32", "bfloat16", "float16"]


def _name_as_block(value: Any) -> Any:
    """`AdamW` and `{name: AdamW}` are the same."""
    return {"name": value} if isinstance(value, str) else value


class OwnFunction(Settings):
    """Your function, `module:function`, with its arguments."""

    model_config = ConfigDict(extra="allow")

    name: Annotated[str, Field(pattern=r"^[\w.]+:\w+$")]
    """Called with a [step](training.md#a-step-of-your-own) and a batch, or with a [loop](loops.md)."""

    def function(self) -> Callable[..., Any]:
        """Return the function with its arguments bound; InputError if there is none."""
        return partial(load_function(self.name), **(self.model_extra or {}))


class Budget(Settings):
    """Length of each phase: one of the two."""

    steps: Annotated[int, Field(ge=1, le=10**9)] | None = None
    """Steps of the optimiser."""
    seconds: Annotated[float, Field(gt=0, le=1e7)] | None = None
    """Seconds; results differ between runs."""

    @model_validator(mode="after")
    def _one_of_them(self) -> Self:
        if (self.steps is None) == (self.seconds is None):
            raise ValueError("give either `steps` or `seconds`")
        return self


class Training(Settings):
    """Each peer's local training; see [training.md](training.md)."""

    optimiser: Annotated[Optimiser, BeforeValidator(_name_as_block)] | None = None
    """Default: the protocol's."""
    scheduler: Annotated[Scheduler, BeforeValidator(_name_as_block)] | None = None
    """Default: the protocol's rates."""
    clip_gradient: Limit | None = None
    """Maximum norm of the gradient. FIRMA advises 1 for fewer than 200 samples per peer."""
    clip_value: Limit | None = None
    """Maximum element of the gradient, applied first."""
    sampler: Literal["balanced"] | None = None
    """Each epoch draws as many samples as there are, with replacement, each class equally often."""
    accumulate: Annotated[int, Field(ge=1, le=100_000)] = 1
    """Batches per step, by their mean gradient."""
    precision: Precision = "float32"
    """Of training; model, messages and evaluation stay float32."""
    deterministic: bool = True
    """Compute [on GPUs](running.md#threads-containers-and-gpus) by repeatable algorithms."""
    patience: Annotated[int, Field(ge=1)] | None = None
    """Ends a phase after so many epochs without a lower `hold_back` loss."""
    budget: Budget | None = None
    """Replaces the protocol's epochs."""
    step: Annotated[OwnFunction, BeforeValidator(_name_as_block)] | None = None
    """Replaces forward pass and loss."""
    loop: Annotated[OwnFunction, BeforeValidator(_name_as_block)] | None = None
    """Replaces all of a phase's training; excludes the other keys here but `deterministic`."""

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        beside = type(self).model_fields.keys() - {"loop", "deterministic"}
        if self.loop and (others := sorted(self._changed(beside))):
            raise ValueError(f"`loop` trains by itself; leave out `{others[0]}`, or `loop`")
        if self.budget and self.patience:
            raise ValueError("`budget` takes the place of the epochs that `patience` ends; leave out one of them")
        if self.step and self.accumulate > 1:
            raise ValueError("`step` may take several passes itself; leave out `accumulate`")
        if self.step and self.precision == "float16":
            raise ValueError("`step` works on gradients that float16 would scale; write `precision: bfloat16`")
        return self

    @property
    def is_reproducible(self) -> bool:
        """Whether two runs end in the same bits, as far as this block decides."""
        return self.budget is None or self.budget.seconds is None

    @property
    def without_phases(self) -> "Training":
        """The part of this block that applies to a phase with an optimiser and a length of its own."""
        return self.model_copy(update={"optimiser": None, "scheduler": None, "budget": None, "patience": None})

    @property
    def changes_gradient(self) -> str | None:
        """The first key that changes the plain gradient of a batch before the step; None if there is none."""
        changed = self._changed(("clip_gradient", "clip_value", "accumulate", "step"))
        return next(iter(changed), "precision" if self.precision == "float16" else None)

    def _changed(self, keys: Iterable[str]) -> list[str]:
        """Those of these keys that differ from their defaults."""
        return [key for key in keys if getattr(self, key) != type(self).model_fields[key].default]

    def applied(self, phase: Phase) -> Phase:
        """Return a protocol's phase with the optimiser, scheduler and step of this block."""
        own = self.step.function() if self.step else None
        return replace(
            phase,
            optimiser=self._optimiser(phase.optimiser),
            scheduler=self.scheduler or phase.scheduler,
            step=phase.step or own,
        )

    def _optimiser(self, protocols: AnyOptimiser) -> AnyOptimiser:
        if self.optimiser is None:
            return protocols
        lr = protocols.lr if self.optimiser.lr is None else self.optimiser.lr
        return self.optimiser.model_copy(update={"lr": lr})


PROTOCOL_DEFAULTS = Training()
"""All as the protocol has it."""
