"""Saving a running peer round by round, and taking it up again where it left off (rules R2 and R3)."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import asdict
from pathlib import Path

from torch import Tensor

from peer.errors import FailedError
from peer.network.membership.durability import STALENESS_BOUND
from peer.network.streams.outbox import Outgoing
from peer.network.wire.frames import decode
from peer.protocols.state import State
from peer.runtime.checkpoint import Checkpoints, Frames, Snapshot
from peer.runtime.local_peer import LocalPeer, Ring, Seconds
from peer.tasks import background, uninterrupted
from peer.telemetry.events import Damaged, Report, Resumed
from peer.telemetry.results import sync_lines
from peer.telemetry.trace import copy


class Checkpointer:
    """Writes a checkpoint while the next round trains; at most one is under way."""

    def __init__(self, directory: Path, peer: LocalPeer, report: Report) -> None:
        self._checkpoints, self._peer, self._report = Checkpoints(directory), peer, report
        self._writing: asyncio.Task[None] | None = None

    @asynccontextmanager
    async def writing(self) -> AsyncIterator[None]:
        """The block in which `save` may be called; a checkpoint under way at its end is written to its end."""
        async with background() as self._tasks:
            yield

    async def save(self, round: int) -> None:
        """Take the state as it is now and write it in the background, after the checkpoint before it."""
        await self.settle()
        snapshot, frames = self._snapshot(round), self._frames(round)
        self._writing = self._tasks.create_task(uninterrupted(self._write, snapshot, frames))

    async def settle(self) -> None:
        """Wait for the checkpoint under way; what goes wrong with it is raised where the block ends."""
        if self._writing:
            await asyncio.wait((self._writing,))

    async def _write(self, snapshot: Snapshot, frames: Frames) -> None:
        await asyncio.to_thread(sync_lines, self._checkpoints.directory.parent)
        await asyncio.to_thread(self._checkpoints.save, snapshot, frames)
        whole = self._checkpoints.rounds()
        if len(whole) > 1:
            self._peer.network.announce(whole[-2])
        await asyncio.to_thread(self._checkpoints.prune, self._peer.network.durability.low_watermark)
        await asyncio.to_thread(self._peer.journal.prune, self._checkpoints.rounds()[0])

    async def finish(self) -> None:
        """Read the last checkpoint back and announce it itself."""
        await self.settle()
        last = self._checkpoints.rounds()[-1]
        why = await asyncio.to_thread(self._checkpoints.damage, last)
        if why:
            raise FailedError(f"the last checkpoint was not written well: {why}; start this peer again")
        self._peer.network.announce(last)

    async def resume(self) -> int:
        """Go back to the newest whole checkpoint; its round, or -1 when there is none.

        FailedError: what this peer may have announced is damaged. It cannot be replayed, as the neighbours have dropped
        their messages of that time: this peer would wait for them for ever.
        """
        self._checkpoints.tidy()
        announced = max(self._checkpoints.rounds(), default=-1) - 1
        whole = []
        for round in reversed(self._checkpoints.rounds()):
            why = await asyncio.to_thread(self._checkpoints.damage, round)
            if why:
                self._report(Damaged(round=round, reason=why))
            else:
                whole.append(round)
        if max(whole, default=-1) < announced:
            raise self._lost(f"no checkpoint of round {announced} or later is whole")
        if not whole:
            self._checkpoints.drop_after(-1)
            return -1
        snapshot, messages = await asyncio.to_thread(self._checkpoints.load, whole[0])
        await self._do_without(snapshot)
        self._checkpoints.drop_after(whole[0])
        self._restore(snapshot)
        self._refill(messages)
        # With no older one left, nothing before the newest can be asked for again; and a peer that announced
        # less than W rounds before its own would wait for itself.
        self._peer.network.announce(max(whole[1] if len(whole) > 1 else whole[0] - 1, whole[0] - STALENESS_BOUND + 1))
        self._report(Resumed(round=whole[0]))
        return whole[0]

    async def _do_without(self, snapshot: Snapshot) -> None:
        """Older messages that are damaged do no harm if every receiver has them on disk, and end the run if not."""
        for at, why in (await asyncio.to_thread(self._checkpoints.damaged_messages, snapshot.round)).items():
            durable = snapshot.facts["durable"]
            used = [peer for way, peer, first, _ in snapshot.facts["edges"] if way == "send" and first <= at]
            asking = [peer for peer in used if durable[peer] < at]
            if asking:
                raise self._lost(f"{why}, and {', '.join(asking)} may still ask for them")
            self._report(Damaged(round=at, reason=f"{why}; every neighbour has them"))

    def _lost(self, what: str) -> FailedError:
        """What no replay brings back; nothing is deleted, so that a copy can be put in its place."""
        return FailedError(
            f"{self._checkpoints.directory}: {what}, so this peer cannot go on; put a copy of its files there, or "
            "begin the federation again (`dfl-launch run --fresh`)"
        )

    def _snapshot(self, round: int) -> Snapshot:
        peer, network = self._peer, self._peer.network
        tensors: dict[str, Tensor] = {"model": copy(peer.model)}
        tensors |= {f"counter/{name}": copy(counter) for name, counter in peer.trained.counters.items()}
        tensors |= {f"optimiser/{name}": tensor for name, tensor in peer.trainer.state().items()}
        tensors |= {f"protocol/{name}": copy(tensor) for name, tensor in peer.state.items()}
        facts = {
            "ring": asdict(peer.ring_order),
            "seconds": asdict(peer.seconds),
            "tensor_bytes": network.audit.tensor_bytes,
            "sent": dict(network.traffic.sent),
            "received": dict(network.traffic.received),
            "edges": network.edges.dump(),
            "durable": dict(network.durability.durable),
            "loss": peer.loss,
        }
        return Snapshot(round, tensors, facts)

    def _frames(self, round: int) -> Frames:
        """The round's frames with their receivers, in the order of writing; one for both neighbours is kept once.

        In another order a neighbour that replays could have no room for the one that it waits for.
        """
        receivers: dict[int, list[str]] = {}
        frames: dict[int, bytes] = {}
        for neighbour, link in self._peer.network.links.items():
            for frame in link.outbox.of_round(round):
                receivers.setdefault(frame.serial, []).append(neighbour)
                frames[frame.serial] = frame.data
        return [(receivers[serial], frames[serial]) for serial in sorted(frames)]

    def _restore(self, snapshot: Snapshot) -> None:
        peer, network, facts = self._peer, self._peer.network, snapshot.facts
        parts: dict[str, dict[str, Tensor]] = {"counter": {}, "optimiser": {}, "protocol": {}}
        for name, tensor in snapshot.tensors.items():
            kind, _, rest = name.partition("/")
            if rest:
                parts[kind][rest] = tensor
        peer.model.copy_(snapshot.tensors["model"])
        for name, counter in peer.trained.counters.items():
            counter.copy_(parts["counter"][name])
        peer.trainer.load_state(parts["optimiser"])
        peer.state = State({name: tensor.to(peer.trained.device) for name, tensor in parts["protocol"].items()})
        peer.round, peer.loss = snapshot.round, facts["loss"]
        network.begin(snapshot.round + 1)
        peer.ring_order = Ring(tuple(facts["ring"]["order"]), facts["ring"]["cost_before"], facts["ring"]["cost_after"])
        peer.seconds = Seconds(**facts["seconds"])
        network.audit.tensor_bytes = facts["tensor_bytes"]
        network.traffic.sent.update(facts["sent"])
        network.traffic.received.update(facts["received"])
        network.reopen(facts["edges"])
        # Those who have finished and left cannot be asked any more how far they are.
        network.durability.learn({other: at for other, at in facts["durable"].items() if other != peer.id})

    def _refill(self, messages: dict[int, Frames]) -> None:
        """Put back what neighbours may still ask for, in the order it was written."""
        for at in sorted(messages):
            for receivers, data in messages[at]:
                frame = decode(data)
                kept = Outgoing(next(self._peer.network.serials), frame.key, frame.index, data)
                for receiver in receivers:
                    link = self._peer.network.links.get(receiver)
                    if link:
                        link.outbox.append(kept)
