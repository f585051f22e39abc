"""Splits in which the peers' label mixes differ."""

from typing import Annotated, ClassVar, Literal

import numpy as np
from pydantic import BeforeValidator, Field

from peer.errors import InputError
from peer.learning.data.partition.base import DRAWS, Partition, cut, redraw, shuffled_classes
from peer.learning.data.samples import Indices, Labels

Fraction = Annotated[float, Field(ge=0, le=1)]
# The union of all partitions is validated as Python's, whose strict tuples are no lists.
Fractions = Annotated[
    tuple[Fraction, Fraction, Fraction],
    BeforeValidator(lambda given: tuple(given) if isinstance(given, list) else given),
]


class Dirichlet(Partition):
    """Per class, the peers' shares are p ~ Dir(alpha·1_N) (FIRMA; Hsu et al. 2019)."""

    kind: Literal["dirichlet"]
    """Label mix drawn from a Dirichlet distribution."""
    alpha: float = Field(gt=0, le=1e6)
    """Concentration: 0.1 gives each peer few classes, 100 almost the same mix. FIRMA: 0.1, 0.5, 0.8."""

    _way_out: ClassVar[str] = f"{DRAWS} draws were tried: use a larger alpha, fewer peers or another data seed"

    def _deal(self, labels: Labels, peers: int, rng: np.random.Generator) -> list[Indices]:
        return redraw(lambda: self._draw(labels, peers, rng))

    def _draw(self, labels: Labels, peers: int, rng: np.random.Generator) -> list[Indices]:
        parts: list[list[Indices]] = [[] for _ in range(peers)]
        for label in np.flatnonzero(np.bincount(labels)):
            members = np.flatnonzero(labels == label)
            rng.shuffle(members)
            shares = rng.dirichlet(np.full(peers, self.alpha))
            for part, piece in zip(parts, cut(members, shares), strict=True):
                part.append(piece)
        return [np.concatenate([np.empty(0, np.int64), *part]) for part in parts]


class LabelSkew(Partition):
    """Each peer has k primary classes, k+1 secondary ones and a little of the rest (FIRMA).

    Classes follow one another in a cycle. Peer i's primary classes are at i·k..i·k+k-1, its secondary ones
    the next k+1. Peers are served in order with a budget of b = max(20, n // N): from each class at most
    max(1, int(f·b)) samples, f being the class's fraction, or what is left of it. Leftovers stay unused.
    """

    kind: Literal["label-skew"]
    """Primary, secondary and minority classes."""
    k: int = Field(ge=1)
    """Number of primary classes a peer; 2k+1 must not exceed the number of classes."""
    fractions: Fractions | None = None
    """Share of the budget taken from each primary, secondary and minority class. Not given, those that fit
    the published splits: k=1 0.55, 0.20, 0.03; k=2 0.275, 0.20, 0.03; k≥3 0.275, 0.10, 0.015."""

    _way_out: ClassVar[str] = "give smaller fractions, since the peers before them took all there was"

    def _deal(self, labels: Labels, peers: int, rng: np.random.Generator) -> list[Indices]:
        pools = shuffled_classes(labels, rng)
        classes = len(pools)
        if 2 * self.k + 1 > classes:
            raise InputError(
                f"the label-skew split with k={self.k} needs {2 * self.k + 1} classes and the data has "
                f"{classes}; give a k of at most {(classes - 1) // 2}"
            )
        budget = max(20, len(labels) // peers)
        limits = [max(1, int(fraction * budget)) for fraction in self._fractions()]
        parts = []
        for peer in range(peers):
            taken = []
            for position in range(classes):
                label = (peer * self.k + position) % classes
                limit = limits[self._rank(position)]
                taken.append(pools[label][:limit])
                pools[label] = pools[label][limit:]
            parts.append(np.concatenate(taken))
        return parts

    def _rank(self, position: int) -> int:
        return 0 if position < self.k else 1 if position < 2 * self.k + 1 else 2

    def _fractions(self) -> tuple[float, float, float]:
        published = {1: (0.55, 0.20, 0.03), 2: (0.275, 0.20, 0.03)}
        return self.fractions or published.get(self.k, (0.275, 0.10, 0.015))


class Pathological(Partition):
    """Sorted by label and cut into N·xi equal shards, xi of them for each peer (McMahan et al., FedAvg)."""

    kind: Literal["pathological"]
    """A few shards of single labels a peer."""
    xi: int = Field(ge=1, le=10_000)
    """Number of shards a peer; 2 gives most peers two classes."""

    def _deal(self, labels: Labels, peers: int, rng: np.random.Generator) -> list[Indices]:
        shards = np.array_split(np.argsort(labels, kind="stable"), peers * self.xi)
        hands = np.split(rng.permutation(len(shards)), peers)
        return [np.concatenate([shards[shard] for shard in hand]) for hand in hands]
