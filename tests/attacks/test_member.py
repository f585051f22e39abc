"""A member that lies about others: its words end nobody, release nothing, and are on nobody's disk."""

import asyncio
import json
import signal
from pathlib import Path

import grpc
import psutil
import pytest
from certified import Member, Siege, channel, secured
from healing import healing
from hypothesis import given
from hypothesis import strategies as st
from liars import hello
from real_peers import Build, SmallFederation, digests, until

from peer.network.durability import NOTHING, Durability, ImpossibleError
from peer.network.neighbours import Edges
from peer.network.streams.link import KeptFrame, Outbox
from peer.network.transport import SERVICES
from peer.network.wire.frames import Key
from peer.network.wire.messages import SERVICE, Beat, Question, Welcome
from peer.versions import WIRE
from peer.views.statements import Ask, written
from peer.views.view import STALENESS_BOUND

FAR = 2**62
ROUNDS = 6
IDS = ("me", "left", "right", "far", "farther")
ONE = {"head_epochs": 1, "extractor_epochs": 1}
ORDERED = {"name": "fibfl++", "tau": 0.0, "reorder_every": 1, **ONE}


def remembered(federation: SmallFederation) -> dict[str, dict[str, int]]:
    """By peer, what the newest checkpoint says of the others' disks."""
    found = {}
    for id in federation.ids:
        newest = max((federation.directory / id / "checkpoint").glob("round-*.json"))
        found[id] = json.loads(newest.read_text())["content"]["facts"]["network"]["durable"]
    return found


@pytest.mark.parametrize("far", [FAR, pytest.param(ROUNDS, marks=pytest.mark.long)])
def test_hearsay_ends_nobody_and_is_on_no_disk(federation: Build, far: int) -> None:
    """peer4 tells its neighbours that everybody is further than anybody can be, or than they are; then runs on."""
    run = federation(ORDERED, 5, rounds=ROUNDS)
    expected = run.undisturbed()
    certs = secured(run)
    run.start("peer0", "peer1", "peer2", "peer3")
    for neighbour in ("peer0", "peer3"):
        with Member(run, certs, "peer4", neighbour) as liar:
            others = {id: far for id in run.ids if id not in ("peer4", neighbour)}
            assert liar.say(hello(run, "peer4", neighbour))
            assert liar.say(Beat(state="training", durable=NOTHING, others=others).SerializeToString())
            said = Beat(state="training", durable=NOTHING, others={neighbour: far})
            assert liar.say(said.SerializeToString())
            run.await_event(neighbour, "refused", caller="peer4")
    run.start("peer4")
    assert run.wait() == dict.fromkeys(run.ids, 0), run.account()
    assert digests(run.results()) == expected
    assert all(at <= ROUNDS for known in remembered(run).values() for at in known.values())
    for neighbour in ("peer0", "peer3"):
        told = [event for event in run.events(neighbour, "refused") if "compare its code" in event["reason"]]
        assert [event["caller"] for event in told] == ["peer4"], "named, and once"


def test_what_a_peer_has_is_for_itself_to_say(federation: Build) -> None:
    """A neighbour that tells a peer of its own disk, in every Beat: it goes on, and after a restart."""
    run = federation({"name": "fibfl", **ONE}, 3, rounds=ROUNDS)
    expected = run.undisturbed()
    certs = secured(run)
    run.start("peer0")
    run.await_event("peer0", "state", state="joining")
    for _ in range(2):
        with Member(run, certs, "peer2", "peer0") as liar:
            assert liar.say(hello(run, "peer2", "peer0"))
            for far in (FAR, ROUNDS, 0):
                assert liar.say(Beat(state="ready", durable=NOTHING, others={"peer0": far}).SerializeToString())
            run.await_event("peer0", "refused", caller="peer2")
        run.peers["peer0"].signal(signal.SIGKILL)
        run.peers["peer0"].wait()
        (run.directory / "peer0" / "events.jsonl").unlink()
        run.start("peer0")
    run.start("peer1", "peer2")
    assert run.wait() == dict.fromkeys(run.ids, 0), run.account()
    assert digests(run.results()) == expected


@pytest.mark.long
@pytest.mark.timeout(150)
def test_who_holds_all_the_connections_it_can_locks_nobody_out(federation: Build) -> None:
    """By questions about views, whose answers it does not read, to one that is no neighbour of its."""
    made = healing(federation, rounds=5000, absence=60)
    certs = secured(made)
    made.start()
    made.await_event("peer0", "round", round=1, seconds=60)
    question = Question(version=WIRE.writes, id="peer2", to="peer0", spec=made.spec.link_agreement.digests)
    said = question.SerializeToString(), written(Ask(0))
    with Siege(made, certs, "peer2", "peer0").by("Views", *said) as siege:
        siege.is_outlived(made)


words = st.dictionaries(st.sampled_from([*IDS, "stranger"]), st.integers(-3, ROUNDS + 3) | st.just(FAR))


@given(told=st.lists(st.tuples(st.sampled_from(["left", "right"]), words)), own=st.integers(0, ROUNDS))
async def test_hearsay_never_hurries(told: list[tuple[str, dict[str, int]]], own: int) -> None:
    """Whatever neighbours say of others: first-hand words stay as they are, and a peer goes no further for it."""
    edges = Edges({id: f"{id}:1" for id in IDS})
    edges.use(0, ["left", "right"], ["left", "right"])
    durability = Durability("me", edges, ROUNDS)
    durability.announce(own)
    durability.record_first_hand("left", 1)
    durability.record_first_hand("far", 0)  # it was a neighbour once
    before = dict(durability.first_hand)
    for teller, others in told:
        try:
            durability.record_relayed(teller, others)
        except ImpossibleError:
            assert others.keys() & {"me", teller, "stranger"} or any(not -1 <= at <= ROUNDS for at in others.values())
    assert durability.first_hand == before
    assert durability.low_watermark == NOTHING, "right has not spoken"
    durability.record_first_hand("right", 3)
    assert durability.low_watermark <= min(own, 1, 3)
    assert all(at <= ROUNDS for at in durability.relayed_for("left").values())
    assert not durability.relayed_for("left").keys() & {"me", "left"}


async def test_what_is_released_while_it_is_waited_for_ends_nobody() -> None:
    """A neighbour claims to have on disk what is just being written to it."""
    outbox = Outbox()
    waiting = asyncio.create_task(outbox.frame(0))
    await asyncio.sleep(0)
    outbox.append(KeptFrame(0, Key(0, 1, 0), 0, b"first"))
    outbox.release(ROUNDS)
    await asyncio.sleep(0)
    assert not waiting.done()
    outbox.append(KeptFrame(1, Key(0, ROUNDS + 1, 0), 0, b"second"))
    assert (await asyncio.wait_for(waiting, 5))[1].data == b"second"


async def test_a_claim_of_its_own_counts_for_so_many_rounds_only() -> None:
    edges = Edges({id: f"{id}:1" for id in IDS})
    edges.use(0, ["left"], ["left"])
    durability = Durability("me", edges, 1000)
    durability.announce(3)
    durability.record_first_hand("left", 1000)
    assert durability.of("left") == 3 + STALENESS_BOUND
    durability.announce(5)
    durability.record_first_hand("left", 1000)
    assert durability.of("left") == 5 + STALENESS_BOUND


async def test_words_that_come_late_are_no_loss() -> None:
    """A handshake of one incarnation may come after newer reports of another stream; of a new one, it shows a loss."""
    edges = Edges({id: f"{id}:1" for id in IDS})
    edges.use(0, ["left"], ["left"])
    durability = Durability("me", edges, ROUNDS)
    assert durability.lost("left", Welcome(life=1, durable=0, round=2)) is None
    durability.record_first_hand("left", 3)
    assert durability.lost("left", Welcome(life=1, durable=1, round=3)) is None
    assert durability.lost("left", Welcome(life=2, durable=2, round=4)) is None, "its newest checkpoint was damaged"
    assert "back in round 3" in (durability.lost("left", Welcome(life=3, durable=1, round=3)) or "")
    assert "back in round 3" in (durability.lost("left", Welcome(life=3, durable=1, round=3)) or ""), "and still is"


@pytest.mark.long
def test_a_peer_that_lost_its_disk_is_named_and_waits(federation: Build) -> None:
    """Nobody has the messages of the rounds that it had announced: its neighbours say so, and nothing is given up."""
    run = federation({"name": "fibfl", **ONE}, 3, rounds=ROUNDS, patience=10)
    expected = run.undisturbed()
    run.start()
    until(lambda: len(run.events("peer1", "round")) >= 3 or None, 30, "three rounds")
    run.peers["peer1"].signal(signal.SIGKILL)
    run.peers["peer1"].wait()
    checkpoints = run.directory / "peer1" / "checkpoint"
    away = checkpoints.rename(run.directory / "away")
    run.start("peer1")
    for neighbour in ("peer0", "peer2"):
        lost = run.await_event(neighbour, "regressed", neighbour="peer1")
        assert "put back a copy of its directory" in lost["sentence"]
    assert run.peers["peer1"].wait() == 1
    assert "gave up after 10 s of waiting for" in run.log("peer1")
    assert "put back a copy of its directory" in run.log("peer1")
    if checkpoints.exists():
        checkpoints.rename(run.directory / "begun anew")
    Path(away).rename(checkpoints)
    run.start("peer1")
    assert run.wait() == dict.fromkeys(run.ids, 0), run.account()
    assert digests(run.results()) == expected


@pytest.mark.parametrize("algorithm", [grpc.Compression.Gzip, grpc.Compression.Deflate], ids=["gzip", "deflate"])
def test_a_message_that_unfolds_is_not_unfolded_for_a_member(federation: Build, algorithm: grpc.Compression) -> None:
    run = federation({"name": "fibfl", **ONE})
    certs = secured(run)
    run.start("peer0")
    run.await_event("peer0", "state", state="joining")
    process, bomb = psutil.Process(run.peers["peer0"].pid), bytes(128 << 20)
    before = process.memory_info().rss
    with channel(run, certs, "peer1", "peer0", algorithm) as one:
        for service in SERVICES:
            call = one.stream_stream(f"/{SERVICE}/{service}")(iter([bomb]), timeout=30)
            assert call.code() == grpc.StatusCode.UNIMPLEMENTED
            assert "is disabled" in call.details()
    assert process.memory_info().rss - before < len(bomb) // 2
