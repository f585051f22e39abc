"""A federation laid out but not run: the data dealt, the model built, and whatever would make a peer refuse to
start."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray

from peer.errors import InputError
from peer.learning.data.dataset import Dataset
from peer.learning.data.samples import Indices, Samples, imputation_of, typical_values
from peer.learning.data.shard import (
    HoldBack,
    check_public,
    class_counts,
    load_common,
    open_own,
    own_data_errors,
    split_off,
    split_samples,
    target_mix,
)
from peer.learning.model.model import Model
from peer.learning.model.shape_check import Example
from peer.learning.model.zoo import build
from peer.learning.training.checks import check_length, try_training
from peer.learning.training.phase import Training
from peer.learning.training.trainer import check_batches
from peer.runtime.dry_run import DRY_RUN_SAMPLES, DryRunInput
from peer.spec.checks import check_learnt, check_mix
from peer.spec.federation import Spec
from peer.spec.peer import peer_data

Counts = NDArray[np.int64]

ROUNDS = 6, 200
"""The fewest and the most rounds of a run that are counted, evenly spread."""
WORK = 2 << 30
"""Bytes of vectors that a count may go through: fewer rounds of large models."""


@dataclass(frozen=True)
class Plan:
    """What a spec comes to: the model, and by id each peer's data with the positions of its samples in round 1."""

    spec: Spec
    model: Model
    datasets: Mapping[str, Dataset]
    shards: Mapping[str, Indices]
    own: tuple[str, ...]
    """Peers with data of their own."""
    public: Samples | None
    """The federation's validation samples, if it sets some aside."""

    @cached_property
    def counts(self) -> dict[str, Counts]:
        """Samples of each class, int64 (classes,), by id; (0,) where the task has none."""
        return {
            id: class_counts(dataset.train_targets[self.shards[id]], dataset.classes, self.spec.task)
            for id, dataset in self.datasets.items()
        }

    @cached_property
    def mixes(self) -> dict[str, NDArray[np.float64]]:
        """Each peer's q_i, float64 (kinds,), by id; (0,) where that is not known."""
        return {id: target_mix(dataset, self.shards[id]) for id, dataset in self.datasets.items()}

    @property
    def sizes(self) -> dict[str, int]:
        """float32 values of "extractor", "head" and "model"."""
        return self.model.sizes

    @property
    def unrepeatable(self) -> list[str]:
        """The names of data sets that give other samples when they are read again from the same seed."""
        found = (one for one in self.datasets.values() if one.stream and not one.stream.repeats)
        return [*dict.fromkeys(one.stream.reading.name for one in found if one.stream)]

    @property
    def augmented(self) -> list[str]:
        """The names of data sets of which samples are held back as they are trained on: changed at random."""
        held = self.datasets.values() if isinstance(self.spec.hold_back, float) else ()
        return [*dict.fromkeys(one.stream.reading.name for one in held if one.stream and one.stream.augments)]

    def dry_run_input(self, id: str) -> DryRunInput:
        """What a dry run of that peer stands on."""
        proportions = {other: torch.from_numpy(mix) for other, mix in self.mixes.items()}
        shard = self.shards[id]
        few = shard[np.linspace(0, len(shard) - 1, min(DRY_RUN_SAMPLES, len(shard))).astype(np.int64)]
        data, spec = self.datasets[id].train(few), self.spec
        return DryRunInput(self.model, data, proportions, spec.rounds, spec.seed, self.public, spec.wire)

    def rounds(self, peers: int) -> list[int]:
        """The rounds that are counted for so many peers."""
        least, most = ROUNDS
        count = max(least, min(most, WORK // (16 * self.sizes["model"] * peers), self.spec.rounds))
        return sorted({round(r) for r in np.linspace(1, self.spec.rounds, count)})


def plan(spec: Spec) -> Plan:
    """Open the data, deal what is common and build the model; InputError where a peer would refuse to start."""
    torch.set_num_threads(1)  # vectors are short here: threads would wait for one another most of the time
    own = {id: source for id in spec.ids if (source := peer_data(id, spec))}
    datasets = dict[str, Dataset]()
    for id, source in own.items():
        with own_data_errors(id):
            datasets[id] = open_own(source, spec.data, spec.task)
    everything = {id: np.arange(len(dataset.train_targets)) for id, dataset in datasets.items()}
    stages, public = [everything], None
    if spec.data.validation or len(own) < len(spec.ids):
        common = load_common(spec.data, spec.task)
        public = common.validation_samples()
        for dataset in datasets.values() if public else ():
            check_public(common, dataset)
        datasets = {id: datasets.get(id, common) for id in spec.ids}
        if len(own) < len(spec.ids):
            dealt = split_samples(spec.data, common, spec.ids).values()
            stages = [dict(zip(spec.ids, shards, strict=True)) | everything for shards in dealt]
    stages = [{id: _trained(spec, id, shard, datasets[id]) for id, shard in shards.items()} for shards in stages]
    check_alike(datasets)
    if spec.data.impute:
        check_imputation({id: dataset.train(stages[0][id]) for id, dataset in datasets.items()}, datasets, spec)
    first = datasets[spec.ids[0]]
    few, tested = first.few()  # those are read without workers
    example = Example.from_samples(few, first.classes, spec.task, tested)
    model = build(spec.model.of_peer(spec.ids[0]), example, spec.seed)
    check_learnt(spec, model)
    for shards in stages:
        for id, shard in shards.items():
            spec.protocol.check_samples(id, len(shard))
            check_batches(model, spec.phases, len(shard), id)
    longest = max(len(shard) for shards in stages for shard in shards.values())
    check_length(model, spec.protocol.local(), longest, spec.training, spec.rounds)
    try_training(model, few, spec.phases, as_here(spec.training), spec.rounds)
    made = Plan(spec, model, datasets, stages[0], tuple(own), public)
    for id, mix in made.mixes.items():
        check_mix(spec, mix, id)
    return made


def as_here(training: Training) -> Training:
    """Where peers may train on a GPU, what it can do is for them to say: here all is tried on the CPU."""
    return training.model_copy(update={"precision": "float32"}) if torch.cuda.is_available() else training


def _trained(spec: Spec, id: str, shard: Indices, dataset: Dataset) -> Indices:
    """What a peer trains on of its samples; InputError if it would hold back all of them."""
    hold_back = None if spec.hold_back is None else HoldBack(spec.hold_back, spec.data.seed, id)
    return split_off(hold_back, shard, dataset)[0]


def check_alike(datasets: Mapping[str, Dataset]) -> None:
    """InputError unless the data of all go together: peers refuse each other in the handshake otherwise."""
    (first, ours), *others = datasets.items()
    for id, theirs in others:
        for words, one, another in (
            (columns, theirs.names.columns, ours.names.columns),
            (inputs, theirs.shape, ours.shape),
            (classes, theirs.names.classes or theirs.classes, ours.names.classes or ours.classes),
        ):
            if one != another:
                raise InputError(
                    f"the data of {id} has {words(theirs)}, and that of {first} {words(ours)}; make them alike"
                )


def check_imputation(trained: Mapping[str, Samples], datasets: Mapping[str, Dataset], spec: Spec) -> None:
    """InputError if a column has no value to impute others by, at all peers together or, where each goes by its own, at
    one."""
    found = {id: typical_values(samples, datasets[id].names) for id, samples in trained.items()}
    if spec.found_together:
        found = {f"all {len(found)} peers": torch.stack([*found.values()]).mean(0)}
    for whose, values in found.items():
        try:
            imputation_of(values, datasets[spec.ids[0]].names)
        except InputError as error:
            raise InputError(f"the data of {whose}: {error}") from error


def columns(dataset: Dataset) -> str:
    """The columns in words; if they have no names, the shape of the inputs."""
    names = dataset.names.columns
    return f"columns {in_brackets(names)}" if names else f"{inputs(dataset)} without named columns"


def inputs(dataset: Dataset) -> str:
    return f"inputs of shape {in_brackets(dataset.shape)}"


def classes(dataset: Dataset) -> str:
    names = dataset.names.classes
    return f"classes {in_brackets(names)}" if names else dataset.task.outputs_in_words(dataset.classes)


def in_brackets(values: Sequence[object]) -> str:
    return f"({', '.join(map(str, values))})"
