"""What a peer does when a stream goes wrong: its own faults end it, those of others end the stream."""

import asyncio
import errno
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import pytest

from peer.errors import FailedError
from peer.network.network import Network
from peer.network.node import Callbacks, Node
from peer.network.streams.handshake import Identity
from peer.network.transport import DisconnectedError, Pipe, Service
from peer.network.transport.memory import MemoryNetwork, MemoryTransport
from peer.network.wire.manifest import Manifest, Payload
from peer.network.wire.messages import Reply, Resources, Welcome
from peer.tasks import background
from peer.telemetry.events import Event

MANIFEST = Manifest((Payload("v", 8, 0, 0, 9),))
IDS = ("a", "b", "c")
FULL = FailedError("this machine has lost its memory")


def identity(id: str) -> Identity:
    return Identity(id, {}, MANIFEST.digest)


@dataclass
class Peer:
    """One that has nothing to do, beside a neighbour to which it sends and that sends to it."""

    transport: MemoryTransport
    id: str
    resources: Callable[[], Resources] = Resources
    reported: list[Event] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.node = Node(identity(self.id), {one: one for one in IDS}, self.transport)
        callbacks = Callbacks(self.reported.append, lambda: ("training", 1), self.resources)
        self.network = Network(self.node, MANIFEST, callbacks)

    @asynccontextmanager
    async def living(self, *neighbours: str) -> AsyncIterator[None]:
        await self.network.listen()
        async with self.network.running():
            await asyncio.sleep(0)  # the transport serves from now on
            self.network.use(0, neighbours, neighbours)
            yield

    async def live(self) -> None:
        async with self.living(*(other for other in IDS[:2] if other != self.id)):
            await asyncio.get_running_loop().create_future()

    def told(self, name: str) -> list[Event]:
        return [event for event in self.reported if event.name == name]


def failing(error: Exception) -> Callable[[], Resources]:
    def fail() -> Resources:
        raise error

    return fail


async def opened(memory: MemoryNetwork, service: Service, said: str = "a") -> Pipe:
    """A stream to `b` in that one's name, with its hello."""
    pipe = await memory.transport(said).dial("b", service)
    await pipe.send(identity(said).hello("b"))
    return pipe


async def said_to_the_end(pipe: Pipe, data: bytes) -> None:
    await pipe.send(data)
    while True:
        await pipe.receive()


async def dials(memory: MemoryNetwork) -> None:
    """The other end of a heartbeat that it opens itself."""
    await (await opened(memory, "Heartbeat")).receive()


async def answers(memory: MemoryNetwork) -> None:
    """The other end of a heartbeat that is opened to it."""

    async def accept(_service: Service, pipe: Pipe) -> None:
        await pipe.receive()
        await pipe.send(Reply(welcome=Welcome()).SerializeToString())
        await asyncio.get_running_loop().create_future()

    there = memory.transport("b")
    await there.listen(accept)
    await there.run()


@pytest.mark.parametrize("error", [FULL, OSError(errno.ENOSPC, "No space left on device"), MemoryError()], ids=repr)
@pytest.mark.parametrize(("id", "other"), [("b", dials), ("a", answers)], ids=["incoming", "outgoing"])
async def test_a_fault_of_its_own_in_a_stream_ends_the_peer(id: str, other: object, error: Exception) -> None:
    memory = MemoryNetwork()
    running = asyncio.create_task(Peer(memory.transport(id), id, failing(error)).live())
    await asyncio.sleep(0.01)
    beside = asyncio.create_task(other(memory))  # type: ignore[operator]
    with pytest.raises(type(error)) as ended:
        await asyncio.wait_for(running, 5)
    assert ended.value is error
    beside.cancel()
    await asyncio.gather(beside, return_exceptions=True)
    assert not [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]


async def test_a_flaw_that_a_caller_finds_ends_its_stream_alone(caplog: pytest.LogCaptureFixture) -> None:
    """It is told once whose stream it was; the log has the traceback once, without words that may be the caller's."""
    memory = MemoryNetwork()
    peer = Peer(memory.transport("b"), "b", failing(KeyError("\n2026-01-01 forged")))
    async with peer.living("a"):
        for _ in range(3):
            pipe = await opened(memory, "Heartbeat")
            assert Reply.FromString(await pipe.receive()).HasField("welcome")
            with pytest.raises(DisconnectedError):
                await pipe.receive()
    [refused] = peer.told("refused")
    assert str(refused) == (
        "refused a from a: its stream of Heartbeat was closed: KeyError: '\\n2026-01-01 forged'; report this"
    )
    [logged] = [record.getMessage() for record in caplog.records if record.name == "dfl"]
    assert logged.startswith("a stream was closed by KeyError at ")
    assert "in _speak" in logged
    assert "forged" not in logged


async def test_what_a_caller_says_wrong_is_told_as_its_own() -> None:
    memory = MemoryNetwork()
    peer = Peer(memory.transport("b"), "b")
    async with peer.living("a"):
        for _ in range(3):
            with pytest.raises(DisconnectedError):
                await said_to_the_end(await opened(memory, "Heartbeat"), b"no beat")
    [refused] = peer.told("refused")
    assert str(refused) == "refused a from a: its stream of Heartbeat was closed: what it sent is no Beat"


async def test_a_flaw_that_an_answer_finds_ends_that_stream_alone() -> None:
    """Links, heartbeats and those that fetch take it for a cut: they say why, and call again."""
    memory = MemoryNetwork()
    peer = Peer(memory.transport("a"), "a")
    peer.node.edges.use(0, ["b"], [])
    async with background() as group:
        group.create_task(answers(memory))
        await asyncio.sleep(0)
        with pytest.raises(DisconnectedError, match="this peer has closed its stream: KeyError: 'b'; report this"):
            async with peer.node.stream(peer.node.edges.neighbours["b"], "Tensors"):
                raise KeyError("b")


@pytest.mark.parametrize("service", ["Fetch", "Heartbeat", "Tensors"])
async def test_what_comes_on_the_streams_of_a_retired_edge_changes_nothing(service: Service) -> None:
    """Two of them were welcomed, and are spoken on after the ring has another order."""
    memory = MemoryNetwork()
    peer = Peer(memory.transport("b"), "b")
    async with peer.living("a"):
        streams = [await opened(memory, service) for _ in range(2)]
        for pipe in streams:
            assert Reply.FromString(await pipe.receive()).HasField("welcome")
        peer.network.use(1, ["c"], ["c"])
        peer.node.edges.neighbours["a"].released = True
        peer.node.durability.announce(2)
        peer.node.durability.said("a", 2)
        while "a" in peer.node.edges.neighbours:
            await peer.node.edges.change()
        for pipe in streams:
            with pytest.raises(DisconnectedError):
                await said_to_the_end(pipe, Reply(welcome=Welcome(durable=2, round=3)).SerializeToString())
    assert not peer.told("refused")
