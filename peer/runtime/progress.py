"""Whether a run goes on: a pure function of figures that all peers know, so that all decide alike, in a replay too."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from peer.spec.evaluation import StopEarly

Better = Literal["up", "down"]
WORST = 1e300
"""Of a figure that is better when it is lower: stands for what is no finite number."""


@dataclass(frozen=True)
class Progress:
    """How far a federation has come, by the mean of everybody's figure."""

    best: float | None = None
    """The best mean so far; None before the first."""
    round: int = 0
    """That of the best mean."""
    waited: int = 0
    """Evaluations since then."""

    def after(self, round: int, figures: Sequence[float], better: Better, margin: float) -> "Progress":
        """With everybody's figure after `round`, in the order of the spec: finite numbers, one at least."""
        mean = sum(figure / len(figures) for figure in figures)
        if self.best is None or gain(mean, self.best, better) > margin:
            return Progress(mean, round, 0)
        return Progress(self.best, self.round, self.waited + 1)

    def since(self, first: int) -> "Progress":
        """Of the rounds from `first` on: there the data are others, and figures from before say nothing of them."""
        return self if self.round >= first else Progress()

    def is_over(self, round: int, rule: StopEarly) -> bool:
        """Whether the run ends after `round`."""
        return self.waited >= rule.patience and round >= rule.min_rounds


def gain(figure: float, before: float, better: Better) -> float:
    """By how much a figure is better than another; below 0 where it is worse."""
    return figure - before if better == "up" else before - figure


def tellable(figure: float, better: Better) -> float:
    """A figure as it may leave a peer: in place of one that is no finite number, the worst there is."""
    if math.isfinite(figure):
        return figure
    return -WORST if better == "up" else WORST
