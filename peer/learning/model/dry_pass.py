"""Does a model fit the data? Found out by running it once, before anything else is done with it."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map

from peer.errors import InputError
from peer.learning.data.samples import InMemory, Samples
from peer.learning.model.inputs import spread
from peer.learning.randomness import global_stream
from peer.learning.tasks import Classification, Task
from peer.learning.tasks.trial import judged
from peer.plugins import in_words


@dataclass(frozen=True)
class Example:
    """Inputs (n, *shape), or a tuple or dict of such, like those that the model is for, n at least 2, and what of a
    task judges its outputs."""

    inputs: Any
    task: Task
    classes: int
    targets: Tensor | None = None
    """(n, ...); None where there are none at hand, as beside a saved model: then any outputs will do."""

    @property
    def shape(self) -> Any:
        """Of one input; of several a tuple or dict of shapes."""
        return tree_map(lambda x: tuple(x.shape[1:]), self.inputs)

    @property
    def tokens(self) -> str:
        """Which ones, in words; nothing where inputs are no tokens."""
        if not isinstance(self.inputs, Tensor) or self.inputs.dtype != torch.int64:
            return ""
        known = self.task.outputs_in_words(self.classes)
        return f" with tokens from {int(self.inputs.min())} to {int(self.inputs.max())} (the task has {known})"

    @classmethod
    def zeros(cls, shape: tuple[int, ...], classes: int, task: Task = Classification()) -> "Example":
        """Of no data."""
        labels = torch.zeros(2, dtype=torch.int64) if task.has_classes else None
        return cls(torch.zeros(2, *shape, dtype=getattr(torch, task.inputs)), task, classes, labels)

    @classmethod
    def of(cls, samples: Samples, classes: int, task: Task, test: Samples | None = None) -> "Example":
        """Some of the samples, and of the tokens that the model is tested on. Where outputs do not hang on targets,
        zeros of their shape will do."""
        if task.has_classes and isinstance(samples, InMemory) and task.inputs == "float32":
            return cls.zeros(samples.shape, classes, task)
        two = samples.pair()
        if task.inputs == "int64" and isinstance(samples, InMemory) and isinstance(test, InMemory):
            tested = test.pair()
            if (tested.inputs.shape, tested.targets.shape) == (two.inputs.shape, two.targets.shape):
                inputs, targets = torch.cat([two.inputs, tested.inputs]), torch.cat([two.targets, tested.targets])
                return cls(inputs, task, classes, targets)
        return cls(two.inputs, task, classes, two.targets)

    def misfit(self, outputs: object) -> str | None:
        """What the model should have given, in words; None if it fits, or nothing is known of the targets."""
        if self.targets is None:
            return None
        return self.task.misfit(outputs, self.targets, self.classes) or judged(self.task, outputs, self.targets)


@torch.no_grad()
def dry_pass(module: nn.Module, name: str, example: Example) -> bool:
    """Run a few samples through in evaluation and in training mode; whether training drew random numbers.

    Raises InputError naming the model, the input's shape and the reason if the task cannot judge what comes out.
    Buffers and the random stream are left as they were; layers whose sizes follow the input (Lazy…) take them here.
    """
    with global_stream(None):
        try:
            wrong = example.misfit(spread(module.eval(), example.inputs))
            buffers = [(buffer, buffer.clone()) for buffer in module.buffers()]
            before = torch.get_rng_state()
            spread(module.train(), example.inputs)
            draws = not torch.equal(before, torch.get_rng_state())
        except InputError:
            raise
        except Exception as error:  # a layer that the input does not suit, or a mistake in a user's `forward`
            raise InputError(
                f"model {name} does not take inputs of shape {example.shape}{example.tokens}: {in_words(error)}"
            ) from error
    if wrong:
        raise InputError(f"model {name}, for an input of shape {example.shape}, must give {wrong}")
    for buffer, value in buffers:
        buffer.copy_(value)
    return draws
