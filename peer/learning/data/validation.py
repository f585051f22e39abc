"""Validation samples: a share of the test set that is public, and on which nobody is tested."""

from dataclasses import replace

import numpy as np

from peer.errors import InputError
from peer.learning.data.dataset import Dataset
from peer.learning.data.sources.arrays import Rows
from peer.learning.randomness import derive


def set_aside(dataset: Dataset, share: float, seed: int, where: str) -> Dataset:
    """The data set with `share` of its test samples, at least one, as validation samples instead.

    They are drawn from a stream of `seed` that nothing else uses. Both parts keep the data set's order. InputError
    if no test sample is left, or none of a class that had some.
    """
    targets = dataset.test_targets
    count = max(1, round(share * len(targets)))
    if count >= len(targets):
        raise InputError(
            f"{where}: `validation: {share:g}` leaves none of the {len(targets)} test samples to test on; "
            "give a smaller share or more test samples"
        )
    order = np.random.default_rng(derive(seed, "validation")).permutation(len(targets))
    taken, rest = np.sort(order[:count]), np.sort(order[count:])
    lost = np.setdiff1d(targets, targets[rest]) if dataset.task.has_classes else np.empty(0)
    if len(lost):
        raise InputError(
            f"{where}: `validation: {share:g}` takes every test sample of class {lost[0]}; "
            "give a smaller share or another `seed` of the data"
        )
    return replace(
        dataset,
        test_inputs=Rows(dataset.test_inputs, rest),
        test_targets=targets[rest],
        validation=(Rows(dataset.test_inputs, taken), targets[taken]),
    )
