"""A federation laid out but not run: the data dealt, the model built, and whatever would make a peer refuse to
start."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils._pytree import tree_leaves

from peer.errors import InputError
from peer.learning.data.dataset import Dataset
from peer.learning.data.samples import Indices, Names, Samples, imputation_of, typical_values
from peer.learning.data.shard import (
    HoldBack,
    check_public,
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
from peer.learning.named_tensors import named_sha256
from peer.learning.training.checks import check_length, try_training
from peer.learning.training.trainer import check_batches
from peer.runtime.dry_run import DRY_RUN_SAMPLES, DryRunInput
from peer.spec.checks import check_mix, check_model
from peer.spec.federation import Spec
from peer.spec.peer import peer_data

ROUNDS = 6, 200
"""The fewest and the most rounds of a run that are counted, evenly spread."""
WORK = 2 << 30
"""Bytes of vectors that a count may go through: fewer rounds of large models."""
Facts = tuple[tuple[Any, str], ...]
"""What must be alike at all peers, each with its words: columns, inputs, classes."""


@dataclass(frozen=True)
class Site:
    """What is kept of one peer's data."""

    sizes: tuple[int, ...]
    """How many samples the peer trains on, in each stage of the data."""
    classes: int
    """How many classes they are of in round 1; 0 where the task has none."""
    mix: NDArray[np.float64]
    """q_i in round 1, float64 (kinds,); (0,) where that is not known."""
    facts: Facts
    remarks: tuple[str, ...]
    """How the data were read."""
    typical: Tensor | None
    """What missing values are imputed by (`typical_values`); None where they are not."""
    unrepeatable: str | None
    """The name of data that give other samples when they are read again from the same seed."""
    augmented: str | None
    """The name of data of which samples are held back as they are trained on: changed at random."""


@dataclass(frozen=True)
class Plan:
    """What a spec comes to: the model, and by id what is kept of the peers' data that were looked at."""

    spec: Spec
    model: Model
    sites: Mapping[str, Site]
    few: Samples
    """Some of one peer's samples, for dry runs."""
    public: Samples | None
    """The federation's validation samples, if it sets some aside."""

    @property
    def unrepeatable(self) -> list[str]:
        return [*dict.fromkeys(site.unrepeatable for site in self.sites.values() if site.unrepeatable)]

    @property
    def augmented(self) -> list[str]:
        return [*dict.fromkeys(site.augmented for site in self.sites.values() if site.augmented)]

    def dry_run_input(self, id: str) -> DryRunInput:
        """What a dry run of that peer stands on."""
        own = self.sites[id]
        proportions = {other: torch.from_numpy(self.sites.get(other, own).mix) for other in self.spec.ids}
        return DryRunInput(self.spec, self.model, self.few, proportions, self.public)

    def rounds(self, peers: int) -> list[int]:
        """The rounds that are counted for so many peers."""
        least, most = ROUNDS
        count = max(least, min(most, WORK // (16 * self.model.sizes["model"] * peers), self.spec.rounds))
        return sorted({round(r) for r in np.linspace(1, self.spec.rounds, count)})


def outline(spec: Spec) -> Plan:
    """The plan by common data, or the first peer's: where others have their own, each judges them as it starts."""
    first, *others = spec.ids
    return plan(spec, [first, *(id for id in others if not peer_data(id, spec))])


def plan(spec: Spec, ids: Sequence[str] = ()) -> Plan:
    """Open the data, deal what is common and build the model; InputError where a peer would refuse to start.

    ids: whose data; if none are given, every peer's. Of data of the peers' own, no two are open at once.
    """
    torch.set_num_threads(1)  # vectors are short here: threads would wait for one another most of the time
    deal, (*others, last) = Deal(spec), ids or spec.ids
    sites = {id: deal.site(id, deal.dataset(id)) for id in others}
    dataset = deal.dataset(last)
    sites[last] = deal.site(last, dataset)
    check_alike(sites)
    if spec.data.impute:
        check_imputation(sites, dataset.names, spec)
    few, tested = dataset.few()  # those are read without workers
    model = build(
        spec.model.of_peer(spec.ids[0]), Example.from_samples(few, dataset.classes, spec.task, tested), spec.seed
    )
    model.names = dataset.names
    check_model(spec, model)
    for id, site in sites.items():
        for size in site.sizes:
            spec.protocol.check_samples(id, size)
            check_batches(model, spec.phases, size, id)
    longest = max(size for site in sites.values() for size in site.sizes)
    check_length(model, spec.protocol.local(), longest, spec.training, spec.rounds)
    # Where peers may train on a GPU, what it can do is for them to say: here all is tried on the CPU.
    here = {"precision": "float32"} if torch.cuda.is_available() else {}
    try_training(model, few, spec.phases, spec.training.model_copy(update=here), spec.rounds)
    for id, site in sites.items():
        check_mix(spec, site.mix, id)
    rehearsed = dataset.train(deal.shards(last, dataset)[0][:DRY_RUN_SAMPLES])
    return Plan(spec, model, sites, rehearsed, deal.public)


def check_data_repeat(made: Plan) -> None:
    """InputError where a function of the user's returns other samples when it is called again, as each peer does at
    every start. Data that are known to be unrepeatable are told, and not refused."""
    *_, id = made.sites
    source = peer_data(id, made.spec) or made.spec.data
    if ":" not in source.name or made.unrepeatable:
        return
    again = plan(made.spec, [id])
    if made.sites[id].sizes != again.sites[id].sizes or _digest(made.few) != _digest(again.few):
        raise InputError(
            f"`{source.name}` returns other samples each time it is called; every peer calls it at every start, so let "
            "it draw by a generator with a seed of its own, such as numpy.random.default_rng(0)"
        )


def _digest(samples: Samples) -> str:
    """The SHA-256 of the first of them, bit by bit: a missing value equals itself."""
    leaves = tree_leaves(tuple(next(samples.in_order(DRY_RUN_SAMPLES))))
    return named_sha256({str(number): one for number, one in enumerate(leaves) if isinstance(one, Tensor)})


class Deal:
    """Who has which samples: a peer data of its own, or its part of the common ones, which are read once."""

    def __init__(self, spec: Spec) -> None:
        self._spec = spec
        self._own = {id: source for id in spec.ids if (source := peer_data(id, spec))}
        is_dealt = len(self._own) < len(spec.ids)
        self._common = load_common(spec.data, spec.task) if is_dealt or spec.data.validation else None
        self.public = self._common.validation_samples() if self._common else None
        dealt = split_samples(spec.data, self._common, spec.ids).values() if self._common and is_dealt else ()
        self._parts = [dict(zip(spec.ids, shards, strict=True)) for shards in dealt]

    def dataset(self, id: str) -> Dataset:
        """The data of which that peer has a part, or which are its own."""
        if id not in self._own:
            assert self._common
            return self._common
        with own_data_errors(id):
            dataset = open_own(self._own[id], self._spec.data, self._spec.task)
            if self.public and self._common:
                check_public(self._common, dataset)
        return dataset

    def shards(self, id: str, dataset: Dataset) -> list[Indices]:
        """What a peer trains on in each stage of its data; InputError if it would hold back all of them."""
        spec, whole = self._spec, np.arange(len(dataset.train_targets))
        hold_back = None if spec.hold_back is None else HoldBack(spec.hold_back, spec.data.seed, id)
        parts = [whole] if id in self._own else [part[id] for part in self._parts]
        return [split_off(hold_back, part, dataset)[0] for part in parts]

    def site(self, id: str, dataset: Dataset) -> Site:
        """Look at that peer's part of the data set."""
        spec, stream, shards = self._spec, dataset.stream, self.shards(id, dataset)
        return Site(
            sizes=tuple(map(len, shards)),
            classes=len(np.unique(dataset.train_targets[shards[0]])) if spec.task.has_classes else 0,
            mix=target_mix(dataset, shards[0]),
            facts=facts(dataset),
            remarks=dataset.remarks,
            typical=typical_values(dataset.train(shards[0]), dataset.names) if spec.data.impute else None,
            unrepeatable=stream.reading.name if stream and not stream.repeats else None,
            augmented=stream.reading.name if stream and isinstance(spec.hold_back, float) and stream.augments else None,
        )


def check_alike(sites: Mapping[str, Site]) -> None:
    """InputError unless the data of all go together: peers refuse each other in the handshake otherwise."""
    (first, ours), *others = sites.items()
    for id, theirs in others:
        for (one, said), (another, words) in zip(theirs.facts, ours.facts, strict=True):
            if one != another:
                raise InputError(f"the data of {id} has {said}, and that of {first} {words}; make them alike")


def check_imputation(sites: Mapping[str, Site], names: Names, spec: Spec) -> None:
    """InputError if a column has no value to impute others by, at all peers together or, where each goes by its own, at
    one."""
    found = {id: site.typical for id, site in sites.items() if site.typical is not None}
    if spec.found_together:
        together = torch.stack([*found.values()]).mean(0)
        found = {f"all {len(found)} peers": together} if len(found) == len(spec.ids) else {}
    for whose, values in found.items():
        try:
            imputation_of(values, names)
        except InputError as error:
            raise InputError(f"the data of {whose}: {error}") from error


def facts(dataset: Dataset) -> Facts:
    names, shape = dataset.names, f"inputs of shape {in_brackets(dataset.shape)}"
    columns = f"columns {in_brackets(names.columns)}" if names.columns else f"{shape} without named columns"
    answers = dataset.task.outputs_in_words(dataset.classes)
    classes = f"classes {in_brackets(names.classes)}" if names.classes else answers
    return (names.columns, columns), (dataset.shape, shape), (names.classes or dataset.classes, classes)


def in_brackets(values: Sequence[object]) -> str:
    return f"({', '.join(map(str, values))})"
