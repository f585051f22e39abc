"""Tensors that do not arrive, though signs of life do, are told of: once, and once when they arrive again."""

import asyncio
from contextlib import AsyncExitStack

import torch

from peer.network.limits import Timeouts
from peer.network.network import Network
from peer.network.streams.handshake import Identity
from peer.network.streams.stream import DeliveryTracker, NetworkCallbacks, NetworkState
from peer.network.transport import Pipe, Service
from peer.network.transport.memory import MemoryNetwork, MemoryPipe, MemoryTransport
from peer.network.wire.frames import Call
from peer.network.wire.manifest import Manifest, PayloadSpec
from peer.network.wire.messages import Resources
from peer.telemetry.events import Event, LinkChanged

MANIFEST = Manifest((PayloadSpec("v", 8, 0, 0, 9),))
IDS = ("a", "b")


class Dammed(MemoryTransport):
    """What is written on a stream of tensors, once it has been welcomed, stays on its way until the dam is open."""

    def __init__(self, network: MemoryNetwork, address: str) -> None:
        super().__init__(network, address)
        self.open = asyncio.Event()

    async def dial(self, address: str, service: Service) -> Pipe:
        pipe = await super().dial(address, service)
        if service == "Tensors":
            assert isinstance(pipe, MemoryPipe)
            self._dam(pipe)
        return pipe

    def _dam(self, pipe: MemoryPipe) -> None:
        arrive, hello = pipe.send, True
        held: asyncio.Queue[bytes] = asyncio.Queue()

        async def send(data: bytes) -> None:
            nonlocal hello
            if hello or self.open.is_set():
                while not held.empty():
                    await arrive(held.get_nowait())
                await arrive(data)
            else:
                held.put_nowait(data)
            hello = False

        pipe.send = send  # type: ignore[method-assign]


async def test_what_is_sent_and_does_not_arrive_is_told() -> None:
    memory, said = MemoryNetwork(), asyncio.Queue[LinkChanged]()
    dammed = Dammed(memory, "a")

    def report(event: Event) -> None:
        if isinstance(event, LinkChanged):
            said.put_nowait(event)

    async with asyncio.timeout(20), AsyncExitStack() as running:
        made = {}
        for id in IDS:
            transport = dammed if id == "a" else memory.transport(id)
            timeouts = Timeouts(heartbeat_interval=0.02, delivery_timeout=0.2)
            state = NetworkState(Identity(id, {}, MANIFEST.digest), {one: one for one in IDS}, transport, timeouts)
            callbacks = NetworkCallbacks(report if id == "a" else lambda _: None, lambda: ("training", 1), Resources)
            made[id] = network = Network(state, MANIFEST, callbacks)
            await network.listen()
            await running.enter_async_context(network.running())
            network.set_edges(0, [other for other in IDS if other != id], [other for other in IDS if other != id])
            network.begin_round(1)
        assert (await said.get()).state == "up"
        for step in range(3):
            made["a"].open_message(["b"], Call(1, step, "exchange", "v"), 32).write_all(torch.ones(8))
        suspected = await said.get()
        assert (suspected.state, suspected.neighbour) == ("suspected", "b")
        assert suspected.reason == "it gives signs of life, but what is sent to it does not arrive"
        dammed.open.set()
        made["a"].open_message(["b"], Call(1, 3, "exchange", "v"), 32).write_all(torch.ones(8))
        assert (await said.get()).state == "up"
        assert said.empty()


def test_who_makes_the_sender_wait_is_well() -> None:
    sender, receiver = DeliveryTracker(15), DeliveryTracker(15)

    def stuck(now: float) -> bool:
        return sender.is_stalled("b", receiver.received_count("a"), now)

    sender.on_open("b")
    receiver.on_accept("a")
    for _ in range(3):
        sender.on_sent("b")
    with receiver.receiving("a"):
        assert not any(map(stuck, (0.0, 100.0, 200.0)))
    assert [stuck(now) for now in (300.0, 315.0, 316.0)] == [False, False, True]
    with receiver.receiving("a"):
        pass
    assert not stuck(317.0), "slow is not stuck"
    assert stuck(340.0)
    sender.on_open("b")
    assert not stuck(341.0), "a new stream"
