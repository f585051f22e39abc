"""How much disk a peer needs at most, so that it can say so before it starts rather than when the disk is full."""

import shutil
from collections.abc import Coroutine
from dataclasses import replace
from math import ceil
from pathlib import Path
from typing import NamedTuple

from peer.errors import InputError
from peer.protocols.registry import PROTOCOLS
from peer.runtime.dry_run import DryRun
from peer.runtime.rehearsal import Rehearsal
from peer.spec.federation import Spec
from peer.views.view import STALENESS_BOUND

FLOAT32 = 4
"""Bytes."""
REHEARSED = 64
"""Peers of a larger federation that are counted: ordering a ring of thousands takes seconds. With N times as many
peers, a peer sends at most N times as much."""


class Rehearsed(NamedTuple):
    """What a dry run finds of one peer, in bytes."""

    busiest: int
    """Sent in a round."""
    unchanging: int
    """Kept in `peer.state` and written once."""
    journalled: int = 0
    """Drawn by `once` in the rounds that may be replayed."""


def disk_needed(spec: Spec, model_floats: int, rehearsed: Rehearsed) -> int:
    """Bytes on disk that a peer needs at most, by estimate.

    The checkpoints that the staleness bound keeps, each with the model, two moments for every parameter and the
    messages of a round, and what an encoding keeps of each vector; what never changes; the final model; with `trace`,
    every round's start, before, after and passes; with `hold_back`, the best model; and the journal.
    """
    model = FLOAT32 * model_floats
    traces = (3 + ceil(len(spec.ring) / 2)) * spec.rounds * model if spec.trace else 0
    shared = {share.vector for share in spec.protocol.shares(spec.rounds) if not share.bytes}
    rests = len(shared) * model if spec.wire.kind != "float32" else 0
    best = model if spec.hold_back else 0
    rounds = (STALENESS_BOUND + 2) * (3 * model + rests + rehearsed.busiest)
    return rounds + rehearsed.unchanging + rehearsed.journalled + model + best + traces


def rehearse(spec: Spec, id: str, rehearsal: Rehearsal) -> Rehearsed:
    """What a peer sends in its busiest round and keeps unchanged, by estimate."""
    if spec.protocol.name not in PROTOCOLS:
        # A user's protocol may ask for what a rehearsal lacks: its messages are taken to be one model a round.
        return Rehearsed(rehearsal.model.vector.nbytes, 0)
    among = dict([(id, rehearsal.proportions[id]), *rehearsal.proportions.items()][: REHEARSED + 1])
    dry_run = DryRun(id, spec.protocol, replace(rehearsal, proportions=among))
    counts, drawn = [_result(dry_run.set_up(spec.init))], list[int]()
    for number in sorted({1, (spec.rounds + 1) // 2, spec.rounds}):
        before = dry_run.journalled
        counts.append(_result(dry_run.count(number)))
        drawn.append(dry_run.journalled - before)
    journalled = drawn[0] + (STALENESS_BOUND + 1) * max(drawn[1:], default=0)
    kept = sum(tensor.nbytes for name, tensor in dry_run.state.items() if spec.protocol.keeps(name))
    times = ceil(len(rehearsal.proportions) / len(among))
    return Rehearsed(max(counts) * times, kept * times, journalled * times)


def check_disk(out: Path, needed: int) -> None:
    """InputError when the disk under `out` has less room than a run takes beside what it has written there already."""
    free = shutil.disk_usage(next(path for path in (out, *out.parents) if path.exists())).free
    held = sum(path.stat().st_size for path in out.rglob("*") if path.is_file())
    if free + held < needed:
        raise InputError(
            f"{out}: the disk has {free / 1e6:,.0f} MB free and this run keeps up to {needed / 1e6:,.0f} MB; "
            "make room or give another directory (`out`, --out)"
        )


def _result(counting: Coroutine[None, None, int]) -> int:
    """What a dry run's coroutine returns: it never waits for anything, so it needs no event loop."""
    try:
        counting.send(None)
    except StopIteration as end:
        return int(end.value)
    raise RuntimeError("a dry run waited")
