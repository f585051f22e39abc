"""One peer, made of its parts.

- `Participant`: the peer as the runtime sees it. It has a learner (model, data and trainer), the present round, a
  communicator for the protocol's calls, and what the protocol keeps in `peer.state`. What must survive a crash is in
  its `state_dict`, to which each part contributes.
- `LocalPeer`: the peer as a protocol sees it, and no more.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from operator import attrgetter
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from peer.errors import FailedError, InputError
from peer.learning.device import copies
from peer.learning.training.phase import Phase
from peer.network.network import Network
from peer.plugins import describe_error
from peer.protocols.base import Received, Resources, State
from peer.runtime.checkpoints import Journal, tensor_digest, under
from peer.runtime.lifecycle import Lifecycle
from peer.runtime.rounds.admission import PerMemberState
from peer.runtime.rounds.calls import CheckedCall, CheckedPeer, Communicator, RingOrder, plain_notes
from peer.runtime.rounds.learner import Learner
from peer.runtime.rounds.round import Round
from peer.runtime.setup import Setup
from peer.spec.recordings import RESOURCES_NOTE, as_noted
from peer.telemetry.trace import Trace, copy

T = TypeVar("T")
GIB = 1 << 30


class Participant:
    """One peer as the runtime sees it."""

    def __init__(self, setup: Setup, network: Network, executor: Executor, lifecycle: Lifecycle) -> None:
        spec = setup.spec
        self.setup, self.network, self.lifecycle = setup, network, lifecycle
        self.learner = Learner(setup, executor, lifecycle)
        self.journal = Journal(setup.out / "journal")
        self.round = Round(0, network, self.journal)
        self.state = State()
        """The protocol's state (`peer.state`)."""
        self.face = LocalPeer(self)
        self.communicator = Communicator(self.face, spec, setup.model, lifecycle, self.round)
        self.rows = PerMemberState(spec.protocol, spec.ids)
        self._unchanging: dict[str, str] = {}
        """Checksums of the protocol's unchanging tensors that are on disk, by name in a checkpoint."""

    def begin(self, number: int, trace: Trace | None = None) -> None:
        """Begin a round: its messages and values are numbered from the start."""
        self.lifecycle.round = number
        self.round = Round(number, self.network, self.journal, trace)
        self.communicator.begin(self.round)
        self.network.begin_round(number)
        around = self.face._neighbourhood()
        self.network.audit.note_edges(number, around.receivers, around.senders)

    def use_first_edges(self) -> None:
        """Open the links of the view's ring; a resumed peer has those of its checkpoint."""
        around = self.face._neighbourhood()
        self.network.set_edges(self.setup.view.first, around.receivers, around.senders)

    def take_members(self) -> None:
        """Replace the ring and the per-member rows of an earlier view with those of this one."""
        before = [id for id in self.rows.ids if id in self.communicator.ring.order]
        self.rows.remap(self.state, before, self.face.members)
        self.communicator.ring = RingOrder(self.face.members)

    def state_dict(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """What must survive a crash: copies of tensors on the CPU, as the next round changes them, and plain JSON."""
        learner, learner_facts = self.learner.state_dict()
        communicator, facts = self.communicator.state_dict()
        tensors = {**learner, **copies(self._kept(unchanging=False)), **communicator}
        return tensors, {**facts, "seconds": dict(self.lifecycle.times), **learner_facts}

    async def unchanging(self) -> tuple[dict[str, str], dict[str, Tensor]]:
        """The protocol's unchanging tensors: checksums by name, and copies of new ones by checksum.

        InputError if one was changed or removed, as it would differ from what is already on disk.
        """
        protocol, kept = self.setup.spec.protocol.name, self._kept(unchanging=True)
        if not kept and not self._unchanging:
            return {}, {}
        before, self._unchanging = self._unchanging, await asyncio.to_thread(digests, kept)
        for name, digest in before.items():
            if self._unchanging.get(name) != digest:
                raise InputError(
                    f"`{protocol}` declares peer.state[{name.removeprefix('protocol/')!r}] as unchanging and "
                    f"changed it in round {self.lifecycle.round}; leave it as it is or take it out of `unchanging`"
                )
        new = {digest: copy(kept[name]) for name, digest in self._unchanging.items() if name not in before}
        return dict(self._unchanging), new

    def _kept(self, unchanging: bool) -> dict[str, Tensor]:
        """The protocol's tensors that never change, or those that do, by name in a checkpoint."""
        is_unchanging = self.setup.spec.protocol.state_contract.is_unchanging
        return {f"protocol/{name}": tensor for name, tensor in self.state.items() if is_unchanging(name) == unchanging}

    def load_state_dict(
        self, round: int, tensors: Mapping[str, Tensor], facts: Mapping[str, Any], unchanging: Mapping[str, str]
    ) -> None:
        """Go on after `round` from the result of `state_dict`; FailedError if it is of another model or protocol.

        `tensors` include those that `unchanging` lists by checksum, which are already on disk.
        """
        self.learner.check_frozen(round, facts.get("frozen", ""))
        try:
            self.learner.load_state_dict(tensors, facts)
            self.communicator.load_state_dict(under("wire/", tensors), under("behaviour/", tensors), facts)
            device = self.learner.model.device
            self.state = State({name: tensor.to(device) for name, tensor in under("protocol/", tensors).items()})
            self.lifecycle.times = dict(facts["seconds"])
        except (KeyError, TypeError, ValueError, RuntimeError) as error:
            raise FailedError(
                f"the checkpoint of round {round} is not of this model and protocol ({describe_error(error)}); put a "
                "copy of this peer's files in its place, or begin the federation again (`dfl-launch run --fresh`)"
            ) from error
        self.lifecycle.round, self._unchanging = round, dict(unchanging)


def digests(tensors: Mapping[str, Tensor]) -> dict[str, str]:
    return {name: tensor_digest(tensor.detach().cpu().contiguous()) for name, tensor in tensors.items()}


def _of_participant(path: str, writable: bool = False) -> Any:
    """A property that reads, or writes, an attribute of the participant; `Peer` declares its type."""

    def write(peer: "LocalPeer", value: object) -> None:
        setattr(peer._own, path, value)

    read = attrgetter(f"_own.{path}")
    return property(read, write if writable else None)


class LocalPeer(CheckedPeer):
    """What a protocol gets: each call and each attribute goes to the part that it belongs to."""

    round = _of_participant("lifecycle.round")
    ring = _of_participant("communicator.ring.order")
    samples = _of_participant("learner.samples")
    proportions = _of_participant("learner.proportions")
    data = _of_participant("learner.trainer.samples")
    task = _of_participant("learner.model.task")
    validation = _of_participant("learner.shard.validation")
    model = _of_participant("learner.model.vector")
    extractor = _of_participant("learner.model.extractor")
    head = _of_participant("learner.model.head")
    layout = _of_participant("learner.model.layout")
    state = _of_participant("state", writable=True)

    def __init__(self, participant: Participant) -> None:
        setup, spec, model = participant.setup, participant.setup.spec, participant.setup.model
        self._own = participant
        self.id, self.members, self.rounds = setup.config.id, setup.view.members, spec.rounds
        super().__init__(spec, model, model.vector if spec.init == "shared" else None)

    def _start(self, call: CheckedCall) -> Awaitable[dict[str, Received]]:
        return self._own.communicator.start(call)

    async def _gather(self, record: str, numbers: Sequence[float]) -> Mapping[str, Sequence[float]]:
        return await self._own.communicator.gather(record, numbers)

    def _use_ring(self, order: tuple[str, ...], cost_before: float, cost_after: float) -> None:
        self._own.communicator.use_ring(order, cost_before, cost_after)

    async def train(self, *phases: Phase) -> float:
        with self._around_training(phases):
            return await self._own.learner.train(phases, self._own.round)

    async def accuracy(self) -> float:
        return await self._own.learner.accuracy()

    def logits(self, vector: Tensor, x: Tensor, training: bool = False) -> Tensor:
        return self._own.learner.trainer.logits(vector, x, training, self.round)

    def batches(self, size: int, epochs: int = 1) -> Iterator[Tensor]:
        return self._own.learner.trainer.batches(size, self.round, epochs)

    async def compute(self, function: Callable[..., T], *arguments: Any) -> T:
        self._check_function(function)
        return await self._own.learner.compute_drawing(self._own.round, function, *arguments)

    def forget(self, optimiser: str) -> None:
        self._own.learner.trainer.drop(optimiser)

    async def once(self, make: Callable[[], Tensor]) -> Tensor:
        """The result of `make`, or what it was before a crash; on disk before anything that depends on it leaves."""
        own = self._own
        number, value = await own.round.recall()
        if value is None:
            self._check_function(make, "once")
            value = await own.round.keep(number, self._check_drawn(await own.learner.compute(make)))
        return value.to(own.learner.model.device)

    async def resources(self) -> Resources:
        """The peer's resources, measured or given, once a round."""
        round = self._own.round
        if round.resources is None:
            values = (await self.once(self._measure)).tolist()
            round.resources = Resources(values[0], values[1], dict(zip(self.members, values[2:], strict=True)))
            self.note(**{RESOURCES_NOTE: values})
        return round.resources

    def _measure(self) -> Tensor:
        if (pinned := self._own.setup.pinned_resources) is not None:
            return torch.tensor(as_noted(pinned(self.round)), dtype=torch.float64)
        now = self._own.network.resources()
        rates = [now.bytes_per_second.get(peer, 0.0) for peer in self.members]
        return torch.tensor([now.free_cpus, now.free_memory_bytes / GIB, *rates], dtype=torch.float64)

    def shared_generator(self, purpose: str) -> np.random.Generator:
        return self._own.round.shared_generator(self._own.setup.spec.seed, purpose)

    def note(self, **values: float | Sequence[float]) -> None:
        self._own.round.notes |= plain_notes(self._protocol.name, values, self.round)
