"""What every split has in common: the rule's settings, the check that nobody is left without, and ways of dealing."""

from abc import abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import numpy as np

from peer.errors import InputError
from peer.learning.data.samples import Indices, Labels
from peer.settings import Settings

DRAWS = 100


class Partition(Settings):
    """A rule that deals the samples of one data set to N peers."""

    kind: str
    """Name of the rule."""
    by_label: ClassVar[bool] = True
    """Whether it looks at the samples' classes, and not only at how many there are."""

    def split(self, labels: Labels, names: Sequence[str], rng: np.random.Generator) -> list[Indices]:
        """Deal `labels` (n,) to the peers `names`: one int64 index array a peer, in the peers' order.

        The arrays are disjoint and none is empty. InputError names the peers that would get nothing.
        """
        parts = self._deal(labels, len(names), rng)
        empty = [name for name, part in zip(names, parts, strict=True) if len(part) == 0]
        if empty:
            raise InputError(
                f"the {self.kind} split of {len(labels)} samples leaves {', '.join(empty)} without any; {self._way_out}"
            )
        return parts

    _way_out: ClassVar[str] = "use fewer peers or more data"

    @abstractmethod
    def _deal(self, labels: Labels, peers: int, rng: np.random.Generator) -> list[Indices]:
        """Index arrays, one a peer; some may be empty."""


def shuffled_classes(labels: Labels, rng: np.random.Generator) -> list[Indices]:
    """The positions of each class, 0 and up, in a drawn order."""
    pools = [np.flatnonzero(labels == label) for label in range(labels.max(initial=-1) + 1)]
    for pool in pools:
        rng.shuffle(pool)
    return pools


def cut(indices: Indices, shares: np.ndarray[Any, np.dtype[np.float64]]) -> list[Indices]:
    """One piece a share: floor(share·n) each, and the last takes the rest."""
    counts = np.floor(shares * len(indices)).astype(np.int64)
    return np.split(indices, np.cumsum(counts[:-1]))


def redraw(draw: Callable[[], list[Indices]]) -> list[Indices]:
    """Draw until nobody is empty; after 100 draws the last one, whose empty peers the caller names."""
    for _ in range(DRAWS):
        parts = draw()
        if all(len(part) for part in parts):
            break
    return parts
