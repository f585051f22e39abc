"""Which callers are let in, and which frames are accepted: real peers called by hand over gRPC."""

from typing import Any

import numpy as np
import pytest
from real_peers import Build, SmallFederation, until
from wire_client import OVER, SHOWN_OUT, Caller

from peer.learning.data.samples import Names
from peer.learning.model.shape_check import Example
from peer.learning.model.zoo import build
from peer.network.limits import UnknownCallerLimits
from peer.network.wire.frames import Heading, Key, encode_frame
from peer.network.wire.manifest import Manifest
from peer.network.wire.messages import Beat, Hello, Refusal
from peer.runtime.manifest import build_manifest
from peer.spec.federation import Spec
from peer.versions import WIRE

EXTRACTOR, MODEL = 116_352, 117_642


def declared(spec: Spec) -> Manifest:
    model = build("mlp", Example.zeros((1, 8, 8), 10), spec.seed)
    return build_manifest(spec.protocol.declarations(spec.rounds), model, spec.rounds, len(spec.ids), Names())


@pytest.fixture
def waiting(federation: Build) -> SmallFederation:
    """Five peers of which only peer0 runs: it waits for its neighbours, peer1 and peer4."""
    made = federation("fibfl+", 5)
    made.start("peer0")
    made.await_event("peer0", "state", state="joining")
    return made


def hello(federation: SmallFederation, **changes: Any) -> bytes:
    right = {"version": WIRE.writes, "id": "peer1", "to": "peer0", "spec": federation.spec.agreement.digests}
    right["manifest"] = declared(federation.spec).digest
    return Hello(**{**right, **changes}).SerializeToString()


def frame(
    round: int = 1, payload: int = 0, index: int = 0, floats: int = EXTRACTOR, offset: int = 0, doubles: int = 1,
    value: float = 0.0, view: int = 0,
) -> bytes:  # fmt: skip
    values = np.full(min(floats, 2**18), value, "<f4")
    scalars = np.zeros(doubles, "<f8").tobytes()
    heading = Heading(Key(view, round, 1 << 16), payload, 0, doubles, 4 * offset, 4 * floats)
    return encode_frame(heading, index, scalars, memoryview(values.tobytes()))


@pytest.mark.parametrize("service", ["Tensors", "Heartbeat"])
def test_a_stranger_is_refused(waiting: SmallFederation, service: str) -> None:
    other = waiting.spec.agreement.digests | {"seed": "0" * 64, "model": "1" * 64}
    without = {key: digest for key, digest in waiting.spec.agreement.digests.items() if key != "data"}
    cases: list[tuple[dict[str, Any], Refusal.Reason, list[str], str]] = [
        ({"id": "mallory"}, Refusal.STRANGER, [], "`mallory` is no neighbour of `peer0`"),
        ({"id": ""}, Refusal.STRANGER, [], "no neighbour"),
        ({"id": "peer2"}, Refusal.STRANGER, [], "`peer2` is no neighbour of `peer0`"),
        ({"id": "peer0"}, Refusal.STRANGER, [], "no neighbour"),
        ({"to": "peer3"}, Refusal.IDENTITY, [], "this is `peer0`"),
        ({"version": WIRE.writes + 1}, Refusal.VERSION, [], "speaks wire version"),
        ({"spec": other}, Refusal.FEDERATION, ["model", "seed"], "federation"),
        ({"spec": without}, Refusal.FEDERATION, ["data"], "federation"),
        ({"spec": {}}, Refusal.FEDERATION, sorted(waiting.spec.agreement.digests), "federation"),
        ({"manifest": "2" * 64}, Refusal.MANIFEST, ["inputs of shape (1, 8, 8)", "10 classes"], "tensors"),
        ({"view": 1}, Refusal.VIEW, [], "view"),
    ]
    for changes, reason, keys, detail in cases:
        with Caller(waiting.address("peer0"), service) as caller:
            reply = caller.say(hello(waiting, **changes))
            assert reply is not None
            assert reply.HasField("refusal"), changes
            assert (reply.refusal.reason, list(reply.refusal.keys)) == (reason, keys)
            assert detail in reply.refusal.detail
            assert caller.hear() is None  # the stream is over
    named = [event["caller"] for event in waiting.events("peer0", "refused")]
    assert {"mallory", "peer2"} <= set(named)
    assert any("model, seed" in event["reason"] for event in waiting.events("peer0", "refused"))


@pytest.mark.parametrize(
    "first",
    [b"\xff\xff\xff\xff garbage", b"", frame(), b"\x00" * (3 << 20)],
    ids=["garbage", "nothing", "a frame", "too long"],
)
@pytest.mark.parametrize("service", ["Tensors", "Heartbeat"])
def test_no_hello_no_answer(waiting: SmallFederation, service: str, first: bytes) -> None:
    over = SHOWN_OUT if len(first) > UnknownCallerLimits().received else OVER
    with Caller(waiting.address("peer0"), service, over) as caller:
        reply = caller.say(first)
        assert reply is None or reply.refusal.reason == Refusal.VERSION  # an empty Hello is one of version 0
    with Caller(waiting.address("peer0")) as caller:  # and the peer is as well as before
        reply = caller.say(hello(waiting))
        assert reply is not None
        assert reply.HasField("welcome")


UNDECLARED: dict[str, tuple[bytes, str]] = {
    "extractor and head": (frame(floats=MODEL), "bytes 0 to 470568 of `extractor`"),
    "head behind the extractor": (frame(offset=EXTRACTOR, floats=1290), "which has 465408"),
    "another payload": (frame(payload=1), "payload number 1 is not declared"),
    "more scalars": (frame(doubles=2), "2 scalars came with `extractor`"),
    "a round that is not": (frame(round=3), "not declared to travel in round 3"),
    "a round far ahead": (frame(round=2_000_000), "not declared to travel in round 2000000"),
    "not finite": (frame(value=float("nan")), "not finite"),
    "another view": (frame(view=1), "view 1"),
}


@pytest.mark.parametrize("wrong", UNDECLARED)
def test_what_is_not_declared_is_refused_by_the_receiver(waiting: SmallFederation, wrong: str) -> None:
    data, why = UNDECLARED[wrong]
    with Caller(waiting.address("peer0")) as caller:
        assert caller.say(hello(waiting)).HasField("welcome")  # type: ignore[union-attr]
        reply = caller.say(data)
        assert reply is not None
        assert reply.refusal.reason == Refusal.UNDECLARED
        assert why in reply.refusal.detail
        assert caller.hear() is None
    assert any(why in event["reason"] for event in waiting.events("peer0", "refused"))


def test_damage_is_told_and_the_stream_can_be_resumed(waiting: SmallFederation) -> None:
    whole = frame()
    flipped = bytearray(whole)
    flipped[5000] ^= 1
    for damaged in (bytes(flipped), whole[:1000], b"DFL1", whole + b"\0"):
        with Caller(waiting.address("peer0")) as caller:
            welcome = caller.say(hello(waiting))
            assert welcome is not None
            assert not welcome.welcome.positions
            assert caller.say(damaged).refusal.reason == Refusal.DAMAGED  # type: ignore[union-attr]
    with Caller(waiting.address("peer0")) as caller:
        caller.say(hello(waiting))
        caller._outgoing.put(whole)

        def position() -> list[tuple[int, int, int]]:
            with Caller(waiting.address("peer0")) as again:  # a new stream replaces the old
                reply = again.say(hello(waiting))
                assert reply is not None
                return [(at.round, at.step, at.next) for at in reply.welcome.positions]

        until(lambda: position() == [(1, 1 << 16, 1)], 10, "the frame has arrived")


def test_garbage_among_heartbeats(waiting: SmallFederation) -> None:
    with Caller(waiting.address("peer0"), "Heartbeat") as caller:
        welcome = caller.say(hello(waiting))
        assert welcome is not None
        assert welcome.welcome.durable == -1
        beat = caller.say(Beat(state="joining", durable=99, others={"mallory": 5, "peer0": 99}).SerializeToString())
        assert beat is not None
        assert beat.beat.state == "joining"
        reply = caller.say(b"\xff\xff garbage")
        while reply is not None:  # beats, and then the end
            assert reply.HasField("beat")
            reply = caller.hear()
