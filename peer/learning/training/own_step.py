"""A training step of the user's own: what its function is given."""

from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from torch import Tensor

from peer.learning.data.samples import Batch
from peer.learning.device import memory_errors
from peer.learning.kept import Kept
from peer.learning.model.model import Model
from peer.learning.training.phase import Phase
from peer.learning.training.precision import MixedPrecision
from peer.plugins import reference, user_code_errors


class StepState(Kept):
    """`step.state`; TypeError at once for what is no tensor."""

    called: ClassVar[str] = "step.state"


@dataclass(frozen=True)
class TrainingStep:
    """What a function of one's own trains with: called as `function(step, batch)`, it gives the batch's mean loss.

    The gradient is zero when the function begins. If the loss needs a gradient, the trainer does the backward pass; a
    function that does passes of its own returns the loss detached. Then the gradient is clipped, and the optimiser
    steps. What it draws from torch's own generator replays; numpy's and Python's do not.
    """

    model: Model
    phase: Phase
    precision: MixedPrecision
    state: StepState = field(default_factory=StepState)
    """Tensors that live on through all steps and rounds; part of the checkpoint."""

    def __call__(self, inputs: Any) -> Tensor:
        """The model's outputs for inputs (n, *shape), in training mode where the phase trains."""
        with self.precision.forward():
            return self.model.forward(inputs)

    def loss(self, outputs: Tensor, batch: Batch) -> Tensor:
        """The task's mean loss, or the protocol's own where its phase has one; of shape ()."""
        with self.precision.forward():
            return self.phase.mean_loss(self.model.task, outputs, batch)

    @property
    def parameters(self) -> Tensor:
        """The part that is trained, flat and live, float32; change it under `torch.no_grad()`."""
        return self.model.vector[self.model.part(self.phase.part)]

    @property
    def gradient(self) -> Tensor:
        """Of the same layout: where backward passes add up."""
        return self.model.gradient[self.model.part(self.phase.part)]

    def take(self, batch: Batch) -> Tensor:
        """What the phase's function makes of a batch: its loss, detached, after the backward pass.

        What it raises is a FailedError, and so is what no training step may return.
        """
        function = self.phase.step
        assert function is not None
        with user_code_errors(reference(function)), memory_errors():
            loss = function(self, batch)
            if not isinstance(loss, Tensor) or loss.shape != () or not loss.is_floating_point():
                given = f"{tuple(loss.shape)} of {loss.dtype}" if isinstance(loss, Tensor) else type(loss).__name__
                raise ValueError(f"it must return its loss, a floating-point tensor of shape (), not {given}")
            if why := self.state.why_not_apart(self.model.vector):
                raise ValueError(f"it {why}")
            if loss.requires_grad:
                torch.autograd.backward(loss)
            elif not bool(self.gradient.any()):
                raise ValueError("it left no gradient: return the loss without detaching it, or call `backward()`")
            return loss.detach()
