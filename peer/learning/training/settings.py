"""The `training` block: how local training is done where that is not the protocol's business."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, ConfigDict, Field, model_validator

from peer.errors import InputError
from peer.learning.training.optimiser import AnyOptimiser, Optimiser
from peer.learning.training.phase import Phase
from peer.learning.training.scheduler import Scheduler
from peer.plugins import load_object
from peer.settings import Settings

Limit = Annotated[float, Field(gt=0)]
Precision = Literal["float32", "bfloat16", "float16"]


def _named(value: Any) -> Any:
    """`AdamW` and `{name: AdamW}` are the same."""
    return {"name": value} if isinstance(value, str) else value


class OwnStep(Settings):
    """A function of one's own, `module:function`, with arguments for it beside the name."""

    model_config = ConfigDict(extra="allow")

    name: Annotated[str, Field(pattern=r"^[\w.]+:\w+$")]
    """`module:function`, called with the training step and a batch: see [training.md](training.md)."""

    def function(self) -> Callable[..., Any]:
        """The function; InputError when there is none."""
        found = load_object(self.name)
        if not callable(found):
            raise InputError(f"`{self.name}` is no function; name one that takes a training step and a batch")
        return partial(found, **(self.model_extra or {}))


class Budget(Settings):
    """How long each phase of local training is, in place of its epochs: one of the two."""

    steps: Annotated[int, Field(ge=1, le=10**9)] | None = None
    """Steps of the optimiser."""
    seconds: Annotated[float, Field(gt=0, le=1e7)] | None = None
    """After which the phase ends with the step under way. How many steps that is differs from run to run, and so do the
    results; a peer that is killed repeats as many as before."""

    @model_validator(mode="after")
    def _one_of_them(self) -> Self:
        if (self.steps is None) == (self.seconds is None):
            raise ValueError("give either `steps` or `seconds`")
        return self


class Training(Settings):
    """Each peer's local training, beside what the protocol says of it: see [training.md](training.md)."""

    optimiser: Annotated[Optimiser, BeforeValidator(_named)] | None = None
    """`name` of one of torch.optim, and its arguments. Not given: the protocol's own."""
    scheduler: Annotated[Scheduler, BeforeValidator(_named)] | None = None
    """`name` of one of torch.optim.lr_scheduler, its arguments, and `every`. Not given: the learning rates are the
    protocol's."""
    clip_gradient: Limit | None = None
    """Longest gradient (Euclidean norm, of the part of the model that is trained): a longer one is scaled down to it,
    before any correction that the protocol adds. Loops of a protocol's own, outside its phases, are left alone. FIRMA
    advises 1 for fewer than 200 samples a peer. Not given: none. `clip_gradient` outside this block is the same."""
    clip_value: Limit | None = None
    """Largest element of the gradient, before its norm is looked at: larger ones are cut off. Not given: none."""
    accumulate: Annotated[int, Field(ge=1, le=100_000)] = 1
    """Batches whose mean gradient makes one step: as one batch that is so many times larger, in the memory of one."""
    precision: Precision = "float32"
    """In which training multiplies. The model, what travels and the evaluation remain float32; float16 scales the loss
    so that small gradients are not lost."""
    patience: Annotated[int, Field(ge=1)] | None = None
    """Epochs after which a phase ends if the task's loss on the samples of `hold_back` has not become smaller. Not
    given: all epochs are done."""
    budget: Budget | None = None
    """`steps` or `seconds` in place of epochs. Not given: the protocol's epochs."""
    step: Annotated[OwnStep, BeforeValidator(_named)] | None = None
    """`module:function` in place of forward pass and loss. Not given: the task's loss of the model's outputs."""

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.budget and self.patience:
            raise ValueError("`budget` takes the place of the epochs that `patience` ends; leave out one of them")
        if self.step and self.accumulate > 1:
            raise ValueError("`step` may take several passes itself; leave out `accumulate`")
        if self.step and self.precision == "float16":
            raise ValueError("`step` works on gradients that float16 would scale; write `precision: bfloat16`")
        return self

    @property
    def same_bits(self) -> bool:
        """Whether two runs end in the same bits, as far as it depends on this block."""
        return self.budget is None or self.budget.seconds is None

    @property
    def beside_the_phase(self) -> "Training":
        """What holds for a phase that says itself how, and for how long, it is trained."""
        return self.model_copy(update={"optimiser": None, "scheduler": None, "budget": None, "patience": None})

    @property
    def own_steps(self) -> str | None:
        """The first key that makes of a batch another step than that of its plain gradient; None if there is none."""
        keys = ("clip_gradient", "clip_value", "accumulate", "step")
        changed = [key for key in keys if getattr(self, key) != type(self).model_fields[key].default]
        return next(iter(changed), "precision" if self.precision == "float16" else None)

    def applied(self, phase: Phase) -> Phase:
        """A phase of the protocol's, trained as this block says."""
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


AS_IT_IS = Training()
"""All as the protocol has it."""
