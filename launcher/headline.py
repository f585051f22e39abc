"""The figure by which tables and summaries judge a model, and means of what is known."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from peer.learning.tasks import Figure
from peer.spec.federation import Spec
from peer.telemetry.events import RoundDone
from peer.telemetry.results import Figures

ACCURACY = Figure("accuracy")


@dataclass(frozen=True)
class Headline:
    """The task's first figure or, if the task has classes, the accuracy by the spec's test."""

    figure: Figure = ACCURACY
    test: str | None = None

    @classmethod
    def from_spec(cls, spec: Spec) -> "Headline":
        return cls(spec.task.headline) if spec.test is None else cls(test=spec.test)

    @property
    def column(self) -> str:
        """The figure's name as a column of the final table."""
        return self.test or self.figure.name

    @property
    def words(self) -> str:
        """The figure's name in a sentence."""
        return f"{self.test} {self.figure.name}" if self.test else self.figure.name

    def value(self, told: RoundDone | Figures) -> float | None:
        """A peer's value of the figure; a peer with its own data has only the accuracy `local`."""
        return self.of_means(told.accuracy if self.test else told.figures)

    def of_means(self, known: Mapping[str, float | None]) -> float | None:
        """The figure's value among several by name: accuracies by test, or the task's figures."""
        chosen = known.get(self.column)
        return known.get("local") if self.test and chosen is None else chosen

    def fields(self, value: float | None) -> dict[str, Any]:
        """The fields of an event that has only this figure."""
        return {"accuracy": {self.test: value}} if self.test else {"figures": {self.figure.name: value}}


def mean(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return fmean(known) if known else None
