"""What a protocol asks of the trainer: some epochs of one part of the model."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import get_args

from torch import Tensor

from peer.learning.model.model import Part
from peer.learning.training.optimiser import Optimiser

GradientHook = Callable[[Tensor, Tensor], None]


@dataclass(frozen=True)
class Phase:
    """`epochs` passes over the shard that train `part` and leave the rest as it is."""

    part: Part
    epochs: int
    optimiser: Optimiser
    batch_size: int = 64
    keep: str | None = None
    """The name under which the optimiser's state survives the phase; None: a new optimiser each time."""
    gradient_hook: GradientHook | None = None
    """Called before each step with the part's slices of the model's `vector` and `gradient`. It may add a
    correction, such as a proximal term, to the gradient in place; where buffers lie that has no effect."""

    def __post_init__(self) -> None:
        if self.part not in get_args(Part):
            raise ValueError(f"a phase trains {', '.join(get_args(Part))}, and not {self.part!r}")
