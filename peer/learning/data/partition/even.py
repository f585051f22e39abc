"""Splits that give every peer the same: in what, in how much, or both."""

from typing import ClassVar, Literal

import numpy as np

from peer.learning.data.partition.base import Partition, shuffled_classes
from peer.learning.data.samples import Indices, Labels


class Iid(Partition):
    """Equal parts of one random permutation (McMahan et al., FedAvg)."""

    kind: Literal["iid"] = "iid"
    """Every peer draws from the same distribution."""
    by_label: ClassVar[bool] = False

    def _deal(self, labels: Labels, peers: int, rng: np.random.Generator) -> list[Indices]:
        return np.array_split(rng.permutation(len(labels)), peers)


class Homogeneous(Partition):
    """The same number of samples of every class for every peer, give or take one (CYCle)."""

    kind: Literal["homogeneous"] = "homogeneous"
    """Equal numbers per class."""

    def _deal(self, labels: Labels, peers: int, rng: np.random.Generator) -> list[Indices]:
        # Dealt like cards from a deck sorted by class, so the totals differ by one at most as well.
        deck = np.concatenate([np.empty(0, np.int64), *shuffled_classes(labels, rng)])
        return [deck[peer::peers] for peer in range(peers)]
