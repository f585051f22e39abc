"""Signs of life between neighbours, with what they tell each other besides tensors: durable rounds and resources.

Suspicion is only shown and counted; it never changes the run.
"""

import asyncio
from functools import partial

from peer.network.link_news import LinkNews
from peer.network.membership.durability import ImpossibleError
from peer.network.membership.edges import LinkState, Neighbour
from peer.network.node import Callbacks, Node
from peer.network.streams.conversation import FAREWELL, Accepted, Beats, Conversation, Dialled
from peer.network.streams.handshake import RefusedError
from peer.network.streams.refusals import Sayings
from peer.network.streams.retries import Retries
from peer.network.streams.succession import Succession
from peer.network.streams.traffic import Counted
from peer.network.transport import DisconnectedError
from peer.network.wire.frames import BadFrameError
from peer.network.wire.messages import Beat
from peer.telemetry.events import Refused


class Heartbeats:
    """Beats towards all neighbours and listens to theirs."""

    def __init__(self, node: Node, callbacks: Callbacks) -> None:
        self._node, self._callbacks = node, callbacks
        self._edges, self._timeouts = node.edges, node.timeouts
        self._clock = asyncio.get_running_loop().time
        self._accepted = Succession(node.limits, node.timeouts)
        self._news = LinkNews(node.limits, node.timeouts, callbacks.report)
        self._leaving = asyncio.Event()
        self._told: set[str] = set()
        """To whom this peer has written its farewell."""
        self._doubted: set[str] = set()
        """Who has said what cannot be."""
        self._conversations = 0
        self._ended = asyncio.Event()
        """Set when one of them ends."""
        self.closing = False

    async def part(self) -> None:
        """Say farewell to all neighbours and wait for the end of all streams: who hears it ends them."""
        self._leaving.set()
        self._node.durability.stir()  # each conversation waits there for its next beat
        while self._conversations or not all(map(self._parted, self._edges.neighbours.values())):
            self._ended.clear()
            await self._ended.wait()

    def _parted(self, neighbour: Neighbour) -> bool:
        return self._leaving.is_set() and (neighbour.id in self._told or neighbour.state == "left")

    async def run(self, neighbour: Neighbour) -> None:
        """Keep a heartbeat stream to a neighbour open."""
        retries, sayings = Retries(self._timeouts), Sayings(self._node.limits, self._timeouts)
        while not self._parted(neighbour):
            try:
                async with self._node.stream(neighbour, "Heartbeat") as (pipe, _):
                    retries.welcomed()
                    await self._converse(neighbour.id, Dialled(pipe, self._node.foreign))
                pause = self._timeouts.retry[-1]  # it has said farewell: should it come back, that is not now
            except DisconnectedError as error:
                self._now(neighbour.id, "down", sayings.hear(str(error)))
                pause = retries.cut()
            except RefusedError as error:
                self._now(neighbour.id, "down", sayings.hear(str(error)))
                pause = retries.refused()
            if not self._parted(neighbour):
                await asyncio.sleep(pause)

    async def accept(self, pipe: Counted) -> None:
        """The accepting end of such a stream, after its welcome; beside one in use it counts from its first beat on."""
        caller = pipe.peer
        try:
            if not self._accepted.enter(pipe):
                await self._succeed(pipe)
            await self._converse(caller, Accepted(pipe, self._node.foreign))
        except DisconnectedError as error:
            if self._accepted.present(caller) is pipe:
                self._now(caller, "down", str(error))
        except asyncio.CancelledError:
            # So a handler learns that its caller is gone, or that this peer closes.
            if self._accepted.present(caller) is pipe and not self.closing:
                self._now(caller, "down", "connection closed")
            raise
        finally:
            self._accepted.leave(pipe)

    async def _succeed(self, pipe: Counted) -> None:
        """A stream beside one in use: it takes that one's place when it says something."""
        beat = await pipe.receive()
        try:
            self._node.foreign.beat(beat)
        except BadFrameError as error:
            raise DisconnectedError(str(error)) from None
        pipe.unread(beat)
        neighbour = self._edges.neighbours.get(pipe.peer)
        silent = neighbour is not None and self._clock() - neighbour.heard >= self._timeouts.suspect
        await self._accepted.succeed(pipe)
        # The caller gave up a stream of whose end this peer has heard nothing: its own to the caller may be cut
        # off as silently, and signs of life that come again would keep `watch` from renewing them.
        if neighbour and silent:
            await self._node.transport.renew(neighbour.address)

    async def watch(self) -> None:
        """Say of a neighbour that has been silent for too long that it is suspected; connect anew after longer.

        A connection that was cut off without a word (a NAT that forgot it, a cable) resends ever more seldom:
        a new one goes through within seconds once the way is free again.
        """
        renewed: dict[str, float] = {}
        while True:
            await asyncio.sleep(self._timeouts.poll)
            now = self._clock()
            for neighbour in [*self._edges.neighbours.values()]:
                self._news.catch_up(neighbour)
                if neighbour.state == "up" and now - neighbour.heard > self._timeouts.suspect:
                    self._now(neighbour.id, "suspected", f"silent for {self._timeouts.suspect} s")
                silent_since = max(neighbour.heard, renewed.get(neighbour.id, 0.0))
                # Also of one that is down: its other connection may be cut off without a word.
                if neighbour.state in ("suspected", "down") and now - silent_since > self._timeouts.renew:
                    renewed[neighbour.id] = now
                    await self._node.transport.renew(neighbour.address)

    async def _converse(self, other: str, beats: Beats) -> None:
        """One stream to its end."""
        conversation = Conversation(self._node, self._callbacks, beats, self._leaving, partial(self._heard, other))
        self._conversations += 1
        try:
            await conversation.run()
        finally:
            self._conversations -= 1
            if conversation.farewell_said:
                self._told.add(other)
            self._ended.set()

    def _heard(self, other: str, beat: Beat) -> None:
        # It may have ceased to be a neighbour and become one again since the stream was opened.
        if neighbour := self._edges.neighbours.get(other):
            neighbour.heard, neighbour.doing = self._clock(), f"{beat.state[:20]} in round {beat.round}"
            if beat.HasField("resources"):
                neighbour.resources = beat.resources
        self._believe(other, beat)
        if beat.state == FAREWELL and self._node.durability.of(other) < self._last(other):
            self._now(other, "down", "it says farewell before it can have finished")
        elif beat.state == FAREWELL:
            self._now(other, "left", "finished")
        elif self._node.deliveries.stuck(other, beat.taken if beat.HasField("taken") else None, self._clock()):
            self._now(other, "suspected", "it gives signs of life, but what is sent to it does not arrive")
        else:
            self._now(other, "up", "")

    def _last(self, other: str) -> int:
        return self._edges.last(other, self._node.identity.rounds)

    def _believe(self, teller: str, beat: Beat) -> None:
        """What it says of itself counts; of others it may hold this peer back; what cannot be is told once."""
        durability = self._node.durability
        try:
            durability.said(teller, beat.durable)
            durability.overheard(teller, beat.others)
        except ImpossibleError as error:
            if teller not in self._doubted:
                self._doubted.add(teller)
                self._callbacks.report(Refused(caller=teller, reason=f"{error}; compare its code with this peer's"))

    def _now(self, other: str, state: LinkState, reason: str) -> None:
        neighbour = self._edges.neighbours.get(other)
        if state == "up" and neighbour and neighbour.rejects:
            state, reason = "suspected", neighbour.rejects
        if neighbour is None or (state in ("down", "suspected") and self._leaving.is_set()):
            return
        if state == "down" and other not in self._edges.current():
            # The ring has another order now: it was the first to forget.
            state, reason = "left", "no neighbour any more"
        if state == "down" and neighbour.state in ("joining", "left"):
            neighbour.unreachable(reason)
        elif neighbour.state != state:
            self._news.change(neighbour, state, reason)
