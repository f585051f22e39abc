"""Truncated, oversized, reordered, repeated, replayed, flipped and random bytes: refused, counted, reported once."""

import asyncio
import struct
from contextlib import nullcontext, suppress

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from strangers import DOUBLES, FLOATS, MANIFEST, SPEC, Door, answer, frame, hello, pipes

from peer.network import transport
from peer.network.limits import Limits, Timeouts
from peer.network.streams.handshake import Identity, Refusals, do_handshake
from peer.network.wire import frames as codec
from peer.network.wire.frames import HEADER, MAX_DOUBLES, BadFrameError, Heading, Key, decode, encode_frame
from peer.network.wire.manifest import DTYPES, Kind, NotDeclaredError, PayloadSpec
from peer.network.wire.messages import Hello, Position, Refusal, Reply, UntrustedDecoder, Welcome
from peer.telemetry.events import CallerRefused
from peer.views.view import STALENESS_BOUND

LIMITS = Limits()
REFUSED = (BadFrameError, NotDeclaredError)
QUICK = settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


def refused(data: bytes, error: type[Exception], why: str) -> None:
    async def offer() -> None:
        door = Door()
        with pytest.raises(error, match=why):
            await door.offer(data)
        assert door.bytes_held <= 4 * FLOATS

    asyncio.run(offer())


def header(**changes: int) -> bytes:
    """An honest frame whose header was changed, with a checksum that is right again."""
    names = ("magic", "payload", "doubles", "view", "round", "step", "call", "index", "offset", "length", "size")
    honest = frame()
    fields = dict(zip(names, HEADER.unpack_from(honest), strict=False)) | changes
    head = HEADER.pack(*fields.values(), 0)[:-8]
    body = honest[HEADER.size :]
    return head + codec.xxhash.xxh3_64(head + body).intdigest().to_bytes(8, "little") + body


@pytest.mark.parametrize(
    ("data", "error", "why"),
    [
        (b"", BadFrameError, "too few"),
        (frame()[: HEADER.size - 1], BadFrameError, "too few"),
        (frame()[:-1], BadFrameError, "bytes follow"),
        (frame() + b"x", BadFrameError, "bytes follow"),
        (header(magic=b"DFL1"), BadFrameError, "does not begin"),  # type: ignore[arg-type]
        (header(length=1 << 60), NotDeclaredError, "bytes 0 to"),
        (header(length=92), BadFrameError, "sizes"),
        (header(length=0), BadFrameError, "sizes"),
        (header(length=92, index=1 << 31), BadFrameError, "sizes"),
        (header(doubles=MAX_DOUBLES + 1), BadFrameError, "sizes"),
        (header(payload=7), NotDeclaredError, "number 7"),
        (header(payload=1), NotDeclaredError, "bytes 0 to 96 of `record`"),
        (header(offset=1), NotDeclaredError, "bytes 1 to 97"),
        (header(offset=4), NotDeclaredError, "bytes 4 to 100"),
        (header(offset=(1 << 64) - 1), NotDeclaredError, "bytes"),
        (frame([1.0] * (FLOATS + 1)), NotDeclaredError, "bytes 0 to 100"),
        (frame(scalars=(1.0, 2.0, 3.0)), NotDeclaredError, "3 scalars"),
        (frame([float("nan")] + [1.0] * 23), NotDeclaredError, "not finite"),
        (frame([float("inf"), float("-inf")] + [1.0] * 22), NotDeclaredError, "not finite"),
        (frame(scalars=(float("inf"),)), NotDeclaredError, "not finite"),
        (frame(round=(1 << 32) - 1), NotDeclaredError, "not declared to travel in round"),
        (frame(view=1), NotDeclaredError, "view 1"),
    ],
)
def test_what_is_refused(data: bytes, error: type[Exception], why: str) -> None:
    refused(data, error, why)


@pytest.mark.parametrize(("kind", "bits", "nan"), [("float32", 32, 0x7FC00000), ("bfloat16", 16, 0x7FC0)])
@given(data=st.data())
@QUICK
def test_any_finite_values_are_taken_and_no_others(kind: Kind, bits: int, nan: int, data: st.DataObject) -> None:
    """The largest too, whose sum is infinite, and NaNs and infinities of either sign and with any payload."""
    sign, infinity = 1 << bits - 1, nan & nan << 1
    edges = st.sampled_from([infinity - 1, infinity, nan, sign, sign | infinity - 1, sign | infinity, sign | nan])
    words = data.draw(st.lists(edges | st.integers(0, 2 * sign - 1), max_size=9))
    content = b"".join(word.to_bytes(bits // 8, "little") for word in words)
    finite = bool(torch.frombuffer(bytearray(content), dtype=DTYPES[kind]).isfinite().all()) if words else True
    with nullcontext() if finite else pytest.raises(NotDeclaredError, match="not finite"):
        PayloadSpec("v", 9, 0, 0, 1, kind).check_values(memoryview(content))


@given(st.binary(max_size=300))
@QUICK
def test_random_bytes_are_no_frame(data: bytes) -> None:
    with pytest.raises(BadFrameError):
        decode(data)


@given(st.integers(0, len(frame()) * 8 - 1))
@QUICK
def test_every_flipped_bit_is_found(bit: int) -> None:
    data = bytearray(frame())
    data[bit // 8] ^= 1 << bit % 8
    with pytest.raises(BadFrameError):
        decode(bytes(data))


@given(
    payload=st.integers(0, 65_535),
    doubles=st.integers(0, 4),
    key=st.tuples(*[st.integers(0, (1 << 32) - 1)] * 3),
    call=st.integers(0, (1 << 32) - 1),
    index=st.integers(0, 3),
    numbers=st.tuples(st.integers(0, (1 << 64) - 1), st.integers(0, 160)),
)
@QUICK
def test_only_what_the_manifest_declares_is_kept(
    payload: int, doubles: int, key: tuple[int, int, int], call: int, index: int, numbers: tuple[int, int]
) -> None:
    """Well-formed frames with any numbers in them: taken or refused, and never more held than is declared."""
    offset, length = numbers
    scalars, values = struct.pack(f"<{doubles}d", *[1.0] * doubles), memoryview(bytes(length))
    data = encode_frame(Heading(Key(*key), payload, call, doubles, offset, length), index, scalars, values)

    async def offer() -> None:
        door = Door()
        try:
            await asyncio.wait_for(door.offer(data), 1)
        except REFUSED:
            assert not door.bytes_held or index == 0
        assert door.bytes_held <= 4 * FLOATS

    asyncio.run(offer())


@given(st.permutations(range(4)), st.integers(0, 3))
@QUICK
def test_frames_out_of_order_are_refused_and_the_message_is_not_harmed(order: list[int], again: int) -> None:
    values = memoryview(struct.pack("<24f", *range(24)))
    heading = Heading(Key(0, 1, 0), 0, 0, 1, 0, 96)
    frames = [encode_frame(heading, i, struct.pack("<d", 0.5), values[24 * i : 24 * i + 24]) for i in range(4)]

    async def offer() -> None:
        door = Door(limits=Limits(frame=24))
        for number in [*order, again]:
            inbox = door.receiver.inbox("left")
            missing = inbox.messages[Key(0, 1, 0)].next if inbox.messages else 0
            with pytest.raises(BadFrameError, match="came before") if number > missing else nullcontext():
                await door.offer(frames[number])
        for data in frames:
            await door.offer(data)
        message = await door.receiver.inbox("left").message(Key(0, 1, 0), 96)
        assert message.values.tolist() == [float(i) for i in range(24)]

    asyncio.run(offer())


async def test_the_first_of_a_key_wins_and_the_conflict_is_reported_once() -> None:
    door = Door()
    await door.offer(frame())
    for _ in range(50):
        await door.offer(frame())
        await door.offer(frame([2.0] * FLOATS))
        await door.offer(frame([1.0] * 3))
    message = await door.receiver.inbox("left").message(Key(0, 1, 0), 96)
    assert message.values.tolist() == [1.0] * FLOATS
    assert [event.name for event in door.reported] == ["conflict"]
    assert door.receiver.refusals.counts.total() == 100


async def test_a_replay_of_an_earlier_round_is_dropped() -> None:
    door = Door()
    await door.offer(frame())
    door.receiver.begin(2)
    await door.offer(frame())
    assert not door.receiver.inbox("left").messages


@given(st.binary(max_size=200))
@QUICK
def test_a_hello_of_random_bytes_is_read_or_refused(data: bytes) -> None:
    with suppress(BadFrameError):
        UntrustedDecoder(LIMITS, 3).hello(data)


@pytest.mark.parametrize(
    ("said", "reason"),
    [
        (hello(version=1), Refusal.VERSION),
        (hello(to="you"), Refusal.IDENTITY),
        (hello(spec={"seed": "1"}), Refusal.FEDERATION),
        (hello(spec={f"key{i}": "x" for i in range(200)}), Refusal.FEDERATION),
        (hello(manifest="other"), Refusal.MANIFEST),
        (hello("far"), Refusal.STRANGER),
        (hello("right"), Refusal.STRANGER),
        (hello("x" * 4000), Refusal.STRANGER),
    ],
    ids=["version", "to", "seed", "200 keys", "manifest", "no neighbour", "not a sender", "long id"],
)
async def test_a_wrong_hello_is_answered_with_the_reason(said: bytes, reason: "Refusal.Reason.ValueType") -> None:
    door = Door(timeouts=Timeouts(newcomer_timeout=0.1))
    for _ in range(3):
        caller, pipe = pipes()
        await caller.send(said)
        await door.receiver.serve_tensors(pipe)
        assert (await answer(caller)).refusal.reason == reason
    [event] = door.reported
    assert isinstance(event, CallerRefused)
    assert all(len(text) <= LIMITS.characters for text in (event.caller, event.origin, event.reason))
    assert not door.receiver.inboxes


async def test_who_is_in_another_view_is_refused_and_nothing_is_wrong() -> None:
    """Two that hear of a new view one after the other."""
    door = Door()
    caller, pipe = pipes()
    await caller.send(hello(view=1))
    await door.receiver.serve_tensors(pipe)
    assert (await answer(caller)).refusal.reason == Refusal.VIEW
    assert not door.reported


async def test_a_former_neighbour_that_calls_is_no_news_and_one_that_goes_on_calling_is() -> None:
    """It may not have heard yet that it is none any more."""
    door = Door(timeouts=Timeouts(newcomer_timeout=0.01))
    door.edges.neighbours["left"].progress.acked_durable = 2
    door.edges.use(2, ["right"], [])
    assert door.edges.retire({"left": 3}, 3) == ["left"]
    for told in [0] * LIMITS.belated + [1] * 3:
        caller, pipe = pipes()
        await caller.send(hello())
        await door.receiver.serve_tensors(pipe)
        refusal = (await answer(caller)).refusal
        assert (refusal.reason, refusal.HasField("durable")) == (Refusal.STRANGER, True)
        assert len(door.reported) == told


async def test_who_is_behind_does_not_wait_to_become_a_neighbour() -> None:
    """It knows of no order of the ring that is not known here."""
    door = Door(timeouts=Timeouts(newcomer_timeout=1e9))
    door.state.round = 3
    caller, pipe = pipes()
    await caller.send(hello("far", round=2))
    await door.receiver.serve_tensors(pipe)
    assert (await answer(caller)).refusal.reason == Refusal.STRANGER
    assert len(door.reported) == 1


async def test_a_peer_that_does_not_know_its_neighbours_yet_calls_nobody_a_stranger() -> None:
    """It is still reading its checkpoint; the caller dials again."""
    door = Door(timeouts=Timeouts(newcomer_timeout=0.01))
    door.edges.known = False
    caller, pipe = pipes()
    await caller.send(hello("far", round=1))
    with pytest.raises(transport.DisconnectedError, match="not read its checkpoint"):
        await door.receiver.serve_tensors(pipe)
    assert not door.reported


def test_who_is_in_an_earlier_view_is_told_how_far_the_other_is() -> None:
    """Its last word there may be lost on the way, and there is no other; more than one view may lie between."""
    there = Identity("me", SPEC, MANIFEST.digest, view=3, passed={2: 9, 1: 8})
    told = [there.check(Hello.FromString(hello(view=view)), None) for view in range(4)]
    assert [refusal and refusal.HasField("durable") and refusal.durable for refusal in told] == [False, 8, 9, None]


async def test_a_hello_longer_than_any_is_not_read() -> None:
    door = Door()
    caller, pipe = pipes()
    await caller.send(hello(spec={f"key{i}": "x" for i in range(5000)}))
    with pytest.raises(transport.DisconnectedError, match="at most 4864 belong there"):
        await door.receiver.serve_tensors(pipe)


async def test_who_is_too_far_ahead_waits_until_this_peer_is_there() -> None:
    door = Door()
    far = 1 + STALENESS_BOUND + 1
    taking = asyncio.create_task(door.offer(frame(round=far)))
    await asyncio.sleep(0)
    assert not taking.done()
    door.receiver.begin(2)
    await taking
    assert list(door.receiver.inbox("left").messages) == [Key(0, far, 0)]


async def test_who_is_first_in_a_new_order_waits_for_the_other() -> None:
    door = Door()
    caller, pipe = pipes()
    stream = asyncio.create_task(door.receiver.serve_tensors(pipe))
    await caller.send(hello("far", round=1))
    await asyncio.sleep(0.05)
    assert not stream.done()
    door.edges.use(1, ["right"], ["far"])
    assert (await answer(caller)).HasField("welcome")
    assert not door.reported
    caller.abort()
    with pytest.raises(transport.DisconnectedError):
        await stream


@pytest.mark.parametrize("fault", [frame()[:-1], frame(payload=9), b"\xff" * 70])
async def test_a_bad_frame_ends_its_stream_and_the_next_one_goes_on(fault: bytes) -> None:
    door = Door()
    for data, welcome in ((fault, True), (frame(), False)):
        caller, pipe = pipes()
        stream = asyncio.create_task(door.receiver.serve_tensors(pipe))
        await caller.send(hello())
        assert (await answer(caller)).HasField("welcome")
        await caller.send(data)
        if welcome:
            assert (await answer(caller)).refusal.reason in (Refusal.DAMAGED, Refusal.UNDECLARED)
            await stream
    message = await door.receiver.inbox("left").message(Key(0, 1, 0), 96)
    assert message.has(message.heading.length)
    caller.abort()
    with pytest.raises(transport.DisconnectedError):
        await stream


async def test_callers_who_say_nothing_are_let_go() -> None:
    door = Door(timeouts=Timeouts(hello=0.05))
    streams = [asyncio.create_task(door.receiver.serve_tensors(pipes()[1])) for _ in range(300)]
    results = await asyncio.wait_for(asyncio.gather(*streams, return_exceptions=True), 10)
    assert all(isinstance(result, transport.DisconnectedError) for result in results)
    assert len(door.reported) == 1


async def test_a_flood_of_made_up_callers_stays_small() -> None:
    door = Door()
    for number in range(3 * LIMITS.causes):
        caller, pipe = pipes()
        await caller.send(hello(f"stranger{number}"))
        await door.receiver.serve_tensors(pipe)
    assert len(door.reported) <= LIMITS.causes + 1
    assert len(door.receiver.refusals.counts) <= LIMITS.causes + 1
    assert door.receiver.refusals.counts.total() == 3 * LIMITS.causes


async def test_of_a_welcome_nothing_stays_but_what_is_known_to_have_been_sent() -> None:
    """It may say of a million messages that they have arrived, and none of it is freed before its stream ends."""
    caller, pipe = pipes()
    told = [Position(round=2, step=step, next=1) for step in range(1000)]
    decoder = UntrustedDecoder(LIMITS, 3)
    for sent, kept in (({(2, 7), (3, 7)}, told[7:8]), (set[tuple[int, int]](), [])):
        await pipe.send(Reply(welcome=Welcome(durable=1, round=2, life=5, positions=told)).SerializeToString())
        welcome = await do_handshake(caller, hello(), 5, decoder, lambda sent=sent: sent)  # type: ignore[misc]
        assert welcome == Welcome(durable=1, round=2, life=5, positions=kept)


async def test_a_neighbour_that_sends_without_end_is_made_to_wait() -> None:
    """Of the largest messages that nobody asked for four are kept, each to its last frame; then the stream waits."""
    door = Door(limits=Limits(frame=4))
    caller, pipe = pipes()
    stream = asyncio.create_task(door.receiver.serve_tensors(pipe))
    await caller.send(hello())
    await answer(caller)
    values, scalars = struct.pack(f"<{FLOATS}f", *range(FLOATS)), bytes(8 * DOUBLES)

    def part(step: int, index: int) -> bytes:
        heading = Heading(Key(0, 1, step), 0, 0, DOUBLES, 0, len(values))
        return encode_frame(heading, index, scalars, memoryview(values)[4 * index : 4 * index + 4])

    async def flood() -> None:
        for step in range(4):
            await caller.send(part(step, 0))
        for index in range(1, FLOATS):
            for step in range(4):
                await caller.send(part(step, index))
        for step in range(4, 1000):
            await caller.send(part(step, 0))

    inbox, flooding = door.receiver.inbox("left"), asyncio.create_task(flood())
    async with asyncio.timeout(10):
        while inbox.held < 4 * MANIFEST.largest:  # noqa: ASYNC110 (it tells nobody what it holds)
            await asyncio.sleep(0)
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(flooding, 0.1)
    assert inbox.held == 4 * MANIFEST.largest
    message = await inbox.message(Key(0, 1, 0), len(values))
    inbox.consume(message)
    await inbox.message(Key(0, 1, 4), 1)
    stream.cancel()


def test_refusals_are_counted_by_cause() -> None:
    reported: list[str] = []
    refusals = Refusals(lambda event: reported.append(event.reason))  # type: ignore[attr-defined]
    for why in ("one", "two", "one", "y" * 10_000):
        refusals.add(CallerRefused(caller="a", origin="b", reason=why))
    assert reported == ["one", "two", "y" * LIMITS.characters]
    assert refusals.counts[("refused", "a", "one")] == 2
