"""What a run does with what it finds its models to be worth: it ends early, or fits each peer's to its own samples."""

from typing import Annotated, Literal

from pydantic import Field

from peer.learning.training.optimiser import SGD
from peer.learning.training.phase import Phase
from peer.settings import Settings


class StopEarly(Settings):
    """When all peers end before the last round: each tells all others the task's headline figure on the samples that
    it holds back, and all go by the mean of them. A peer that tells a wrong figure moves that mean."""

    patience: int = Field(default=5, ge=1)
    """Evaluations without a better mean after which the run is over."""
    min_rounds: int = Field(default=1, ge=1)
    """Rounds that are run in any case."""
    margin: float = Field(default=0.0, ge=0)
    """By how much the mean must be better than the best one before to count as better."""


class FineTune(Settings):
    """What each peer trains for itself after the last round, by plain SGD; nothing of it leaves the peer."""

    epochs: int = Field(default=3, ge=1)
    """Passes over the peer's own training samples."""
    part: Literal["head", "model"] = "model"
    """What is trained: the head alone, or the whole model."""
    lr: Annotated[float, Field(gt=0)] = 0.01
    """Learning rate."""
    batch_size: int = Field(default=64, ge=1)
    """Samples a step."""

    def phase(self) -> Phase:
        return Phase(self.part, self.epochs, SGD(self.lr), self.batch_size)
