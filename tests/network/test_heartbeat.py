"""Connections that were forgotten on the way: what tells, and that they are made anew."""

import asyncio

import pytest
from strangers import MANIFEST, pipes

from peer.network import handshake
from peer.network.edges import Edges
from peer.network.floor import Floor
from peer.network.handshake import Identity
from peer.network.heartbeat import Heart
from peer.network.links import Link
from peer.network.traffic import Counted, Traffic
from peer.network.transport import Accept, Pipe, Service, Transport
from peer.network.wire import Resources


class Silent(Transport):
    """Every stream seems to stand, and nothing comes back on it."""

    def __init__(self) -> None:
        self.renewed: asyncio.Queue[str] = asyncio.Queue()

    async def listen(self, accept: Accept) -> None: ...

    async def dial(self, address: str, service: Service) -> Pipe:
        return pipes()[0]

    async def renew(self, address: str) -> None:
        self.renewed.put_nowait(address)

    async def close(self) -> None: ...


IDENTITY = Identity("me", {}, MANIFEST.digest)


def heart(transport: Transport) -> tuple[Heart, Edges]:
    edges = Edges({"left": "left:1"})
    edges.use(0, [], ["left"])
    made = Heart(
        IDENTITY,
        edges,
        Floor(["me", "left"]),
        transport,
        Traffic(),
        lambda event, **fields: None,
        lambda: ("training", 1),
        Resources,
        lambda round: None,
    )
    return made, edges


async def test_a_second_stream_beside_one_that_never_ended_renews_the_own_ones() -> None:
    transport = Silent()
    one, _ = heart(transport)
    first = asyncio.create_task(one.accept(Counted(pipes()[1], "left", Traffic())))
    await asyncio.sleep(0)
    assert transport.renewed.empty()
    second = asyncio.create_task(one.accept(Counted(pipes()[1], "left", Traffic())))
    assert await asyncio.wait_for(transport.renewed.get(), 5) == "left:1"
    for task in (first, second):
        task.cancel()
    await asyncio.gather(first, second, return_exceptions=True)


@pytest.mark.parametrize("which", ["heartbeat", "tensors"])
async def test_a_handshake_without_an_answer_renews(which: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(handshake, "ANSWER_SECONDS", 0.05)
    transport = Silent()
    one, edges = heart(transport)
    left = edges.neighbours["left"]
    link = Link(left, IDENTITY, transport, Traffic(), lambda peer, durable: None)
    task = asyncio.create_task(one.run(left) if which == "heartbeat" else link.run())
    assert await asyncio.wait_for(transport.renewed.get(), 5) == "left:1"
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
