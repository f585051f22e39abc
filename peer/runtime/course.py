"""What a checkpoint has of a run's course: its best round so far, and whether it is over."""

from collections.abc import Mapping
from dataclasses import asdict
from math import isfinite
from typing import Any

from peer.runtime.progress import Better, Progress, gain
from peer.telemetry.results import Best


class Course:
    """By the figures on samples that are held back."""

    def __init__(self, better: Better) -> None:
        self._better: Better = better
        self.best: Best | None = None
        """The round with the best figure of this peer's own; of equal ones the earliest."""
        self.progress = Progress()
        """Everybody's."""
        self.over = False
        """Whether the round of this checkpoint is the last by `stop_early`."""

    def is_best(self, figure: float, since: int) -> bool:
        """Whether a round with that figure is the best. since: the first round with the data as they are now."""
        if not isfinite(figure):
            return False
        return self.best is None or self.best.round < since or gain(figure, self.best.figure, self._better) > 0

    def state_dict(self) -> dict[str, Any]:
        """Plain JSON; empty where there is nothing to remember."""
        kept: dict[str, Any] = {"best": asdict(self.best)} if self.best else {}
        if self.progress.best is not None:
            kept |= {"progress": asdict(self.progress), "over": self.over}
        return kept

    def load_state_dict(self, kept: Mapping[str, Any]) -> None:
        """Go on from what `state_dict` gave."""
        self.best = Best(**kept["best"]) if "best" in kept else None
        self.progress = Progress(**kept.get("progress", {}))
        self.over = kept.get("over", False)
