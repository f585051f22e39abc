"""Validation samples: a share of the test set that is public, and on which nobody is tested."""

from dataclasses import replace

import numpy as np

from peer.errors import InputError
from peer.learning.data.samples import Dataset
from peer.learning.data.sources.arrays import Rows
from peer.learning.randomness import derive


def set_aside(dataset: Dataset, share: float, seed: int, where: str) -> Dataset:
    """The data set with `share` of its test samples, at least one, as validation samples instead.

    They are drawn from a stream of `seed` that nothing else uses. Both parts keep the data set's order. InputError
    if no test sample is left, or none of a class that had some.
    """
    labels = dataset.test_labels
    count = max(1, round(share * len(labels)))
    if count >= len(labels):
        raise InputError(
            f"{where}: `validation: {share:g}` leaves none of the {len(labels)} test samples to test on; "
            "give a smaller share or more test samples"
        )
    order = np.random.default_rng(derive(seed, "validation")).permutation(len(labels))
    taken, rest = np.sort(order[:count]), np.sort(order[count:])
    lost = np.setdiff1d(labels, labels[rest])
    if len(lost):
        raise InputError(
            f"{where}: `validation: {share:g}` takes every test sample of class {lost[0]}; "
            "give a smaller share or another `seed` of the data"
        )
    return replace(
        dataset,
        test_inputs=Rows(dataset.test_inputs, rest),
        test_labels=labels[rest],
        validation=(Rows(dataset.test_inputs, taken), labels[taken]),
    )
