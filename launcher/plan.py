"""A federation laid out but not run: the data dealt, the model built, the traffic counted."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest

import numpy as np
import torch
from numpy.typing import NDArray

from peer.errors import InputError
from peer.learning.model.zoo import build
from peer.learning.training.batches import check_batches
from peer.plugins import in_words
from peer.runtime.dry_run import KNOWN, DryRun
from peer.spec.federation import Spec

Counts = NDArray[np.int64]
ROUNDS = 200
"""So many rounds of a long run are counted, evenly spread."""


@dataclass(frozen=True)
class Plan:
    """What a spec comes to.

    shape: of one input. counts: samples of each class, int64 (classes,), by id. sizes: float32 values of
    "extractor", "head" and "model".
    """

    spec: Spec
    shape: tuple[int, ...]
    counts: Mapping[str, Counts]
    sizes: Mapping[str, int]


def plan(spec: Spec) -> Plan:
    """Opens the data, deals it and builds the model; InputError where a peer would refuse to start."""
    dataset = spec.data.load()
    counts = deal(spec, dataset.train_labels, dataset.classes)
    model = build(spec.model.name, dataset.shape, dataset.classes, spec.seed)
    for id, count in counts.items():
        check_batches(model, spec.protocol.local(), int(count.sum()), id)
    sizes = {"extractor": len(model.extractor), "head": len(model.head), "model": len(model.vector)}
    return Plan(spec, dataset.shape, counts, sizes)


def deal(spec: Spec, labels: Counts, classes: int) -> dict[str, Counts]:
    """Samples of each class that each peer gets."""
    shards = spec.data.partition.split(labels, spec.ids, np.random.default_rng(spec.data.seed))
    return {id: np.bincount(labels[shard], minlength=classes) for id, shard in zip(spec.ids, shards, strict=True)}


async def traffic(made: Plan, ids: Sequence[str]) -> dict[str, list[int]]:
    """Bytes of tensors and records that each of `ids` sends: in the set-up, then in each round counted."""
    spec = made.spec
    proportions = {id: torch.from_numpy(count / count.sum()) for id, count in made.counts.items()}
    rounds = sorted({round(r) for r in np.linspace(1, spec.rounds, min(spec.rounds, ROUNDS))})
    found, dry_runs = {}, dict[str, DryRun]()
    for id in ids:
        samples = int(made.counts[id].sum())
        dry_run = dry_runs[id] = DryRun(id, spec.protocol, spec.rounds, made.sizes, proportions, samples, spec.seed)
        try:
            found[id] = [await dry_run.set_up(spec.init), *[await dry_run.count(number) for number in rounds]]
        except InputError:
            raise
        except Exception as error:
            _check_awaited(spec.protocol.name, dry_run)
            if ":" not in spec.protocol.name:
                raise
            raise InputError(
                f"what `{spec.protocol.name}` sends cannot be counted, as it does not bear vectors of two values: "
                f"{in_words(error)}"
            ) from error
        _check_awaited(spec.protocol.name, dry_run)
    _check_alike(spec.protocol.name, dry_runs)
    return found


def _check_awaited(protocol: str, dry_run: DryRun) -> None:
    """InputError when a protocol calls `peer.exchange` or its like without `await`: it would send nothing."""
    for called in dry_run.never_awaited():
        raise InputError(f"`{protocol}` calls `{called}` and does not wait for it; write `await` before the call")


def _check_alike(protocol: str, dry_runs: Mapping[str, DryRun]) -> None:
    """InputError unless all make the same collective calls: who makes one more would wait for ever.

    As far as it can be known: what peers do after a `gather` may rest on what the others told.
    """
    (first, reference), *others = dry_runs.items()
    for id, dry_run in others:
        for ours, theirs in zip_longest(reference.calls, dry_run.calls):
            if ours != theirs:
                said = " and ".join(f"{who} calls {_call(call)}" for who, call in ((first, ours), (id, theirs)))
                raise InputError(f"`{protocol}`: {said}; every peer must make the same calls in the same order")
            if ours and ours[1] == "gather" and ours[2] not in KNOWN:
                break


def _call(call: tuple[int, str, str] | None) -> str:
    return "nothing more" if call is None else f"{call[1]}({call[2]!r}) in round {call[0]}"
