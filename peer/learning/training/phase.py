"""What a protocol asks of the trainer: some epochs of one part of the model."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, get_args

import torch
from torch import Tensor

from peer.learning.data.samples import Batch
from peer.learning.device import memory_errors
from peer.learning.model.model import Part
from peer.learning.tasks import Task
from peer.learning.training.optimiser import AnyOptimiser
from peer.learning.training.scheduler import Scheduler
from peer.plugins import reference, takes, user_code_errors

GradientHook = Callable[[Tensor, Tensor], None]
Loss = Callable[[Tensor, Tensor, Tensor], Tensor]
StepFunction = Callable[..., Any]
"""Called with a `peer.learning.training.own_step.TrainingStep` and a batch; gives its mean loss, of shape ()."""


@dataclass(frozen=True)
class Phase:
    """`epochs` passes over the shard that train `part` and leave the rest as it is."""

    part: Part
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
    """In place of forward pass and loss, as `training.step` of a federation has it."""

    def __post_init__(self) -> None:
        if self.part not in get_args(Part):
            raise ValueError(f"a phase trains {', '.join(get_args(Part))}, and not {self.part!r}")
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
        """The user's code that gives the loss, as `module:Name`; None where the loss is one of ours."""
        function = self.step or self.loss
        name = reference(function) if function else task.name
        return name if ":" in name and not name.startswith("peer.") else None

    def mean_loss(self, task: Task, outputs: Tensor, batch: Batch) -> Tensor:
        """The batch's loss, of shape (); ValueError if the phase's own gives something else, UserCodeError where a task
        of the user's own fails."""
        if self.loss is None:
            with user_code_errors(task.name), memory_errors():
                return task.loss(outputs, batch.targets)
        found = self.loss(outputs, batch.targets, batch.positions)
        if not isinstance(found, Tensor) or found.shape != () or not found.is_floating_point():
            given = f"{tuple(found.shape)} of {found.dtype}" if isinstance(found, Tensor) else type(found).__name__
            raise ValueError(f"the loss of a phase must be a floating-point tensor of shape (), not {given}")
        if torch.is_grad_enabled() and not found.requires_grad:
            raise ValueError("the loss of a phase must be calculated from the outputs by torch, without detaching them")
        return found
