"""Bytes by neighbour, counted where they pass: a pipe that counts, so that no kind of message can be left out."""

from collections import Counter
from dataclasses import dataclass, field

from peer.network.transport import Pipe


@dataclass
class Traffic:
    """Bytes handed to and taken from the transport, by neighbour. What strangers say is nobody's, and not kept."""

    sent: Counter[str] = field(default_factory=Counter)
    received: Counter[str] = field(default_factory=Counter)

    def __sub__(self, earlier: "Traffic") -> "Traffic":
        """What has passed since `earlier`."""
        return Traffic(self.sent - earlier.sent, self.received - earlier.received)

    def copy(self) -> "Traffic":
        return Traffic(self.sent.copy(), self.received.copy())


class Counted(Pipe):
    """A pipe to or from the neighbour `peer`; `received` bytes of it were read before it was known whose they are."""

    def __init__(self, pipe: Pipe, peer: str, traffic: Traffic, received: int = 0) -> None:
        self._pipe, self.peer, self._traffic = pipe, peer, traffic
        self.identity, self.origin, self.member = pipe.identity, pipe.origin, peer
        self._unread: list[bytes] = []
        if received:
            traffic.received[peer] += received

    async def send(self, data: bytes) -> None:
        await self._pipe.send(data)
        self._traffic.sent[self.peer] += len(data)

    def unread(self, data: bytes) -> None:
        """Put back what was received, to be received again."""
        self._unread.append(data)

    async def receive(self) -> bytes:
        if self._unread:
            return self._unread.pop()
        data = await self._pipe.receive()
        self._traffic.received[self.peer] += len(data)
        return data

    async def finish(self) -> None:
        await self._pipe.finish()

    def abort(self) -> None:
        self._pipe.abort()

    def in_use(self) -> None:
        self._pipe.in_use()
