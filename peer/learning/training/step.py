"""One step of an optimiser: forward, loss, backward, what is done to the gradient, and the step itself.

`MixedPrecision` says in which dtype forward and backward passes multiply, while the model remains float32;
`TrainingStep` is what a step function of the user's own is given; `Steps` does the steps of one phase.
"""

from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from peer.learning.data.samples import Batch
from peer.learning.device import device_errors
from peer.learning.model.layout import GradientWriter, spread
from peer.learning.model.model import Model
from peer.learning.named_tensors import NamedTensors
from peer.learning.tasks import loss_problem
from peer.learning.training.phase import Phase, Training
from peer.plugins import reference, user_code_errors


class MixedPrecision:
    """torch's autocast, and for float16 its scaler of the loss, which lives through all phases."""

    def __init__(self, name: str, device: torch.device) -> None:
        """`name`: float32, which changes nothing, bfloat16 or float16."""
        self._dtype, self._device = None if name == "float32" else getattr(torch, name), device
        self.scaler = torch.amp.GradScaler(device.type) if name == "float16" else None

    def forward(self) -> AbstractContextManager[object]:
        """The block in which the model answers and the loss is taken."""
        return torch.autocast(self._device.type, self._dtype) if self._dtype else nullcontext()

    def scaled(self, loss: Tensor) -> Tensor:
        """The loss as the backward pass begins with it."""
        scaled: Tensor = self.scaler.scale(loss) if self.scaler else loss
        return scaled

    def unscale(self, optimiser: torch.optim.Optimizer, gradient: Tensor) -> bool | Tensor:
        """Take the scale out of the gradient; return whether it is finite, perhaps as a tensor that is slow to read.
        The optimiser leaves out a step that is not."""
        if self.scaler is None:
            return True
        self.scaler.unscale_(optimiser)
        return torch.isfinite(gradient.sum())

    def step(self, optimiser: torch.optim.Optimizer) -> None:
        if self.scaler is None:
            optimiser.step()
        else:
            self.scaler.step(optimiser)
            self.scaler.update()

    def state(self) -> dict[str, Tensor]:
        """The scale and for how many steps it has held, float64 (2,); nothing where nothing is scaled."""
        if self.scaler is None:
            return {}
        now = self.scaler.state_dict()
        return {"scale": torch.tensor([now["scale"], now["_growth_tracker"]], dtype=torch.float64)}

    def load_state(self, state: Mapping[str, Tensor]) -> None:
        """Go on from what `state` gave."""
        if self.scaler and "scale" in state:
            scale, held = state["scale"].tolist()
            self.scaler.load_state_dict(self.scaler.state_dict() | {"scale": scale, "_growth_tracker": int(held)})


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
    state: NamedTensors = field(default_factory=NamedTensors)
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
        """The gradient of `parameters`, in which backward passes add up."""
        return self.model.gradient[self.model.part(self.phase.part)]

    def backward(self, batch: Batch) -> Tensor:
        """Call the phase's function on a batch; return its loss, detached, after the backward pass.

        FailedError if it raises, or returns what no training step may return.
        """
        function = self.phase.step
        assert function is not None
        with user_code_errors(reference(function)), device_errors():
            loss: Tensor = function(self, batch)
            if why := loss_problem(loss):
                raise ValueError(f"it must return its loss, {why}")
            if why := self.state.aliasing_problem(self.model.vector):
                raise ValueError(f"it {why}")
            if loss.requires_grad:
                torch.autograd.backward(loss)
            elif not bool(self.gradient.any()):
                raise ValueError("it left no gradient: return the loss without detaching it, or call `backward()`")
            return loss.detach()


Forward = nn.Module | Callable[..., Tensor]


class NotFinite(NamedTuple):
    """The first batch of which the loss, or its gradient, was not finite."""

    loss: float
    largest: float
    """The size of the largest number that the loss was taken of; not finite if the model had diverged before."""


class LossWatch:
    """Remembers the first such batch on the model's device, so that no step waits for a GPU."""

    def __init__(self, device: torch.device) -> None:
        self._first = torch.zeros(3, dtype=torch.float64, device=device)
        """Whether there was one, and what `NotFinite` says of it."""

    def observe(self, loss: Tensor, gradient: Tensor | None, given: Any) -> None:
        """The loss of one batch, of what was `given`, and its gradient, unless that may be infinite."""
        finite = torch.isfinite(loss)
        if gradient is not None:
            finite = finite & torch.isfinite(gradient.sum())
        sizes = [
            largest_magnitude(one) for one in tree_leaves(given) if isinstance(one, Tensor) and one.is_floating_point()
        ]
        size = torch.stack([*sizes, torch.zeros_like(self._first[0])]).max()
        met = torch.stack([torch.ones_like(size), loss.double(), size])
        self._first = torch.where((self._first[0] == 0) & ~finite, met, self._first)

    @property
    def first(self) -> NotFinite | None:
        """The first loss that was not finite; None if all were."""
        found, loss, size = self._first.tolist()
        return NotFinite(loss, size) if found else None


def largest_magnitude(values: Tensor) -> Tensor:
    """The size of the largest, float64 of shape (); 0 where there are none, NaN where one is."""
    given = values.detach().float()
    if not given.numel():
        return given.sum().double()
    least, most = given.aminmax()  # torch takes the maximum norm value by value, in five times as long
    return torch.maximum(most, -least).double()


class Steps:
    """The steps of one phase, each of one batch or more."""

    def __init__(self, one: TrainingStep, optimiser: torch.optim.Optimizer, how: Training) -> None:
        self._step, self._phase, self._precision = one, one.phase, one.precision
        self._task, self._gradient = one.model.task, one.gradient
        self._optimiser, self._how = optimiser, how
        self._writer = GradientWriter(one.model.module, one.model.entries(one.phase.part), one.model.gradient)
        self.total, self.seen = torch.zeros((), dtype=torch.float64, device=one.model.device), 0
        """The sum of the losses of all samples so far, each before its step, and how many they were."""
        self.watch = LossWatch(one.model.device) if self._phase.own_loss(self._task) else None
        """Watches losses of user code, which may themselves be at fault; None for others."""

    @property
    def loss(self) -> float:
        """The mean over all batches so far."""
        return float(self.total) / self.seen

    def so_far(self) -> tuple[Tensor, int]:
        """What `since` counts from."""
        return self.total.clone(), self.seen

    def since(self, then: tuple[Tensor, int]) -> Tensor:
        """The mean over all batches since then, of shape ()."""
        return (self.total - then[0]) / (self.seen - then[1])

    def step(self, batches: Iterable[Batch], forward: Forward) -> Tensor:
        """Learn from at most `accumulate` batches; return the last one's mean loss before the step, of shape ()."""
        before = self.seen
        # A step of the user's own may look at the gradient before it adds to it.
        with self._writer.writing() if self._phase.step is None else nullcontext(self._gradient.zero_()):
            for batch in batches:
                loss = self._backward(batch, forward)
                self.total.add_(loss, alpha=len(batch.positions))
                self.seen += len(batch.positions)
        self._weigh(self.seen - before)
        finite = self._precision.unscale(self._optimiser, self._gradient)
        self._clip()
        if self._phase.gradient_hook is not None and finite:
            self._phase.correct(self._step.parameters, self._gradient)
        self._precision.step(self._optimiser)
        return loss

    def _backward(self, batch: Batch, forward: Forward) -> Tensor:
        given: Any = self._step.parameters
        if self._phase.step is not None:
            loss = self._step.backward(batch)
        else:
            with self._precision.forward():
                given = spread(forward, batch.inputs)
                loss = self._phase.mean_loss(self._task, given, batch)
            torch.autograd.backward(self._precision.scaled(self._share(loss, len(batch.positions))))
        if self.watch:
            self.watch.observe(loss.detach(), None if self._precision.scaler else self._gradient, given)
        return loss.detach()

    def _share(self, loss: Tensor, samples: int) -> Tensor:
        """A batch's part of the mean over `accumulate` batches of the usual size."""
        size, batches = self._phase.batch_size, self._how.accumulate
        if batches == 1:
            return loss
        return (loss if samples == size else loss * (samples / size)) / batches

    def _weigh(self, samples: int) -> None:
        """The last step of an epoch may have fewer samples than the others."""
        usual = self._phase.batch_size * self._how.accumulate
        if self._how.accumulate > 1 and samples != usual:
            self._gradient.mul_(usual / samples)

    def _clip(self) -> None:
        # Before the hook: what it adds, such as control variates, is not a sample's doing and must not be clipped.
        if (most := self._how.clip_value) is not None:
            self._gradient.clamp_(-most, most)
        if (longest := self._how.clip_gradient) is not None:
            self._gradient.mul_((longest / torch.linalg.vector_norm(self._gradient)).clamp_(max=1.0))
