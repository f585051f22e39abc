"""One peer's part of the data: what it trains on, and what it is tested on."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from peer.errors import InputError
from peer.learning.data.samples import Dataset, Names, Samples
from peer.learning.data.sources.base import Source


@dataclass(frozen=True)
class Shard:
    """Training samples of one peer, and a test set."""

    train: Samples
    test: Samples
    """The global test set, or the test part of the peer's own data."""
    proportions: NDArray[np.float64]
    """q_i: the share of each class among the training samples, (classes,)."""
    paper: NDArray[np.int64] | None
    """The peer's part of the global test set, drawn by the training split's rule but independently."""
    own: bool
    """Whether this is the peer's own data, of which no other peer has a part."""
    classes: int
    validation: Samples | None
    """Public samples, the same at every peer, on which nobody is tested; None unless the federation's
    `data.validation` sets some aside."""
    names: Names


def take_shard(source: Source, ids: Sequence[str], peer: str) -> Shard:
    """The part of a common data set that the split gives to `peer`; InputError when it would be empty."""
    dataset = source.load()
    # The test set is split by a generator of the same seed, as the published figures were made.
    parts = source.partition.split(dataset.train_labels, ids, np.random.default_rng(source.seed))
    mine = ids.index(peer)
    if not len(parts[mine]):
        raise InputError(f"the split gives {peer} no samples; use fewer peers or another partition")
    return _shard(dataset, parts[mine], paper_part(source, dataset, ids, mine), own=False)


def own_shard(source: Source, federation: Source) -> Shard:
    """A data set of the peer's own, unsplit, with the validation samples of the federation's, if it sets some aside.

    What a peer kept of its own would not be the same at every peer. InputError then, and when the federation's data
    do not lie here too or do not go with the peer's own.
    """
    if source.validation:
        raise InputError("`validation` in a peer's own data would not be public; set it in the federation's `data`")
    dataset = source.load()
    shard = _shard(dataset, np.arange(len(dataset.train_labels)), None, own=True)
    return replace(shard, validation=_public(federation, dataset)) if federation.validation else shard


def _public(federation: Source, own: Dataset) -> Samples | None:
    way_out = "every peer needs the samples of the federation's `data.validation`; put them here, or set it to 0"
    try:
        common = federation.load()
    except InputError as error:
        raise InputError(f"{error}; {way_out}") from error
    if (common.shape, common.classes) != (own.shape, own.classes):
        raise InputError(
            f"validation inputs {common.shape} of {common.classes} classes do not go with the peer's own, "
            f"{own.shape} of {own.classes}; make them alike, or set `validation: 0` in the federation's `data`"
        )
    return common.validation_samples()


def paper_part(source: Source, dataset: Dataset, ids: Sequence[str], mine: int) -> NDArray[np.int64] | None:
    """The published test split's part; None where the test set is too small to be split by that rule."""
    try:
        return source.partition.split(dataset.test_labels, ids, np.random.default_rng(source.seed))[mine]
    except InputError:
        return None


def _shard(dataset: Dataset, indices: NDArray[np.int64], paper: NDArray[np.int64] | None, own: bool) -> Shard:
    counts = np.bincount(dataset.train_labels[indices], minlength=dataset.classes)
    return Shard(
        train=dataset.train(indices),
        test=dataset.test(),
        proportions=counts / counts.sum(),
        paper=paper,
        own=own,
        classes=dataset.classes,
        validation=dataset.validation_samples(),
        names=dataset.names,
    )
