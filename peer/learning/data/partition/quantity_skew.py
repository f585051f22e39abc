"""Splits in which the peers' label mixes are alike and their amounts differ."""

from typing import ClassVar, Literal

import numpy as np
from pydantic import Field, model_validator

from peer.errors import InputError
from peer.learning.data.partition.base import DRAWS, Partition, cut, redraw
from peer.learning.data.samples import Indices, Labels


class Imbalanced(Partition):
    """The first m peers hold a share kappa each, the others share the rest equally (CYCle)."""

    kind: Literal["imbalanced"]
    """A few peers with much data."""
    by_label: ClassVar[bool] = False
    kappa: float = Field(gt=0, lt=1)
    """Share of all samples that each of the m large peers holds. CYCle: 0.8, 0.35, 0.6."""
    m: int = Field(ge=1)
    """Number of large peers, fewer than there are peers; m·kappa must be below 1. CYCle: 1, 2, 1."""

    @model_validator(mode="after")
    def _leaves_a_rest(self) -> "Imbalanced":
        if self.m * self.kappa >= 1:
            raise ValueError(f"{self.m} peers with {self.kappa} of the data each leave nothing for the others")
        return self

    def _deal(self, labels: Labels, peers: int, rng: np.random.Generator) -> list[Indices]:
        if self.m >= peers:
            raise InputError(
                f"the imbalanced split needs more peers than its m={self.m} large ones, and there are "
                f"{peers}; give a smaller m or more peers"
            )
        order = rng.permutation(len(labels))
        large = int(self.kappa * len(labels))
        rest = np.array_split(order[self.m * large :], peers - self.m)
        return [order[peer * large : (peer + 1) * large] for peer in range(self.m)] + rest


class Quantity(Partition):
    """Sizes ~ Dir_N(delta), labels mixed: peers differ in how much they have, not what (Li et al. 2022)."""

    kind: Literal["quantity"]
    """Unequal amounts of the same mix."""
    by_label: ClassVar[bool] = False
    delta: float = Field(gt=0, le=1e6)
    """Concentration of the sizes: 0.5 is very uneven, 100 nearly even."""

    _way_out: ClassVar[str] = f"{DRAWS} draws were tried: use a larger delta, fewer peers or another data seed"

    def _deal(self, labels: Labels, peers: int, rng: np.random.Generator) -> list[Indices]:
        return redraw(lambda: cut(rng.permutation(len(labels)), rng.dirichlet(np.full(peers, self.delta))))
