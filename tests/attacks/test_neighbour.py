"""What a neighbour can do over its own link, and in plaintext anybody in its name: tell, refuse, open, replay, send."""

import asyncio
import json
import socket
import threading
import time
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from certified import Member, Siege, secured
from endless import endless
from liars import WELCOME, Answer, Liar, content, hello, impostor, saying_goodbye, status, welcoming
from real_peers import Build, BuildWatched, SmallFederation, digests, until
from strangers import MANIFEST, Door, answer, frame, pipes
from strangers import hello as small_hello

from peer.errors import FailedError
from peer.network.collectives import AllReduce, Collectives, Neighbourhood
from peer.network.limits import Limits
from peer.network.streams.link import MessageWriter
from peer.network.wire.messages import Beat, Refusal, Reply, Resources, Welcome
from peer.runtime.in_process import run_in_process
from peer.runtime.rounds.reports import UNDEFINED_FIGURE, WORST_FIGURE
from peer.runtime.runtime import Runtime
from peer.spec.federation import Spec
from peer.spec.loading import load_spec

ESCAPES = "\x1b[2J\r\n2026-01-01 00:00:00 forged line\x07"
QUICK = {"name": "fibfl", "head_epochs": 1, "extractor_epochs": 1}
FEDAVG = {"name": "fedavg", "epochs": 1}
ORDERED = {"name": "fibfl++", "head_epochs": 1, "extractor_epochs": 1, "warmup": 1}
FILES = 40_000
"""Bytes that all of a neighbour's words may add to a peer's files in the first minute, whatever it does."""


@contextmanager
def between_liars(federation: SmallFederation, answer: Answer) -> Iterator[tuple[Liar, Liar]]:
    """peer1 runs between two liars: peer0, which calls it, and peer2, which it calls."""
    with ExitStack() as stack:
        left, right = Liar(federation, "peer0"), Liar(federation, "peer2", answer)
        for liar in (left, right):
            stack.enter_context(liar.listening())
        federation.start("peer1")
        for liar in (left, right):
            said = stack.enter_context(liar.stream("peer1", "Tensors"))
            assert Reply.FromString(next(said)).HasField("welcome")
        yield left, right


def written(federation: SmallFederation, id: str) -> bytes:
    """All that a peer has written down of what it was told."""
    return b"".join(path.read_bytes() for path in (federation.directory / id / "events.jsonl", log(federation, id)))


def log(federation: SmallFederation, id: str) -> Path:
    return federation.directory / f"{id}.log"


@pytest.mark.parametrize("how", ["refusal", "error"])
def test_ever_other_refusals_fill_nothing(how: str, federation: Build) -> None:
    """A megabyte each, with escapes in it; the files, the log and Status stay small and whole."""
    made, number = federation(QUICK, patience=60), iter(range(10**9))

    def refuse(_service: str, said: Iterator[bytes]) -> Iterator[bytes]:
        next(said)
        detail = f"{next(number)} {ESCAPES} " + "x" * 900_000
        if how == "error":
            raise RuntimeError(detail[:1000])  # gRPC sends it along
        yield Reply(
            refusal=Refusal(reason=Refusal.FEDERATION, detail=detail, keys=[detail[:4000]] * 9)
        ).SerializeToString()

    with between_liars(made, refuse) as (_, right):
        until(lambda: min(right.streams.values()) >= 5, 30, "it tries again")
        told = status(made.address("peer1"))
        assert made.peers["peer1"].running
    words = "refused: its federation differs in" if how == "refusal" else "Exception iterating responses: "
    [reason] = [neighbour.reason for neighbour in told.neighbours if neighbour.id == "peer2"]
    assert reason.startswith(words)
    assert "?[2J" in reason
    assert len(written(made, "peer1")) < FILES
    assert all(len(str(value)) < 1000 for event in made.events("peer1") for value in event.values())
    assert made.log("peer1").replace("\n", "").isprintable()
    assert not any(line.startswith("2026-01-01") for line in made.log("peer1").splitlines())


def test_a_servers_last_words_are_not_written_down(federation: Build) -> None:
    """gRPC's own core would write them."""
    made = federation(QUICK, patience=60)
    with saying_goodbye(made.address("peer2"), ESCAPES + "goodbye" * 100) as times:
        made.start("peer1")
        until(lambda: times() > 5, 30, "it tries again")
        assert made.peers["peer1"].running
    assert b"goodbye" not in written(made, "peer1")
    assert made.log("peer1").replace("\n", "").isprintable()


def test_heartbeats_opened_and_cancelled_fill_nothing(federation: Build) -> None:
    made = federation(QUICK, patience=60)
    with between_liars(made, welcoming) as (left, _):
        left.flap("peer1", "Heartbeat", 400, Beat(state="training", durable=-1).SerializeToString())
        told = made.events("peer1", "link")
        assert made.peers["peer1"].running
    assert {event["state"] for event in told if event["neighbour"] == "peer0"} >= {"up", "down"}
    assert len(written(made, "peer1")) < FILES
    assert b"Traceback" not in written(made, "peer1")


def test_rounds_lost_and_there_again_fill_nothing(federation: Build) -> None:
    """It welcomes as one that has lost its only round, then as one that has it, and so on."""
    made, number = federation(QUICK, patience=60), iter(range(1, 10**9))

    def answer(service: str, said: Iterator[bytes]) -> Iterator[bytes]:
        if service == "Heartbeat":
            yield from welcoming(service, said)
        elif (life := next(number)) % 2:
            yield Reply(welcome=Welcome(durable=0, round=1, life=life)).SerializeToString()
        else:
            yield Reply(welcome=Welcome(durable=-1, round=0, life=life)).SerializeToString()

    right = Liar(made, "peer2", answer)
    with right.listening():
        made.start("peer1")
        until(lambda: right.streams["Tensors"] > 30, 40, "it tries again")
        assert made.peers["peer1"].running
    assert 1 < len(made.events("peer1", "regressed")) <= Limits().sayings + 3
    assert len(written(made, "peer1")) < FILES


def test_what_a_beat_says_is_bounded(federation: Build) -> None:
    """Impossible numbers and control characters are not passed on; a message longer than any is not read."""
    made = federation(QUICK, patience=60)
    rates = {f"peer0{ESCAPES}": 5.0, "peer1": float("nan"), "peer2": -1.0}
    foul = Resources(load=float("nan"), free_cpus=-4, cpus=3, gpu=ESCAPES + "x" * 2000, bytes_per_second=rates)
    with between_liars(made, welcoming) as (left, _):
        with left.stream(
            "peer1", "Heartbeat", Beat(state=ESCAPES, durable=-1, resources=foul).SerializeToString()
        ) as said:
            assert Reply.FromString(next(said)).HasField("welcome")
            seen = until(lambda: shown(made), 20, "its resources are shown")
        short, long = Beat(durable=-1), Beat(others={f"peer{i}": 1 for i in range(9000)})
        with left.stream("peer1", "Heartbeat", short.SerializeToString(), long.SerializeToString()) as said:
            content(said)
        reasons = until(
            lambda: [e["reason"] for e in made.events("peer1", "link") if "at most" in e["reason"]], 20, "it is told"
        )
    assert "bytes, and at most 13888 belong there" in reasons[0]
    assert (seen.load, seen.free_cpus, seen.cpus) == (0, 0, 3)
    assert len(seen.gpu) == 300
    assert seen.gpu.isprintable()
    assert [(rate > 0, name.isprintable()) for name, rate in seen.bytes_per_second.items()] == [(True, True)]


def shown(made: SmallFederation) -> Resources | None:
    """What peer1 shows of peer0's resources."""
    left = next(neighbour for neighbour in status(made.address("peer1")).neighbours if neighbour.id == "peer0")
    return left.resources if left.HasField("resources") else None


def test_endless_damage_is_told_and_seldom_sent(federation: Build) -> None:
    made, came = federation(QUICK, patience=60), list[float]()

    def damaged(service: str, said: Iterator[bytes]) -> Iterator[bytes]:
        if service == "Heartbeat":
            yield from welcoming(service, said)
            return
        came.append(time.monotonic())
        next(said)
        yield WELCOME
        next(said)
        yield Reply(
            refusal=Refusal(reason=Refusal.DAMAGED, detail="frame refused: its checksum is wrong")
        ).SerializeToString()

    with between_liars(made, damaged) as (_, right):
        told = made.await_event("peer1", "link", neighbour="peer2", state="suspected")
        until(lambda: len(came) >= 7, 60, "it tries again")
        # Six pauses, of 3.75 s in all; a busy machine makes them longer.
        assert came[6] - came[0] > 2
        assert next(n for n in status(made.address("peer1")).neighbours if n.id == "peer2").state == "suspected"
        assert made.peers["peer1"].running
    assert "it does not take what is sent to it: refused: frame refused: its checksum is wrong" in told["reason"]
    assert right.received < 30 << 20
    assert len(written(made, "peer1")) < FILES


def test_an_answer_that_is_none_is_no_welcome(federation: Build) -> None:
    """It would count as one that has round 0 on disk."""
    made = federation(QUICK, patience=60)

    def nothing(_service: str, said: Iterator[bytes]) -> Iterator[bytes]:
        next(said)
        yield Reply(beat=Beat()).SerializeToString()
        content(said)

    with between_liars(made, nothing):
        waiting = until(
            lambda: [e for e in made.events("peer1", "waiting") if "neither a welcome" in e["sentence"]],
            20,
            "it is told",
        )
        assert status(made.address("peer1")).neighbours[0].durable == -1
    assert waiting


@pytest.mark.parametrize("service", ["Tensors", "Heartbeat"])
def test_streams_that_say_nothing_stop_no_ring(service: str, federation: Build) -> None:
    """Without certificates anybody who knows the spec can open them, in anybody's name."""
    made = federation(QUICK, rounds=12)
    expected = made.undisturbed()
    with impostor(made, service=service) as opened:
        ended = digests(made.run())
    assert opened() > 100
    assert ended == expected


def test_beats_in_anothers_name_stop_no_ring(federation: Build) -> None:
    made = federation(QUICK, rounds=12)
    expected = made.undisturbed()
    with impostor(made, Beat(state="training", round=3, durable=-1).SerializeToString(), service="Heartbeat"):
        ended = digests(made.run())
    assert ended == expected
    assert all(len(written(made, id)) < FILES for id in made.ids)


@pytest.mark.long
def test_a_farewell_before_the_end_hides_no_silence(federation: Build) -> None:
    """What both neighbours say, that the last of three rounds is on their disks, is believed; then they fall silent."""
    made = federation(QUICK, rounds=3, patience=6, on_loss="stop")
    go, spoken = threading.Event(), list[str]()
    alive = Beat(state="training", round=1, durable=-1)
    farewell = Beat(state="done", round=3, durable=3, heard=3)

    def answer(service: str, said: Iterator[bytes]) -> Iterator[bytes]:
        next(said)
        yield WELCOME
        if service == "Heartbeat" and not spoken:
            spoken.append(service)
            while not go.wait(0.3):
                yield Reply(beat=alive).SerializeToString()
            yield Reply(beat=farewell).SerializeToString()
        for _ in said:
            pass

    with ExitStack() as stack:
        left, right = Liar(made, "peer0", answer), Liar(made, "peer2", answer)
        for liar in (left, right):
            stack.enter_context(liar.listening())
        made.start("peer1")
        for liar in (left, right):
            next(stack.enter_context(liar.stream("peer1", "Tensors")))
        made.await_event("peer1", "state", state="communicating")
        stack.enter_context(left.stream("peer1", "Heartbeat", farewell.SerializeToString()))
        go.set()
        until(lambda: not made.peers["peer1"].running, 45, "it ends, as on_loss: stop says")
    assert "silent for" in made.events("peer1", "failed")[-1]["message"]


def test_recorded_connections_change_nothing(watched: BuildWatched) -> None:
    """Every byte of every connection so far, said again to every peer, in a later round."""
    made, proxies = watched(QUICK, rounds=30)
    expected = made.undisturbed()
    made.start()
    made.await_event("peer0", "round", round=4)
    recorded = [bytes(connection.forth) for connection in proxies.connections if connection.edge]
    assert recorded
    with ExitStack() as open:
        for id in made.ids:
            for said in recorded:
                replay = open.enter_context(socket.create_connection(address(made, id), timeout=5))
                replay.setblocking(False)
                said = said[: replay.send(said)]
        assert made.wait() == dict.fromkeys(made.ids, 0), made.account()
    assert digests(made.results()) == expected
    meant_for_others = [one for id in made.ids for one in made.events(id, "refused") if "this is `" in one["reason"]]
    assert meant_for_others


def address(made: SmallFederation, id: str) -> tuple[str, int]:
    host, _, port = made.address(id).rpartition(":")
    return host, int(port)


@pytest.mark.long
@pytest.mark.timeout(150)
def test_who_holds_all_the_connections_it_can_locks_nobody_out(federation: Build) -> None:
    """By heartbeats whose Welcome it does not read, beside its own peer; another neighbour comes back meanwhile."""
    made = endless(federation)
    certs = secured(made)
    made.start()
    made.await_event("peer0", "round", round=1, seconds=60)
    welcome = hello(made, "peer2", "peer0", durable=made.spec.rounds)
    with Siege(made, certs, "peer2", "peer0").by("Heartbeat", welcome) as siege:
        siege.is_outlived(made)


@pytest.mark.parametrize("service", ["Tensors", "Heartbeat"])
def test_another_member_cannot_say_a_recorded_hello(service: str, federation: Build) -> None:
    made = federation(QUICK, patience=60)
    certs = secured(made)
    made.start("peer1")
    made.await_event("peer1", "state", state="joining")
    with Member(made, certs, "peer2", "peer1", service) as other:
        answered = other.say(hello(made, "peer0", "peer1"))
        assert answered is not None
        assert answered.refusal.reason == Refusal.IDENTITY
    refused = made.await_event("peer1", "refused", caller="peer0")
    assert refused["reason"] == "the certificate is made out to `peer2`, not to `peer0`"
    assert not status_of_links(made)


def status_of_links(made: SmallFederation) -> list[str]:
    return [event["state"] for event in made.events("peer1", "link")]


def four(directory: Path, protocol: dict[str, object], **keys: object) -> Spec:
    directory.mkdir()
    path = directory / "federation.yaml"
    content = {"rounds": 3, "protocol": protocol, "data": {"name": "digits", "limit": 200}, **keys}
    path.write_text(json.dumps(content))
    return load_spec(path, peers=4)


async def models(run: Spec, out: Path) -> dict[str, str]:
    return {id: one.setup.model.sha256() for id, one in (await run_in_process(run, out)).items()}


def from_peer1(told: Callable[[float], float]) -> Callable[..., MessageWriter]:
    """Sums of weights as peer1 tells them in round 2; everybody else, and it in other rounds, tells the truth."""
    message = AllReduce._message

    def lie(self: AllReduce, part: slice, s: int, weight: float) -> MessageWriter:
        lies = self.network.identity.id == "peer1" and self.call.round == 2
        return message(self, part, s, told(weight) if lies else weight)

    return lie


@pytest.mark.parametrize("told", [pytest.param(-1.0, marks=pytest.mark.long), -1e308, -0.5, 1e300])
async def test_a_sum_of_weights_that_cannot_be_names_who_tells_it(
    told: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And loses nothing: the same command without the liar ends in the bits of a run in which nobody lied."""
    run = four(tmp_path / "run", FEDAVG)
    with monkeypatch.context() as lying:
        lying.setattr(AllReduce, "_message", from_peer1(lambda weight: told))
        with pytest.raises(ExceptionGroup) as stopped:
            await models(run, tmp_path / "run")
    [error] = stopped.value.exceptions
    assert isinstance(error, FailedError)
    assert str(error) == (
        f"peer1 sent {told:g} as the sum of the weights in the mean of `model` in round 2, and weights are from 0 "
        "up, in all at most 3e+38; compare its code with this peer's"
    )
    assert await models(run, tmp_path / "run") == await models(four(tmp_path / "honest", FEDAVG), tmp_path / "honest")


async def test_a_part_that_makes_the_sum_overflow_names_who_sent_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    weighted_mean = Collectives.weighted_mean

    async def lie(
        self: Collectives, around: Neighbourhood, name: str, vector: torch.Tensor, weight: float, rounding: None
    ) -> None:
        if self._network.identity.id in ("peer0", "peer1"):  # one alone finds nothing to overflow with
            vector.zero_()[0] = 3e38
            weight = 1.0
        await weighted_mean(self, around, name, vector, weight, rounding)

    monkeypatch.setattr(Collectives, "weighted_mean", lie)
    with pytest.raises(ExceptionGroup) as stopped:
        await models(four(tmp_path / "run", FEDAVG), tmp_path / "run")
    said = [str(error) for error in stopped.value.exceptions]
    assert any(
        "once what peer0 sent was added, is not finite" in one and "compare what peer0 sends" in one for one in said
    )


@pytest.mark.parametrize("task", ["classification", "regression"])
@pytest.mark.parametrize("told", [0.0, -1.0, 1e300, 0.7])
async def test_proportions_that_are_none_stop_nobody(
    told: float, task: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    init = Runtime.__init__

    def lie(self: Runtime, *arguments: object) -> None:
        init(self, *arguments)  # type: ignore[arg-type]
        if self.peer.id == "peer1":
            self.participant.learner.proportions = torch.full((10,), told, dtype=torch.float64)

    monkeypatch.setattr(Runtime, "__init__", lie)
    run = four(tmp_path / "run", ORDERED, task=task)
    assert set(await models(run, tmp_path / "run")) == set(run.ids)
    [ordered] = [
        event
        for line in (tmp_path / "run" / "peer0" / "events.jsonl").read_text().splitlines()
        if (event := json.loads(line))["event"] == "ring"
    ]
    assert 0 <= ordered["cost_after"] <= ordered["cost_before"] <= 4


@pytest.mark.parametrize("told", [-1.0, 1e308])
async def test_accuracies_that_are_none_stop_nobody(
    told: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    exchange = Collectives.exchange

    def lie(self: Collectives, around: Neighbourhood, name: str, outgoing: object, expected: object) -> object:
        if self._network.identity.id != "peer0":
            outgoing = outgoing._replace(scalars={"accuracy": told})  # type: ignore[attr-defined]
        return exchange(self, around, name, outgoing, expected)  # type: ignore[arg-type]

    monkeypatch.setattr(Collectives, "exchange", lie)
    run = four(tmp_path / "run", ORDERED)
    assert set(await models(run, tmp_path / "run")) == set(run.ids)


@pytest.mark.parametrize("told", [UNDEFINED_FIGURE, -WORST_FIGURE, 1.7e308, -1.7e308])
async def test_figures_that_are_none_divide_nobody(
    told: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A liar can move the mean by which all end early; what it tells to all alike ends all after the same round."""
    gather = Collectives.gather

    def lie(self: Collectives, around: Neighbourhood, name: str, record: tuple[float, ...]) -> Any:
        lies = name == "stop_early" and self._network.identity.id == "peer1"
        return gather(self, around, name, (told,) if lies else record)

    monkeypatch.setattr(Collectives, "gather", lie)
    early = {"rounds": 5, "hold_back": 0.2, "stop_early": {"patience": 1}}
    run = four(tmp_path / "run", {"name": "fedavg", "epochs": 1}, **early)
    runtimes = await run_in_process(run, tmp_path / "run")
    assert len({runtime.network.last_round for runtime in runtimes.values()}) == 1


async def test_tiny_messages_take_no_more_than_is_promised() -> None:
    """What objects cost counts: a sender of ever other keys is made to wait before they take more than large ones."""
    limits = Limits(frame=1 << 16)
    door = Door(limits=limits)
    caller, pipe = pipes()
    flood = [frame([1.0], step=step, scalars=()) for step in range(3000)]
    promised = 4 * (MANIFEST.largest + limits.frame + limits.message)

    async def send() -> None:
        for data in flood:
            await caller.send(data)

    stream = asyncio.create_task(door.receiver.serve_tensors(pipe))
    await caller.send(small_hello())
    await answer(caller)
    tracemalloc.start()
    before, _ = tracemalloc.get_traced_memory()
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(send(), 1)
    taken = tracemalloc.get_traced_memory()[0] - before
    tracemalloc.stop()
    stream.cancel()
    assert 50 < len(door.receiver.inbox("left").messages) < 1000
    assert taken < promised
