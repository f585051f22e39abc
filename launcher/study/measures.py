"""What a study measures of each cell, by the column of results.csv."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from launcher.formatting import quantity


@dataclass(frozen=True)
class Measure:
    """better: which values are; "" where neither is, "figure" as it is of the figure by which cells are judged. shown:
    how a mean or a deviation is written."""

    column: str
    name: str
    better: Literal["up", "down", "figure", ""]
    shown: Callable[[float], str]


def four(value: float) -> str:
    return f"{value:.4f}"


MEASURES = (
    Measure("mean", "Mean", "figure", four),
    Measure("worst", "Worst peer", "figure", four),
    Measure("honest", "Mean of the peers that do not misbehave", "figure", four),
    Measure("gini", "Gini coefficient", "down", four),
    Measure("r50", "First round with a mean of at least one half (R50)", "down", "{:.1f}".format),
    Measure("plateau_sigma", "Plateau σ", "down", four),
    Measure("mcg", "Mean collaboration gain over training alone (MCG)", "up", "{:+.4f}".format),
    Measure("cgs", "Spread of the collaboration gain (CGS)", "down", four),
    Measure("least_gain", "Gain of the peer that gains least", "up", "{:+.4f}".format),
    Measure("weight_divergence", "Weight divergence between the peers' models", "", "{:.2e}".format),
    Measure("ring_saving", "Ring saving by ordering, as a share of the cost", "", four),
    Measure("tensor_bytes_sent", "Bytes of tensors sent by all peers", "down", quantity),
    Measure("seconds", "Seconds", "", "{:.1f}".format),
)
