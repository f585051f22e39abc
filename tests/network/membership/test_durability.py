"""A peer that waits at the staleness bound says for whom, and for which round; but seldom."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from peer.network.durability import Durability
from peer.network.neighbours import Edges
from peer.network.network import Network
from peer.runtime.in_process import run_in_process
from peer.runtime.lifecycle import ReportIntervals, RuntimeLimits, await_staleness_bound
from peer.spec.federation import Spec
from peer.spec.loading import load_spec
from peer.telemetry.events import MAX_NAMED, Awaited, Event, Waiting
from peer.views.view import STALENESS_BOUND

SOON = 0.05
ROUNDS = 1000


def spec(directory: Path, peers: int) -> Spec:
    path = directory / "federation.yaml"
    protocol = {"name": "fibfl", "head_epochs": 1, "extractor_epochs": 1}
    data = {"name": "digits", "limit": 200}
    path.write_text(json.dumps({"rounds": 6, "protocol": protocol, "data": data}))
    return load_spec(path, peers=peers)


class Told:
    """Durable rounds, all but some far enough for `round`, and what is said by the one who waits to begin it."""

    def __init__(self, spec: Spec, behind: dict[str, int], round: int = 7) -> None:
        self.edges = Edges({member.id: member.address for member in spec.ring})
        self.durability, self.said = Durability("peer0", self.edges, ROUNDS), list[Waiting]()
        self.learn({id: behind.get(id, round - STALENESS_BOUND) for id in spec.ids})
        self.waiting = asyncio.create_task(await_staleness_bound(self.durability, spec, round, self.report, SOON))

    def learn(self, durable: dict[str, int]) -> None:
        for id, at in durable.items():
            self.durability.record_first_hand(id, at)

    def report(self, event: Event) -> None:
        assert isinstance(event, Waiting)
        assert event.cause == "staleness"
        self.said.append(event)


async def test_it_is_said_once_for_whom_and_that_it_is_over(tmp_path: Path) -> None:
    federation = spec(tmp_path, 6)
    told = Told(federation, {"peer3": 1, "peer4": -1})
    await asyncio.sleep(5 * SOON)
    [first] = told.said
    assert first.awaited == tuple(
        Awaited(id, federation.ring[i].address, f"{has} is known to be on disk, 3 is needed")
        for i, id, has in ((4, "peer4", "no round of it"), (3, "peer3", "only its round 1"))
    )
    assert first.sentence.startswith("round 7 cannot begin: waiting for peer4 at ")
    told.learn({"peer4": 3})
    await asyncio.sleep(3 * SOON)
    assert [one.id for one in told.said[1].awaited] == ["peer3"]
    assert not told.waiting.done()
    told.learn({"peer3": 3})
    await asyncio.wait_for(told.waiting, 5)
    over = "nobody is too far behind any more: round 7 begins"
    assert told.said[2:] == [Waiting(cause="staleness", awaited=(), sentence=over)]


async def test_a_short_wait_is_not_worth_a_word(tmp_path: Path) -> None:
    told = Told(spec(tmp_path, 3), {"peer1": 2})
    await asyncio.sleep(0)
    told.learn({"peer1": 3})
    await asyncio.wait_for(told.waiting, 5)
    assert told.said == []


async def test_nobody_waits_to_begin_a_round_that_is_not_played(tmp_path: Path) -> None:
    told = Told(spec(tmp_path, 3), {"peer1": 2})
    await asyncio.sleep(0)
    for last in (7, 6):
        assert not told.waiting.done()
        told.edges.end_after(last)
        told.durability.changed.set()
        await asyncio.sleep(0)
    await asyncio.wait_for(told.waiting, 5)


async def test_news_without_end_are_told_seldom(tmp_path: Path) -> None:
    """Everything that is heard wakes the peer; it speaks no oftener for that."""
    clock = asyncio.get_running_loop().time
    told, began = Told(spec(tmp_path, 3), {"peer1": 0}, round=1000), clock()
    for step in range(100):
        told.learn({"peer1": step})
        await asyncio.sleep(SOON / 20)
    assert 2 <= len(told.said) <= (clock() - began) / SOON + 2
    told.waiting.cancel()


async def test_of_a_crowd_the_furthest_behind_are_named(tmp_path: Path) -> None:
    told = Told(spec(tmp_path, 30), {f"peer{i}": 0 for i in range(5, 30)} | {"peer20": -1})
    await asyncio.sleep(3 * SOON)
    assert [one.id for one in told.said[0].awaited][:2] == ["peer20", "peer5"]
    assert len(told.said[0].awaited) == MAX_NAMED
    assert told.said[0].others == 25 - MAX_NAMED
    assert told.said[0].sentence.endswith(f" and {25 - MAX_NAMED} others")
    told.waiting.cancel()


async def test_a_peer_names_one_that_is_no_neighbour(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """peer2 keeps to itself what it has on disk, until peer0, two positions away, has said for whom it waits."""
    held: list[tuple[Network, int]] = []
    released = asyncio.Event()
    announce = Network.announce

    def keep(network: Network, durable: int) -> None:
        if network.identity.id == "peer2" and not released.is_set():
            held.append((network, durable))
        else:
            announce(network, durable)

    def events(kind: str) -> list[dict[str, Any]]:
        path = tmp_path / "peer0" / "events.jsonl"
        lines = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
        return [line for line in lines if line["event"] == kind]

    def waits() -> list[tuple[list[str], str]]:
        """For whom peer0 waits with a round, in its words; on a busy machine a peer waits for other reasons, too."""
        lines = [line for line in events("waiting") if line["cause"] == "staleness"]
        return [([one["id"] for one in line["for"]], line["sentence"]) for line in lines]

    async def let_go() -> None:
        while not any(ids == ["peer2"] for ids, _ in waits()):  # noqa: ASYNC110 (a file tells nobody that it has grown)
            await asyncio.sleep(0.02)
        assert events("state")[-1]["state"] == "ready"
        released.set()
        announce(*held[-1])

    monkeypatch.setattr(Network, "announce", keep)
    async with asyncio.timeout(30):
        await asyncio.gather(
            run_in_process(spec(tmp_path, 5), tmp_path, RuntimeLimits(reminders=ReportIntervals(behind=SOON))), let_go()
        )
    sentence = next(sentence for ids, sentence in waits() if ids == ["peer2"])
    assert sentence.startswith("round 4 cannot begin: waiting for peer2 at 127.0.0.1:")
    assert waits()[-1][0] == []
    assert len(events("round")) == 6
