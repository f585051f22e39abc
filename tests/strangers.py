"""One reception with its neighbours `left` and `right`, and everything needed to send it good and bad bytes."""

import asyncio
import struct
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
import xxhash

from peer.network.limits import Limits, Timeouts
from peer.network.streams.audit import Audit
from peer.network.streams.handshake import Identity
from peer.network.streams.link import Receiver
from peer.network.streams.stream import NetworkState
from peer.network.transport.memory import MemoryNetwork, MemoryPipe, OneWay
from peer.network.wire.codec import CodedBlock
from peer.network.wire.frames import HEADER, Heading, Key, encode_frame
from peer.network.wire.manifest import Kind, Manifest, NotDeclaredError, PayloadSpec, TopKBlock, vector_bytes
from peer.network.wire.messages import Hello, Reply
from peer.telemetry.events import Event
from peer.versions import WIRE

FLOATS, DOUBLES, ROUNDS = 24, 2, 9
SPEC = {"seed": "1", "protocol": "2"}
MANIFEST = Manifest((PayloadSpec("v", FLOATS, DOUBLES, 1, ROUNDS), PayloadSpec("record", 0, DOUBLES, 0, ROUNDS)))


def frame(
    values: list[float] | None = None,
    *,
    view: int = 0,
    round: int = 1,
    step: int = 0,
    payload: int = 0,
    scalars: tuple[float, ...] = (0.5,),
    offset: int = 0,
) -> bytes:
    """A whole message in one frame, as an honest neighbour writes it."""
    vector = torch.tensor([1.0] * FLOATS if values is None else values)
    packed = struct.pack(f"<{len(scalars)}d", *scalars)
    heading = Heading(Key(view, round, step), payload, 0, len(scalars), 4 * offset, vector.nbytes)
    return encode_frame(heading, 0, packed, vector_bytes(vector))


def resealed(data: bytes) -> bytes:
    """A frame whose length and checksum are right, whatever else was changed in it; shorter bytes as they are."""
    if len(data) < HEADER.size:
        return data
    body = data[HEADER.size :]
    head = b"DFL2" + data[4:44] + len(body).to_bytes(4, "little") + data[48 : HEADER.size - 8]
    return head + xxhash.xxh3_64(head + body).intdigest().to_bytes(8, "little") + body


def hello(id: str = "left", **changes: Any) -> bytes:
    right = {"version": WIRE.writes, "id": id, "to": "me", "view": 0, "spec": SPEC, "manifest": MANIFEST.digest}
    return Hello(**right | changes).SerializeToString()


def pipes() -> tuple[MemoryPipe, MemoryPipe]:
    """The caller's end and the reception's."""
    there, back = OneWay(), OneWay()
    return MemoryPipe(there, back, "me"), MemoryPipe(back, there, "somewhere")


@dataclass
class Door:
    """A reception in round 1, and what it reported."""

    timeouts: Timeouts = field(default_factory=Timeouts)
    limits: Limits = field(default_factory=Limits)
    reported: list[Event] = field(default_factory=list)

    def __post_init__(self) -> None:
        addresses = {"me": "m:1", "left": "l:1", "right": "r:1", "far": "f:1"}
        identity = Identity("me", SPEC, MANIFEST.digest)
        self.state = NetworkState(identity, addresses, MemoryNetwork().transport("m:1"), self.timeouts, self.limits)
        self.edges = self.state.edges
        self.edges.use(0, ["right"], ["left"])
        self.receiver = Receiver(self.state, MANIFEST, Audit(), self.report)
        self.receiver.begin(1)

    def report(self, event: Event) -> None:
        self.reported.append(event)

    async def offer(self, data: bytes, sender: str = "left") -> None:
        await self.receiver.receive_frame(sender, data)

    @property
    def bytes_held(self) -> int:
        return sum(inbox.held for inbox in self.receiver.inboxes.values())


async def answer(pipe: MemoryPipe) -> Reply:
    return Reply.FromString(await pipe.receive())


def offer_wrong_then_right(
    monkeypatch: pytest.MonkeyPatch,
    kind: Kind,
    blocks: tuple[TopKBlock | CodedBlock, ...],
    wrong: tuple[bytes, str],
    right: bytes,
) -> None:
    """What is no encoded vector is refused like every undeclared frame, and nothing of it is kept; a correct one is
    accepted after it, and one of nothing. wrong: bytes, and why they are refused."""
    length = sum(block.length for block in blocks)
    monkeypatch.setitem(
        globals(), "MANIFEST", Manifest((PayloadSpec("v", length, DOUBLES, 1, ROUNDS, kind, blocks=blocks),))
    )

    def frame(data: bytes, step: int = 0) -> bytes:
        return encode_frame(Heading(Key(0, 1, step), 0, 0, 0, 0, len(data)), 0, b"", memoryview(data))

    async def offer() -> None:
        door, (data, why) = Door(), wrong
        with pytest.raises(NotDeclaredError, match=why):
            await door.offer(frame(data))
        with pytest.raises(NotDeclaredError, match=f"{length - 1} bytes of `v`, which has {length} or none"):
            await door.offer(frame(data[:-1]))
        assert door.bytes_held == 0
        await door.offer(frame(right))
        await door.offer(frame(b"", step=1))
        assert door.bytes_held == length

    asyncio.run(offer())
