"""Every byte between two peers is counted at both ends, whatever it says; what strangers say is nobody's."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager

import pytest
import torch
from strangers import Door, answer, hello, pipes

from peer.network.network import Network
from peer.network.streams.handshake import Identity
from peer.network.streams.stream import NetworkCallbacks, NetworkState
from peer.network.transport.memory import MemoryNetwork, MemoryPipe
from peer.network.wire.frames import Call
from peer.network.wire.manifest import Manifest, PayloadSpec
from peer.network.wire.messages import Resources

IDS = ("a", "b", "c")
MANIFEST = Manifest((PayloadSpec("v", 8, 1, 0, 9),))
Passed = dict[str, int]


@pytest.fixture
def passed(monkeypatch: pytest.MonkeyPatch) -> Passed:
    """Bytes that pipes have taken and given away, of all peers together."""
    found: Passed = {"sent": 0, "received": 0}
    put, take = MemoryPipe.send, MemoryPipe.receive

    async def send(pipe: MemoryPipe, data: bytes) -> None:
        await put(pipe, data)
        found["sent"] += len(data)

    async def receive(pipe: MemoryPipe) -> bytes:
        data = await take(pipe)
        found["received"] += len(data)
        return data

    monkeypatch.setattr(MemoryPipe, "send", send)
    monkeypatch.setattr(MemoryPipe, "receive", receive)
    return found


@asynccontextmanager
async def ring(specs: dict[str, dict[str, str]]) -> AsyncIterator[dict[str, Network]]:
    """Three peers, each with both others as its neighbours and with a spec of its own."""
    memory, made = MemoryNetwork(), dict[str, Network]()
    for id in IDS:
        identity = Identity(id, specs.get(id, {}), MANIFEST.digest)
        state = NetworkState(identity, dict(zip(IDS, IDS, strict=True)), memory.transport(id))
        made[id] = Network(state, MANIFEST, NetworkCallbacks(lambda *_, **__: None, lambda: ("training", 1), Resources))
    async with AsyncExitStack() as running:
        for id, network in made.items():
            await network.listen()
            await running.enter_async_context(network.running())
            others = [other for other in IDS if other != id]
            network.set_edges(0, others, others)
            network.begin_round(1)
            network.open_message(others, Call(1, 0, "exchange", "v"), 32, [0.5]).write_all(torch.ones(8))
        yield made


async def until(true: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not true():  # noqa: ASYNC110 (nothing tells when all queues are empty)
            await asyncio.sleep(0.01)


@pytest.mark.parametrize("refused", [False, True], ids=["welcome", "refused"])
async def test_all_bytes_are_counted_at_both_ends(refused: bool, passed: Passed) -> None:
    """Handshakes, answers, refusals, frames and beats; `c` may be of another federation."""
    async with ring({"c": {"seed": "other"}} if refused else {}) as made:
        away = made["c"].edges.neighbours

        def settled() -> bool:
            met = all("differs" in one.reason if refused else one.state == "up" for one in away.values())
            return met and passed["sent"] == passed["received"]

        await until(settled)
        counted = [network.traffic for network in made.values()]
        assert sum(traffic.sent.total() for traffic in counted) == passed["sent"] > 0
        assert sum(traffic.received.total() for traffic in counted) == passed["received"]
        for a in IDS:
            for b in {*IDS} - {a}:
                assert made[a].traffic.sent[b] == made[b].traffic.received[a] > 0


async def test_what_strangers_say_is_nobodys() -> None:
    """They choose their names: counted by them, they would fill the memory and the result."""
    door = Door()
    for caller in ("far", "nobody"):
        near, pipe = pipes()
        await near.send(hello(caller))
        await door.receiver.serve_tensors(pipe)
        assert (await answer(near)).HasField("refusal")
    assert not door.state.traffic.sent
    assert not door.state.traffic.received
