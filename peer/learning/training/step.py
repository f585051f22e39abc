"""One step of an optimiser: forward, loss, backward, what is done to the gradient, and the step itself."""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from peer.learning.data.samples import Batch
from peer.learning.model.model import Model
from peer.learning.training.phase import Phase


class Steps:
    """The steps of one phase, batch by batch."""

    def __init__(
        self, model: Model, phase: Phase, optimiser: torch.optim.Optimizer, clip_gradient: float | None
    ) -> None:
        whole = model.part(phase.part)
        self._parameters, self._gradient = model.vector[whole], model.gradient[whole]
        self._task, self._phase, self._optimiser, self._clip = model.task, phase, optimiser, clip_gradient

    def take(self, batch: Batch, forward: nn.Module | Callable[[Tensor], Tensor]) -> Tensor:
        """Learn from a batch; its mean loss before the step, of shape ()."""
        self._gradient.zero_()
        loss = self._phase.mean_loss(self._task, forward(batch.inputs), batch)
        torch.autograd.backward(loss)
        if self._clip is not None:
            # Before the hook: what it adds, such as control variates, is no sample's doing and must stay whole.
            self._gradient.mul_((self._clip / torch.linalg.vector_norm(self._gradient)).clamp_(max=1.0))
        if self._phase.gradient_hook is not None:
            self._phase.gradient_hook(self._parameters, self._gradient)
        self._optimiser.step()
        return loss.detach()
