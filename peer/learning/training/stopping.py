"""When a phase is over: after its epochs, by a budget in their place, or early."""

import time
from collections.abc import Iterable
from itertools import count

from peer.learning.training.phase import Phase
from peer.learning.training.settings import Training


class StoppingCriterion:
    """Of one phase as it goes on."""

    def __init__(self, phase: Phase, how: Training, steps: int | None = None) -> None:
        """`steps`: as many as a budget in seconds came to before, for a replay."""
        self._epochs, self._patience = phase.epochs, how.patience
        self._most = how.budget.steps if how.budget and steps is None else steps
        seconds = how.budget.seconds if how.budget and steps is None else None
        self._end = None if seconds is None else time.monotonic() + seconds
        self._budget = how.budget is not None
        self.epochs, self.steps = 0, 0
        self._best, self._since = float("inf"), 0

    @property
    def ahead(self) -> Iterable[int]:
        """The epochs whose batches may be read before it is known whether they are needed."""
        return count() if self._budget else range(self._epochs)

    def is_over(self) -> bool:
        """Whether there is nothing left to do."""
        if not self._budget:
            return self.epochs >= self._epochs or (self._patience is not None and self._since >= self._patience)
        if self._most is not None:
            return self.steps >= self._most
        return self._end is not None and self.steps > 0 and time.monotonic() >= self._end

    def stepped(self) -> None:
        """A step of the optimiser was done."""
        self.steps += 1

    def passed(self) -> None:
        """An epoch was done."""
        self.epochs += 1

    def judged(self, loss: float | None) -> None:
        """What early stopping goes by after an epoch; None where there is nothing to go by."""
        if loss is not None:
            self._since = 0 if loss < self._best else self._since + 1
            self._best = min(self._best, loss)
