"""Timing in turns: contestants alternate, so that a machine whose speed changes favours none of them."""

import os
import statistics
from collections.abc import Callable, Mapping
from typing import NamedTuple


class Cost(NamedTuple):
    """What one turn took: wall-clock seconds, and CPU seconds of all processes that took part."""

    wall: float
    cpu: float


def in_turns(contestants: Mapping[str, Callable[[], Cost]], turns: int, warm_up: bool = True) -> dict[str, list[Cost]]:
    """The costs of each contestant's turns, first, second, ... of all; a first turn to warm up does not count."""
    if warm_up:
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


def ratio(costs: list[Cost], of: list[Cost]) -> Cost:
    """The median over the turns of how often `of`'s cost goes into the other one's of the same turn."""
    pairs = list(zip(costs, of, strict=True))
    return median([Cost(one.wall / other.wall, one.cpu / other.cpu) for one, other in pairs])


def verdict(what: str, figure: float, bar: float, least: bool = False) -> str:
    """A figure beside its bar: at most so much, or at least."""
    met = figure >= bar if least else figure <= bar
    return f"{what}: {figure:.2f} (bar: {'at least' if least else 'at most'} {bar:g}) {'met' if met else 'MISSED'}"


def machine() -> str:
    """What else the machine was doing: figures of a busy one say little."""
    load = " ".join(f"{one:.2f}" for one in os.getloadavg())
    return f"load average {load} on {len(os.sched_getaffinity(0))} cores"
