"""Connections that were forgotten on the way: what tells, and that they are made anew."""

import asyncio
import time
from collections.abc import Mapping
from dataclasses import replace
from functools import partial

import pytest
from cryptography import x509
from keyrings import ca, keyring
from strangers import MANIFEST, pipes

from peer.network.limits import Timeouts
from peer.network.neighbours import Edges
from peer.network.streams.handshake import Identity
from peer.network.streams.heartbeat import DialledHeartbeats, FailureDetector, Heartbeats
from peer.network.streams.link import OutgoingLink
from peer.network.streams.stream import CountedPipe, NetworkCallbacks, NetworkState, Traffic
from peer.network.transport import Pipe, Service, StreamHandler, Transport
from peer.network.transport.memory import DEPTH
from peer.network.wire.messages import Beat, Reply, Resources, Welcome
from peer.telemetry.events import Event, Halted, Report
from peer.views.signing import UNSIGNED, CertifiedKeyring, Keyring
from peer.views.statements import Announcement
from peer.views.view import STALENESS_BOUND


class Silent(Transport):
    """Every stream seems to stand, and nothing comes back on it."""

    def __init__(self) -> None:
        self.renewed: asyncio.Queue[str] = asyncio.Queue()

    async def listen(self, accept: StreamHandler) -> None: ...

    async def run(self) -> None: ...

    async def dial(self, address: str, service: Service) -> Pipe:
        return pipes()[0]

    async def reach(self, address: str) -> None: ...

    async def renew(self, address: str, *services: Service) -> None:
        self.renewed.put_nowait(address)

    async def close(self) -> None: ...


class Answering(Silent):
    """The other ends of all streams are in `dialled`."""

    def __init__(self) -> None:
        super().__init__()
        self.dialled: asyncio.Queue[Pipe] = asyncio.Queue()

    async def dial(self, address: str, service: Service) -> Pipe:
        near, far = pipes()
        self.dialled.put_nowait(far)
        return near


IDENTITY = Identity("me", {}, MANIFEST.digest, rounds=1)


TIMEOUTS = Timeouts(answer=0.05, suspect_after=0.0, probe=0.01, heartbeat_interval=0.05)


def heart(
    transport: Transport, report: Report = lambda event: None, timeouts: Timeouts = TIMEOUTS
) -> tuple[Heartbeats, NetworkState]:
    state = NetworkState(IDENTITY, {"me": "me:1", "left": "left:1"}, transport, timeouts)
    state.edges.use(0, [], ["left"])
    return Heartbeats(state, NetworkCallbacks(report, lambda: ("training", 1), Resources)), state


async def test_a_second_stream_beside_one_that_never_ended_renews_the_own_ones() -> None:
    transport = Silent()
    one, state = heart(transport)
    left = state.edges.neighbours["left"]
    left.state, last = "up", left.signs.last_heartbeat
    left.signs.last_heartbeat, left.delivery.connected_since = last - 5, last - 60
    first = asyncio.create_task(one.of("left").accept(CountedPipe(pipes()[1], "left", Traffic())))
    await asyncio.sleep(0)
    assert transport.renewed.empty()
    theirs, ours = pipes()
    second = asyncio.create_task(one.of("left").accept(CountedPipe(ours, "left", Traffic())))
    await asyncio.sleep(0)
    assert transport.renewed.empty(), "it has not said anything"
    await theirs.send(Beat(state="ready").SerializeToString())
    assert await asyncio.wait_for(transport.renewed.get(), 5) == "left:1"
    for task in (first, second):
        task.cancel()
    await asyncio.gather(first, second, return_exceptions=True)


@pytest.mark.parametrize("stands", [None, 4.0])
async def test_a_newer_stream_of_tensors_is_kept(stands: float | None) -> None:
    """Made anew since the last sign of life, or being made: it would lose what is on its way."""
    transport = Silent()
    one, state = heart(transport)
    left = state.edges.neighbours["left"]
    left.state, last = "up", left.signs.last_heartbeat
    left.signs.last_heartbeat = last - 5
    left.delivery.connected_since = None if stands is None else last - stands
    theirs, ours = pipes()
    accepting = asyncio.create_task(one.of("left").accept(CountedPipe(ours, "left", Traffic())))
    before = left.signs.last_heartbeat
    await theirs.send(Beat(state="ready").SerializeToString())
    while left.signs.last_heartbeat == before:
        await theirs.receive()
    assert transport.renewed.empty()
    accepting.cancel()
    await asyncio.gather(accepting, return_exceptions=True)


@pytest.mark.parametrize("which", ["heartbeat", "tensors"])
async def test_a_handshake_without_an_answer_renews(which: str) -> None:
    transport = Silent()
    one, state = heart(transport)
    left = state.edges.neighbours["left"]
    link = OutgoingLink(state, left, lambda peer, welcome: None)
    task = asyncio.create_task(DialledHeartbeats(one, left).run() if which == "heartbeat" else link.run())
    assert await asyncio.wait_for(transport.renewed.get(), 5) == "left:1"
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def test_streams_whose_welcome_is_not_read_are_counted_and_end() -> None:
    one, state = heart(Silent(), timeouts=replace(TIMEOUTS, read=0.5))
    accepting = []
    for _ in range(50):
        _, ours = pipes()
        for _ in range(DEPTH):
            await ours.send(b"on its way")
        accepting.append(asyncio.create_task(one.of("left").accept(CountedPipe(ours, "left", Traffic()))))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert sum(not task.done() for task in accepting) == 1 + state.limits.candidates
    ended = await asyncio.wait_for(asyncio.gather(*accepting, return_exceptions=True), 5)
    assert len(ended) == 50


@pytest.mark.parametrize(("neighbours", "expected"), [(["left"], "down"), ([], "left")])
async def test_who_sits_elsewhere_now_is_not_down(neighbours: list[str], expected: str) -> None:
    """When the ring is ordered anew, the first of two to have no more need of an edge ends its streams."""
    said: asyncio.Queue[str] = asyncio.Queue()
    one, state = heart(Silent(), lambda event: said.put_nowait(event.state))
    theirs, ours = pipes()
    conversation = asyncio.create_task(one.of("left").accept(CountedPipe(ours, "left", Traffic())))
    await theirs.send(Beat(state="ready").SerializeToString())
    assert await asyncio.wait_for(said.get(), 5) == "up"
    state.edges.use(1, [], neighbours)
    theirs.abort()
    assert await asyncio.wait_for(said.get(), 5) == expected
    await conversation


async def test_a_former_neighbour_is_told_the_last_news_and_never_dialled_again() -> None:
    """By them it forgets the edge, too; and only then do its streams end."""
    transport = Answering()
    one, state = heart(transport)
    left = state.edges.neighbours["left"]
    running = asyncio.create_task(DialledHeartbeats(one, left).run())
    theirs = await asyncio.wait_for(transport.dialled.get(), 5)
    await theirs.receive()
    await theirs.send(Reply(welcome=Welcome()).SerializeToString())
    assert Beat.FromString(await theirs.receive()).durable == -1
    state.edges.use(0, [], [])
    state.durability.announce(1)
    state.durability.record_first_hand("left", 1)
    left.progress.acked_durable = 0
    assert state.edges.retire(state.durability.first_hand, state.durability.own) == ["left"]
    parting = asyncio.create_task(one.close_with("left"))
    last = Beat.FromString(await asyncio.wait_for(theirs.receive(), 5))
    assert (last.durable, last.heard) == (1, 1)
    assert not parting.done()
    theirs.abort()
    await asyncio.wait_for(asyncio.gather(parting, running), 5)
    assert transport.dialled.empty()


async def test_who_comes_back_beside_one_is_minded_again() -> None:
    """Its old farewell must not hide that it is lost."""
    edges = Edges({"left": "left:1"})
    edges.use(0, [], ["left"])
    edges.use(1, [], [])
    edges.neighbours["left"].state, edges.neighbours["left"].signs.last_heartbeat = "left", -1000.0
    edges.use(2, [], ["left"])
    assert edges.neighbours["left"].state == "joining"
    assert edges.neighbours["left"].signs.last_heartbeat > -1000.0


async def test_a_stream_stands_until_its_farewell_has_been_heard() -> None:
    """Were it ended before, what the other end is just sending would fail, and gRPC drops what that has not read."""
    one, _ = heart(Silent())
    theirs, ours = pipes()
    accepting = asyncio.create_task(one.of("left").accept(CountedPipe(ours, "left", Traffic())))
    assert Reply.FromString(await theirs.receive()).HasField("welcome")
    assert Reply.FromString(await theirs.receive()).beat.state == "training"
    parting = asyncio.create_task(one.close())
    assert Reply.FromString(await theirs.receive()).beat.state == "done"
    for _ in range(3):
        await theirs.send(Beat(state="ready").SerializeToString())
    assert not accepting.done()
    assert not parting.done()
    theirs.abort()
    await asyncio.wait_for(asyncio.gather(accepting, parting), 5)


@pytest.mark.parametrize("end", ["dialling", "accepting"])
async def test_a_farewell_ends_the_stream_and_needs_no_answer(end: str) -> None:
    said: asyncio.Queue[str] = asyncio.Queue()
    transport = Answering()
    one, state = heart(transport, lambda event: said.put_nowait(event.state))
    state.durability.announce(1)
    farewell = Beat(state="done", durable=1)
    if end == "dialling":
        task = asyncio.create_task(DialledHeartbeats(one, state.edges.neighbours["left"]).run())
        theirs = await transport.dialled.get()
        await theirs.receive()
        await theirs.send(Reply(welcome=Welcome()).SerializeToString())
        await theirs.send(Reply(beat=farewell).SerializeToString())
    else:
        theirs, ours = pipes()
        task = asyncio.create_task(one.of("left").accept(CountedPipe(ours, "left", Traffic())))
        await theirs.send(farewell.SerializeToString())
    assert await asyncio.wait_for(said.get(), 5) == "left"
    await asyncio.wait_for(one.close(), 5)  # nobody is left to be told, and no stream to be ended
    await asyncio.wait_for(task, 5)


async def test_a_farewell_to_a_peer_that_has_not_finished_is_none() -> None:
    """By R8 it would wait; without heartbeats it must count as silent, and by one beat it would never be."""
    said: asyncio.Queue[str] = asyncio.Queue()
    one, state = heart(Silent(), lambda event: said.put_nowait(event.state))
    theirs, ours = pipes()
    task = asyncio.create_task(one.of("left").accept(CountedPipe(ours, "left", Traffic())))
    await theirs.send(Beat(state="training").SerializeToString())
    assert await asyncio.wait_for(said.get(), 5) == "up"
    await theirs.send(Beat(state="done", durable=1).SerializeToString())
    assert await asyncio.wait_for(said.get(), 5) == "down"
    assert state.durability.of("left") == 1
    task.cancel()


async def test_a_stream_that_ends_just_as_the_peer_closes_is_not_waited_for() -> None:
    one, state = heart(Silent())
    state.edges.neighbours["left"].state = "left"
    one.of("left").streams = 1

    def end() -> None:
        one.of("left").streams = 0
        one.stream_ended.set()

    closing = asyncio.create_task(one.close())
    asyncio.get_running_loop().call_soon(end)  # after the close has looked, before what it waits with has begun
    await asyncio.wait_for(closing, 5)


async def test_a_farewell_before_the_end_is_none() -> None:
    """A peer without everything on disk has not finished, whatever it says: it counts as down."""
    said: asyncio.Queue[str] = asyncio.Queue()
    one, _ = heart(Silent(), lambda event: said.put_nowait(event.state))
    theirs, ours = pipes()
    task = asyncio.create_task(one.of("left").accept(CountedPipe(ours, "left", Traffic())))
    await theirs.send(Beat(state="ready", durable=0).SerializeToString())
    assert await asyncio.wait_for(said.get(), 5) == "up"
    await theirs.send(Beat(state="done", durable=0).SerializeToString())
    assert await asyncio.wait_for(said.get(), 5) == "down"
    await asyncio.wait_for(task, 5)


async def test_who_is_cut_off_when_a_peer_leaves_is_told_on_the_next_stream() -> None:
    transport = Answering()
    one, state = heart(transport)
    running = asyncio.create_task(DialledHeartbeats(one, state.edges.neighbours["left"]).run())
    (await transport.dialled.get()).abort()
    parting = asyncio.create_task(one.close())
    theirs = await asyncio.wait_for(transport.dialled.get(), 5)
    await theirs.receive()
    await theirs.send(Reply(welcome=Welcome()).SerializeToString())
    assert Beat.FromString(await theirs.receive()).state == "done"
    assert not parting.done()
    theirs.abort()
    await asyncio.wait_for(asyncio.gather(parting, running), 5)


async def test_a_farewell_waits_until_the_last_round_has_been_heard_of() -> None:
    """A stream that breaks in that moment takes both with it, and who was told neither would wait to its `patience`."""
    transport = Answering()
    one, state = heart(transport)
    state.durability.announce(1)
    running = asyncio.create_task(DialledHeartbeats(one, state.edges.neighbours["left"]).run())
    parting = asyncio.create_task(one.close())
    for attempt in range(3):
        theirs = await asyncio.wait_for(transport.dialled.get(), 5)
        await theirs.receive()
        await theirs.send(Reply(welcome=Welcome()).SerializeToString())
        said = Beat.FromString(await theirs.receive())
        assert (said.durable, said.state) == (1, "training")
        if attempt < 2:
            theirs.abort()  # and what it said may be lost
    await theirs.send(Reply(beat=Beat(state="ready", durable=0, heard=0)).SerializeToString())
    assert Beat.FromString(await theirs.receive()).heard == 0
    await theirs.send(Reply(beat=Beat(state="ready", durable=0, heard=1)).SerializeToString())
    while Beat.FromString(await asyncio.wait_for(theirs.receive(), 5)).state != "done":
        assert not parting.done()
    theirs.abort()
    await asyncio.wait_for(asyncio.gather(parting, running), 5)


SELDOM = Timeouts(heartbeat_interval=60.0)
"""So that a beat which comes within seconds was sent at once."""


def of_four(id: str, *neighbours: str, keys: Keyring = UNSIGNED) -> tuple[Heartbeats, NetworkState]:
    addresses = {one: f"{one}:1" for one in ("me", "left", "right", "opposite")}
    state = NetworkState(Identity(id, {}, MANIFEST.digest, rounds=9, keyring=keys), addresses, Silent(), SELDOM)
    state.edges.use(0, [], neighbours)
    return Heartbeats(state, NetworkCallbacks(lambda event: None, lambda: ("training", 1), Resources)), state


class Caller:
    """A neighbour's end of a stream of heartbeats that was accepted."""

    def __init__(self, all: Heartbeats, id: str) -> None:
        self.pipe, ours = pipes()
        self._task = asyncio.create_task(all.of(id).accept(CountedPipe(ours, id, Traffic())))

    async def hear(self) -> Beat:
        return Reply.FromString(await asyncio.wait_for(self.pipe.receive(), 5)).beat

    async def say(self, durable: int, others: Mapping[str, int] = {}) -> None:
        await self.pipe.send(Beat(state="training", durable=durable, others=others).SerializeToString())

    async def close(self) -> None:
        self.pipe.abort()
        await asyncio.gather(self._task, return_exceptions=True)


async def test_nothing_is_told_back_and_news_at_once() -> None:
    all, state = of_four("me", "left", "right")
    left = Caller(all, "left")
    assert (await left.hear(), (await left.hear()).others) == (Beat(), {}), "the welcome, and the first beat"
    await left.say(1, {"opposite": 3})
    await asyncio.wait_for(state.durability.changed.until(lambda: state.durability.relayed_for("right") != {}), 5)
    state.durability.announce(2)
    beat = await left.hear()
    assert (beat.durable, beat.others, beat.heard) == (2, {}, 1)
    state.durability.record_relayed("right", {"opposite": 4})
    assert (await left.hear()).others == {"opposite": 4}
    await left.close()


async def test_who_claims_that_another_is_further_is_told_how_far_it_is() -> None:
    """By its own claim it would be kept from that at its bound, and the ring would wait for it."""
    all, state = of_four("me", "left", "right")
    left = Caller(all, "left")
    await left.hear()
    await left.hear()
    await left.say(0, {"right": 9})
    await asyncio.wait_for(state.durability.changed.until(lambda: state.durability.of("left") == 0), 5)
    for round in (1, 2):
        state.durability.record_first_hand("right", round)
        assert (await left.hear()).others == {"right": min(round, state.durability.own + STALENESS_BOUND)}
    await left.close()


async def test_rounds_from_the_last_of_an_edge_on_are_acknowledged_at_once() -> None:
    """A farewell waits for that, also one that goes to a former neighbour (R7, R8)."""
    all, state = of_four("me", "left")
    state.durability.announce(6)
    state.edges.use(5, [], ["right"])
    left = Caller(all, "left")
    await left.hear()
    await left.hear()
    for round in (5, 6, 7):
        await left.say(round)
        assert (await left.hear()).heard == round
    await left.close()


async def test_a_member_that_changes_its_certificate_and_back_is_believed() -> None:
    """A certificate is left out where the same stream has brought it last, whatever came on others."""
    (listener, here), (sender, there) = (
        of_four("me", "left", keys=keyring("me")),
        of_four("left", "me", keys=keyring("left")),
    )
    holder = {name: ca("CA").issue(x509.DNSName("opposite")) for name in "ab"}
    rings = {
        name: CertifiedKeyring("opposite", "the federation", lambda one=one: (ca("CA").shown, one.shown, one.private))
        for name, one in holder.items()
    }

    def learn(state: NetworkState, name: str, round: int) -> None:
        signed = rings[name].sign(Announcement(0, round))
        state.durability.record_signed("opposite", round, signed.signature, signed.certificate)

    def knows(state: NetworkState, round: int) -> bool:
        known = state.durability.announcements().get("opposite")
        return known is not None and known.statement.round == round

    async def both_know(round: int) -> None:
        for state in (here, there):
            await asyncio.wait_for(state.durability.changed.until(partial(knows, state, round)), 5)

    theirs, ours = pipes()
    tasks = [asyncio.create_task(listener.of("left").accept(CountedPipe(ours, "left", Traffic())))]
    await theirs.receive()
    tasks.append(asyncio.create_task(sender.of("me").converse(CountedPipe(theirs, "me", Traffic()), dialled=True)))
    for state, name, round in ((there, "a", 4), (here, "b", 5), (there, "a", 6)):
        learn(state, name, round)
        await both_know(round)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def test_a_peer_whose_event_loop_stood_still_says_so_itself() -> None:
    told: asyncio.Queue[Event] = asyncio.Queue()
    one, _ = heart(Silent(), told.put_nowait, replace(TIMEOUTS, suspect_after=0.3, poll=0.01))
    running = asyncio.create_task(FailureDetector(one).run())
    await asyncio.sleep(0)  # it looks for the first time
    time.sleep(0.5)  # noqa: ASYNC251  what blocks the loop
    async with asyncio.timeout(30):
        while not isinstance(event := await told.get(), Halted):
            pass
    assert event.seconds >= 0.4
    running.cancel()
