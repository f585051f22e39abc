"""Samples of a peer's own that it does not train on: by them it finds out how good its model is, test set apart."""

from dataclasses import dataclass

import numpy as np

from peer.errors import InputError
from peer.learning.data.samples import Indices
from peer.learning.randomness import derive


@dataclass(frozen=True)
class HoldBack:
    """A share of one peer's training samples, by a stream of `data.seed` and the peer that nothing else uses."""

    share: float
    """More than 0, less than 1; at least one sample is drawn."""
    seed: int
    peer: str

    def split(self, indices: Indices) -> tuple[Indices, Indices]:
        """What is left to train on and what is held back, each in the given order; InputError if nothing is left."""
        count = max(1, round(self.share * len(indices)))
        if count >= len(indices):
            raise InputError(
                f"{self.peer}: `hold_back: {self.share:g}` leaves none of its {len(indices)} training samples; give a "
                "smaller share or more samples"
            )
        drawn = np.random.default_rng(derive(self.seed, self.peer, "hold back")).permutation(len(indices))[:count]
        held = np.zeros(len(indices), bool)
        held[drawn] = True
        return indices[~held], indices[held]
