"""What a peer does when a stream goes wrong: its own faults end it, those of others end the stream."""

import asyncio
import errno
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import TypeVar

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from strangers import SPEC, pipes

from peer.errors import FailedError
from peer.network.limits import Limits, Timeouts
from peer.network.network import Network
from peer.network.streams.handshake import Identity
from peer.network.streams.stream import NetworkCallbacks, NetworkState
from peer.network.transport import SERVICES, DisconnectedError, Pipe, Service
from peer.network.transport.memory import DEPTH, MemoryNetwork, MemoryTransport
from peer.network.view_rpc import ViewRpc
from peer.network.wire.frames import Heading, Key, encode_frame
from peer.network.wire.manifest import Manifest, PayloadSpec
from peer.network.wire.messages import (
    Announced,
    Beat,
    Obstacle,
    Position,
    Question,
    Refusal,
    Reply,
    Resources,
    Welcome,
)
from peer.tasks import background
from peer.telemetry.events import Event
from peer.versions import WIRE
from peer.views.statements import Ask, Heard, Request, written
from peer.views.statements import Reply as Views

MANIFEST = Manifest((PayloadSpec("v", 8, 0, 0, 9),))
IDS = ("a", "b", "c")
T = TypeVar("T")
FULL = FailedError("this machine has lost its memory")


def identity(id: str) -> Identity:
    return Identity(id, {}, MANIFEST.digest)


@dataclass
class Peer:
    """An idle peer with one neighbour, with edges in both directions."""

    transport: MemoryTransport
    id: str
    resources: Callable[[], Resources] = Resources
    reported: list[Event] = field(default_factory=list)

    def __post_init__(self) -> None:
        limits = Limits(frame=16)  # half of `v`
        self.state = NetworkState(identity(self.id), {one: one for one in IDS}, self.transport, limits=limits)
        callbacks = NetworkCallbacks(self.reported.append, lambda: ("training", 1), self.resources)
        self.network = Network(self.state, MANIFEST, callbacks)

    @asynccontextmanager
    async def living(self, *neighbours: str) -> AsyncIterator[None]:
        await self.network.listen()
        async with self.network.running():
            await asyncio.sleep(0)  # the transport serves from now on
            self.network.set_edges(0, neighbours, neighbours)
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


@pytest.mark.parametrize("spec", [SPEC, {"seed": "other"}], ids=["reply", "refusal"])
async def test_an_answer_about_views_that_is_not_read_ends_its_stream(spec: dict[str, str]) -> None:
    async def hear(_sender: str, _request: Request) -> Views:
        return Heard()

    theirs, ours = pipes()
    await theirs.send(Question(version=WIRE.writes, id="left", to="me", spec=spec).SerializeToString())
    await theirs.send(written(Ask(0)))
    for _ in range(DEPTH):
        await ours.send(b"on its way")
    addresses = {id: f"{id}:1" for id in ("me", "left")}
    questions = ViewRpc(Identity("me", SPEC, manifest=""), addresses, timeouts=Timeouts(read=0.1))
    with pytest.raises(DisconnectedError, match=r"it has not read for 0\.1 s what it was told"):
        await questions.answer(ours, hear)
    assert ours.member == ("left" if spec is SPEC else "")


async def test_a_flaw_that_an_answer_finds_ends_that_stream_alone() -> None:
    """Links, heartbeats and those that fetch take it for a cut: they say why, and call again."""
    memory = MemoryNetwork()
    peer = Peer(memory.transport("a"), "a")
    peer.state.edges.use(0, ["b"], [])
    async with background() as group:
        group.create_task(answers(memory))
        await asyncio.sleep(0)
        with pytest.raises(DisconnectedError, match="this peer has closed its stream: KeyError: 'b'; report this"):
            async with peer.state.stream(peer.state.edges.neighbours["b"], "Tensors"):
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
        peer.network.set_edges(1, ["c"], ["c"])
        peer.state.edges.neighbours["a"].progress.has_forgotten_edge = True
        peer.state.durability.announce(2)
        peer.state.durability.record_first_hand("a", 2)
        while "a" in peer.state.edges.neighbours:
            await peer.state.edges.changed.next()
        for pipe in streams:
            with pytest.raises(DisconnectedError):
                await said_to_the_end(pipe, Reply(welcome=Welcome(durable=2, round=3)).SerializeToString())
    assert not peer.told("refused")


far = st.sampled_from([-(2**63), -2, -1, 0, 1, 9, 10, 2**31, 2**63 - 1])
big = st.sampled_from([0, 1, 2, 9, 2**16 - 1, 2**32 - 1])
texts = st.sampled_from(["", "a", "b", "c", "done", "stranger", "x" * 400, "\x1b[2J\n"])
welcomes = st.builds(Welcome, durable=far, round=big, life=st.integers(0, 2)) | st.builds(
    Welcome, positions=st.lists(st.builds(Position, round=big, step=big, next=big), max_size=3)
)
beats = st.builds(
    Beat,
    durable=far,
    round=big,
    state=texts,
    taken=st.none() | st.sampled_from([0, 2**64 - 1]),
    others=st.dictionaries(texts, far, max_size=2),
    heard=st.none() | far,
    obstacle=st.none() | st.builds(Obstacle, address=texts, reason=texts),
    announced=st.lists(st.builds(Announced, id=texts, round=far, signature=st.binary(max_size=9)), max_size=2),
)
refusals = st.builds(
    Refusal, reason=st.integers(0, 12), detail=texts, keys=st.lists(texts, max_size=2), durable=st.none() | far
)


def mostly(right: T, *wrong: T) -> st.SearchStrategy[T]:
    return st.sampled_from([right] * 9 + [*wrong])


headings = st.builds(
    Heading,
    st.builds(Key, mostly(0, 2**32 - 1), mostly(0, 1, 9, 2**32 - 1), mostly(0, 1, 2**32 - 1)),
    payload=mostly(0, 1, 2**16 - 1),
    call=mostly(0, 2**32 - 1),
    doubles=mostly(0, 1, 2**16 - 1),
    offset=mostly(0, 4, 2**64 - 1),
    length=mostly(32, 0, 3, 2**64 - 1),
)
values = st.sampled_from([bytes(16), bytes(16), b"\1" * 16, b"\xff" * 16, bytes(32), b""])
indices = st.sampled_from([0, 0, 0, 1, 1, 2**32 - 1])
frames = st.builds(encode_frame, headings, indices, mostly(b"", bytes(8)), values.map(memoryview))
replies = st.builds(Reply, welcome=welcomes) | st.builds(Reply, beat=beats) | st.builds(Reply, refusal=refusals)
messages = st.binary(max_size=9) | (beats | replies).map(lambda said: said.SerializeToString())
streams = st.lists(
    st.tuples(st.just("Tensors"), st.lists(frames, max_size=4))
    | st.tuples(st.sampled_from(SERVICES[:3]), st.lists(frames | messages, max_size=4)),
    max_size=4,
)


@given(streams)
@settings(max_examples=400, deadline=None)
async def test_whatever_comes_on_a_stream_no_flaw_is_found(said: list[tuple[Service, list[bytes]]]) -> None:
    memory = MemoryNetwork()
    peer = Peer(memory.transport("b"), "b")
    async with peer.living("a"):
        callers = [await opened(memory, service) for service, _ in said]
        for pipe, (_, data) in zip(callers, said, strict=True):
            await all_said(pipe, data)
        for pipe in callers:
            pipe.abort()
    assert not [event for event in peer.reported if "report this" in str(event)]


@given(st.lists(frames | messages, max_size=4))
@settings(max_examples=150, deadline=None)
async def test_whatever_is_answered_no_flaw_is_found(said: list[bytes]) -> None:
    memory, dialled = MemoryNetwork(), list[Service]()

    async def accept(service: Service, pipe: Pipe) -> None:
        dialled.append(service)
        await pipe.receive()
        await all_said(pipe, said)
        pipe.abort()

    peer, there = Peer(memory.transport("a"), "a"), memory.transport("b")
    peer.state.surprises.explain = unforeseen  # type: ignore[method-assign]
    await there.listen(accept)
    async with background() as group:
        group.create_task(there.run())
        await asyncio.sleep(0)
        async with peer.living("b"):
            for _ in range(20):
                await asyncio.sleep(0)
    assert {*dialled} == {"Heartbeat", "Tensors"}


def unforeseen(error: Exception) -> str:
    raise FailedError("a flaw was found") from error


async def all_said(pipe: Pipe, messages: list[bytes]) -> None:
    with suppress(DisconnectedError):
        for data in messages:
            await pipe.send(data)
            for _ in range(8):
                await asyncio.sleep(0)
