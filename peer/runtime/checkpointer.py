"""Saving a running peer round by round, and taking it up again where it left off (rules R2 and R3).

`StateCapture` is what a peer must remember to go on after a crash, out of the peer and back into it. `Checkpointer`
writes it, with the network's and the run's, while the next round trains. A round is announced as durable when the next
one is on disk, too, and the last one once it has been read back.

A resume, in order: what a killed process left half written is removed; the newest whole checkpoint is looked for;
where what this peer may have announced is damaged it cannot go on, as the neighbours have dropped their messages of
that time; what lies after that checkpoint is dropped; state, links and messages are put back; and the others hear up
to which round this peer's are on disk. A checkpoint of an earlier view only gives the state with which the present one
is entered.
"""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

from torch import Tensor

from peer.errors import FailedError, InputError
from peer.learning.data.samples import Standardisation
from peer.learning.device import copies
from peer.network.streams.link import KeptFrames
from peer.plugins import describe_error
from peer.protocols.base import State
from peer.runtime.checkpoints import CheckpointLostError, Checkpoints, Snapshot, tensor_digest
from peer.runtime.communicator import PhaseTimes, RingOrder
from peer.runtime.local_peer import LocalPeer
from peer.runtime.round_reports import RunProgress
from peer.tasks import background, shielded
from peer.telemetry.events import CheckpointDamaged, Report, Resumed
from peer.telemetry.results import sync_lines
from peer.telemetry.trace import copy


class StateCapture:
    """One peer's state, as a checkpoint holds it."""

    def __init__(self, peer: LocalPeer) -> None:
        self._peer, self._protocol = peer, peer.setup.spec.protocol
        self._unchanging: dict[str, str] = {}

    def state_dict(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Everything to go on from: tensors on the CPU, copied as the next round changes them, and plain JSON."""
        changing = {name: tensor for name, tensor in self._peer.state.items() if not self._protocol.keeps(name)}
        tensors = copies(
            {
                "model": self._peer.model,
                **{f"counter/{name}": counter for name, counter in self._peer.trained.counters.items()},
                **{f"protocol/{name}": tensor for name, tensor in changing.items()},
                **{f"wire/{name}": tensor for name, tensor in self._peer.encoding.state.items()},
            }
        )
        tensors |= {f"optimiser/{name}": tensor for name, tensor in self._peer.trainer.state().items()}
        if standard := self._peer.standard:
            tensors["standard"] = standard.vector
        tensors |= {f"behaviour/{name}": tensor for name, tensor in self._peer.misbehaviour.state_dict().items()}
        return tensors, {
            "ring": asdict(self._peer.ring_order),
            "seconds": asdict(self._peer.seconds),
            "loss": self._peer.loss,
            "frozen": self._peer.trained.frozen_sha256,
        }

    async def unchanging(self) -> tuple[dict[str, str], dict[str, Tensor]]:
        """What the protocol keeps unchanged: checksums by name, and, by checksum, copies of what is new.

        InputError when it was changed or is gone: what is on disk already would be something else.
        """
        kept = {f"protocol/{name}": tensor for name, tensor in self._peer.state.items() if self._protocol.keeps(name)}
        if not kept and not self._unchanging:
            return {}, {}
        before, self._unchanging = self._unchanging, await asyncio.to_thread(_digests, kept)
        for name, digest in before.items():
            if self._unchanging.get(name) != digest:
                raise InputError(
                    f"`{self._protocol.name}` declares peer.state[{name.removeprefix('protocol/')!r}] as unchanging "
                    f"and changed it in round {self._peer.round}; leave it as it is or take it out of `unchanging`"
                )
        new = {digest: copy(kept[name]) for name, digest in self._unchanging.items() if name not in before}
        return dict(self._unchanging), new

    def load_state_dict(
        self, round: int, tensors: Mapping[str, Tensor], facts: Mapping[str, Any], unchanging: Mapping[str, str]
    ) -> None:
        """Go on after `round` from what `state_dict` gave then; FailedError when it gave something else.

        `tensors` are with those that `unchanging`, by their checksums, says are on disk already.
        """
        self._check_frozen(round, facts.get("frozen", ""))
        try:
            self._restore(tensors, facts)
        except (KeyError, TypeError, ValueError, RuntimeError) as error:
            raise FailedError(
                f"the checkpoint of round {round} is not of this model and protocol ({describe_error(error)}); "
                f"put a copy of "
                "this peer's files in its place, or begin the federation again (`dfl-launch run --fresh`)"
            ) from error
        self._peer.round, self._unchanging = round, dict(unchanging)

    def _check_frozen(self, round: int, before: str) -> None:
        """What is frozen stands in no checkpoint, but in its own file or code."""
        if (now := self._peer.trained.frozen_sha256) != before:
            raise FailedError(
                f"the frozen weights are others than in round {round} (sha256:{now or 'none'}, and then "
                f"sha256:{before or 'none'}); give the model the weights that it had, or begin the federation again "
                "(`dfl-launch run --fresh`)"
            )

    def _restore(self, tensors: Mapping[str, Tensor], facts: Mapping[str, Any]) -> None:
        self._peer.model.copy_(tensors["model"])
        for name, counter in self._peer.trained.counters.items():
            counter.copy_(tensors[f"counter/{name}"])
        self._peer.trainer.load_state(_under("optimiser/", tensors))
        kept = _under("protocol/", tensors)
        self._peer.state = State({name: tensor.to(self._peer.trained.device) for name, tensor in kept.items()})
        self._peer.encoding.state = _under("wire/", tensors)
        self._peer.misbehaviour.load_state_dict(_under("behaviour/", tensors))
        if "standard" in tensors:
            self._peer.standardise(Standardisation.of_vector(tensors["standard"]))
        self._peer.ring_order = RingOrder(**{**facts["ring"], "order": tuple(facts["ring"]["order"])})
        self._peer.seconds = PhaseTimes(**facts["seconds"])
        self._peer.loss = facts["loss"]


def _digests(tensors: Mapping[str, Tensor]) -> dict[str, str]:
    return {name: tensor_digest(tensor.detach().cpu().contiguous()) for name, tensor in tensors.items()}


def _under(prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}


class Checkpointer:
    """Writes a checkpoint while the next round trains; at most one is under way."""

    def __init__(self, directory: Path, peer: LocalPeer, course: RunProgress, report: Report) -> None:
        self._checkpoints, self._peer, self._report = Checkpoints(directory), peer, report
        self._course, self._seat, self._view = course, peer.setup.seat, peer.setup.view
        self._persistence = StateCapture(peer)
        self._writing: asyncio.Task[None] | None = None

    @asynccontextmanager
    async def writing(self) -> AsyncIterator[None]:
        """The block in which `save` may be called; a checkpoint under way at its end is written to its end."""
        async with background() as self._tasks:
            yield

    async def save(self, round: int) -> None:
        """Take the state as it is now and write it in the background, after the checkpoint before it."""
        await self.settle()
        unchanging, new = await self._persistence.unchanging()
        tensors, facts = await asyncio.to_thread(self._persistence.state_dict)
        facts = {"peer": facts, "network": self._peer.network.state_dict()}
        if course := self._course.state_dict():
            facts["course"] = course
        snapshot = Snapshot(round, tensors, facts, unchanging, new)
        frames = self._peer.network.outgoing_frames(round)
        self._writing = self._tasks.create_task(shielded(self._write, snapshot, frames))

    async def settle(self) -> None:
        """Wait for the checkpoint under way; what goes wrong with it is raised where the block ends."""
        if self._writing:
            await asyncio.wait((self._writing,))

    async def _write(self, snapshot: Snapshot, frames: KeptFrames) -> None:
        await asyncio.to_thread(sync_lines, self._checkpoints.directory.parent)
        await asyncio.to_thread(self._checkpoints.save, snapshot, frames)
        whole = self._checkpoints.rounds()
        if len(whole) > 1:
            self._announce(whole[-2])
        network = self._peer.network
        wanted = {snapshot.round, *network.rounds_still_needed()}  # the newest go with the next checkpoint
        await asyncio.to_thread(self._checkpoints.prune, self._seat.least_wanted(network.durability), wanted)
        await asyncio.to_thread(self._peer.journal.prune, self._checkpoints.rounds()[0])

    def _announce(self, durable: int) -> None:
        self._peer.network.announce(self._seat.tellable(durable))

    async def finish(self) -> None:
        """Read the last checkpoint back and announce it itself."""
        await self.settle()
        if not (rounds := self._checkpoints.rounds()):
            return  # taken in by a view that was over before its first round
        last = rounds[-1]
        why = await asyncio.to_thread(self._checkpoints.damage, last)
        if why:
            raise FailedError(f"the last checkpoint was not written well: {why}; start this peer again")
        self._announce(last)

    async def resume(self) -> int:
        """Go back to the newest whole checkpoint; its round, or -1 when there is none.

        FailedError: what this peer may have announced is damaged. It cannot be replayed, as the neighbours have dropped
        their messages of that time: this peer would wait for them for ever.
        """
        self._checkpoints.tidy()
        newest = max(self._checkpoints.rounds(), default=-1)
        announced = newest - 1 if newest >= self._view.first else -1
        whole = []
        for round in reversed(self._checkpoints.rounds()):
            why = await asyncio.to_thread(self._checkpoints.damage, round)
            if why:
                self._report(CheckpointDamaged(round=round, reason=why))
            else:
                whole.append(round)
        if max(whole, default=-1) < announced:
            raise self._lost(f"no checkpoint of round {announced} or later is whole")
        if not whole:
            self._checkpoints.drop_after(-1)
            return self._begin_anew()
        snapshot, messages = await asyncio.to_thread(self._checkpoints.load, whole[0])
        if whole[0] >= self._view.first:
            await self._do_without(snapshot)
        self._checkpoints.drop_after(whole[0])
        self._persistence.load_state_dict(snapshot.round, snapshot.tensors, snapshot.facts["peer"], snapshot.unchanging)
        if whole[0] < self._view.first:
            return self._enter(snapshot)
        self._peer.network.load_state_dict(snapshot.round, snapshot.facts["network"])
        self._course.load_state_dict(snapshot.facts.get("course", {}))
        for at in sorted(messages):
            self._peer.network.load_frames(messages[at])
        # With no older one left, nothing before the newest can be asked for again; and a peer that announced
        # less than W rounds before its own would wait for itself.
        self._announce(self._seat.told_before(whole))
        self._report(Resumed(round=whole[0]))
        return whole[0]

    def _enter(self, snapshot: Snapshot) -> int:
        """Begin in a later view than that of the checkpoint; the round before its first one."""
        before = self._view.first - 1
        brought = dict(self._view.entrants).get(self._peer.id, before)
        if snapshot.round != brought:
            raise self._lost(f"this peer is to go on from its round {brought}, and that checkpoint is not whole")
        self._course.load_state_dict(snapshot.facts.get("course", {}))
        self._peer.begin_view()
        self._peer.network.begin_view(self._view.first, snapshot.facts["network"], self._known_to_have(before))
        self._announce(before)
        self._report(Resumed(round=snapshot.round))
        return before

    def _begin_anew(self) -> int:
        """With nothing on disk: at the start of the run, or taken in with new private state."""
        before = self._view.first - 1
        if before >= 0 and self._peer.id not in dict(self._view.entrants):
            raise self._lost(f"all go back to round {before}, and no checkpoint is whole")
        if before >= 0:
            self._peer.network.begin_view(
                self._view.first, self._peer.network.state_dict(), self._known_to_have(before)
            )
            self._announce(before)
        return before

    def _known_to_have(self, before: int) -> dict[str, int]:
        """Of whom it is known without a word that they have the round before this view on disk.

        Those who went back to it. Before a planned view only neighbours have waited for each other.
        """
        others = [id for id in self._view.members if id != self._peer.id]
        return {} if self._view.planned else dict.fromkeys(others, before)

    async def _do_without(self, snapshot: Snapshot) -> None:
        """Older messages that are damaged do no harm if every receiver has them on disk, and end the run if not."""
        for at, why in (await asyncio.to_thread(self._checkpoints.damaged_messages, snapshot.round)).items():
            asking = self._peer.network.receivers_without(at, snapshot.facts["network"])
            if asking:
                raise self._lost(f"{why}, and {', '.join(asking)} may still ask for them")
            self._report(CheckpointDamaged(round=at, reason=f"{why}; every neighbour has them"))

    def _lost(self, what: str) -> CheckpointLostError:
        """What no replay brings back; nothing is deleted, so that a copy can be put in its place."""
        return CheckpointLostError(
            f"{self._checkpoints.directory}: {what}, so this peer cannot go on; put a copy of its files there, or "
            "begin the federation again (`dfl-launch run --fresh`)"
        )
