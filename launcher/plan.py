"""A federation laid out but not run: the data dealt, the model built, the traffic counted."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import zip_longest

import numpy as np
import torch
from numpy.typing import NDArray

from peer.errors import InputError
from peer.learning.data.dataset import Dataset
from peer.learning.data.samples import Indices, Samples
from peer.learning.data.shard import check_public, deal, open_own
from peer.learning.model.dry_pass import Example
from peer.learning.model.model import Model
from peer.learning.model.zoo import build
from peer.learning.training.batches import check_batches
from peer.plugins import in_words
from peer.protocols.base import Protocol
from peer.runtime.dry_run import KNOWN, DryRun
from peer.runtime.rehearsal import SAMPLES, Rehearsal
from peer.spec.federation import Spec
from peer.spec.own_data import own_data

Counts = NDArray[np.int64]
Calls = list[tuple[int | str, ...]]
ROUNDS = 6, 200
"""At least and at most so many rounds of a run are counted, evenly spread."""
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
    """Who has data of its own."""
    public: Samples | None
    """The federation's validation samples, if it sets some aside."""

    @cached_property
    def counts(self) -> dict[str, Counts]:
        """Samples of each class, int64 (classes,), by id."""
        return {
            id: np.bincount(dataset.train_targets[self.shards[id]], minlength=dataset.classes)
            for id, dataset in self.datasets.items()
        }

    @property
    def sizes(self) -> dict[str, int]:
        """float32 values of "extractor", "head" and "model"."""
        return self.model.sizes

    def rehearsal(self, id: str) -> Rehearsal:
        """What a dry run of that peer stands on."""
        proportions = {other: torch.from_numpy(count / count.sum()) for other, count in self.counts.items()}
        shard = self.shards[id]
        few = shard[np.linspace(0, len(shard) - 1, min(SAMPLES, len(shard))).astype(np.int64)]
        data, spec = self.datasets[id].train(few), self.spec
        return Rehearsal(self.model, data, proportions, spec.rounds, spec.seed, self.public, spec.wire)

    def rounds(self, peers: int) -> list[int]:
        """The rounds that are counted for so many peers."""
        least, most = ROUNDS
        count = max(least, min(most, WORK // (16 * self.sizes["model"] * peers), self.spec.rounds))
        return sorted({round(r) for r in np.linspace(1, self.spec.rounds, count)})


def plan(spec: Spec) -> Plan:
    """Opens the data, deals what is common and builds the model; InputError where a peer would refuse to start."""
    own = {id: source for id in spec.ids if (source := own_data(id, spec))}
    datasets = {id: open_own(source, spec.data, spec.task) for id, source in own.items()}
    everything = {id: np.arange(len(dataset.train_targets)) for id, dataset in datasets.items()}
    stages, public = [everything], None
    if spec.data.validation or len(own) < len(spec.ids):
        common = spec.data.load(spec.task)
        public = common.validation_samples()
        for dataset in datasets.values() if public else ():
            check_public(common, dataset)
        datasets = {id: datasets.get(id, common) for id in spec.ids}
        if len(own) < len(spec.ids):
            dealt = deal(spec.data, common, spec.ids).values()
            stages = [dict(zip(spec.ids, shards, strict=True)) | everything for shards in dealt]
    check_alike(datasets)
    first = datasets[spec.ids[0]]
    example = Example.of(first.train(np.arange(2)), first.classes, spec.task)
    model = build(spec.model.name, example, spec.seed)
    for shards in stages:
        for id, shard in shards.items():
            check_batches(model, spec.protocol.local(), len(shard), id)
    return Plan(spec, model, datasets, stages[0], tuple(own), public)


def check_alike(datasets: Mapping[str, Dataset]) -> None:
    """InputError unless the data of all go together: peers refuse each other in the handshake otherwise."""
    (first, ours), *others = datasets.items()
    for id, theirs in others:
        for what, one, another in (
            ("columns", theirs.names.columns, ours.names.columns),
            ("inputs of shape", theirs.shape, ours.shape),
            ("classes", theirs.names.classes or theirs.classes, ours.names.classes or ours.classes),
        ):
            if one != another:
                raise InputError(
                    f"the data of {id} has {what} {in_brackets(one)}, and that of {first} {in_brackets(another)}; "
                    "make them alike"
                )


def in_brackets(value: int | Sequence[object]) -> str:
    return str(value) if isinstance(value, int) else f"({', '.join(map(str, value))})"


async def traffic(made: Plan, ids: Sequence[str]) -> dict[str, list[int]]:
    """Bytes of tensors and numbers that each of `ids` sends: in the set-up, then in each round counted."""
    spec, rounds = made.spec, made.rounds(len(ids))
    found, calls = {}, dict[str, Calls]()
    for id in ids:
        dry_run = DryRun(id, spec.protocol, made.rehearsal(id))
        try:
            found[id] = [await dry_run.set_up(spec.init), *[await dry_run.count(number) for number in rounds]]
        except InputError:
            raise
        except Exception as error:
            _check_awaited(spec.protocol.name, dry_run)
            if ":" not in spec.protocol.name:
                raise
            raise InputError(
                f"`{spec.protocol.name}` fails in a dry run, in round {dry_run.round}: {in_words(error)}"
            ) from error
        _check_awaited(spec.protocol.name, dry_run)
        calls[id] = dry_run.calls
        if ":" in spec.protocol.name and len(rounds) == spec.rounds:
            _check_kept(spec.protocol, dry_run)
    _check_alike(spec.protocol.name, calls)
    return found


def _check_awaited(protocol: str, dry_run: DryRun) -> None:
    """InputError when a protocol calls `peer.exchange` or its like without `await`: it would send nothing."""
    for called in dry_run.never_awaited():
        raise InputError(f"`{protocol}` calls `{called}` and does not wait for it; write `await` before the call")


def _check_kept(protocol: Protocol, dry_run: DryRun) -> None:
    """InputError where a protocol says of a name that it never changes and keeps nothing under it, as if misspelt."""
    for name in protocol.never_kept(dry_run.state):
        raise InputError(
            f"`{protocol.name}` declares {name!r} as unchanging and keeps nothing under that name; write "
            f"peer.state[{name!r}] = ... or take it out of `unchanging`"
        )


def _check_alike(protocol: str, calls: Mapping[str, Calls]) -> None:
    """InputError unless all make the same collective calls: who makes one more would wait for ever.

    As far as it can be known: what peers do after a `gather` may rest on what the others told.
    """
    (first, reference), *others = calls.items()
    for id, made in others:
        for ours, theirs in zip_longest(reference, made):
            if ours != theirs:
                said = " and ".join(f"{who} calls {_call(call)}" for who, call in ((first, ours), (id, theirs)))
                raise InputError(f"`{protocol}`: {said}; every peer must make the same calls in the same order")
            if ours and ours[1] == "gather" and ours[2] not in KNOWN:
                break


def _call(call: tuple[int | str, ...] | None) -> str:
    return "nothing more" if call is None else f"{call[1]}({', '.join(map(repr, call[2:]))}) in round {call[0]}"
