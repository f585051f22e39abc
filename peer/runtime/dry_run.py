"""Dry runs: they count what a protocol would send, and what its peers would need on disk.

The protocol's own rounds run against a `Peer` with the real model that trains nothing, has no clock, receives its own
vectors from every neighbour and counts the bytes that it would send: no protocol has to state its traffic separately,
and a wrong call shows before anything is started. From these counts follows how much disk a peer needs at most
(`disk_needed`), so that it can say so before it starts rather than when the disk is full.
"""

import asyncio
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import ceil
from pathlib import Path
from typing import Any, NamedTuple, TypeVar, assert_never

import numpy as np
import torch
from torch import Tensor

from peer.errors import InputError
from peer.files import disk_usage
from peer.learning.data.samples import Samples
from peer.learning.model.model import Model
from peer.learning.named_tensors import named_sha256
from peer.learning.randomness import derive, draw_from, sample_streams, torch_generator
from peer.learning.training.phase import Phase
from peer.network.collectives import Pending
from peer.protocols.base import Received, Resources, State
from peer.protocols.declarations import Share
from peer.protocols.registry import PROTOCOLS
from peer.runtime.rounds.admission import first_rows
from peer.runtime.rounds.calls import CheckedCall, CheckedPeer, plain_notes
from peer.spec.federation import Spec
from peer.views.view import STALENESS_BOUND

T = TypeVar("T")
DRY_RUN_SAMPLES = 32
"""How many of a peer's samples a dry run has, for protocols that look at them."""
NUDGE = 1e-3
"""How far a dry run's training moves each weight at most; not 0, as protocols may divide by differences."""
FLOAT64_BYTES = 8
KNOWN_RECORDS = ("proportions", "order")
"""Records for which a dry run knows the other peers' numbers; for all others it gets its own from every peer."""


@dataclass(frozen=True)
class DryRunInput:
    """The input of a dry run: spec and model, some of a peer's samples, and the proportions of the whole federation."""

    spec: Spec
    model: Model
    data: Samples
    proportions: Mapping[str, Tensor]
    """Every peer's q_i, float64 (classes,), by id, in the ring's order."""
    validation: Samples | None = None


class Token(NamedTuple):
    """A call of `pass_token`, or else of `receive_token`, of a vector, with the left neighbour at that time."""

    round: int
    passed: bool
    vector: str
    left: str


class DryRun(CheckedPeer):
    """A peer that only counts.

    `sent` is what it has sent so far, in bytes of tensors and numbers; `journalled` what it has drawn by `once`, in
    bytes. `calls` lists the calls in which all peers take part, as (round, collective, vector or record, names of
    numbers); they are the same at every peer. `tokens` lists the calls that pass or receive one.
    """

    rehearsal = True

    def __init__(self, id: str, rehearsal: DryRunInput, journal: list[Tensor] | None = None) -> None:
        """journal: keeps what is drawn by `once`; what is in it already is taken, as after a crash."""
        spec, model = rehearsal.spec, rehearsal.model
        self.id, self.members, self.ring = id, tuple(rehearsal.proportions), tuple(rehearsal.proportions)
        self.round, self.rounds, self.samples = 0, spec.rounds, len(rehearsal.data)
        self.proportions = rehearsal.proportions[id]
        self.task, self.layout = model.task, model.layout
        self.data = rehearsal.data.first(DRY_RUN_SAMPLES).to(model.device)
        public = rehearsal.validation and rehearsal.validation.first(DRY_RUN_SAMPLES)
        self.validation = public.to(model.device) if public else None
        self.state = State()
        self.sent = self.journalled = 0
        self.calls: list[tuple[int | str, ...]] = []
        self.tokens: list[Token] = []
        self._spec, self._rehearsal = spec, rehearsal
        self._journal, self._recalled = journal, iter([*(journal or ())])
        self._weights = model.vector.detach().clone()
        super().__init__(spec, model)

    async def set_up(self) -> int:
        """Play round 0; return the bytes sent."""
        first_rows(self._protocol, self.state, len(self.members))
        await self._protocol.start(self, self._spec.init)
        return self.sent

    async def count(self, round: int) -> int:
        """Play a round; return the bytes sent. Rounds must ascend; some may be left out."""
        before, self.round, own = self.sent, round, {*vars(self)}
        await self._protocol.round(self)
        for name in {*vars(self)} - own:
            raise InputError(
                f"`{self._protocol.name}` sets `peer.{name}`, which a crash would lose; write peer.state[{name!r}] "
                "= ..., or a variable of the round's own"
            )
        if self._failed:
            raise self._failed
        self._protocol.state_contract.check(self)
        return self.sent - before

    def digests(self) -> dict[str, str]:
        """The SHA-256 of the model, and of all that is kept in `peer.state`, by name."""
        known = {"the model": self._weights} | {f"peer.state[{name!r}]": one for name, one in self.state.items()}
        return {name: named_sha256({name: one}) for name, one in known.items()}

    def never_awaited(self) -> list[str]:
        """The methods that were called without `await`."""
        return [name for name, call in self._made if not call.awaited]

    @property
    def model(self) -> Tensor:  # type: ignore[override]
        return self._weights

    @property
    def extractor(self) -> Tensor:  # type: ignore[override]
        return self._weights[self._rehearsal.model.part("extractor")]

    @property
    def head(self) -> Tensor:  # type: ignore[override]
        return self._weights[self._rehearsal.model.part("head")]

    async def train(self, *phases: Phase) -> float:
        with self._around_training(phases):
            generator = torch_generator(self._spec.seed, self.id, self.round, "rehearsal")
            for where in self._rehearsal.model.trainable("model"):
                part = self._weights[where]
                part.add_(torch.empty(part.shape).uniform_(-NUDGE, NUDGE, generator=generator).to(part.device))
            await asyncio.sleep(0)  # as in `_receive`
        return 1.0

    async def accuracy(self) -> float:
        return 1.0

    def logits(self, vector: Tensor, x: Tensor, training: bool = False) -> Tensor:
        return self._rehearsal.model.logits(vector, x, training=training, seed=0)

    def batches(self, size: int, epochs: int = 1) -> Iterator[Tensor]:
        positions = torch.arange(len(self.data), device=self._weights.device)
        return (batch for _ in range(epochs) for batch in torch.split(positions, size))

    async def compute(self, function: Callable[..., T], *arguments: Any) -> T:
        self._check_function(function)
        with sample_streams():
            draw_from(derive(self._spec.seed, self.id, self.round, "compute"))
            return function(*arguments)

    def forget(self, optimiser: str) -> None:
        pass

    async def once(self, make: Callable[[], Tensor]) -> Tensor:
        self._check_function(make, "once")
        if (made := next(self._recalled, None)) is None:
            made = self._check_drawn(make())
            if self._journal is not None:
                self._journal.append(made.clone())
        self.journalled += made.nbytes
        return made

    async def resources(self) -> Resources:
        return Resources(1.0, 1.0, dict.fromkeys(self.members, 1e6))

    def shared_generator(self, purpose: str) -> np.random.Generator:
        return np.random.default_rng(derive(self._spec.seed, self.round, purpose))

    def note(self, **values: float | Sequence[float]) -> None:
        plain_notes(self._protocol.name, values, self.round)

    def _start(self, call: CheckedCall) -> Pending[dict[str, Received]]:
        lengths = [self._encoding.length(call.share, vector.numel()) for vector in call.vectors.values()]
        once, others = sum(lengths) + FLOAT64_BYTES * len(call.numbers) * len(lengths), len(self.members) - 1
        match call.collective:
            case "exchange" | "token":
                self.sent += once
            case "all_gather":
                self.sent += others * once
            case "weighted_mean":
                self.sent += 2 * others * once // len(self.members)
            case other:
                assert_never(other)
        if call.collective == "token":
            self.tokens.append(Token(self.round, bool(call.vectors), call.share.vector, self.left))
        else:
            self.calls.append((self.round, call.collective, call.share.vector, *call.numbers))
        first = next(iter(call.vectors.values()), None)
        own = self._stand_in(call.share) if first is None else first.clone()
        return Pending(lambda: self._receive(call, own))

    async def _receive(self, call: CheckedCall, vector: Tensor) -> dict[str, Received]:
        await asyncio.sleep(0)  # as others are waited for in a run: so a call is refused that begins meanwhile
        return {id: Received(vector.clone(), call.numbers) for id in call.senders}

    def _stand_in(self, share: Share) -> Tensor:
        """What another peer may send of a vector: this peer's own, or zeros if it has none."""
        if share.own and share.vector not in self.state:
            length = self._length(share) or share.size or self._weights.numel()
            return torch.zeros(length, dtype=torch.uint8 if share.bytes else torch.float32)
        return self._vector(share).clone()

    async def _gather(self, record: str, numbers: Sequence[float]) -> Mapping[str, Sequence[float]]:
        self.calls.append((self.round, "gather", record))
        self.sent += FLOAT64_BYTES * len(numbers) * (len(self.members) - 1)
        await asyncio.sleep(0)  # as in `_receive`
        known = self._rehearsal.proportions if record == "proportions" else {}
        return {id: known[id].tolist() if id in known else numbers for id in self.members}

    def _use_ring(self, order: tuple[str, ...], cost_before: float, cost_after: float) -> None:
        self.ring = order


FLOAT32_BYTES = 4
MAX_COUNTED_PEERS = 64
"""How many peers of a larger federation are counted, as ordering a ring of thousands takes seconds. With N times as
many peers, a peer sends at most N times as much."""


class DryRunFigures(NamedTuple):
    """What a dry run finds about one peer, in bytes."""

    busiest: int
    """Bytes sent in the busiest round."""
    unchanging: int
    """Bytes in `peer.state` that never change and are written once."""
    journalled: int = 0
    """Bytes drawn by `once` in the rounds that may be replayed."""


def disk_needed(spec: Spec, model_floats: int, rehearsed: DryRunFigures) -> int:
    """Estimate how many bytes on disk a peer needs at most.

    These are the checkpoints that the staleness bound and `keep` keep, each with the model, two moments per parameter,
    the messages of a round and what an encoding keeps of each vector; what never changes; the final model; with
    `trace`, every round's start, before, after and passes; with `hold_back`, the best model; and the journal.
    """
    model = FLOAT32_BYTES * model_floats
    traces = (3 + ceil(len(spec.ring) / 2)) * spec.rounds * model if spec.trace else 0
    shared = {share.vector for share in spec.protocol.shares(spec.rounds) if not share.bytes}
    rests = len(shared) * model if spec.wire.kind != "float32" else 0
    best = model if spec.hold_back else 0
    kept = min(spec.keep.last, spec.rounds // spec.keep.every) if spec.keep else 0
    rounds = (STALENESS_BOUND + 2 + kept) * (3 * model + rests + rehearsed.busiest)
    return rounds + rehearsed.unchanging + rehearsed.journalled + model + best + traces


def dry_run_figures(id: str, rehearsal: DryRunInput) -> DryRunFigures:
    """Estimate what a peer sends in its busiest round, keeps unchanged and writes to its journal."""
    spec = rehearsal.spec
    if spec.protocol.name not in PROTOCOLS:
        # A user's protocol may need what a dry run lacks, so it is assumed to send one model a round.
        return DryRunFigures(rehearsal.model.vector.nbytes, 0)
    among = dict([(id, rehearsal.proportions[id]), *rehearsal.proportions.items()][: MAX_COUNTED_PEERS + 1])
    dry_run = DryRun(id, replace(rehearsal, proportions=among))
    counts, drawn = [_run_to_end(dry_run.set_up())], list[int]()
    for number in sorted({1, (spec.rounds + 1) // 2, spec.rounds}):
        before = dry_run.journalled
        counts.append(_run_to_end(dry_run.count(number)))
        drawn.append(dry_run.journalled - before)
    journalled = drawn[0] + (STALENESS_BOUND + 1) * max(drawn[1:], default=0)
    kept = sum(
        tensor.nbytes for name, tensor in dry_run.state.items() if spec.protocol.state_contract.is_unchanging(name)
    )
    times = ceil(len(rehearsal.proportions) / len(among))
    return DryRunFigures(max(counts) * times, kept * times, journalled * times)


def check_disk(out: Path, needed: int) -> int:
    """The bytes that are free under `out`; InputError if a run needs more beyond what it has written there."""
    free = disk_usage(out).free
    held = sum(path.stat().st_size for path in out.rglob("*") if path.is_file())
    if free + held < needed:
        raise InputError(
            f"{out}: the disk has {free / 1e6:,.0f} MB free and this run keeps up to {needed / 1e6:,.0f} MB; "
            "make room or give another directory (`out`, --out)"
        )
    return free


def _run_to_end(counting: Coroutine[Any, None, int]) -> int:
    """The result of a dry run's coroutine, which never waits for an event and so needs no event loop."""
    try:
        while counting.send(None) is None:
            pass
    except StopIteration as end:
        return int(end.value)
    raise RuntimeError("a dry run waited")
