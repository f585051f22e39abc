"""Data splits: which samples of one common data set each peer holds. Equal generators give equal splits.

What every split has in common comes first: the rule's settings, the check that no peer is left without samples, and
ways of splitting. Then the splits that give every peer the same (in what, in how much, or both), those in which the
peers' label mixes differ, and those in which only their amounts do.
"""

from abc import abstractmethod
from collections.abc import Callable, Sequence
from typing import Annotated, Any, ClassVar, Literal, get_args

import numpy as np
from pydantic import BeforeValidator, Field, model_validator

from peer.errors import InputError
from peer.learning.data.samples import Indices, Labels
from peer.settings import Settings, by_word

MAX_DRAWS = 100


class Partition(Settings):
    """A rule that splits the samples of one data set among N peers."""

    kind: str
    """Name of the rule."""
    by_label: ClassVar[bool] = True
    """Whether it looks at the samples' classes, and not only at how many there are."""

    def split(
        self, labels: Labels, names: Sequence[str], rng: np.random.Generator, of: str = "samples"
    ) -> list[Indices]:
        """Split `labels` (n,) among the peers `names`: one int64 index array per peer, in the peers' order.

        The arrays are disjoint and none is empty. InputError names the peers that would get nothing. of: what there is
        a label of.
        """
        parts = self._assign(labels, len(names), rng)
        empty = [name for name, part in zip(names, parts, strict=True) if len(part) == 0]
        if empty:
            raise InputError(
                f"the {self.kind} split of {len(labels)} {of} leaves {', '.join(empty)} without any; {self._hint}"
            )
        return parts

    _hint: ClassVar[str] = "use fewer peers or more data"

    @abstractmethod
    def _assign(self, labels: Labels, peers: int, rng: np.random.Generator) -> list[Indices]:
        """Return index arrays, one per peer; some may be empty."""


def shuffled_classes(labels: Labels, rng: np.random.Generator) -> list[Indices]:
    """The positions of each class, 0 and up, in a drawn order."""
    pools = [np.flatnonzero(labels == label) for label in range(labels.max(initial=-1) + 1)]
    for pool in pools:
        rng.shuffle(pool)
    return pools


def cut_by_shares(indices: Indices, shares: np.ndarray[Any, np.dtype[np.float64]]) -> list[Indices]:
    """One piece a share: floor(share·n) each, and the last takes the rest."""
    counts = np.floor(shares * len(indices)).astype(np.int64)
    return np.split(indices, np.cumsum(counts[:-1]))


def redraw(draw: Callable[[], list[Indices]]) -> list[Indices]:
    """Draw until no peer is empty; after MAX_DRAWS return the last draw, whose empty peers the caller names."""
    for _ in range(MAX_DRAWS):
        parts = draw()
        if all(len(part) for part in parts):
            break
    return parts


class Iid(Partition):
    """Equal parts of a random permutation (McMahan et al., FedAvg)."""

    kind: Literal["iid"] = "iid"
    """Every peer draws from the same distribution."""
    by_label: ClassVar[bool] = False

    def _assign(self, labels: Labels, peers: int, rng: np.random.Generator) -> list[Indices]:
        return np.array_split(rng.permutation(len(labels)), peers)


class Homogeneous(Partition):
    """Every peer gets as many samples of every class (CYCle)."""

    kind: Literal["homogeneous"] = "homogeneous"
    """Equal numbers per class."""

    def _assign(self, labels: Labels, peers: int, rng: np.random.Generator) -> list[Indices]:
        # Every N-th of a deck sorted by class, so the totals differ by one at most as well.
        deck = np.concatenate([np.empty(0, np.int64), *shuffled_classes(labels, rng)])
        return [deck[peer::peers] for peer in range(peers)]


Fraction = Annotated[float, Field(ge=0, le=1)]
# The union of all partitions is validated as Python's, whose strict tuples refuse lists.
Fractions = Annotated[
    tuple[Fraction, Fraction, Fraction],
    BeforeValidator(lambda given: tuple(given) if isinstance(given, list) else given),
]


class Dirichlet(Partition):
    """Per class, the peers' shares are p ~ Dir(alpha·1_N) (FIRMA; Hsu et al. 2019)."""

    kind: Literal["dirichlet"]
    """Label mix drawn from a Dirichlet distribution."""
    alpha: float = Field(gt=0, le=1e6)
    """Concentration: 0.1: few classes per peer, 100: almost the same mix. FIRMA: 0.1, 0.5, 0.8."""

    _hint: ClassVar[str] = f"{MAX_DRAWS} draws were tried: use a larger alpha, fewer peers or another data seed"

    def _assign(self, labels: Labels, peers: int, rng: np.random.Generator) -> list[Indices]:
        return redraw(lambda: self._draw(labels, peers, rng))

    def _draw(self, labels: Labels, peers: int, rng: np.random.Generator) -> list[Indices]:
        parts: list[list[Indices]] = [[] for _ in range(peers)]
        for label in np.flatnonzero(np.bincount(labels)):
            members = np.flatnonzero(labels == label)
            rng.shuffle(members)
            shares = rng.dirichlet(np.full(peers, self.alpha))
            for part, piece in zip(parts, cut_by_shares(members, shares), strict=True):
                part.append(piece)
        return [np.concatenate([np.empty(0, np.int64), *part]) for part in parts]


class LabelSkew(Partition):
    """Each peer has k primary classes, k+1 secondary ones and a little of the rest (FIRMA).

    Peer i's primary classes are i·k..i·k+k-1 (cyclic), its secondary ones the next k+1. In order, with a budget of b =
    max(20, n // N), each takes at most max(1, int(f·b)) samples of a class, f being its fraction. Leftovers stay
    unused.
    """

    kind: Literal["label-skew"]
    """Primary, secondary and minority classes."""
    k: int = Field(ge=1)
    """Primary classes per peer; at least 2k+1 classes."""
    fractions: Fractions | None = None
    """Share f of the budget per primary, secondary and minority class. Default: k=1 0.55, 0.20, 0.03; k=2 0.275, 0.20,
    0.03; k≥3 0.275, 0.10, 0.015."""

    _hint: ClassVar[str] = "give smaller fractions, since the peers before them took all there was"

    def _assign(self, labels: Labels, peers: int, rng: np.random.Generator) -> list[Indices]:
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
                limit = limits[0 if position < self.k else 1 if position < 2 * self.k + 1 else 2]
                taken.append(pools[label][:limit])
                pools[label] = pools[label][limit:]
            parts.append(np.concatenate(taken))
        return parts

    def _fractions(self) -> tuple[float, float, float]:
        published = {1: (0.55, 0.20, 0.03), 2: (0.275, 0.20, 0.03)}
        return self.fractions or published.get(self.k, (0.275, 0.10, 0.015))


class Pathological(Partition):
    """Sorted by label and cut into N·xi equal shards, xi of them for each peer (McMahan et al., FedAvg)."""

    kind: Literal["pathological"]
    """A few shards of single labels a peer."""
    xi: int = Field(ge=1, le=10_000)
    """Shards per peer; 2 gives most peers two classes."""

    def _assign(self, labels: Labels, peers: int, rng: np.random.Generator) -> list[Indices]:
        shards = np.array_split(np.argsort(labels, kind="stable"), peers * self.xi)
        hands = np.split(rng.permutation(len(shards)), peers)
        return [np.concatenate([shards[shard] for shard in hand]) for hand in hands]


class Imbalanced(Partition):
    """The first m peers hold a share kappa each, the others share the rest equally (CYCle)."""

    kind: Literal["imbalanced"]
    """A few peers with much data."""
    by_label: ClassVar[bool] = False
    kappa: float = Field(gt=0, lt=1)
    """Share of each large peer. CYCle: 0.8, 0.35, 0.6."""
    m: int = Field(ge=1)
    """Number of large peers; m·kappa must be below 1. CYCle: 1, 2, 1."""

    @model_validator(mode="after")
    def _leaves_a_rest(self) -> "Imbalanced":
        if self.m * self.kappa >= 1:
            raise ValueError(f"{self.m} peers with {self.kappa} of the data each leave nothing for the others")
        return self

    def _assign(self, labels: Labels, peers: int, rng: np.random.Generator) -> list[Indices]:
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
    """Sizes ~ Dir_N(delta), labels mixed (Li et al. 2022)."""

    kind: Literal["quantity"]
    """Unequal amounts of the same mix."""
    by_label: ClassVar[bool] = False
    delta: float = Field(gt=0, le=1e6)
    """Concentration of the sizes: 0.5 is very uneven, 100 nearly even."""

    _hint: ClassVar[str] = f"{MAX_DRAWS} draws were tried: use a larger delta, fewer peers or another data seed"

    def _assign(self, labels: Labels, peers: int, rng: np.random.Generator) -> list[Indices]:
        return redraw(lambda: cut_by_shares(rng.permutation(len(labels)), rng.dirichlet(np.full(peers, self.delta))))


Kinds = Iid | Homogeneous | Dirichlet | LabelSkew | Pathological | Imbalanced | Quantity
PARTITIONS: dict[str, type[Partition]] = by_word("kind", *get_args(Kinds))


def _iid_by_default(value: Any) -> Any:
    return {"kind": "iid", **value} if isinstance(value, dict) else value


AnyPartition = Annotated[Annotated[Kinds, Field(discriminator="kind")], BeforeValidator(_iid_by_default)]
"""The `partition` block of a data set; `kind` is iid when not given."""
