"""Data that change while a federation runs: another split, turned images, exchanged classes, from a round on."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Self

import torch
from pydantic import Field, model_validator

from peer.errors import InputError
from peer.learning.data.partition import AnyPartition, Partition
from peer.learning.data.samples import Samples
from peer.learning.tasks import Classification, Task
from peer.settings import Settings


class Drift(Settings):
    """Changes at the start of a round; missing keys keep their value."""

    round: int = Field(ge=2)
    """The first round with the new data."""
    partition: AnyPartition | None = None
    """The split from then on, except for a peer's own data."""
    rotate: Literal[0, 90, 180, 270] | None = None
    """Degrees anticlockwise, relative to the data set."""
    labels: tuple[int, ...] | None = None
    """Class c is called `labels[c]`; others keep their name."""

    @model_validator(mode="after")
    def _changes(self) -> Self:
        if self.partition is None and self.rotate is None and self.labels is None:
            raise ValueError(f"the drift of round {self.round} changes nothing; give it partition, rotate or labels")
        if self.labels is not None and sorted(self.labels) != list(range(len(self.labels))):
            raise ValueError(f"`labels` has each class from 0 to {len(self.labels) - 1} once, such as [1, 0]")
        return self

    def __str__(self) -> str:
        changes = [f"split {self.partition.kind}"] if self.partition else []
        changes += [f"turned by {self.rotate}°"] if self.rotate is not None else []
        changes += [f"classes renamed to {[*self.labels]}"] if self.labels is not None else []
        return f"from round {self.round} on {', '.join(changes)}"


@dataclass(frozen=True)
class Stage:
    """How the data are from one drift to the next."""

    since: int
    """The first round."""
    partition: Partition
    rotate: int = 0
    labels: tuple[int, ...] = ()

    def check(self, shape: tuple[int, ...], classes: int, task: Task = Classification()) -> None:
        """Raise InputError unless inputs (*shape) of so many classes can be split and changed like this."""
        if not task.has_classes and (self.labels or self.partition.by_label):
            what = "`labels`" if self.labels else f"the {self.partition.kind} split"
            raise InputError(f"{self}: {what} goes by classes, and the task {task.name} has none; leave it out")
        if self.rotate and not (len(shape) == 3 and all(isinstance(size, int) for size in shape)):
            raise InputError(f"{self}: `rotate` turns images, and an input has shape {shape}; leave it out")
        if self.rotate % 180 and shape[1] != shape[2]:
            raise InputError(f"{self}: `rotate` by {self.rotate} makes {shape} another shape; turn by 180 at most")
        if len(self.labels) > classes:
            raise InputError(f"{self}: `labels` names {len(self.labels)} classes, and the data have {classes}")

    def apply(self, samples: Samples) -> Samples:
        """Return the samples as they are in this stage; those given are not changed."""
        labels = None
        if self.labels:
            named, y = torch.tensor(self.labels), samples.labels
            labels = torch.where(y < len(named), named[y.clamp(max=len(named) - 1)], y)
        return samples.changed(labels, self.rotate // 90)

    def __str__(self) -> str:
        return f"the drift of round {self.since}" if self.since > 1 else "the data"


def stage_of(round: int, found: Sequence[Stage]) -> Stage:
    """Return the stage of a round; the first one for round 0."""
    return next((stage for stage in reversed(found) if stage.since <= round), found[0])
