"""Timing in turns: contestants alternate, so that a machine whose speed changes favours none of them."""

import json
import os
import statistics
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

RENEW = "BENCHMARKS_RENEW"
"""The environment's variable with which each figure printed becomes the record."""


class Cost(NamedTuple):
    """What one turn took: wall-clock seconds, and CPU seconds of all processes that took part."""

    wall: float
    cpu: float


def in_turns(contestants: Mapping[str, Callable[[], Cost]], turns: int) -> dict[str, list[Cost]]:
    """The costs of each contestant's turns, first, second, ... of all; a first turn to warm up does not count."""
    for contestant in contestants.values():
        contestant()
    taken: dict[str, list[Cost]] = {name: [] for name in contestants}
    for _ in range(turns):
        for name, contestant in contestants.items():
            taken[name].append(contestant())
    return taken


def median(costs: list[Cost]) -> Cost:
    """The median of the walls and that of the CPU seconds."""
    return Cost(statistics.median(c.wall for c in costs), statistics.median(c.cpu for c in costs))


def ratios(costs: list[Cost], of: list[Cost]) -> list[Cost]:
    """Turn by turn: how often `of`'s cost goes into the other one's."""
    return [Cost(one.wall / other.wall, one.cpu / other.cpu) for one, other in zip(costs, of, strict=True)]


def ratio(costs: list[Cost], of: list[Cost]) -> Cost:
    """The median of the ratios of all turns."""
    return median(ratios(costs, of))


class Record:
    """Ratios of earlier commits, in record.json: for each figure the median, the least and the most of its turns."""

    def __init__(self) -> None:
        self._path = path = Path(__file__).with_name("record.json")
        self._kept: dict[str, dict[str, Any]] = json.loads(path.read_text()) if path.exists() else {}

    def beside(self, figure: "Figure") -> str:
        """The record of a figure, and whether this one is worse by more than the spread of both."""
        if not (kept := self._kept.get(figure.what)):
            return "no record"
        gained = figure.median - kept["median"] if figure.least else kept["median"] - figure.median
        spread = max(kept["most"] - kept["least"], max(figure.turns) - min(figure.turns))
        told = f"record {kept['median']:.2f} ({kept['least']:.2f} to {kept['most']:.2f}, {kept['commit']})"
        return f"WORSE than the {told}" if -gained > spread else told

    def renew(self, figure: "Figure") -> None:
        commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=True)
        kept = {"median": figure.median, "least": min(figure.turns), "most": max(figure.turns)}
        rounded = {name: round(value, 3) for name, value in kept.items()}
        self._kept[figure.what] = {**rounded, "commit": commit.stdout.strip()}
        self._path.write_text(json.dumps(dict(sorted(self._kept.items())), indent=1) + "\n")


@dataclass
class Figure:
    """A ratio with its turns: printed beside its bar, if it has one (at most so much, or at least), and its record."""

    what: str
    turns: Sequence[float]
    bar: float | None = None
    least: bool = False

    @property
    def median(self) -> float:
        return statistics.median(self.turns)

    def __str__(self) -> str:
        """With `RENEW` in the environment it is the record from now on."""
        record = Record()
        told = record.beside(self)
        if os.environ.get(RENEW):
            record.renew(self)
        parts = [f"{self.median:.2f} ({min(self.turns):.2f} to {max(self.turns):.2f})"]
        if self.bar is not None:
            met = self.median >= self.bar if self.least else self.median <= self.bar
            parts.append(f"bar at {'least' if self.least else 'most'} {self.bar:g}, {'met' if met else 'MISSED'}")
        return f"{self.what}: {'; '.join([*parts, told])}"


def machine() -> str:
    """What else the machine was doing: figures of a busy one say little."""
    load = " ".join(f"{one:.2f}" for one in os.getloadavg())
    return f"load average {load} on {len(os.sched_getaffinity(0))} cores"
