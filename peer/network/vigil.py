"""Who is silent: it is said, and connections are made anew as soon as the way is free again.

Suspicion is only shown and counted; it never changes the run.
"""

import asyncio
from collections.abc import Callable

from peer.network.membership.edges import LinkState, Neighbour
from peer.network.node import Node
from peer.network.transport import REFUSED, TIMED_OUT, DisconnectedError
from peer.tasks import background

Now = Callable[[str, LinkState, str], None]
"""Takes note of a neighbour's state, and why it is in it."""


class Vigil:
    """Watches all neighbours.

    A connection that was cut off without a word (a NAT that forgot it, a cable) resends ever more seldom, and gRPC
    tries to connect ever more seldom: so the way is tried here, again and again, and what stands is given up once it
    is free.
    """

    def __init__(self, node: Node, now: Now, catch_up: Callable[[Neighbour], None]) -> None:
        self._node, self._now, self._catch_up = node, now, catch_up
        self._edges, self._timeouts = node.edges, node.timeouts
        self._clock = asyncio.get_running_loop().time
        self._tried: set[str] = set()
        """To whom the way is being tried."""

    def silent(self, neighbour: Neighbour) -> bool:
        """For longer than it takes to be suspected."""
        return self._clock() - neighbour.heard > self._timeouts.suspect

    async def run(self) -> None:
        """Look at all of them again and again, for ever."""
        looked = self._clock()
        async with background() as group:
            while True:
                await asyncio.sleep(self._timeouts.poll)
                late, looked = self._clock() - looked - self._timeouts.poll, self._clock()
                for neighbour in [*self._edges.neighbours.values()]:
                    self._catch_up(neighbour)
                    # What came while this process stood still has not been read yet.
                    if late >= self._timeouts.beat:
                        continue
                    if neighbour.state == "up" and self.silent(neighbour):
                        neighbour.alive = False
                        self._now(neighbour.id, "suspected", f"silent for {self._timeouts.suspect} s")
                    if self._away(neighbour) and neighbour.address and neighbour.id not in self._tried:
                        self._tried.add(neighbour.id)
                        group.create_task(self._try(neighbour, neighbour.address))

    def _away(self, neighbour: Neighbour) -> bool:
        """Nothing is heard of it, or nothing that this peer sends reaches it."""
        current = self._edges.neighbours.get(neighbour.id) is neighbour
        return current and neighbour.state != "left" and self._lost(neighbour)

    def _lost(self, neighbour: Neighbour) -> bool:
        return self.silent(neighbour) or neighbour.cannot_be_reached or neighbour.stuck

    async def _try(self, neighbour: Neighbour, address: str) -> None:
        """Until it gives signs of life: is the way free?"""
        away, renewed = False, self._clock()
        forgotten = neighbour.state == "suspected"
        while self._away(neighbour):
            if why := await self._obstacle(address):
                # A longer attempt than this one may have found out more than that nothing came.
                if why != TIMED_OUT or not neighbour.obstacle:
                    neighbour.unreachable(why)
                away = away or why != REFUSED  # who refuses is there: gRPC asks it often enough
            elif away or self._clock() - renewed > self._timeouts.renew:
                away, renewed = False, self._clock()
                await self._node.transport.renew(address)
            elif forgotten:
                # The way is free, and has been: the peer is slow, or what stood was forgotten on the way.
                await self._node.transport.renew(address, "Tensors" if neighbour.stuck else "Heartbeat")
            forgotten = False
            await asyncio.sleep(self._timeouts.probe / 2)
        self._tried.discard(neighbour.id)

    async def _obstacle(self, address: str) -> str:
        """Why nobody can be reached there; empty if somebody can."""
        try:
            async with asyncio.timeout(self._timeouts.probe):
                await self._node.transport.reach(address)
        except TimeoutError:
            return TIMED_OUT
        except DisconnectedError as error:
            return str(error)
        return ""
