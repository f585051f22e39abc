"""One peer's part of the data: what it trains on, what it holds back, and what it is tested on.

A common data set is read and split once (`CommonData`); data of a peer's own are taken whole (`own_shard`). Samples
that are held back are a peer's own, not trained on: by them it finds out how good its model is, test set apart.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray

from peer.errors import InputError
from peer.learning.data.dataset import Dataset, Groups, is_read_one_by_one
from peer.learning.data.drift import Stage, stage_of
from peer.learning.data.partition import Partition
from peer.learning.data.samples import Indices, Labels, Names, Samples, Standardisation, Targets, check_columns
from peer.learning.data.sources.base import Source
from peer.learning.randomness import derive, draw, draw_groups
from peer.learning.tasks import Classification, Task
from peer.plugins import user_code_errors


@dataclass(frozen=True)
class HoldBack:
    """A share of one peer's training samples, by a stream of `data.seed` and the peer that nothing else uses."""

    share: float | Literal["given"]
    """More than 0, less than 1; at least one sample is drawn. `given`: those that came with the data."""
    seed: int
    peer: str

    def split(self, indices: Indices, groups: Groups | None = None) -> tuple[Indices, Indices]:
        """What is left to train on and what is held back, each in the given order; InputError if nothing is left.

        groups: (n,), of all training samples: none is held back in part.
        """
        assert self.share != "given"
        count, seed = max(1, round(self.share * len(indices))), derive(self.seed, self.peer, "hold back")
        if groups is None:
            held, rest = draw(len(indices), count, seed)
        else:
            held, rest = draw_groups(groups[indices], count, seed)
        if not len(rest):
            raise InputError(
                f"`hold_back: {self.share:g}` leaves none of {self.peer}'s {len(indices)} training samples; give a "
                "smaller share or more samples"
            )
        return indices[rest], indices[held]


def split_off(hold_back: HoldBack | None, indices: Indices, dataset: Dataset) -> tuple[Indices, Indices | None]:
    """What of a peer's training samples is left to train on, and what is held back; None if that is none of them.

    InputError where validation samples came with the data and are not asked for, or the other way round.
    """
    given = hold_back is not None and hold_back.share == "given"
    if given and "held" not in dataset.parts:
        raise InputError(
            "`hold_back: given` wants data with validation samples: a function that returns (x_train, y_train, "
            "x_validation, y_validation, x_test, y_test), or three torch data sets; or write a share, `hold_back: 0.1`"
        )
    if "held" in dataset.parts and not given:
        raise InputError("the data come with validation samples; write `hold_back: given`, or leave them out")
    return hold_back.split(indices, dataset.groups) if hold_back and not given else (indices, None)


@dataclass(frozen=True)
class Shard:
    """Training samples of one peer, and a test set."""

    train: Samples
    test: Samples
    """The global test set, or the test part of the peer's own data."""
    proportions: NDArray[np.float64]
    """q_i: the share of each class among the training samples by their true labels, (classes,); where the task has no
    classes, of each kind of target that it tells apart, (kinds,), or (0,) where that is not known."""
    classes: int
    validation: Samples | None
    """Public samples, the same at every peer, on which no peer is tested; None unless the federation's
    `data.validation` sets some aside."""
    names: Names
    task: Task
    paper: NDArray[np.int64] | None = None
    """The peer's part of the global test set, drawn by the training split's rule but independently."""
    own: bool = False
    """Whether this is the peer's own data, of which no other peer has a part."""
    held_back: Samples | None = None
    """Samples of the peer that it does not train on and judges its model by; None without `hold_back`."""

    def to(self, device: torch.device) -> "Shard":
        """Return it with all of its samples on the device, without a copy of those that are there."""
        return self._with(lambda samples: samples.to(device))

    def standardised(self, standard: Standardisation) -> "Shard":
        """Impute and standardise all of its samples, which must be as on disk."""
        return self._with(lambda samples: samples.standardised(standard))

    def _with(self, change: Callable[[Samples], Samples]) -> "Shard":
        public, held = (some and change(some) for some in (self.validation, self.held_back))
        return replace(self, train=change(self.train), test=change(self.test), validation=public, held_back=held)

    def close(self) -> None:
        """End what reads the samples, where they are not in memory."""
        for samples in (self.train, self.test, self.validation, self.held_back):
            if samples is not None:
                samples.close()


TestSets = tuple[Samples, Samples | None]
"""The samples on which all peers with a common data set are tested in a stage, and the public ones."""


def _tests(dataset: Dataset, stage: Stage) -> TestSets:
    public = dataset.validation_samples()
    return stage.apply(dataset.test()), public and stage.apply(public)


class CommonData:
    """A data set of which each peer has a part: read and split once, with tests that all its shards share."""

    def __init__(self, source: Source, ids: Sequence[str], task: Task = Classification()) -> None:
        """Raises InputError if any peer's part would be empty in any round."""
        self._source, self._ids = source, ids
        self._dataset = load_common(source, task)
        self._parts = split_samples(source, self._dataset, ids)
        self._tests: dict[int, tuple[TestSets, list[Indices] | None]] = {}
        """The test sets, with the published split among all peers, by the first round of their stage."""

    def shard(self, peer: str, round: int = 1, hold_back: HoldBack | None = None) -> Shard:
        """The part that `peer` has in a round."""
        mine, stage = self._ids.index(peer), stage_of(round, self._source.stages)
        if stage.since not in self._tests:
            papers = _paper_parts(stage.partition, self._source.seed, self._dataset, self._ids)
            self._tests[stage.since] = _tests(self._dataset, stage), papers
        tests, papers = self._tests[stage.since]
        shard = _shard(self._dataset, self._parts[stage.since][mine], stage, tests, hold_back)
        return replace(shard, paper=papers[mine] if papers else None)


def load_common(source: Source, task: Task) -> Dataset:
    """Load a data set of which each peer takes a part; all peers know its training targets."""
    dataset = source.load(task)
    known = dataset.task if is_read_one_by_one(dataset) else dataset.task.with_common(dataset.train_targets)
    return replace(dataset, task=known)


def split_samples(source: Source, dataset: Dataset, ids: Sequence[str]) -> dict[int, list[Indices]]:
    """By the first round of each stage, each peer's training samples; InputError if a peer would have none.

    Classes are those of the data set, whatever a drift calls them: with other names every peer keeps its samples. Whole
    groups are dealt, each as the class that most of its samples have.
    """
    labels, of, dealt = _split_labels(dataset.train_targets, dataset), None, "samples"
    if dataset.groups is not None:
        dealt = "groups"
        _, of = np.unique(dataset.groups, return_inverse=True)
        counts = np.zeros((of.max() + 1, labels.max() + 1), np.int64)
        np.add.at(counts, (of, labels), 1)
        labels = counts.argmax(1)
    found = {}
    for stage in source.stages:
        stage.check(dataset.shape, dataset.classes, dataset.task)
        try:
            parts = stage.partition.split(labels, ids, np.random.default_rng(source.seed), dealt)
        except InputError as error:
            raise InputError(f"{stage}: {error}" if stage.since > 1 else str(error)) from None
        found[stage.since] = parts if of is None else [np.flatnonzero(np.isin(of, part)) for part in parts]
    return found


@contextmanager
def own_data_errors(peer: str) -> Iterator[None]:
    """Name the peer in errors about its own data."""
    try:
        yield
    except InputError as error:
        raise type(error)(f"the data of {peer}: {error}") from error


def own_shard(
    source: Source,
    federation: Source,
    round: int = 1,
    task: Task = Classification(),
    hold_back: HoldBack | None = None,
) -> Shard:
    """A data set of the peer's own, unsplit, with the validation samples of the federation's, if it sets some aside.

    The federation's drift changes these samples, too. Raises InputError if validation samples are needed and the
    federation's data are not here, or do not match the peer's own.
    """
    dataset, stage = open_own(source, federation, task), stage_of(round, federation.stages)
    everything, tests = np.arange(len(dataset.train_targets)), _tests(dataset, stage)
    shard = replace(_shard(dataset, everything, stage, tests, hold_back), own=True)
    if not federation.validation:
        return shard
    try:
        common = federation.load(dataset.task)
    except InputError as error:
        hint = "every peer needs the samples of the federation's `data.validation`; put them here, or set it to 0"
        raise InputError(f"{error}; {hint}") from error
    check_public(common, dataset)
    public = common.validation_samples()
    return replace(shard, validation=public and stage.apply(public))


def open_own(source: Source, federation: Source, task: Task = Classification()) -> Dataset:
    """Load a data set of a peer's own; InputError if the federation's drift cannot change it.

    What must be the same at every peer it may not set: validation samples, drift, standardisation, imputation.
    """
    for key in ("validation", "drift", "standardize", "impute"):
        if getattr(source, key):
            why = "not be public" if key == "validation" else "not hold for the other peers"
            raise InputError(f"`{key}` in a peer's own data would {why}; set it in the federation's `data`")
    dataset = source.model_copy(update={"impute": federation.impute}).load(task)
    if federation.standardize:
        check_columns(dataset.shape, source.name)
    for stage in federation.stages:
        stage.check(dataset.shape, dataset.classes, dataset.task)
    return dataset


def check_public(common: Dataset, own: Dataset) -> None:
    """InputError if the federation's validation samples do not match a peer's own data."""
    if (common.shape, common.classes) != (own.shape, own.classes):
        raise InputError(
            f"validation inputs {common.shape} of {own.task.outputs_in_words(common.classes)} do not go with the "
            f"peer's own, {own.shape} of {own.classes}; make them alike, or set `validation: 0` in the federation's "
            "`data`"
        )
    numbered = tuple(map(str, range(own.classes)))
    for what in ("columns", "classes"):
        theirs, here = getattr(common.names, what), getattr(own.names, what)
        if theirs != here and () not in (theirs, here) and numbered not in (theirs, here):
            raise InputError(
                f"the federation's validation samples have the {what} {', '.join(theirs)}, and the peer's own data "
                f"{', '.join(here)}; bring them into one order, or set `validation: 0` in the federation's `data`"
            )


def _paper_parts(partition: Partition, seed: int, dataset: Dataset, ids: Sequence[str]) -> list[Indices] | None:
    """The published test split; None where the test set is too small to be split by that rule.

    It is drawn by a generator of the training split's seed, as the published figures were made.
    """
    try:
        return partition.split(_split_labels(dataset.parts["test"].targets, dataset), ids, np.random.default_rng(seed))
    except InputError:
        return None


def _split_labels(targets: Targets, dataset: Dataset) -> Labels:
    """The labels by which targets are split: their classes, or 0 for all where the task has none."""
    return targets if dataset.task.has_classes else np.zeros(len(targets), np.int64)


def class_mix(samples: Samples, classes: int) -> NDArray[np.float64]:
    """The share of each class among samples of a task with classes: float64 (classes,)."""
    counts = np.bincount(samples.labels.cpu().numpy(), minlength=classes)
    shares: NDArray[np.float64] = counts / counts.sum()
    return shares


def target_mix(dataset: Dataset, indices: Indices) -> NDArray[np.float64]:
    """The share of each kind of target among those training samples: float64 (kinds,), or (0,) where the task tells
    none apart or the targets are read only when they are needed. InputError where a user's `mix` gives none."""
    task, kinds = dataset.task, dataset.task.kinds(dataset.classes)
    if not kinds or (is_read_one_by_one(dataset) and not task.has_classes):
        return np.zeros(0)
    with user_code_errors(task.name):
        counted = task.mix(dataset.train_targets[indices], dataset.classes)
    if counted is None:
        return np.zeros(0)
    counts = np.asarray(counted)
    if counts.shape != (kinds,) or counts.dtype.kind not in "biuf" or not (np.isfinite(counts) & (counts >= 0)).all():
        raise InputError(
            f"the task `{task.name}`: its `mix` must return {kinds} finite numbers from 0, as `kinds` says"
        )
    total = counts.sum(dtype=np.float64)
    return counts / total if total else np.full(kinds, 1 / kinds)


def _shard(dataset: Dataset, indices: Indices, stage: Stage, tests: TestSets, hold_back: HoldBack | None) -> Shard:
    trained, held = split_off(hold_back, indices, dataset)
    apart = dataset.held_samples() if held is None else dataset.train(held)
    train = stage.apply(dataset.train(trained))
    return Shard(
        train=train,
        test=tests[0],
        proportions=class_mix(train, dataset.classes) if dataset.task.has_classes else target_mix(dataset, trained),
        classes=dataset.classes,
        validation=tests[1],
        names=dataset.names,
        task=dataset.task,
        held_back=apart and stage.apply(apart),
    )
