"""Tensors that do not arrive, though signs of life do, are told of: once, and once when they arrive again."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
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
from peer.telemetry.events import Event, LinkChanged, Report

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


@asynccontextmanager
async def living(
    transport: MemoryTransport, id: str, report: Report = lambda _: None, **times: float
) -> AsyncIterator[Network]:
    """A peer in round 1 with edges to and from the other one."""
    other = "b" if id == "a" else "a"
    timeouts = Timeouts(**{"heartbeat_interval": 0.02, "delivery_timeout": 0.2, **times})
    state = NetworkState(Identity(id, {}, MANIFEST.digest), {one: one for one in IDS}, transport, timeouts)
    network = Network(state, MANIFEST, NetworkCallbacks(report, lambda: ("training", 1), Resources))
    await network.listen()
    async with network.running():
        network.set_edges(0, [other], [other])
        network.begin_round(1)
        yield network


def send(network: Network, step: int) -> None:
    network.open_message(["b"], Call(1, step, "exchange", "v"), 32).write_all(torch.ones(8))


async def test_what_is_sent_and_does_not_arrive_is_told() -> None:
    memory, said = MemoryNetwork(), asyncio.Queue[LinkChanged]()
    dammed = Dammed(memory, "a")

    def report(event: Event) -> None:
        if isinstance(event, LinkChanged):
            said.put_nowait(event)

    async with asyncio.timeout(20), living(dammed, "a", report) as a, living(memory.transport("b"), "b") as b:
        assert (await said.get()).state == "up"
        for step in range(3):
            send(a, step)
        suspected = await said.get()
        assert (suspected.state, suspected.neighbour) == ("suspected", "b")
        assert suspected.reason == "it gives signs of life, but what is sent to it does not arrive"
        arrival = asyncio.create_task(a.let_arrive())
        assert not (await asyncio.wait({arrival}, timeout=0.1))[0]
        dammed.open.set()
        send(a, 3)
        await arrival
        assert len(b.inbox("a").messages) == 4
        assert (await said.get()).state == "up"
        assert said.empty()


async def test_what_was_sent_to_a_peer_that_is_gone_is_not_awaited() -> None:
    memory, said = MemoryNetwork(), asyncio.Queue[Event]()
    async with asyncio.timeout(20), living(Dammed(memory, "a"), "a", said.put_nowait) as a:
        async with living(memory.transport("b"), "b"):
            while (await said.get()).name != "link":
                pass
            send(a, 0)
            arrival = asyncio.create_task(a.let_arrive())
            assert not (await asyncio.wait({arrival}, timeout=0.1))[0]
        began = asyncio.get_running_loop().time()
        await arrival
        assert asyncio.get_running_loop().time() - began < Timeouts.farewell_timeout


async def test_what_was_sent_to_a_peer_that_falls_silent_is_not_awaited() -> None:
    memory, said = MemoryNetwork(), asyncio.Queue[Event]()
    times = {"suspect_after": 0.3, "farewell_timeout": 100.0}
    async with (
        asyncio.timeout(20),
        living(Dammed(memory, "a"), "a", said.put_nowait, **times) as a,
        living(memory.transport("b"), "b", heartbeat_interval=100.0),
    ):
        while (await said.get()).name != "link":
            pass
        send(a, 0)
        await a.let_arrive()
        assert a.links["b"].neighbour.state == "suspected"


@pytest.mark.parametrize(("claim", "farewell"), [(0, 0.5), (2**31, 10.0)])
async def test_what_a_neighbour_says_that_it_has_hurries_or_holds_nobody_for_longer_than_a_farewell(
    claim: int, farewell: float
) -> None:
    """It says so at each beat; what it claims to have, it will not get."""
    memory, said = MemoryNetwork(), asyncio.Queue[Event]()
    timeouts = {"heartbeat_interval": 0.02, "delivery_timeout": 100.0, "farewell_timeout": farewell}
    async with (
        asyncio.timeout(20),
        living(memory.transport("a"), "a", said.put_nowait, **timeouts) as a,
        living(memory.transport("b"), "b", **timeouts) as b,
    ):
        b._state.deliveries.received_count = lambda _: claim  # type: ignore[method-assign]
        while (await said.get()).name != "link":
            pass
        send(a, 0)
        clock = asyncio.get_running_loop().time
        began = clock()
        await a.let_arrive()
        assert (clock() - began < farewell) is (claim > 0)
        assert a.links["b"].neighbour.state == "up"


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
