"""The incoming side of an edge to a peer that nobody can dial: it dials itself, and the sender answers with frames."""

import asyncio

from peer.network.membership.edges import Neighbour
from peer.network.node import Node
from peer.network.streams.handshake import RefusedError
from peer.network.streams.receiver import Receiver
from peer.network.streams.refusals import Sayings
from peer.network.streams.retries import Retries
from peer.network.transport import DisconnectedError, GivenUpError


class Fetching:
    """The stream on which one neighbour sends tensors to this peer, for ever opened again."""

    def __init__(self, node: Node, neighbour: Neighbour, receiver: Receiver) -> None:
        self._node, self._neighbour, self._receiver = node, neighbour, receiver
        self._retries, self._sayings = Retries(node.timeouts), Sayings(node.limits, node.timeouts)

    async def run(self) -> None:
        """Whoever refused the other, the next attempts come ever more seldom."""
        while True:
            try:
                await self._stream()
                pause = self._retries.refused()
            except GivenUpError:
                pause = self._retries.cut()
            except DisconnectedError as error:
                self._neighbour.unreachable(self._sayings.hear(str(error)))
                pause = self._retries.cut()
            except RefusedError as error:
                self._neighbour.refused(self._sayings.hear(str(error)))
                pause = self._retries.refused()
            await asyncio.sleep(pause)

    async def _stream(self) -> None:
        """Until the sender has been told what was wrong with a frame."""
        async with self._node.stream(self._neighbour, "Fetch") as (pipe, welcome):
            self._retries.welcomed()
            await self._receiver.fetch(pipe, welcome)
            try:
                async with asyncio.timeout(self._node.timeouts.answer):
                    await pipe.finish()
            except TimeoutError:
                return
