"""One peer's end of the federation: its links, what arrives on them, and which rounds are safely on disk."""

import asyncio
import struct
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import count
from typing import Any

from peer.errors import FailedError
from peer.network.heartbeat import Heartbeats
from peer.network.membership.durability import Durability
from peer.network.membership.edges import Direction, Edges, Neighbour
from peer.network.streams.audit import Audit
from peer.network.streams.handshake import Identity
from peer.network.streams.inbox import Inbox, Message
from peer.network.streams.link import Link
from peer.network.streams.message_writer import MessageWriter
from peer.network.streams.receiver import Receiver
from peer.network.streams.traffic import Traffic
from peer.network.transport import DisconnectedError, Pipe, Service, Transport
from peer.network.wire.frames import Key, frame_count
from peer.network.wire.manifest import Manifest, NotDeclaredError
from peer.network.wire.messages import Reply, Resources, Welcome
from peer.telemetry.events import Report

LEAVE_SECONDS = 5.0
"""How long a peer that has finished tries to tell a neighbour so: it may be paused, or gone for good."""
BEATS = "heartbeat"
"""Name of the tasks that send signs of life."""


class Network:
    """What the collectives stand on: frames to neighbours, messages from them, all keyed by round and step."""

    def __init__(
        self,
        identity: Identity,
        addresses: Mapping[str, str],
        manifest: Manifest,
        transport: Transport,
        report: Report,
        state: Callable[[], tuple[str, int]],
        resources: Callable[[], Resources],
    ) -> None:
        self.identity, self.manifest = identity, manifest
        self.audit, self.traffic = Audit(), Traffic()
        self.edges, self.durability = Edges(addresses), Durability(tuple(addresses))
        self.links: dict[str, Link] = {}
        self.serials = count()
        """Numbers of the frames that are written."""
        self.failure: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Raises when something below failed for good."""
        self._transport, self._tasks = transport, dict[str, list[asyncio.Task[None]]]()
        self._receiver = Receiver(identity, manifest, self.edges, self.durability, self.audit, self.traffic, report)
        self._heartbeats = Heartbeats(
            identity, self.edges, self.durability, transport, self.traffic, report, state, resources, self._reminded
        )

    async def listen(self) -> None:
        """Open the server; InputError when the address is in use."""
        await self._transport.listen(self._accept)
        self._spawn("", self._transport.watch())
        self._spawn("", self._heartbeats.watch())
        self._spawn("", self._watch_durability())

    def use(self, round: int, receivers: Sequence[str], senders: Sequence[str]) -> None:
        """From this round on, messages go to `receivers` and come from `senders`."""
        self.edges.use(round, receivers, senders)
        self.audit.authorise(round, receivers, senders)
        self._open_links()

    def reopen(self, edges: Iterable[tuple[Direction, str, int, int | None]]) -> None:
        """Take up the edges of a checkpoint."""
        self.edges.load(edges)
        self._open_links()

    def _open_links(self) -> None:
        """A stream of tensors to each receiver; of heartbeats one a pair, whichever way its tensors go."""
        for peer, neighbour in self.edges.neighbours.items():
            if self.edges.has("send", peer) and peer not in self.links:
                link = self.links[peer] = Link(neighbour, self.identity, self._transport, self.traffic, self._welcomed)
                self._spawn(peer, link.run())
                self._spawn(peer, self._until_rejected(link))
            if self.identity.id < peer and not any(task.get_name() == BEATS for task in self._tasks.get(peer, [])):
                self._spawn(peer, self._heartbeats.run(neighbour), BEATS)

    def writer(
        self,
        to: Sequence[str],
        round: int,
        step: int,
        name: str,
        length: int,
        scalars: Sequence[float] = (),
        offset: int = 0,
    ) -> MessageWriter:
        """Begin a message of `length` floats, which lie `offset` floats into the vector that `name` declares."""
        for peer in to:
            if not self.edges.allows("send", peer, round):
                raise NotDeclaredError(f"`{peer}` is no receiver of `{self.identity.id}` in round {round}")
        number = self.manifest.number(name, round)
        self.manifest.check(number, round, len(scalars), offset, length)
        packed = struct.pack(f"<{len(scalars)}d", *scalars)
        self.audit.wrote(round, to, self.manifest.payloads[number], offset, length, len(scalars))
        boxes = [self.links[peer].outbox for peer in to]
        return MessageWriter(boxes, self.serials, Key(self.identity.view, round, step), number, packed, offset, length)

    def begin(self, round: int) -> None:
        """This peer is in that round now."""
        self._receiver.begin(round)

    def inbox(self, sender: str) -> Inbox:
        return self._receiver.inbox(sender)

    async def message(
        self,
        sender: str,
        round: int,
        step: int,
        name: str,
        length: int | None,
        doubles: int = 0,
        offset: int = 0,
        frames: int | None = None,
    ) -> Message:
        """The message of that key, once it or so many of its frames are here; of any length that is declared, if None.

        FailedError if it is another vector or record than every peer sends under this key, or another part of it.
        """
        number = self.manifest.number(name, round)
        longest = self.manifest.payloads[number].floats if length is None else length
        message = await self.inbox(sender).message(self.key(round, step), frames or frame_count(longest))
        expected = (number, offset, message.length if length is None else length, doubles)
        if (message.payload, message.offset, message.length, message.doubles) != expected:
            declared = self.manifest.payloads[message.payload].name
            raise FailedError(
                f"{sender} sent {message.length} values of `{declared}` and {message.doubles} numbers in round {round} "
                f"where {expected[2]} of `{name}` and {doubles} belong; compare its code with this peer's"
            )
        return message

    def stalled(self) -> Iterator[tuple[Neighbour, Key, int]]:
        """Who keeps this peer waiting now, for which message, and how many of its frames are here."""
        for sender, inbox in self._receiver.inboxes.items():
            if inbox.awaited and (neighbour := self.edges.neighbours.get(sender)):
                message = inbox.messages.get(inbox.awaited)
                yield neighbour, inbox.awaited, message.next if message else 0

    def key(self, round: int, step: int) -> Key:
        return Key(self.identity.view, round, step)

    def announce(self, durable: int) -> None:
        """Rounds up to `durable` are on this peer's disk (rule R3)."""
        self.durability.learn({self.identity.id: durable})

    async def leave(self) -> None:
        """Tell the neighbours the last news, and close everything once they have ended their streams."""
        with suppress(TimeoutError):
            await asyncio.wait_for(self._heartbeats.part(), LEAVE_SECONDS)
        await self.close()

    async def close(self) -> None:
        """Drop all links at once."""
        self._heartbeats.closing = True
        tasks = [task for tasks in self._tasks.values() for task in tasks]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._transport.close()

    async def _accept(self, service: Service, pipe: Pipe) -> None:
        """An incoming stream."""
        try:
            if service == "Tensors":
                await self._receiver.tensors(pipe)
            else:
                await self._accept_heartbeat(pipe)
        except DisconnectedError:
            return

    async def _accept_heartbeat(self, pipe: Pipe) -> None:
        admitted = await self._receiver.admit(pipe, ("send", "receive"))
        if admitted is None:
            return
        durable = self.durability.durable[self.identity.id]
        await admitted.send(Reply(welcome=Welcome(durable=durable)).SerializeToString())
        await self._heartbeats.accept(admitted)

    def _welcomed(self, peer: str, durable: int) -> None:
        self.durability.learn({peer: durable})
        self.links[peer].outbox.release(durable)
        self.edges.introduce("send", peer)

    async def _watch_durability(self) -> None:
        """Release what is durable elsewhere (R4) and forget edges that both ends are past (R7)."""
        while True:
            version = self.durability.version
            for peer, link in self.links.items():
                link.outbox.release(self.durability.durable[peer])
            for peer in self.edges.retire(self.durability.durable, self.durability.durable[self.identity.id]):
                self.links.pop(peer, None)
                for task in self._tasks.pop(peer, []):
                    task.cancel()
            await self.durability.beyond(version)

    async def _until_rejected(self, link: Link) -> None:
        """End this peer: without its neighbour it cannot go on, and to try for ever would hide wrong code."""
        why, other = await link.rejected, link.neighbour.id
        raise FailedError(
            f"{other} {why}; either this peer's code sends what its protocol does not declare, or {other} runs other "
            "code or does not tell the truth: compare the two, then start this peer again"
        )

    def _reminded(self, durable: int) -> None:
        """A neighbour says which round of this peer is on disk: what was announced once must not be lost."""
        present = max(self.durability.durable[self.identity.id], self._receiver.round - 1)
        if durable > present and not self.failure.done():
            error = f"the others have seen round {durable} of this peer on disk, and its checkpoints end before that"
            self.failure.set_exception(
                FailedError(f"{error}; restore its checkpoint/ or start the whole federation anew (--fresh)")
            )

    def _spawn(self, peer: str, work: Coroutine[Any, Any, None], name: str = "link") -> None:
        task = asyncio.get_running_loop().create_task(work, name=name)
        task.add_done_callback(self._ended)
        self._tasks.setdefault(peer, []).append(task)

    def _ended(self, task: "asyncio.Task[None]") -> None:
        error = None if task.cancelled() else task.exception()
        if error and not self.failure.done():
            self.failure.set_exception(error)
