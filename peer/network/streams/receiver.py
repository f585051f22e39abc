"""The incoming side: who is let in, and which of their frames are taken. What was not declared is refused here."""

import asyncio
from collections import defaultdict
from contextlib import suppress

from peer.network.membership.edges import Direction
from peer.network.node import Node
from peer.network.streams.audit import Audit
from peer.network.streams.handshake import UNTOLD
from peer.network.streams.inbox import Inbox, Memory, pageable
from peer.network.streams.refusals import Refusals, Sayings
from peer.network.streams.succession import Succession
from peer.network.streams.traffic import Counted
from peer.network.transport import DisconnectedError, Pipe
from peer.network.wire.foreign import plain
from peer.network.wire.frames import BadFrameError, Key, decode
from peer.network.wire.manifest import Manifest, NotDeclaredError
from peer.network.wire.messages import Hello, Position, Refusal, Reply, Welcome
from peer.telemetry.events import Conflict, Refused, Report
from peer.views.view import STALENESS_BOUND


class Receiver:
    """Receives the tensor streams of all senders."""

    def __init__(self, node: Node, manifest: Manifest, audit: Audit, report: Report, memory: Memory = pageable) -> None:
        self._node, self._manifest, self._audit, self._memory = node, manifest, audit, memory
        self._identity, self._edges = node.identity, node.edges
        self._streams = Succession(node.limits, node.timeouts)
        self.refusals = Refusals(report, node.limits, node.edges.neighbours)
        self._sayings = defaultdict[str, Sayings](lambda: Sayings(node.limits, node.timeouts))
        self.inboxes: dict[str, Inbox] = {}
        self.round = 0
        """The round this peer is in: earlier messages are of no use, and nobody can be more than W ahead."""
        self._most_held = 4 * (manifest.largest + node.limits.frame + node.limits.message)
        """Bytes from one sender that may wait; a healthy one is at most two messages ahead."""

    def inbox(self, sender: str) -> Inbox:
        return self.inboxes.setdefault(sender, Inbox(self._node.limits, self._memory))

    async def admit(self, pipe: Pipe, directions: tuple[Direction, ...]) -> Counted | None:
        """Read the hello of an incoming stream; the pipe as the caller's, or None if it was refused."""
        patience = self._node.timeouts.hello
        try:
            async with asyncio.timeout(patience):
                said = await pipe.receive()
            hello = self._node.foreign.hello(said)
        except (TimeoutError, BadFrameError) as error:
            why = str(error) or f"said nothing for {patience:.0f} s"
            self.refusals.add(Refused(caller="a stranger", origin=pipe.origin, kind="stranger", reason=why))
            raise DisconnectedError(why) from None
        refusal = self._identity.judge(hello, pipe.identity) or await self._stranger(hello, directions)
        if refusal is None and (lost := self._node.durability.lost(hello.id, hello)):
            refusal = Refusal(reason=Refusal.LOST, detail=lost)
        known = hello.id in self._edges.neighbours
        claimed = refusal is not None and refusal.reason == Refusal.IDENTITY
        counted = Counted(pipe, hello.id, self._node.traffic, len(said)) if known and not claimed else None
        if refusal is None:
            pipe.welcome(hello.id)
            return counted
        told = refusal if await pipe.is_known() else UNTOLD
        await self._refuse(counted or pipe, hello.id or "a stranger", refusal, told)
        return None

    async def _stranger(self, hello: Hello, directions: tuple[Direction, ...]) -> Refusal | None:
        """Of two peers that become neighbours one learns it first: it waits a while until the other has, too.

        Who is in an earlier round than this peer knows of no order of the ring that this peer does not know.
        """
        caller = hello.id
        becomes = self._edges.knows(caller) and hello.round >= self._node.round
        with suppress(TimeoutError):
            async with asyncio.timeout(self._node.timeouts.newcomer if becomes else 0):
                while not any(self._edges.has(direction, caller) for direction in directions):
                    await self._edges.change()
                return None
        refusal = Refusal(reason=Refusal.STRANGER, detail=f"`{caller}` is no neighbour of `{self._identity.id}`")
        if self._edges.knows(caller):
            refusal.durable = self._node.durability.own
        return refusal

    async def _refuse(self, pipe: Pipe, caller: str, refusal: Refusal, told: Refusal | None = None) -> None:
        """Say why, or what else is to be told; count it, and report it once."""
        why = refusal.detail + (": " + ", ".join(refusal.keys) if refusal.reason == Refusal.FEDERATION else "")
        why = plain(why, self._node.limits.characters)
        known = self._edges.neighbours.get(caller)
        # Of what differs, the one who is refused knows more: both values. This peer may have been refused, too.
        unsaid = refusal.reason in (Refusal.MANIFEST, Refusal.FEDERATION) and known and not known.refusal
        if known and (unsaid or refusal.reason == Refusal.VERSION):
            known.refused(self._sayings[caller].hear(f"it was refused: {why}"))
        # Two that hear of a new view, or of another order of the ring, one after the other: nothing is wrong.
        late = refusal.reason == Refusal.VIEW or (refusal.reason == Refusal.STRANGER and self._is_belated(caller))
        if not late:
            kind = Refusal.Reason.Name(refusal.reason).lower()
            self.refusals.add(Refused(caller=caller, origin=pipe.origin, kind=kind, reason=why))
        await pipe.tell(Reply(refusal=told or refusal).SerializeToString(), self._node.timeouts.read)

    def _is_belated(self, caller: str) -> bool:
        """Whether it was a neighbour and may not have heard yet that it is none any more."""
        if (told := self._edges.former.get(caller)) is None:
            return False
        self._edges.former[caller] += 1
        return told < self._node.limits.belated

    async def tensors(self, pipe: Pipe) -> None:
        """One incoming tensor stream, from hello to break."""
        if admitted := await self.admit(pipe, ("receive",)):
            await self._take_all(admitted)

    async def fetch(self, pipe: Counted, welcome: Welcome) -> None:
        """The same on a stream that this peer has opened and the sender has welcomed."""
        if lost := self._node.durability.lost(pipe.peer, welcome):
            await self._refuse(pipe, pipe.peer, Refusal(reason=Refusal.LOST, detail=lost))
        else:
            await self._take_all(pipe)

    async def _take_all(self, pipe: Counted) -> None:
        """Frame after frame; it returns when one was refused, and that was said."""
        sender = pipe.peer
        if self._streams.enter(pipe):
            self._node.deliveries.accepted(sender)
        self._edges.introduce("receive", sender)
        try:
            await pipe.tell(Reply(welcome=self._welcome(sender)).SerializeToString(), self._node.timeouts.read)
            while True:
                await self._receive(pipe)
        except BadFrameError as error:
            await self._refuse(pipe, sender, Refusal(reason=Refusal.DAMAGED, detail=f"frame refused: {error}"))
        except NotDeclaredError as error:
            await self._refuse(pipe, sender, Refusal(reason=Refusal.UNDECLARED, detail=str(error)))
        finally:
            self._streams.leave(pipe)

    async def _receive(self, pipe: Counted) -> None:
        """The next frame; of a stream beside the one in use, the first that brings something makes it the one."""
        data, sender = await pipe.receive(), pipe.peer
        if self._streams.present(sender) is pipe:
            with self._node.deliveries.took(sender):
                await self._take_in_turn(sender, data)
        elif await self._take_in_turn(sender, data):
            await self._streams.succeed(pipe)
            self._node.deliveries.accepted(sender)
            with self._node.deliveries.took(sender):
                pass

    async def _take_in_turn(self, sender: str, data: bytes) -> bool:
        await self.inbox(sender).room(self._most_held)
        return await self.take(sender, data)

    def _welcome(self, sender: str) -> Welcome:
        positions = [
            Position(round=key.round, step=key.step, next=message.next)
            for key, message in self.inbox(sender).messages.items()
        ]
        return Welcome(
            durable=self._node.durability.own, round=self.round, positions=positions, life=self._identity.life
        )

    async def take(self, sender: str, data: bytes) -> bool:
        """One frame: keep it, or raise what is wrong with it; whether it is new."""
        frame = decode(data)
        key = frame.key
        if key.view != self._identity.view:
            raise NotDeclaredError(f"view {key.view} is not current")
        if key.round < self.round:
            return False  # a late repeat
        heading = frame.heading
        payload = self._manifest.check(heading.payload, key.round, heading.doubles, heading.offset, heading.length)
        if not await self._expected(sender, key.round):
            raise NotDeclaredError(f"`{sender}` does not send to this peer in round {key.round}")
        if key.round < self.round:
            return False  # it has become one while it waited
        fate = self.inbox(sender).add(frame, payload)
        if fate == "new":
            self._audit.read(key.round, sender, payload, len(frame.values), len(frame.scalars))
        elif fate == "conflict":
            self.refusals.add(Conflict(sender=sender, round=key.round, step=key.step))
        return fate == "new"

    def end(self, sender: str) -> None:
        """It is no neighbour any more."""
        self._streams.end(sender)

    def silence(self, sender: str, key: Key) -> None:
        """Take nothing but an empty message of that key. What came before this was known ends the sender's stream:
        it sends the message again, and is refused."""
        if self.inbox(sender).silence(key) and (pipe := self._streams.present(sender)):
            pipe.abort()

    async def _expected(self, sender: str, round: int) -> bool:
        """Whether a neighbour sends to this peer in that round.

        Of two peers that become neighbours one learns it first: its messages wait until the other has, too; and until
        that is at most W rounds behind them.
        """
        while self.round <= round and not (
            round <= self.round + STALENESS_BOUND and self._edges.allows("receive", sender, round)
        ):
            await self._edges.change()
        return self._edges.allows("receive", sender, round)

    def begin(self, round: int) -> None:
        """This peer is in that round now."""
        self.round = round
        self._edges.changed.set()
        for inbox in self.inboxes.values():
            inbox.forget(round)
